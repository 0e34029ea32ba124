//! What a frame is, read by hand: neither path's code looks at it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::testkit::packet::{DOT1AD, DOT1Q};
use crate::testkit::wires::LinkVariant;

/// Bytes after an Ethernet header below which trailing bytes are padding.
const PADDED: usize = 46;

/// A frame that arrives at a port, as far as it can be read.
#[derive(Debug)]
pub struct Seen {
    pub port: u8,
    /// It is for the port's own address.
    pub is_ours: bool,
    /// The link that it arrives on, if XDP finds that.
    pub variant: Option<LinkVariant>,
    pub is_twice_tagged: bool,
    /// Bytes before layer 3.
    pub l3: usize,
    /// Source and destination.
    pub ends: Option<(IpAddr, IpAddr)>,
    pub ttl: u8,
    /// IPv4 options, or an IPv6 hop-by-hop header.
    pub has_options: bool,
    /// An IPv4 fragment, or IPv6 with an extension header.
    pub is_fragment: bool,
    /// More bytes follow the packet than padding needs.
    pub has_long_tail: bool,
}

fn word(frame: &[u8], at: usize) -> u16 {
    frame.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

impl Seen {
    pub fn of(port: u8, frame: &[u8]) -> Self {
        let mac = LinkVariant::Plain.mac(port);
        let tag = |at| (word(frame, at), word(frame, at + 2) & 0xfff);
        let is_tag = |(protocol, _): (u16, u16)| [DOT1Q, DOT1AD].contains(&protocol);
        let (first, second) = (tag(12), tag(16));
        let is_tagged = is_tag(first);
        let is_twice_tagged = is_tagged && is_tag(second);
        let with = |tags: &[(u16, u16)]| {
            LinkVariant::ALL.into_iter().find(|variant| variant.tags() == tags)
        };
        let variant = match (is_tagged && first.1 != 0, is_twice_tagged) {
            (_, true) => with(&[first, second]),
            (true, false) => with(&[first]),
            (false, false) => Some(LinkVariant::Plain),
        };
        let l3 = match (is_tagged, is_twice_tagged && variant.is_some()) {
            (_, true) => 22,
            (true, false) => 18,
            (false, false) => 14,
        };
        let is_ours = frame.starts_with(&mac);
        let mut seen = Self {
            port,
            is_ours,
            variant,
            is_twice_tagged,
            l3,
            ends: None,
            ttl: 0,
            has_options: false,
            is_fragment: false,
            has_long_tail: false,
        };
        let packet = frame.get(l3..).unwrap_or_default();
        match word(frame, l3 - 2) {
            0x0800 => seen.look4(packet),
            0x86dd => seen.look6(packet),
            _ => {}
        }
        seen
    }

    fn look4(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<20>() else { return };
        let address = |at: usize| {
            let bytes: [u8; 4] = header[at..at + 4].try_into().unwrap();
            IpAddr::V4(Ipv4Addr::from(bytes))
        };
        self.ends = Some((address(12), address(16)));
        self.ttl = header[8];
        self.has_options = header[0] & 0xf != 5;
        self.is_fragment = word(header, 6) & 0x3fff != 0;
        self.see_tail(packet, usize::from(word(header, 2)));
    }

    fn look6(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<40>() else { return };
        let address = |at: usize| {
            let bytes: [u8; 16] = header[at..at + 16].try_into().unwrap();
            IpAddr::V6(Ipv6Addr::from(bytes))
        };
        self.ends = Some((address(8), address(24)));
        self.ttl = header[7];
        self.has_options = header[6] == 0;
        self.is_fragment = [0, 43, 44, 51, 60].contains(&header[6]);
        self.see_tail(packet, 40 + usize::from(word(header, 4)));
    }

    fn see_tail(&mut self, packet: &[u8], len: usize) {
        self.has_long_tail = packet.len() > len && packet.len() > PADDED;
    }

    pub fn src(&self) -> Option<IpAddr> {
        self.ends.map(|(src, _)| src)
    }

    pub fn dst(&self) -> Option<IpAddr> {
        self.ends.map(|(_, dst)| dst)
    }

    pub fn is_ipv4(&self) -> bool {
        self.src().is_some_and(|src| src.is_ipv4())
    }

    /// A link-local destination, or source of IPv6.
    pub fn is_link_local(&self) -> bool {
        self.ends.is_some_and(|(src, dst)| match (src, dst) {
            (_, IpAddr::V4(dst)) => dst.is_link_local(),
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                src.is_unicast_link_local() || dst.is_unicast_link_local()
            }
            _ => false,
        })
    }

    /// An address that is not a station's.
    pub fn is_special(&self) -> bool {
        let is_special = |address: IpAddr| match address {
            IpAddr::V4(v4) => matches!(v4.octets()[0], 0 | 127 | 224..),
            IpAddr::V6(v6) => v6.is_multicast() || v6.to_bits() <= 1,
        };
        self.ends.is_some_and(|(src, dst)| is_special(src) || is_special(dst))
    }

    /// Such an address that hosts can have all the same, by the letter of the standards: no network has them, and
    /// the programs give them to the kernel.
    pub fn is_rare(&self) -> bool {
        let first = |address| match address {
            IpAddr::V4(v4) => Some(v4.octets()[0]),
            IpAddr::V6(_) => None,
        };
        self.ends.is_some_and(|(src, dst)| {
            matches!(first(src), Some(0 | 255)) || matches!(first(dst), Some(0 | 127 | 224..))
        })
    }
}
