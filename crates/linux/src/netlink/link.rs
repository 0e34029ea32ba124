//! Devices in messages (`IFLA_*`).

use super::bytes::Attribute;

/// The tag of a VLAN device, its identifier and protocol in host order, from `IFLA_INFO_DATA` of kind `vlan`
/// (`vlan_fill_info`, `net/8021q/vlan_netlink.c`).
pub fn vlan_tag(info: Attribute<'_>) -> Option<(u16, u16)> {
    const ID: u16 = 1;
    const PROTOCOL: u16 = 5;
    let (mut vid, mut protocol) = (None, 0x8100);
    for part in info.nested() {
        match part.kind {
            ID => vid = part.u16(),
            PROTOCOL => protocol = part.u16().map_or(protocol, u16::from_be),
            _ => {}
        }
    }
    vid.map(|vid| (vid, protocol))
}
