//! Reads the kernel's messages about devices and neighbours, as far as they matter here.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};

/// A network device's number.
pub(super) type Ifindex = u32;

/// The key of a neighbour entry.
pub(super) type Key = (Ifindex, IpAddr);

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Netdev {
    pub(super) name: String,
    /// Its Ethernet address, if it has one.
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    /// For a VLAN device: the device below, the tag's identifier and protocol.
    pub(super) vlan: Option<(Ifindex, u16, u16)>,
}

/// The entry of a neighbour that packets can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighEntry {
    pub(super) mac: [u8; 6],
    /// The address has not been confirmed lately, and no confirmation is under way.
    pub(super) stale: bool,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A device exists, or exists no more.
    Link(Ifindex, Option<Netdev>),
    /// Packets can be sent to a neighbour, or cannot.
    Neigh(Key, Option<NeighEntry>),
}

/// Reads a message; none if it does not matter.
pub(super) fn read(message: &RouteNetlinkMessage) -> Option<Event> {
    match message {
        RouteNetlinkMessage::NewLink(link) => {
            Some(Event::Link(link.header.index, Some(netdev(link)?)))
        }
        // A bridge also sends `RTM_DELLINK` when a device is no longer its member.
        RouteNetlinkMessage::DelLink(link) if u8::from(link.header.interface_family) == 0 => {
            Some(Event::Link(link.header.index, None))
        }
        RouteNetlinkMessage::NewNeighbour(neigh) => Some(Event::Neigh(key(neigh)?, known(neigh))),
        RouteNetlinkMessage::DelNeighbour(neigh) => Some(Event::Neigh(key(neigh)?, None)),
        _ => None,
    }
}

fn netdev(message: &LinkMessage) -> Option<Netdev> {
    if u8::from(message.header.interface_family) != 0 {
        return None;
    }
    let up = message.header.flags.contains(LinkFlags::Up);
    let mut netdev = Netdev { name: String::new(), mac: None, mtu: 0, up, vlan: None };
    let (mut below, mut tag) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => netdev.name.clone_from(name),
            LinkAttribute::Address(bytes) => netdev.mac = bytes.as_slice().try_into().ok(),
            LinkAttribute::Mtu(mtu) => netdev.mtu = *mtu,
            LinkAttribute::Link(index) => below = Some(*index),
            LinkAttribute::LinkInfo(infos) => tag = infos.iter().find_map(vlan_tag),
            _ => {}
        }
    }
    netdev.vlan = below.zip(tag).map(|(below, (vid, protocol))| (below, vid, protocol));
    Some(netdev)
}

fn vlan_tag(info: &LinkInfo) -> Option<(u16, u16)> {
    let LinkInfo::Data(InfoData::Vlan(parts)) = info else { return None };
    let mut tag = (None, 0x8100);
    for part in parts {
        match part {
            InfoVlan::Id(vid) => tag.0 = Some(*vid),
            InfoVlan::Protocol(protocol) => tag.1 = *protocol as u16,
            _ => {}
        }
    }
    tag.0.map(|vid| (vid, tag.1))
}

/// The key of an entry; `None` if packets cannot be forwarded to the neighbour.
fn key(message: &NeighbourMessage) -> Option<Key> {
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })?;
    (!address.is_multicast()).then_some((message.header.ifindex, address))
}

/// The entry, if packets can be sent to it. Neighbours with a group's Ethernet address take the kernel path:
/// the kernel has such entries for broadcast addresses.
fn known(message: &NeighbourMessage) -> Option<NeighEntry> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let state = message.header.state;
    let usable = matches!(state, Reachable | Stale | Delay | Probe | Permanent | Noarp);
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok(),
        _ => None,
    })?;
    let one_station = mac[0] & 1 == 0 && mac != [0; 6];
    (usable && one_station).then_some(NeighEntry { mac, stale: state == Stale })
}
