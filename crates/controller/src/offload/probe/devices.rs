//! Properties from `RTM_GETLINK` that [`Netdev`](super::super::super::kernel::Netdev) does not have.

use std::collections::BTreeMap;
use std::io;

use crate::kernel::Ifindex;
use crate::netlink::{has_generic_xdp, link_body, xdp_program};
use tollway_linux::netlink::QuerySocket;
use tollway_linux::netlink::{Attribute, find};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_LINKINFO: u16 = 18;
const IFLA_XDP: u16 = 43;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_FLAGS: u16 = 2;
const IFLA_VLAN_EGRESS_QOS: u16 = 3;
const IFLA_VLAN_INGRESS_QOS: u16 = 4;
const IFLA_TUN_VNET_HDR: u16 = 5;
const IFLA_GRE_REMOTE: u16 = 7;
/// By the kinds of tunnels, the attribute that says that packets bring the tunnel's addresses (`external`).
const COLLECT_METADATA: [(&str, u16); 6] =
    [("vxlan", 25), ("geneve", 6), ("gre", 18), ("ip6gre", 18), ("ipip", 19), ("ip6tnl", 19)];
const VLAN_FLAG_REORDER_HDR: u32 = 1;
/// Bytes of `struct ifinfomsg`.
const IFINFO: usize = 16;

/// The properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkProperties {
    /// Its frames are Ethernet's (`ARPHRD_ETHER`).
    pub(super) ethernet: bool,
    /// For a VLAN device: it keeps tags in the frames that its taps see (`reorder_hdr off`).
    pub(super) keeps_tags: bool,
    /// For a VLAN device: some packets leave with a priority in their tag.
    pub(super) egress_qos: bool,
    /// For a VLAN device: some packets get a priority by their tag.
    pub(super) ingress_qos: bool,
    /// For a TAP device: its owner may leave checksums to others (`vnet_hdr`).
    pub(super) vnet_hdr: bool,
    /// For a tunnel: its packets bring, or are given, the other end's address (`external`, or gre without a remote one).
    pub(super) external: bool,
    /// The number of its XDP program.
    pub(super) xdp: Option<u32>,
    /// It has a program in generic mode.
    pub(super) generic_xdp: bool,
}

/// The properties of all devices.
///
/// # Errors
/// The kernel refused.
pub(super) fn link_properties(
    route: &mut QuerySocket,
) -> io::Result<BTreeMap<Ifindex, LinkProperties>> {
    let all = route.list(RTM_GETLINK, &link_body(0), |kind, body| {
        (kind == RTM_NEWLINK).then(|| properties(body)).flatten()
    })?;
    Ok(all.into_iter().collect())
}

fn properties(body: &[u8]) -> Option<(Ifindex, LinkProperties)> {
    let kind = u16::from_ne_bytes(*body.get(2..)?.first_chunk()?);
    let ifindex = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    // The message is truncated otherwise.
    body.get(..IFINFO)?;
    let info = find(body, IFINFO, IFLA_LINKINFO).map(|info| info.value).unwrap_or_default();
    let is = |name| find(info, 0, IFLA_INFO_KIND).is_some_and(|kind| kind.text() == name);
    let data = |name| find(info, 0, IFLA_INFO_DATA).filter(|_| is(name));
    let owner = data("tun").into_iter().flat_map(|data| data.nested());
    let mut vnet_hdr = owner.filter(|attribute| attribute.kind == IFLA_TUN_VNET_HDR);
    let external = COLLECT_METADATA.into_iter().any(|(kind, attribute)| {
        data(kind).is_some_and(|data| {
            data.nested().any(|found| found.kind == attribute && found.value != [0])
        })
    });
    // Without one other end, packets have a header of layer 2: the tunnel's (`ipgre_header_ops`).
    let is_open = data("gre").is_some_and(|data| {
        let remote = data.nested().find(|found| found.kind == IFLA_GRE_REMOTE);
        remote.is_none_or(|remote| matches!(remote.value, [0 | 224..=239, ..] | []))
    });
    let data = data("vlan");
    // `struct ifla_vlan_flags`: the flags, then their mask.
    let flags = data.map(|data| {
        let flags = data.nested().find(|attribute| attribute.kind == IFLA_VLAN_FLAGS);
        flags.and_then(|flags| flags.u32()).unwrap_or_default()
    });
    let maps = |kind| {
        let maps = data.into_iter().flat_map(|data| data.nested());
        let mut maps = maps.filter(|map| map.kind == kind).flat_map(|map| map.nested());
        maps.any(|mapping| marks(&mapping))
    };
    let xdp = find(body, IFINFO, IFLA_XDP);
    let properties = LinkProperties {
        ethernet: kind == libc::ARPHRD_ETHER,
        keeps_tags: flags.is_some_and(|flags| flags & VLAN_FLAG_REORDER_HDR == 0),
        egress_qos: maps(IFLA_VLAN_EGRESS_QOS),
        ingress_qos: maps(IFLA_VLAN_INGRESS_QOS),
        vnet_hdr: vnet_hdr.any(|attribute| attribute.value != [0]),
        external: external || is_open,
        xdp: xdp.and_then(xdp_program),
        generic_xdp: xdp.is_some_and(has_generic_xdp),
    };
    Some((ifindex, properties))
}

