//! Reads the kernel's messages about devices and neighbours, as far as they matter here.

use std::net::IpAddr;

use tollway_linux::netlink::{Attribute, Message, attributes, push, vlan_tag};

/// A network device's number.
pub(super) type Ifindex = u32;

/// The key of a neighbour entry.
pub(super) type Key = (Ifindex, IpAddr);

/// `RTM_*`.
pub(super) mod is {
    pub(in crate::neighbours) const NEW_LINK: u16 = 16;
    pub(in crate::neighbours) const DEL_LINK: u16 = 17;
    pub(in crate::neighbours) const GET_LINK: u16 = 18;
    pub(in crate::neighbours) const NEW_NEIGH: u16 = 28;
    pub(in crate::neighbours) const DEL_NEIGH: u16 = 29;
    pub(in crate::neighbours) const GET_NEIGH: u16 = 30;
}

/// Length of `struct ifinfomsg`.
pub(super) const LINK: usize = 16;
/// Length of `struct ndmsg`.
pub(super) const NEIGH: usize = 12;
/// `NDA_DST`.
const DESTINATION: u16 = 1;
/// `NUD_STALE`.
const STALE: u16 = 0x04;
/// The states of an entry that packets can be sent by: `NUD_REACHABLE`, `NUD_STALE`, `NUD_DELAY`, `NUD_PROBE`,
/// `NUD_NOARP`, `NUD_PERMANENT`.
const USABLE: [u16; 6] = [0x02, STALE, 0x08, 0x10, 0x40, 0x80];

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

/// A message that is too short for its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutShort;

/// Reads a message; none if it does not matter.
///
/// # Errors
/// The message ends within its header.
pub(super) fn read(message: &Message<'_>) -> Result<Option<Event>, CutShort> {
    let body = message.body;
    let event = match message.kind {
        is::NEW_LINK | is::DEL_LINK => {
            let header = body.first_chunk::<LINK>().ok_or(CutShort)?;
            link(header, body, message.kind == is::NEW_LINK)
        }
        is::NEW_NEIGH | is::DEL_NEIGH => {
            let header = body.first_chunk::<NEIGH>().ok_or(CutShort)?;
            neigh(header, body, message.kind == is::NEW_NEIGH)
        }
        _ => None,
    };
    Ok(event)
}

