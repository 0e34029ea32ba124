//! Packets as etherparse builds them, and the frames that a router should make of them.

use std::net::IpAddr;

use etherparse::checksum::Sum16BitWords;
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header,
    Ipv6RawExtHeader, SingleVlanHeader, UdpHeader, VlanId, VlanPcp,
};

/// A station's address.
pub type Mac = [u8; 6];

/// A tag: protocol and control information (priority and VLAN identifier).
pub type Tag = (u16, u16);

/// Tag protocols.
pub const DOT1Q: u16 = 0x8100;
pub const DOT1AD: u16 = 0x88a8;

/// The layer-3 header of a packet; lengths and checksum are filled in when it is built.
#[derive(Clone, Debug)]
pub enum Ip {
    V4(Ipv4Header),
    V6 { header: Ipv6Header, extensions: Vec<u8> },
}

/// A packet to be built.
#[derive(Clone, Debug)]
pub struct Packet {
    pub dst: Mac,
    pub src: Mac,
    pub tags: Vec<Tag>,
    pub ip: Ip,
    /// The bytes after the IP header and its extensions.
    pub body: Vec<u8>,
    /// Bytes after the packet.
    pub padding: usize,
}

/// An address from its text.
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

impl Packet {
    /// A UDP packet of 16 bytes of data; addresses of one family.
    pub fn udp(src: &str, dst: &str) -> Self {
        Self::between(ip(src), ip(dst))
    }

    /// A UDP packet between two addresses of one family.
    pub fn between(src: IpAddr, dst: IpAddr) -> Self {
        let ip = match (src, dst) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ip::V4(Ipv4Header {
                source: source.octets(),
                destination: destination.octets(),
                time_to_live: 64,
                protocol: IpNumber::UDP,
                identification: 0x1234,
                ..Ipv4Header::default()
            }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ip::V6 {
                header: Ipv6Header {
                    source: source.octets(),
                    destination: destination.octets(),
                    hop_limit: 64,
                    next_header: IpNumber::UDP,
                    ..Ipv6Header::default()
                },
                extensions: Vec::new(),
            },
            _ => panic!("{src} and {dst} are of two families"),
        };
        let body = (0..24).collect();
        let packet = Self { dst: [0; 6], src: [2; 6], tags: Vec::new(), ip, body, padding: 0 };
        packet.ports(1000, 2000)
    }

    pub fn from(mut self, mac: Mac) -> Self {
        self.src = mac;
        self
    }

    pub fn to(mut self, mac: Mac) -> Self {
        self.dst = mac;
        self
    }

    /// Puts tags in front, the outermost first.
    pub fn tagged(mut self, tags: &[Tag]) -> Self {
        self.tags = tags.to_vec();
        self
    }

    pub fn ports(mut self, source_port: u16, destination_port: u16) -> Self {
        let length = self.body.len() as u16;
        let udp = UdpHeader { source_port, destination_port, length, checksum: 0 };
        self.body[..8].copy_from_slice(&udp.to_bytes());
        self
    }

    /// Sets TTL or hop limit.
    pub fn ttl(mut self, ttl: u8) -> Self {
        match &mut self.ip {
            Ip::V4(header) => header.time_to_live = ttl,
            Ip::V6 { header, .. } => header.hop_limit = ttl,
        }
        self
    }

    /// Changes the IPv4 header.
    pub fn v4(mut self, change: impl FnOnce(&mut Ipv4Header)) -> Self {
        match &mut self.ip {
            Ip::V4(header) => change(header),
            Ip::V6 { .. } => panic!("an IPv6 packet"),
        }
        self
    }

    /// Adds IPv4 options, a multiple of 4 bytes.
    pub fn options(self, bytes: &[u8]) -> Self {
        self.v4(|header| header.options = bytes.try_into().expect("whole words"))
    }

    /// Makes it a fragment at `offset` (in units of 8 bytes); IPv6 gets a fragment header.
    pub fn fragment(self, offset: u16, more_fragments: bool) -> Self {
        let fragment_offset = IpFragOffset::try_new(offset).expect("13 bits");
        if matches!(self.ip, Ip::V4(_)) {
            return self.v4(|header| {
                header.fragment_offset = fragment_offset;
                header.more_fragments = more_fragments;
            });
        }
        let header = |next| Ipv6FragmentHeader::new(next, fragment_offset, more_fragments, 0x77);
        self.extend(IpNumber::IPV6_FRAGMENTATION_HEADER, |next| header(next).to_bytes().to_vec())
    }

