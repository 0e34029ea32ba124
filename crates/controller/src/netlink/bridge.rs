//! Bridges and their ports in the kernel's messages (`IFLA_BR_*`, `br_fill_info`; `IFLA_BRPORT_*`,
//! `br_port_fill_attrs`).
//!
//! Messages of two families have the data of a port, in the same attributes. Those of `AF_UNSPEC` are about
//! the device, and have them in `IFLA_LINKINFO`; the list of devices is complete with regard to ports. Those of
//! `AF_BRIDGE` are about the port. For many changes the kernel sends only these: by bridge(8), by files in
//! `brport`, by the spanning tree protocol, with the carrier.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::kernel::{
    BridgePort, BridgePortFlag, BridgePortFlags, BridgePortState, BridgeSettings, Ifindex, Stp,
};
use tollway_linux::netlink::{Attribute, find};

/// Length of `struct ifinfomsg`.
const LINK: usize = 16;

/// The kind of bridges and their ports, in `IFLA_INFO_KIND` and `IFLA_INFO_SLAVE_KIND`.
pub(super) const KIND: &str = "bridge";

/// `IFLA_BR_*`. The others are timers and counters, which differ in each message, or affect no unicast.
mod br {
    pub(super) const FORWARD_DELAY: u16 = 1;
    pub(super) const AGEING_TIME: u16 = 4;
    pub(super) const STP_STATE: u16 = 5;
    pub(super) const VLAN_FILTERING: u16 = 7;
    pub(super) const VLAN_PROTOCOL: u16 = 8;
    pub(super) const NF_CALL_IPTABLES: u16 = 36;
    pub(super) const NF_CALL_IP6TABLES: u16 = 37;
    pub(super) const MULTI_BOOLOPT: u16 = 46;
}

/// `IFLA_BRPORT_*`.
mod brport {
    pub(super) const STATE: u16 = 1;
    pub(super) const MODE: u16 = 4;
    pub(super) const LEARNING: u16 = 8;
    pub(super) const UNICAST_FLOOD: u16 = 9;
    pub(super) const PROXYARP: u16 = 10;
    pub(super) const PROXYARP_WIFI: u16 = 12;
    pub(super) const VLAN_TUNNEL: u16 = 29;
    pub(super) const NEIGH_SUPPRESS: u16 = 32;
    pub(super) const ISOLATED: u16 = 33;
    pub(super) const BACKUP_PORT: u16 = 34;
    pub(super) const LOCKED: u16 = 39;
    pub(super) const MAB: u16 = 40;
    pub(super) const NEIGH_VLAN_SUPPRESS: u16 = 43;
    pub(super) const BACKUP_NHID: u16 = 44;
}

/// The settings of a bridge, from its `IFLA_INFO_DATA`.
pub(super) fn settings(data: Attribute<'_>) -> BridgeSettings {
    let mut settings = BridgeSettings::default();
    data.nested().for_each(|part| set(&mut settings, part));
    settings
}

fn set(settings: &mut BridgeSettings, part: Attribute<'_>) {
    let (duration, is_on) = (part.u32().map(clock), part.u8().is_some_and(|value| value != 0));
    match part.kind {
        br::FORWARD_DELAY => settings.forward_delay = duration.unwrap_or_default(),
        br::AGEING_TIME => settings.ageing_time = duration.unwrap_or_default(),
        br::STP_STATE => settings.stp = stp(part.u32().unwrap_or_default()),
        br::VLAN_FILTERING => settings.vlan_filtering = is_on,
        br::VLAN_PROTOCOL => {
            settings.vlan_protocol = part.u16().map_or(settings.vlan_protocol, u16::from_be);
        }
        br::NF_CALL_IPTABLES => settings.nf_call_iptables = is_on,
        br::NF_CALL_IP6TABLES => settings.nf_call_ip6tables = is_on,
        // `struct br_boolopt_multi` begins with the values.
        br::MULTI_BOOLOPT => settings.bool_options = part.u32().unwrap_or_default(),
        _ => {}
    }
}

/// A time in the kernel's messages (`clock_t`), of which a second has 100 on all architectures.
fn clock(ticks: u32) -> Duration {
    Duration::from_millis(u64::from(ticks) * 10)
}

