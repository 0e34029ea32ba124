//! Packets of both families: how the test makes them, and what it compares of them.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use crate::icmp::checksum;
use crate::scene::Version;
use crate::script::Protocol;

/// The next header of a fragment of IPv6, and that header's length.
const FRAGMENT: u8 = 44;
const FRAGMENT_LEN: usize = 8;
/// The header of a message of ICMP, behind which an error quotes a packet.
pub const ICMP_HEADER: usize = 8;
const HOPS: u8 = 64;

/// A packet, from its header of IP on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet(pub Vec<u8>);

/// An end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Source,
    Destination,
}

impl End {
    const fn other(self) -> Self {
        match self {
            Self::Source => Self::Destination,
            Self::Destination => Self::Source,
        }
    }

    /// Where the port of this end is in a header.
    const fn port(self) -> usize {
        match self {
            Self::Source => 0,
            Self::Destination => 2,
        }
    }
}

impl Packet {
    /// A packet that carries a message, whose checksum this function computes.
    pub fn new(hosts: [IpAddr; 2], protocol: Protocol, message: &[u8]) -> Self {
        let version = if hosts[0].is_ipv4() { Version::V4 } else { Version::V6 };
        let number = protocol.number(version);
        let mut bytes = match version {
            Version::V4 => vec![0x45, 0, 0, 0, 0, 0, 0, 0, HOPS, number, 0, 0],
            Version::V6 => vec![0x60, 0, 0, 0, 0, 0, number, HOPS],
        };
        for host in hosts {
            match host {
                IpAddr::V4(host) => bytes.extend(host.octets()),
                IpAddr::V6(host) => bytes.extend(host.octets()),
            }
        }
        bytes.extend(message);
        let mut packet = Self(bytes);
        packet.fit();
        packet.sum();
        packet
    }