    /// Adds an IPv6 options or routing header of `bytes` bytes (8, 16, ...) after the fixed one.
    pub fn extension(self, kind: IpNumber, bytes: usize) -> Self {
        let payload = vec![0; bytes - 2];
        self.extend(kind, |next| {
            let header = Ipv6RawExtHeader::new_raw(next, &payload).expect("a multiple of 8");
            header.to_bytes().to_vec()
        })
    }

    /// Adds an extension header, made for the protocol that follows, in front of the others.
    pub fn extend(mut self, kind: IpNumber, make: impl FnOnce(IpNumber) -> Vec<u8>) -> Self {
        let Ip::V6 { header, extensions } = &mut self.ip else { panic!("an IPv4 packet") };
        let mut first = make(header.next_header);
        header.next_header = kind;
        first.append(extensions);
        *extensions = first;
        self
    }

    /// Sets the length of the IP packet in bytes, headers included.
    pub fn size(mut self, bytes: usize) -> Self {
        let headers = match &self.ip {
            Ip::V4(header) => header.header_len(),
            Ip::V6 { extensions, .. } => Ipv6Header::LEN + extensions.len(),
        };
        self.body.resize(bytes - headers, 0xa5);
        self
    }

    /// Adds bytes after the packet.
    pub fn padded(mut self, bytes: usize) -> Self {
        self.padding = bytes;
        self
    }

    /// Builds the frame.
    pub fn build(&self) -> Vec<u8> {
        let (ethertype, mut packet) = match &self.ip {
            Ip::V4(header) => {
                let mut header = header.clone();
                header.set_payload_len(self.body.len()).expect("fits");
                header.header_checksum = header.calc_header_checksum();
                (EtherType::IPV4, header.to_bytes().to_vec())
            }
            Ip::V6 { header, extensions } => {
                let mut header = header.clone();
                header.set_payload_length(extensions.len() + self.body.len()).expect("fits");
                (EtherType::IPV6, [&header.to_bytes()[..], extensions].concat())
            }
        };
        let mut frame = link_header(self.dst, self.src, &self.tags, ethertype.0);
        frame.append(&mut packet);
        frame.extend_from_slice(&self.body);
        frame.resize(frame.len() + self.padding, 0xee);
        frame
    }
}

/// An Ethernet header with tags.
pub fn link_header(destination: Mac, source: Mac, tags: &[Tag], ethertype: u16) -> Vec<u8> {
    let protocols = tags.iter().map(|tag| tag.0).chain([ethertype]).collect::<Vec<_>>();
    let ether_type = EtherType(protocols[0]);
    let mut bytes = Ethernet2Header { source, destination, ether_type }.to_bytes().to_vec();
    for ((_, control), next) in tags.iter().zip(&protocols[1..]) {
        let header = SingleVlanHeader {
            pcp: VlanPcp::try_new((control >> 13) as u8).expect("3 bits"),
            drop_eligible_indicator: control & 0x1000 != 0,
            vlan_id: VlanId::try_new(control & 0x0fff).expect("12 bits"),
            ether_type: EtherType(*next),
        };
        bytes.extend_from_slice(&header.to_bytes());
    }
    bytes
}

/// The ethertype of a frame, and the bytes after its tags.
pub fn layer3(frame: &[u8]) -> (EtherType, &[u8]) {
    let (ethernet, mut rest) = Ethernet2Header::from_slice(frame).expect("an Ethernet header");
    let mut ether_type = ethernet.ether_type;
    while matches!(ether_type.0, DOT1Q | DOT1AD) {
        let (tag, after) = SingleVlanHeader::from_slice(rest).expect("a tag");
        (ether_type, rest) = (tag.ether_type, after);
    }
    (ether_type, rest)
}

/// The frame that a router should make of `frame`, with `dst`, `src` and `tags` on egress: TTL
/// decremented, checksum recomputed, everything else unchanged, padding removed.
pub fn forwarded(frame: &[u8], dst: Mac, src: Mac, tags: &[Tag]) -> Vec<u8> {
    let (ether_type, packet) = layer3(frame);
    let mut out = link_header(dst, src, tags, ether_type.0);
    let start = out.len();
    if ether_type == EtherType::IPV4 {
        let (header, _) = Ipv4Header::from_slice(packet).expect("an IPv4 header");
        out.extend_from_slice(&packet[..usize::from(header.total_len)]);
        let header = &mut out[start..start + header.header_len()];
        header[8] -= 1;
        header[10..12].fill(0);
        let sum = Sum16BitWords::new().add_slice(header).ones_complement();
        header[10..12].copy_from_slice(&sum.to_ne_bytes());
    } else {
        let (header, _) = Ipv6Header::from_slice(packet).expect("an IPv6 header");
        let bytes = Ipv6Header::LEN + usize::from(header.payload_length);
        out.extend_from_slice(&packet[..bytes]);
        out[start + 7] -= 1;
    }
    out
}
