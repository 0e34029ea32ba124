//! The host behind a router with memory ports. `etherparse` builds and parses the frames, as it
//! shares no code with the host.

mod arp;
mod errors;
mod forward;
mod fuzz;
mod held;
mod local;
mod nd;
mod policy_route;
mod reject;
mod swap;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpPacket, Icmpv4Slice, Icmpv6Slice, IpHeaders, Ipv4Header, Ipv6FlowLabel, Ipv6Header,
    NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TcpSlice, UdpSlice,
};

use super::addresses::eui64;
use super::*;
use crate::id::Vid;
use crate::port::MemoryPort;
use crate::prefix::RoutePrefix;
use crate::stages::ecmp::Member;
use crate::worker::Worker;

pub(super) const S: u64 = 1_000_000_000;
const CHUNKS: u32 = 1024;

/// The router's ports, and the VLAN link on port 1.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
/// A link with an MTU of 600.
pub(super) const NARROW: usize = 2;
/// A link in its own VRF, with the addresses of port A.
pub(super) const RED: usize = 3;
pub(super) const VLAN: LinkId = LinkId(4);
pub(super) const VID: u16 = 100;

/// Stations: a sending host, and receivers.
pub(super) const ALICE: LanHost = LanHost { mac: [2, 0, 0, 0, 1, 1], port: A, vid: None };
pub(super) const BOB: LanHost = LanHost { mac: [2, 0, 0, 0, 2, 2], port: B, vid: None };
pub(super) const CAROL: LanHost = LanHost { mac: [2, 0, 0, 0, 3, 3], port: NARROW, vid: None };
pub(super) const DAVE: LanHost = LanHost { mac: [2, 0, 0, 0, 4, 4], port: B, vid: Some(VID) };
pub(super) const RITA: LanHost = LanHost { mac: [2, 0, 0, 0, 5, 5], port: RED, vid: None };

pub(super) const ALICE4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const BOB4: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
pub(super) const CAROL4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
pub(super) const DAVE4: Ipv4Addr = Ipv4Addr::new(10, 0, 4, 1);
pub(super) const ALICE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub(super) const BOB6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
pub(super) const CAROL6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1);
pub(super) const DAVE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 4, 0, 0, 0, 0, 1);

/// A machine on a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct LanHost {
    pub(super) mac: [u8; 6],
    pub(super) port: usize,
    pub(super) vid: Option<u16>,
}

pub(super) const fn router_mac(port: usize) -> [u8; 6] {
    [2, 0xff, 0, 0, 0, port as u8]
}

/// The router's addresses on the link with this number.
pub(super) const fn own4(link: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, link, 254)
}

pub(super) const fn own6(link: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, link, 0, 0, 0, 0, 0xfe)
}

pub(super) fn own_link_local(port: usize) -> Ipv6Addr {
    eui64(router_mac(port))
}

/// Tables and addresses of the router.
pub(super) fn configuration() -> (Tables, Host) {
    let mut tables = Tables::new();
    let main = tables.add_vrf().unwrap();
    let red = tables.add_vrf().unwrap();
    for (port, mtu, vrf) in
        [(A, 1500, main), (B, 1500, main), (NARROW, 600, main), (RED, 1500, red)]
    {
        tables.add_port(router_mac(port), vrf, mtu).unwrap();
    }
    let vid = Vid::new(VID).unwrap();
    tables.add_vlan(LinkId(1), 0x8100, vid, router_mac(B), main, 1500).unwrap();
    let mut host = Host::new();
    for link in 0..5_u16 {
        // The red port has the addresses of port A; the VRF separates them.
        let subnet = if link == 3 { 0 } else { link };
        for (address, len) in [(IpAddr::V4(own4(subnet as u8)), 24), (IpAddr::V6(own6(subnet)), 64)]
        {
            connect(&mut tables, &mut host, LinkId(link), address, len);
        }
    }
    let inert = [
        ("198.51.100.0", tables.punt(PuntReason::Unreachable).unwrap()),
        ("203.0.113.0", tables.punt(PuntReason::Prohibit).unwrap()),
        ("192.0.2.0", tables.neigh(LinkId(1), "10.0.1.9".parse().unwrap()).unwrap()),
    ];
    for (prefix, next) in inert {
        tables.insert(main, RoutePrefix::new(prefix.parse().unwrap(), 24), next).unwrap();
    }
    for (prefix, reason) in
        [("2001:db8:f0::", PuntReason::Unreachable), ("2001:db8:f1::", PuntReason::Prohibit)]
    {
        let next = tables.punt(reason).unwrap();
        tables.insert(main, RoutePrefix::new(prefix.parse().unwrap(), 48), next).unwrap();
    }
    (tables, host)
}