fn link(header: &[u8; LINK], body: &[u8], exists: bool) -> Option<Event> {
    let [family, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *header;
    // A bridge also sends `RTM_DELLINK` when a device is no longer its member.
    if family != 0 {
        return None;
    }
    let index = u32::from_ne_bytes([i0, i1, i2, i3]);
    let up = u32::from_ne_bytes([f0, f1, f2, f3]) & libc::IFF_UP as u32 != 0;
    Some(Event::Link(index, exists.then(|| netdev(body, up))))
}

fn netdev(body: &[u8], up: bool) -> Netdev {
    const ADDRESS: u16 = 1;
    const IFNAME: u16 = 3;
    const MTU: u16 = 4;
    const LOWER: u16 = 5;
    const LINKINFO: u16 = 18;
    let mut netdev = Netdev { name: String::new(), mac: None, mtu: 0, up, vlan: None };
    let (mut below, mut tag) = (None, None);
    for attribute in attributes(body, LINK) {
        match attribute.kind {
            ADDRESS => netdev.mac = attribute.value.try_into().ok(),
            IFNAME => netdev.name = attribute.text(),
            MTU => netdev.mtu = attribute.u32().unwrap_or_default(),
            LOWER => below = attribute.u32(),
            LINKINFO => tag = vlan(attribute),
            _ => {}
        }
    }
    netdev.vlan = below.zip(tag).map(|(below, (vid, protocol))| (below, vid, protocol));
    netdev
}

/// The tag of a VLAN device, from its `IFLA_LINKINFO`.
fn vlan(info: Attribute<'_>) -> Option<(u16, u16)> {
    const KIND: u16 = 1;
    const DATA: u16 = 2;
    let part = |kind| info.nested().find(|part| part.kind == kind);
    part(KIND).filter(|kind| kind.text() == "vlan")?;
    vlan_tag(part(DATA)?)
}

fn neigh(header: &[u8; NEIGH], body: &[u8], exists: bool) -> Option<Event> {
    /// `NTF_PROXY`.
    const PROXY: u8 = 8;
    const LLADDR: u16 = 2;
    let [family, _, _, _, i0, i1, i2, i3, s0, s1, flags, _] = *header;
    // An entry of a bridge's or a VXLAN device's table may have an address, too: that of a tunnel's other end.
    let is_of_ip = [libc::AF_INET, libc::AF_INET6].contains(&i32::from(family));
    if !is_of_ip || flags & PROXY != 0 {
        return None;
    }
    let (mut address, mut mac) = (None, None);
    for attribute in attributes(body, NEIGH) {
        match attribute.kind {
            DESTINATION => address = attribute.address(),
            LLADDR => mac = attribute.value.try_into().ok(),
            _ => {}
        }
    }
    let address = address.filter(|address| !address.is_multicast())?;
    let key = (u32::from_ne_bytes([i0, i1, i2, i3]), address);
    let state = u16::from_ne_bytes([s0, s1]);
    let entry = mac.filter(|_| exists).and_then(|mac| usable(state, mac));
    Some(Event::Neigh(key, entry))
}

/// The entry, if packets can be sent to it. Neighbours with a group's Ethernet address take the kernel path:
/// the kernel has such entries for broadcast addresses.
fn usable(state: u16, mac: [u8; 6]) -> Option<NeighEntry> {
    let one_station = mac[0] & 1 == 0 && mac != [0; 6];
    (USABLE.contains(&state) && one_station).then_some(NeighEntry { mac, stale: state == STALE })
}

/// The body of an `RTM_NEWNEIGH` that makes the kernel confirm or resolve a neighbour (`NTF_USE`).
pub(super) fn use_neigh((ifindex, address): Key) -> Vec<u8> {
    /// `NTF_USE`.
    const USE: u8 = 1;
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, 0, 0, 0];
    body.extend(ifindex.to_ne_bytes());
    // No state.
    body.extend([0, 0, USE, 0]);
    match address {
        IpAddr::V4(address) => push(&mut body, DESTINATION, &address.octets()),
        IpAddr::V6(address) => push(&mut body, DESTINATION, &address.octets()),
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_linux::netlink::request;

    fn read_body(kind: u16, body: &[u8]) -> Result<Option<Event>, CutShort> {
        let bytes = request(kind, 0, 1, body);
        read(&Message::cut(&bytes).unwrap().0)
    }

    /// A neighbour message: `struct ndmsg`, its destination, its address.
    fn neigh(state: u16, flags: u8, address: &[u8], mac: &[u8]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        body.extend(7_u32.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([flags, 1]);
        push(&mut body, 1, address);
        push(&mut body, 2, mac);
        body
    }

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const KEY: Key = (7, IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));

    #[test]
    fn only_usable_states_of_one_station_are_entries() {
        let entry = |state: u16, mac: &[u8]| match read_body(
            is::NEW_NEIGH,
            &neigh(state, 0, &[192, 0, 2, 1], mac),
        ) {
            Ok(Some(Event::Neigh(KEY, entry))) => entry,
            other => panic!("{other:?}"),
        };
        for state in 0..=0xff {
            let expected = [0x02, 0x04, 0x08, 0x10, 0x40, 0x80].contains(&state);
            let expected = expected.then_some(NeighEntry { mac: MAC, stale: state == 4 });
            assert_eq!(entry(state, &MAC), expected, "{state:#x}");
        }
        for mac in [&[1, 0, 0, 0, 0, 9][..], &[0; 6], &[2, 0, 0, 9], &[]] {
            assert_eq!(entry(2, mac), None, "{mac:?}");
        }
    }

    #[test]
    fn proxies_groups_and_entries_without_address_do_not_matter() {
        let read = |body: &[u8]| read_body(is::NEW_NEIGH, body);
        assert_eq!(read(&neigh(2, 8, &[192, 0, 2, 1], &MAC)), Ok(None));
        assert_eq!(read(&neigh(2, 0, &[224, 0, 0, 1], &MAC)), Ok(None));
        assert_eq!(read(&neigh(2, 0, &[1, 2, 3], &MAC)), Ok(None));
        let mut of_a_tunnel = neigh(2, 0, &[192, 0, 2, 1], &MAC);
        of_a_tunnel[0] = libc::AF_BRIDGE as u8;
        assert_eq!(read(&of_a_tunnel), Ok(None));
        let gone = read_body(is::DEL_NEIGH, &neigh(2, 0, &[192, 0, 2, 1], &MAC));
        assert_eq!(gone, Ok(Some(Event::Neigh(KEY, None))));
    }

    #[test]
    fn a_header_that_is_cut_short_is_an_error() {
        let body = neigh(2, 0, &[192, 0, 2, 1], &MAC);
        for end in 0..NEIGH {
            assert_eq!(read_body(is::NEW_NEIGH, &body[..end]), Err(CutShort));
        }
        assert_eq!(read_body(is::NEW_LINK, &[0; LINK - 1]), Err(CutShort));
        assert_eq!(read_body(is::GET_LINK, &[]), Ok(None));
    }

    #[test]
    fn a_vlan_device_has_its_lower_device_and_tag() {
        let mut body = vec![0; 4];
        body.extend(9_u32.to_ne_bytes());
        body.extend((libc::IFF_UP as u32 | 0x1_0000).to_ne_bytes());
        body.extend([0; 4]);
        push(&mut body, 3, b"port0.7\0");
        push(&mut body, 1, &MAC);
        push(&mut body, 4, &1496_u32.to_ne_bytes());
        push(&mut body, 5, &3_u32.to_ne_bytes());
        let (mut data, mut info) = (Vec::new(), Vec::new());
        push(&mut data, 1, &7_u16.to_ne_bytes());
        push(&mut data, 5, &0x88a8_u16.to_be_bytes());
        push(&mut info, 1, b"vlan\0");
        push(&mut info, 2, &data);
        push(&mut body, 18, &info);
        let mut expected = Netdev {
            name: "port0.7".to_owned(),
            mac: Some(MAC),
            mtu: 1496,
            up: true,
            vlan: Some((3, 7, 0x88a8)),
        };
        let event = |body: &[u8]| read_body(is::NEW_LINK, body);
        assert_eq!(event(&body), Ok(Some(Event::Link(9, Some(expected.clone())))));
        assert_eq!(read_body(is::DEL_LINK, &body), Ok(Some(Event::Link(9, None))));
        body[8..12].fill(0);
        expected.up = false;
        assert_eq!(event(&body), Ok(Some(Event::Link(9, Some(expected)))));
        body[0] = 7;
        assert_eq!(event(&body), Ok(None), "AF_BRIDGE");
    }
}