    /// The packet in a frame that has arrived; none if the frame has another content.
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        let bytes = frame.get(14..)?;
        let number = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let len = match frame[12..14] {
            [8, 0] => number(2),
            [0x86, 0xdd] => 40 + number(4),
            _ => return None,
        };
        // A short frame has padding.
        bytes.get(..len).map(|bytes| Self(bytes.to_vec()))
    }

    pub const fn ethertype(&self) -> [u8; 2] {
        match self.version() {
            Version::V4 => [8, 0],
            Version::V6 => [0x86, 0xdd],
        }
    }

    pub const fn version(&self) -> Version {
        if self.0.as_slice()[0] >> 4 == 4 { Version::V4 } else { Version::V6 }
    }

    /// What it carries, and where that begins.
    pub fn upper(&self) -> (Protocol, usize) {
        let (number, at) = match self.version() {
            Version::V4 => (self.0[9], usize::from(self.0[0] & 15) * 4),
            Version::V6 if self.0[6] == FRAGMENT => (self.0[40], 40 + FRAGMENT_LEN),
            Version::V6 => (self.0[6], 40),
        };
        let protocol = match number {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            _ => Protocol::Icmp,
        };
        (protocol, at)
    }

    fn is_fragment(&self) -> bool {
        match self.version() {
            Version::V4 => u16::from_be_bytes([self.0[6], self.0[7]]) & 0x3fff != 0,
            Version::V6 => self.0[6] == FRAGMENT,
        }
    }

    /// The bytes of both addresses.
    fn addresses(&self) -> &[u8] {
        match self.version() {
            Version::V4 => &self.0[12..20],
            Version::V6 => &self.0[8..40],
        }
    }

    /// Source and destination.
    pub fn hosts(&self) -> [IpAddr; 2] {
        let (from, to) = self.addresses().split_at(self.addresses().len() / 2);
        [from, to].map(|bytes| match self.version() {
            Version::V4 => <[u8; 4]>::try_from(bytes).unwrap().into(),
            Version::V6 => <[u8; 16]>::try_from(bytes).unwrap().into(),
        })
    }

    /// The source's address, with its port or, of an echo, the identifier.
    pub fn source(&self) -> SocketAddr {
        let at = match self.upper() {
            (Protocol::Icmp, at) => at + 4,
            (_, at) => at,
        };
        SocketAddr::new(self.hosts()[0], u16::from_be_bytes([self.0[at], self.0[at + 1]]))
    }

    /// Addresses and ports.
    pub fn tuple(&self) -> Vec<u8> {
        let (_, at) = self.upper();
        [self.addresses(), &self.0[at..at + 4]].concat()
    }

    /// Where a router leaves as it is what tells packets apart: the identification, or the lower part of the flow label.
    const fn identified(&self) -> Range<usize> {
        match self.version() {
            Version::V4 => 4..6,
            Version::V6 => 2..4,
        }
    }

    pub fn identification(&self) -> u16 {
        let at = self.identified().start;
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    /// Tells this packet apart from others.
    pub fn identify(&mut self, identification: u16) {
        let (at, bytes) = (self.identified(), identification.to_be_bytes());
        self.0[at].copy_from_slice(&bytes);
        if self.version() == Version::V6 && self.is_fragment() {
            self.0[46..48].copy_from_slice(&bytes);
        }
        self.seal();
    }

    /// Lets no router forward it any more.
    pub fn end_here(&mut self) {
        let at = if self.version() == Version::V4 { 8 } else { 7 };
        self.0[at] = 1;
        self.seal();
    }

    /// Where a message's checksum is.
    pub fn sum_at(&self) -> usize {
        let (protocol, at) = self.upper();
        at + match protocol {
            Protocol::Tcp => 16,
            Protocol::Udp => 6,
            Protocol::Icmp => 2,
        }
    }

    /// Writes the length of the packet into its header.
    fn fit(&mut self) {
        let (at, less) = if self.version() == Version::V4 { (2, 0) } else { (4, 40) };
        let len = (self.0.len() - less) as u16;
        self.0[at..at + 2].copy_from_slice(&len.to_be_bytes());
        self.seal();
    }

    /// Computes the checksum of the header; that of IPv6 has none.
    fn seal(&mut self) {
        if self.version() == Version::V4 {
            let (_, len) = self.upper();
            self.0[10..12].fill(0);
            let sum = checksum(&self.0[..len]);
            self.0[10..12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Computes the checksum of the message.
    pub fn sum(&mut self) {
        let at = self.sum_at();
        self.0[at..at + 2].fill(0);
        let sum = self.sum_of_message();
        self.0[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// The sum over the message, with the addresses unless it is of ICMP for IPv4; 0 if the checksum is right.
    fn sum_of_message(&self) -> u16 {
        let (protocol, at) = self.upper();
        let message = &self.0[at..];
        let mut all = Vec::new();
        if protocol != Protocol::Icmp || self.version() == Version::V6 {
            all.extend(self.addresses());
            all.extend([0, protocol.number(self.version())]);
            all.extend((message.len() as u16).to_be_bytes());
        }
        all.extend(message);
        checksum(&all)
    }

    /// Says whether its checksums are right, as far as it has any.
    pub fn is_whole(&self) -> bool {
        let (protocol, at) = self.upper();
        if self.version() == Version::V4 && checksum(&self.0[..at]) != 0 {
            return false;
        }
        let has_none = protocol == Protocol::Udp && self.0[at + 6..at + 8] == [0, 0];
        self.is_fragment() || has_none || self.sum_of_message() == 0
    }

    /// Its two fragments, the first one with so many bytes of the message, a multiple of 8.
    pub fn fragments(&self, first: usize) -> [Self; 2] {
        let (_, at) = self.upper();
        let middle = at + first;
        [(at..middle, 0), (middle..self.0.len(), first)].map(|(range, offset)| {
            let is_first = offset == 0;
            let mut bytes = self.0[..at].to_vec();
            match self.version() {
                Version::V4 => {
                    let more = if is_first { 0x2000 } else { 0 };
                    bytes[6..8].copy_from_slice(&((offset / 8) as u16 | more).to_be_bytes());
                }
                Version::V6 => {
                    let next = std::mem::replace(&mut bytes[6], FRAGMENT);
                    let [high, low] = (offset as u16 | u16::from(is_first)).to_be_bytes();
                    bytes.extend([next, 0, high, low, 0, 0, 0, 0]);
                }
            }
            bytes.extend(&self.0[range]);
            let mut part = Self(bytes);
            part.fit();
            part
        })
    }

    /// The packet without what a kernel may choose: the client's port as the side outside sees it, and the identification of
    /// fragments of IPv6.
    pub fn plain(&self, way: usize) -> Self {
        let mut plain = if way == 0 { self.without_port(End::Source) } else { self.clone() };
        if self.version() == Version::V6 && self.is_fragment() {
            plain.0[44..48].fill(0);
        }
        plain
    }

    /// The packet without the port of an end, or the identifier of an echo, and without the checksum that goes with it. What an
    /// error quotes has gone the other way.
    fn without_port(&self, end: End) -> Self {
        let (protocol, at) = self.upper();
        let mut plain = self.clone();
        let chosen = match protocol {
            Protocol::Tcp | Protocol::Udp => Some(at + end.port()),
            Protocol::Icmp if self.is_error() => {
                let quoted = at + ICMP_HEADER;
                let inner = Self(self.0[quoted..].to_vec()).without_port(end.other());
                plain.0.splice(quoted.., inner.0);
                None
            }
            Protocol::Icmp => Some(at + 4),
        };
        for field in chosen.into_iter().chain([self.sum_at()]) {
            // What is quoted may lack its end.
            plain.0.iter_mut().skip(field).take(2).for_each(|byte| *byte = 0);
        }
        plain
    }

    /// Says whether a packet of ICMP is no echo.
    fn is_error(&self) -> bool {
        let (_, at) = self.upper();
        match self.version() {
            Version::V4 => ![0, 8].contains(&self.0[at]),
            Version::V6 => self.0[at] < 128,
        }
    }
}