/// A router with four ports and five links, and its clock.
pub(super) struct Lab {
    pub(super) worker: Worker,
    #[expect(clippy::vec_box, reason = "a router takes its ports in boxes")]
    pub(super) ports: Vec<Box<MemoryPort>>,
    pub(super) now: u64,
}

impl Lab {
    pub(super) fn new() -> Self {
        let (tables, host) = configuration();
        let umem = Umem::new(CHUNKS, 4096).unwrap();
        let ports = (0..4).map(|_| Box::new(MemoryPort::new(64))).collect();
        Self { worker: Worker::alone(tables, umem, host), ports, now: 0 }
    }

    /// As `new`, with all neighbours known.
    pub(super) fn with_neighbours() -> Self {
        let lab = Self::new();
        for (link, address, mac) in [
            (LinkId(0), IpAddr::V4(ALICE4), ALICE.mac),
            (LinkId(0), IpAddr::V6(ALICE6), ALICE.mac),
            (LinkId(1), IpAddr::V4(BOB4), BOB.mac),
            (LinkId(1), IpAddr::V6(BOB6), BOB.mac),
            (LinkId(2), IpAddr::V4(CAROL4), CAROL.mac),
            (LinkId(2), IpAddr::V6(CAROL6), CAROL.mac),
            (VLAN, IpAddr::V4(DAVE4), DAVE.mac),
            (VLAN, IpAddr::V6(DAVE6), DAVE.mac),
        ] {
            let next = lab.worker.lock().tables.set_neigh(link, address, Some(mac)).unwrap();
            let main = lab.worker.lock().tables.link(link).vrf;
            lab.worker.lock().tables.insert(main, RoutePrefix::host(address), next).unwrap();
        }
        lab
    }

    /// Lets the router receive a frame; returns what it has sent.
    pub(super) fn receive(&mut self, port: usize, frame: &[u8]) -> Vec<Sent> {
        self.receive_all(port, &[frame.to_vec()])
    }

    pub(super) fn receive_all(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<Sent> {
        for frame in frames {
            let frame = self.worker.umem.store(frame).unwrap();
            self.ports[port].inject(frame);
        }
        while self.worker.turn(PortId(port as u16), &mut self.ports, self.now) > 0 {}
        self.drain()
    }

    /// Lets time pass in steps of a tenth of a second; returns what the router has sent.
    pub(super) fn pass(&mut self, ns: u64) -> Vec<Sent> {
        let end = self.now + ns;
        let mut sent = Vec::new();
        while self.now < end {
            self.now = (self.now + S / 10).min(end);
            self.worker.tick(&mut self.ports, self.now);
            sent.extend(self.drain());
        }
        sent
    }

    /// Takes the sent frames, and asserts that the counters add up and no frame is lost.
    pub(super) fn drain(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        for (port, memory) in self.ports.iter_mut().enumerate() {
            for frame in memory.take_sent() {
                let bytes = self.worker.umem.frame(frame.addr, frame.len as usize).to_vec();
                self.worker.umem.free(frame.addr);
                sent.push(Sent { port, bytes });
            }
        }
        self.worker.counters.check().unwrap();
        let waiting = self.worker.lock().host.neighs.waiting();
        let made = self.worker.lock().host.originated_waiting();
        assert_eq!(self.worker.counters.held as usize + made, waiting);
        assert_eq!(self.worker.umem.available() + waiting, CHUNKS as usize, "a frame is lost");
        sent
    }

    pub(super) fn punts(&self, reason: PuntReason) -> u64 {
        self.worker.counters.punts[reason as usize]
    }

    pub(super) fn drops(&self, reason: DropReason) -> u64 {
        self.worker.counters.drops[reason as usize]
    }

    pub(super) fn neighbours(&self) -> usize {
        self.worker.lock().host.neighbours()
    }

    pub(super) fn host(&self) -> HostCounters {
        self.worker.lock().host.counters().clone()
    }
}

/// Gives a link an address, and inserts the routes that an address brings.
fn connect(tables: &mut Tables, host: &mut Host, link: LinkId, address: IpAddr, len: u8) {
    host.add_address(link, address, len);
    let vrf = tables.link(link).vrf;
    let (local, glean) = (tables.local().unwrap(), tables.glean(link).unwrap());
    tables.insert(vrf, RoutePrefix::host(address), local).unwrap();
    tables.insert(vrf, RoutePrefix::new(address, len), glean).unwrap();
    if let IpAddr::V4(v4) = address {
        let broadcast = Ipv4Addr::from_bits(v4.to_bits() | 0xff);
        tables.insert(vrf, RoutePrefix::host(broadcast.into()), local).unwrap();
    }
}

/// A group of two next hops for a prefix behind Bob's link.
pub(super) fn add_group(lab: &mut Lab, prefix: &str, members: &[&str]) {
    let tables = &mut lab.worker.lock().tables;
    let member = |address: &&str| address.parse().unwrap();
    let members: Vec<_> = members
        .iter()
        .map(|address| Member {
            next: tables.neigh(LinkId(1), member(address)).unwrap(),
            weight: 1,
        })
        .collect();
    let group = tables.add_group(&members).unwrap();
    let vrf = tables.link(LinkId(1)).vrf;
    tables.insert(vrf, RoutePrefix::new(prefix.parse().unwrap(), 24), group).unwrap();
}

/// A frame that the router sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) port: usize,
    pub(super) bytes: Vec<u8>,
}

