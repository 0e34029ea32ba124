//! What the kernel's messages say, as far as it matters here.

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

/// Whom a neighbour entry is about.
pub(super) type Key = (Ifindex, IpAddr);

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Netdev {
    pub(super) name: String,
    /// Its Ethernet address, if it has one.
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    /// Of a VLAN device: the device below, the tag's identifier and protocol.
    pub(super) vlan: Option<(Ifindex, u16, u16)>,
}

/// What is known of a neighbour that packets can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) mac: [u8; 6],
    /// Nobody has confirmed the address lately, and nobody is asking.
    pub(super) stale: bool,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A device is there, or is no more.
    Link(Ifindex, Option<Netdev>),
    /// A neighbour can be sent to, or can not.
    Neigh(Key, Option<Known>),
}

/// Reads a message; none for one that does not matter.
pub(super) fn read(message: &RouteNetlinkMessage) -> Option<Event> {
    match message {
        RouteNetlinkMessage::NewLink(link) => {
            Some(Event::Link(link.header.index, Some(netdev(link)?)))
        }
        // A bridge tells by such a message, too, that a device is no more its member.
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

/// Whom an entry is about; none where it can not be a neighbour that packets are forwarded to.
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

/// What can be sent to. A group's Ethernet address is left to the kernel: it has entries of that
/// kind for broadcast addresses.
fn known(message: &NeighbourMessage) -> Option<Known> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let state = message.header.state;
    let usable = matches!(state, Reachable | Stale | Delay | Probe | Permanent | Noarp);
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok(),
        _ => None,
    })?;
    let one_station = mac[0] & 1 == 0 && mac != [0; 6];
    (usable && one_station).then_some(Known { mac, stale: state == Stale })
}