const fn stp(state: u32) -> Stp {
    match state {
        0 => Stp::Off,
        1 => Stp::Kernel,
        _ => Stp::User,
    }
}

/// The port of a bridge in the body of an `RTM_NEWLINK`; none if the message does not say. Then the device
/// belongs to no bridge (`implicit_deletes.rs`), or the message is about something else.
pub(super) fn port(body: &[u8]) -> Option<(Ifindex, BridgePort)> {
    /// `IFLA_PROTINFO`.
    const PROTINFO: u16 = 12;
    let (family, index) = header(body)?;
    let data = match family {
        libc::AF_UNSPEC => slave_data(body)?,
        libc::AF_BRIDGE => find(body, LINK, PROTINFO)?,
        _ => return None,
    };
    Some((index, read_port(data)?))
}

/// The device in the body of an `RTM_DELLINK`, if the message says that it has left its bridge.
pub(super) fn gone_port(body: &[u8]) -> Option<Ifindex> {
    let (family, index) = header(body)?;
    (family == libc::AF_BRIDGE).then_some(index)
}

/// Family and device of a `struct ifinfomsg`.
fn header(body: &[u8]) -> Option<(i32, Ifindex)> {
    let [family, _, _, _, i0, i1, i2, i3, ..] = *body.first_chunk::<LINK>()?;
    Some((i32::from(family), u32::from_ne_bytes([i0, i1, i2, i3])))
}

/// What the bridge adds to the message about a device that belongs to it.
fn slave_data(body: &[u8]) -> Option<Attribute<'_>> {
    /// `IFLA_LINKINFO`, and in it `IFLA_INFO_SLAVE_*`.
    const LINKINFO: u16 = 18;
    const SLAVE_KIND: u16 = 4;
    const SLAVE_DATA: u16 = 5;
    let info = find(body, LINK, LINKINFO)?;
    let part = |kind| find(info.value, 0, kind);
    if part(SLAVE_KIND)?.text() != KIND {
        return None;
    }
    part(SLAVE_DATA)
}

/// A port from its attributes. Drivers send messages of `AF_BRIDGE` about devices, too, without a state
/// (`ndo_dflt_bridge_getlink`); these are about no port.
fn read_port(data: Attribute<'_>) -> Option<BridgePort> {
    let (mut state, mut flags) = (None, BridgePortFlags::default());
    let (mut backup_port, mut backup_nexthop) = (None, None);
    for part in data.nested() {
        match part.kind {
            brport::STATE => state = part.u8().map(port_state),
            brport::BACKUP_PORT => backup_port = part.u32().filter(|index| *index != 0),
            brport::BACKUP_NHID => backup_nexthop = part.u32().filter(|id| *id != 0),
            kind => {
                if let (Some(flag), Some(value)) = (port_flag(kind), part.u8()) {
                    flags = flags.with(flag, value != 0);
                }
            }
        }
    }
    Some(BridgePort { state: state?, flags, backup_port, backup_nexthop })
}

const fn port_state(state: u8) -> BridgePortState {
    match state {
        0 => BridgePortState::Disabled,
        1 => BridgePortState::Listening,
        2 => BridgePortState::Learning,
        3 => BridgePortState::Forwarding,
        4 => BridgePortState::Blocking,
        other => BridgePortState::Other(other),
    }
}

const fn port_flag(kind: u16) -> Option<BridgePortFlag> {
    Some(match kind {
        brport::MODE => BridgePortFlag::Hairpin,
        brport::LEARNING => BridgePortFlag::Learning,
        brport::UNICAST_FLOOD => BridgePortFlag::UnicastFlood,
        brport::PROXYARP => BridgePortFlag::ProxyArp,
        brport::PROXYARP_WIFI => BridgePortFlag::ProxyArpWifi,
        brport::VLAN_TUNNEL => BridgePortFlag::VlanTunnel,
        brport::NEIGH_SUPPRESS => BridgePortFlag::NeighSuppress,
        brport::NEIGH_VLAN_SUPPRESS => BridgePortFlag::NeighVlanSuppress,
        brport::ISOLATED => BridgePortFlag::Isolated,
        brport::LOCKED => BridgePortFlag::Locked,
        brport::MAB => BridgePortFlag::Mab,
        _ => return None,
    })
}