impl Sent {
    pub(super) fn sliced(&self) -> SlicedPacket<'_> {
        SlicedPacket::from_ethernet(&self.bytes).unwrap()
    }

    pub(super) fn vids(&self) -> Vec<u16> {
        self.sliced().vlan_ids().iter().map(|vid| vid.value()).collect()
    }

    pub(super) fn dst_mac(&self) -> [u8; 6] {
        *self.bytes.first_chunk().unwrap()
    }

    pub(super) fn src_mac(&self) -> [u8; 6] {
        *self.bytes[6..].first_chunk().unwrap()
    }

    pub(super) fn arp(&self) -> ArpPacket {
        match self.sliced().net {
            Some(NetSlice::Arp(arp)) => arp.to_packet(),
            other => panic!("no ARP: {other:?}"),
        }
    }

    /// The IP packet, after Ethernet header and tags.
    pub(super) fn packet(&self) -> &[u8] {
        &self.bytes[14 + 4 * self.vids().len()..]
    }

    /// The IPv4 header, with its checksum verified, and what follows it.
    pub(super) fn ipv4(&self) -> (Ipv4Header, &[u8]) {
        let (header, payload) = Ipv4Header::from_slice(self.packet()).unwrap();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(usize::from(header.total_len), self.packet().len());
        (header, payload)
    }

    pub(super) fn ipv6(&self) -> (Ipv6Header, &[u8]) {
        let (header, payload) = Ipv6Header::from_slice(self.packet()).unwrap();
        assert_eq!(usize::from(header.payload_length), payload.len());
        (header, payload)
    }

    /// The ICMP message, with its checksum verified.
    pub(super) fn icmp4(&self) -> Icmpv4Slice<'_> {
        let (header, payload) = self.ipv4();
        assert_eq!(header.protocol.0, 1);
        let icmp = Icmpv4Slice::from_slice(payload).unwrap();
        assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
        icmp
    }

    /// The ICMPv6 message, with its checksum verified.
    pub(super) fn icmp6(&self) -> Icmpv6Slice<'_> {
        let (header, payload) = self.ipv6();
        assert_eq!(header.next_header.0, 58);
        let icmp = Icmpv6Slice::from_slice(payload).unwrap();
        assert!(icmp.is_checksum_valid(header.source, header.destination));
        icmp
    }

    /// Type and code of an ICMP message of either family.
    pub(super) fn icmp_kind(&self) -> (u8, u8) {
        if self.packet()[0] >> 4 == 4 {
            (self.icmp4().type_u8(), self.icmp4().code_u8())
        } else {
            (self.icmp6().type_u8(), self.icmp6().code_u8())
        }
    }

    /// Source and destination of the IP packet.
    pub(super) fn addresses(&self) -> (IpAddr, IpAddr) {
        if self.packet()[0] >> 4 == 4 {
            let header = self.ipv4().0;
            (header.source.into(), header.destination.into())
        } else {
            let header = self.ipv6().0;
            (header.source.into(), header.destination.into())
        }
    }
}

