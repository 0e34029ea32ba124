//! Devices and addresses in the kernel's messages (`IFLA_*`, `rtnl_fill_ifinfo`; `IFA_*`,
//! `inet_fill_ifaddr`, `inet6_fill_ifaddr`), and other notifications about devices.

use std::net::IpAddr;

use ipnet::IpNet;

use super::bridge;
use crate::event::Event;
use crate::kernel::{Address, Family, Ifindex, Netdev};
use tollway_linux::netlink::{Attribute, attributes, vlan_tag};
use tollway_linux::sys::netdevice::is_layer3;

/// Length of `struct ifinfomsg`.
const LINK: usize = 16;
/// Length of `struct ifaddrmsg`.
const ADDRESS: usize = 8;
/// Length of `struct netconfmsg`, rounded up.
const NETCONF: usize = 4;

/// `IFLA_*`.
mod ifla {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const IFNAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const LINK: u16 = 5;
    pub(super) const QDISC: u16 = 6;
    pub(super) const MASTER: u16 = 10;
    pub(super) const WIRELESS: u16 = 11;
    pub(super) const LINKINFO: u16 = 18;
    pub(super) const PROMISCUITY: u16 = 30;
    pub(super) const LINK_NETNSID: u16 = 37;
    pub(super) const XDP: u16 = 43;
}

/// The device in the body of an `RTM_NEWLINK` or `RTM_DELLINK`. `None` if the message is about another aspect
/// of the device: its membership of a bridge, or its IPv6 settings.
pub(super) fn read(body: &[u8]) -> Option<(Ifindex, Netdev)> {
    let [family, _, t0, t1, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *body.first_chunk::<LINK>()?;
    if family != 0 {
        return None;
    }
    let mut netdev = Netdev {
        is_layer3: is_layer3(u16::from_ne_bytes([t0, t1])),
        flags: u32::from_ne_bytes([f0, f1, f2, f3]),
        ..Netdev::default()
    };
    let mut has_foreign_lower = false;
    for attribute in attributes(body, LINK) {
        match attribute.kind {
            ifla::ADDRESS => netdev.mac = attribute.value.try_into().ok(),
            ifla::IFNAME => netdev.name = attribute.text(),
            ifla::MTU => netdev.mtu = attribute.u32().unwrap_or_default(),
            ifla::LINK => netdev.lower = attribute.u32().filter(|index| *index != 0),
            ifla::LINK_NETNSID => has_foreign_lower = true,
            ifla::QDISC => netdev.qdisc = attribute.text(),
            ifla::MASTER => netdev.master = attribute.u32().filter(|index| *index != 0),
            ifla::LINKINFO => attribute.nested().for_each(|info| describe(&mut netdev, info)),
            ifla::PROMISCUITY => {
                netdev.is_promiscuous = attribute.u32().is_some_and(|users| users > 0)
            }
            ifla::XDP => netdev.xdp = xdp_program(attribute),
            // A wireless event, without the properties of the device.
            ifla::WIRELESS => return None,
            _ => {}
        }
    }
    if has_foreign_lower {
        netdev.lower = None;
    }
    // Of other devices it does not matter, and changes with each capture.
    netdev.is_promiscuous &= netdev.bridge.is_some();
    Some((u32::from_ne_bytes([i0, i1, i2, i3]), netdev))
}

/// Reads the attributes nested in `IFLA_LINKINFO`; the kind precedes the attributes that depend on it.
fn describe(netdev: &mut Netdev, info: Attribute<'_>) {
    const KIND: u16 = 1;
    const DATA: u16 = 2;
    match (info.kind, netdev.kind.as_deref()) {
        (KIND, _) => netdev.kind = Some(info.text()),
        (DATA, Some(bridge::KIND)) => netdev.bridge = Some(bridge::settings(info)),
        (DATA, Some("vlan")) => netdev.vlan = vlan_tag(info),
        (DATA, Some("vrf")) => {
            const TABLE: u16 = 1;
            let table = info.nested().find(|part| part.kind == TABLE);
            netdev.vrf_table = table.and_then(|table| table.u32());
        }
        _ => {}
    }
}

/// The number of the XDP program, or of one of several, from an `IFLA_XDP`: with programs in two modes,
/// `IFLA_XDP_PROG_ID` is left out (`rtnl_xdp_fill`).
pub(crate) fn xdp_program(xdp: Attribute<'_>) -> Option<u32> {
    /// `IFLA_XDP_PROG_ID`, `IFLA_XDP_DRV_PROG_ID` and so on.
    const IDS: std::ops::RangeInclusive<u16> = 4..=7;
    let mut ids = xdp.nested().filter(|part| IDS.contains(&part.kind));
    ids.find_map(|part| part.u32().filter(|id| *id != 0))
}

/// Says whether an `IFLA_XDP` names a program in generic mode.
pub(crate) fn has_generic_xdp(xdp: Attribute<'_>) -> bool {
    /// `IFLA_XDP_SKB_PROG_ID`.
    const ID: u16 = 6;
    xdp.nested().any(|part| part.kind == ID && part.u32().is_some_and(|id| id != 0))
}

/// An address from the body of an `RTM_NEWADDR` or `RTM_DELADDR`.
pub(super) fn address(body: &[u8]) -> Option<Address> {
    const PEER: u16 = 1;
    const LOCAL: u16 = 2;
    const BROADCAST: u16 = 4;
    const FLAGS: u16 = 8;
    let [_, len, flags, _, index @ ..] = *body.first_chunk::<ADDRESS>()?;
    let (mut local, mut peer, mut broadcast, mut flags) = (None, None, None, u32::from(flags));
    for attribute in attributes(body, ADDRESS) {
        match attribute.kind {
            PEER => peer = attribute.address(),
            LOCAL => local = attribute.address(),
            BROADCAST => broadcast = attribute.address(),
            FLAGS => flags = attribute.u32().unwrap_or(flags),
            _ => {}
        }
    }
    let address = local.or(peer)?;
    let broadcast = broadcast.and_then(|address| match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    });
    Some(Address {
        ifindex: u32::from_ne_bytes(index),
        address: IpNet::new(address, len).ok()?,
        peer: peer.filter(|peer| *peer != address),
        broadcast,
        flags,
    })
}

/// The event that sysctls of a device have changed, from the body of an `RTM_NEWNETCONF`.
pub(super) fn netconf(body: &[u8]) -> Option<Event> {
    const IFINDEX: u16 = 1;
    let family = match i32::from(*body.first()?) {
        libc::AF_INET => Family::V4,
        libc::AF_INET6 => Family::V6,
        _ => return None,
    };
    let index = attributes(body, NETCONF).find(|attribute| attribute.kind == IFINDEX)?.u32()?;
    // `all` and `default` are negative.
    Some(Event::Sysctl(family, Some(index).filter(|index| *index <= i32::MAX as u32)))
}

/// The event that traffic control of a device has changed, from the body of an `RTM_NEWQDISC` or the like
/// (`struct tcmsg`).
pub(super) fn traffic_control(body: &[u8]) -> Option<Event> {
    let [_, _, _, _, index @ ..] = *body.first_chunk::<8>()?;
    let index = u32::from_ne_bytes(index);
    // `TCM_IFINDEX_MAGIC_BLOCK` denotes a block that devices share.
    Some(Event::Tc(Some(index).filter(|index| *index != u32::MAX)))
}