/// Says whether packets get a priority (`struct ifla_vlan_qos_mapping`: from, to).
fn marks(mapping: &Attribute<'_>) -> bool {
    let to = mapping.value.get(4..).and_then(<[u8]>::first_chunk);
    to.is_some_and(|to| u32::from_ne_bytes(*to) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_linux::netlink::push;

    /// A message about device 7 of a kind.
    fn message(kind: u16, info: &[u8]) -> Vec<u8> {
        let mut body = vec![0; IFINFO];
        body[2..4].copy_from_slice(&kind.to_ne_bytes());
        body[4] = 7;
        push(&mut body, IFLA_LINKINFO, info);
        body
    }

    /// The properties of a VLAN device.
    fn vlan(flags: u32, egress: &[(u32, u32)], ingress: &[(u32, u32)]) -> Vec<u8> {
        let (mut data, mut info) = (Vec::new(), Vec::new());
        let words = |a: u32, b: u32| [a.to_ne_bytes(), b.to_ne_bytes()].concat();
        push(&mut data, IFLA_VLAN_FLAGS, &words(flags, u32::MAX));
        for (kind, map) in [(IFLA_VLAN_EGRESS_QOS, egress), (IFLA_VLAN_INGRESS_QOS, ingress)] {
            let mut maps = Vec::new();
            map.iter().for_each(|(from, to)| push(&mut maps, 1, &words(*from, *to)));
            push(&mut data, kind, &maps);
        }
        push(&mut info, IFLA_INFO_KIND, b"vlan\0");
        push(&mut info, IFLA_INFO_DATA, &data);
        message(1, &info)
    }

    /// A device of a kind that has one property.
    fn with_one(kind: &str, attribute: u16, value: &[u8]) -> Vec<u8> {
        let (mut data, mut info) = (Vec::new(), Vec::new());
        push(&mut data, attribute, value);
        push(&mut info, IFLA_INFO_KIND, format!("{kind}\0").as_bytes());
        push(&mut info, IFLA_INFO_DATA, &data);
        message(1, &info)
    }

    /// The properties of a TAP device.
    fn tap(vnet_hdr: u8) -> Vec<u8> {
        with_one("tun", IFLA_TUN_VNET_HDR, &[vnet_hdr])
    }

    #[test]
    fn natures_of_devices_are_read() {
        let plain = LinkProperties {
            ethernet: true,
            keeps_tags: false,
            egress_qos: false,
            ingress_qos: false,
            vnet_hdr: false,
            external: false,
            xdp: None,
            generic_xdp: false,
        };
        assert_eq!(properties(&message(1, &[])), Some((7, plain)));
        assert_eq!(
            properties(&message(65534, &[])),
            Some((7, LinkProperties { ethernet: false, ..plain })),
            "a tunnel"
        );
        assert_eq!(properties(&vlan(1, &[], &[])), Some((7, plain)));
        let to_0 = vlan(1, &[(3, 0)], &[(2, 0)]);
        assert_eq!(properties(&to_0), Some((7, plain)), "to priority 0, as all are");
        assert_eq!(
            properties(&vlan(0, &[(3, 0), (4, 5)], &[])),
            Some((7, LinkProperties { keeps_tags: true, egress_qos: true, ..plain }))
        );
        assert_eq!(
            properties(&vlan(1, &[], &[(1, 0), (2, 6)])),
            Some((7, LinkProperties { ingress_qos: true, ..plain }))
        );
        assert_eq!(properties(&tap(0)), Some((7, plain)));
        assert_eq!(properties(&tap(1)), Some((7, LinkProperties { vnet_hdr: true, ..plain })));
        let external = LinkProperties { external: true, ..plain };
        assert_eq!(properties(&with_one("vxlan", 25, &[0])), Some((7, plain)));
        assert_eq!(properties(&with_one("vxlan", 25, &[1])), Some((7, external)));
        assert_eq!(properties(&with_one("geneve", 6, &[])), Some((7, external)));
        assert_eq!(properties(&with_one("gre", 7, &[192, 0, 2, 1])), Some((7, plain)));
        for open in [&with_one("gre", 7, &[0; 4]), &with_one("gre", 7, &[224, 0, 0, 5])] {
            assert_eq!(properties(open), Some((7, external)));
        }
        assert_eq!(properties(&with_one("gre", 6, &[192, 0, 2, 1])), Some((7, external)));
        let mut carrier = message(1, &[]);
        // In two modes: `IFLA_XDP_ATTACHED`, `IFLA_XDP_DRV_PROG_ID`, and no `IFLA_XDP_PROG_ID`.
        let mut modes = Vec::new();
        push(&mut modes, 5, &9_u32.to_ne_bytes());
        push(&mut modes, 2, &[4]);
        push(&mut carrier, IFLA_XDP, &modes);
        assert_eq!(properties(&carrier), Some((7, LinkProperties { xdp: Some(9), ..plain })));
        let mut carrier = message(1, &[]);
        let mut modes = Vec::new();
        // `IFLA_XDP_PROG_ID`, `IFLA_XDP_SKB_PROG_ID`.
        [4, 6].iter().for_each(|kind| push(&mut modes, *kind, &8_u32.to_ne_bytes()));
        push(&mut carrier, IFLA_XDP, &modes);
        let generic = LinkProperties { xdp: Some(8), generic_xdp: true, ..plain };
        assert_eq!(properties(&carrier), Some((7, generic)));
        let whole = vlan(0, &[(4, 5)], &[(1, 2)]);
        (0..IFINFO).for_each(|end| assert_eq!(properties(&whole[..end]), None, "{end}"));
        (IFINFO..whole.len()).for_each(|end| assert!(properties(&whole[..end]).is_some(), "{end}"));
    }
}