/// The only frame of a list.
pub(super) fn only(sent: Vec<Sent>) -> Sent {
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent.into_iter().next().unwrap()
}

/// A frame from a station to the router, with this layer 3.
pub(super) fn frame(from: LanHost, ethertype: u16, layer3: &[u8]) -> Vec<u8> {
    frame_to(router_mac(from.port), from, ethertype, layer3)
}

/// A frame from a station, padded to Ethernet's minimum.
pub(super) fn frame_to(dst: [u8; 6], from: LanHost, ethertype: u16, layer3: &[u8]) -> Vec<u8> {
    let mut bytes = [dst, from.mac].concat();
    if let Some(vid) = from.vid {
        bytes.extend_from_slice(&0x8100_u16.to_be_bytes());
        bytes.extend_from_slice(&vid.to_be_bytes());
    }
    bytes.extend_from_slice(&ethertype.to_be_bytes());
    bytes.extend_from_slice(layer3);
    // Padding that is not zero, to show whether it is mistaken for data.
    bytes.resize(bytes.len().max(60), 0xee);
    bytes
}

/// A frame with an IP packet of either family.
pub(super) fn ip_frame(from: LanHost, packet: &[u8]) -> Vec<u8> {
    frame(from, if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd }, packet)
}

/// An IPv4 header; the caller sets the payload.
pub(super) fn header4(src: Ipv4Addr, dst: Ipv4Addr) -> Ipv4Header {
    let mut header = Ipv4Header::new(0, 64, 17.into(), src.octets(), dst.octets()).unwrap();
    header.dont_fragment = false;
    header.identification = 4711;
    header
}

/// A UDP packet with the given header.
pub(super) fn udp4(header: Ipv4Header, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ip(IpHeaders::Ipv4(header, Default::default()));
    let mut bytes = Vec::new();
    builder.udp(1234, 5678).write(&mut bytes, payload).unwrap();
    bytes
}

/// A UDP packet over IPv6.
pub(super) fn udp6(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ipv6(src.octets(), dst.octets(), hop_limit);
    let mut bytes = Vec::new();
    builder.udp(1234, 5678).write(&mut bytes, payload).unwrap();
    bytes
}

/// Any IPv6 packet: next header, and all bytes after the fixed header.
pub(super) fn raw6(
    src: Ipv6Addr,
    dst: Ipv6Addr,
    next_header: u8,
    hop_limit: u8,
    payload: &[u8],
) -> Vec<u8> {
    let header = Ipv6Header {
        traffic_class: 0,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length: payload.len() as u16,
        next_header: next_header.into(),
        hop_limit,
        source: src.octets(),
        destination: dst.octets(),
    };
    [&header.to_bytes()[..], payload].concat()
}

/// An ICMPv6 packet of any type, with the right checksum.
pub(super) fn icmp6(
    (src, dst): (Ipv6Addr, Ipv6Addr),
    hop_limit: u8,
    kind: u8,
    rest: [u8; 4],
    body: &[u8],
) -> Vec<u8> {
    let kind = etherparse::Icmpv6Type::Unknown { type_u8: kind, code_u8: 0, bytes5to8: rest };
    let mut bytes = Vec::new();
    PacketBuilder::ipv6(src.octets(), dst.octets(), hop_limit)
        .icmpv6(kind)
        .write(&mut bytes, body)
        .unwrap();
    bytes
}

/// The TCP header in a packet, with its checksum verified.
pub(super) fn tcp(sent: &Sent) -> TcpHeader {
    if sent.packet()[0] >> 4 == 4 {
        let (ip, payload) = sent.ipv4();
        let tcp = TcpSlice::from_slice(payload).unwrap();
        assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv4(ip.source, ip.destination).unwrap());
        tcp.to_header()
    } else {
        let (ip, payload) = sent.ipv6();
        let tcp = TcpSlice::from_slice(payload).unwrap();
        assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv6(ip.source, ip.destination).unwrap());
        tcp.to_header()
    }
}

/// The payload of a UDP packet.
pub(super) fn udp_payload(payload: &[u8]) -> &[u8] {
    UdpSlice::from_slice(payload).unwrap().payload()
}
