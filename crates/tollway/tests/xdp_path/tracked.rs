//! Packets of connections that the kernel tracks: the programs forward them by their entries, while the kernel has the
//! connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use etherparse::{IpNumber, Ipv4Header, Ipv6Header, UdpHeader};
use tollway_conntrack::{Conntrack, Tuple, get};
use tollway_dataplane::id::LinkId;
use tollway_linux::netlink::{QuerySocket, push};
use tollway_net::KernelPath;
use tollway_xdp::Action;
use tollway_xdp::connections::{
    Connection, ConnectionKey, ConnectionTable, Connections, Queries, Query, Translation, Treatment,
};
use tollway_xdp::counts::PassReason;

use crate::compared::{Compared, Run};
use crate::namespaces::{sh, until};
use crate::noted;
use crate::testkit::packet::Packet;
use crate::testkit::wires::LinkVariant;

/// The link that packets leave by.
pub const OUT: LinkVariant = LinkVariant::Vlan;
const PORTS: (u16, u16) = (4000, 53);
const NETLINK_NETFILTER: isize = 12;
/// The port that a source gets.
const OUTSIDE: u16 = 1024;

/// The family of a test's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V4,
    V6,
}

impl Version {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// A host behind a link of a port.
    pub fn host(self, link: LinkVariant, port: u8) -> IpAddr {
        match self {
            Self::V4 => link.host4(port),
            Self::V6 => link.host6(port),
        }
    }

    /// The source of the packets.
    pub fn source(self) -> (IpAddr, u16) {
        let address = match self {
            Self::V4 => Ipv4Addr::new(192, 0, 2, 77).into(),
            Self::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xf00, 0, 0, 0, 0, 0x77).into(),
        };
        (address, PORTS.0)
    }

    pub fn destination(self) -> (IpAddr, u16) {
        (self.host(OUT, 1), PORTS.1)
    }

    /// The router that the destination lies behind.
    pub fn gateway(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, 255, 1, OUT as u8 + 1).into(),
            Self::V6 => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(),
        }
    }

    /// What a source becomes.
    pub fn outside(self) -> (IpAddr, u16) {
        let address = match self {
            Self::V4 => Ipv4Addr::new(198, 51, 100, 77).into(),
            Self::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 1, 2, 3, 4, 0x77).into(),
        };
        (address, OUTSIDE)
    }

    /// Bytes of the header of IP.
    pub const fn header_len(self) -> usize {
        match self {
            Self::V4 => Ipv4Header::MIN_LEN,
            Self::V6 => Ipv6Header::LEN,
        }
    }

    fn key(self) -> ConnectionKey {
        let link = LinkVariant::Plain.link(0);
        ConnectionKey::new(link, 17, self.source(), self.destination()).unwrap()
    }

    fn tuple(self) -> Tuple {
        Tuple::with_ports(17, self.source(), self.destination())
    }

    pub fn packet(self) -> Packet {
        let packet = Packet::between(self.source().0, self.destination().0);
        packet.to(LinkVariant::Plain.mac(0)).ports(PORTS.0, PORTS.1)
    }

    /// A frame of a packet, with the right length and checksum of UDP.
    pub fn frame(self, packet: &Packet) -> Vec<u8> {
        let mut frame = packet.build();
        let at = 14 + self.header_len();
        let udp_len = (frame.len() - at) as u16;
        frame[at + 4..at + 6].copy_from_slice(&udp_len.to_be_bytes());
        let checksum = self.checksum(&frame[14..]);
        frame[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    /// The right checksum of a packet of UDP.
    fn checksum(self, packet: &[u8]) -> u16 {
        let (udp, data) = UdpHeader::from_slice(&packet[self.header_len()..]).unwrap();
        match self {
            Self::V4 => {
                let (ip, _) = Ipv4Header::from_slice(packet).unwrap();
                udp.calc_checksum_ipv4(&ip, data).unwrap()
            }
            Self::V6 => {
                let (ip, _) = Ipv6Header::from_slice(packet).unwrap();
                udp.calc_checksum_ipv6(&ip, data).unwrap()
            }
        }
    }

    /// The source and destination of a packet, and whether the checksum of its header is right.
    fn addresses(self, packet: &[u8]) -> (IpAddr, IpAddr, bool) {
        match self {
            Self::V4 => {
                let (ip, _) = Ipv4Header::from_slice(packet).unwrap();
                let is_right = ip.calc_header_checksum() == ip.header_checksum;
                (ip.source.into(), ip.destination.into(), is_right)
            }
            Self::V6 => {
                let (ip, _) = Ipv6Header::from_slice(packet).unwrap();
                (ip.source.into(), ip.destination.into(), true)
            }
        }
    }

    /// Makes the kernel's own entry, whose packets leave with this source.
    pub fn make(self, outside: (IpAddr, u16), status: &str) {
        let ((from, sport), (to, dport)) = (self.source(), self.destination());
        let nat = match outside {
            _ if outside == self.source() => String::new(),
            (IpAddr::V4(ip), port) => format!("--src-nat {ip}:{port}"),
            (IpAddr::V6(ip), port) => format!("--src-nat [{ip}]:{port}"),
        };
        sh(&format!(
            "conntrack -I -p udp -s {from} -d {to} --sport {sport} --dport {dport} \
             -t 30 -u {status} {nat}"
        ));
    }

    /// Changes the mark of the kernel's entry (linux/netfilter/nfnetlink_conntrack.h).
    pub fn set_mark(self, mark: u32) {
        let mut body = get(&self.tuple(), 0).unwrap();
        push(&mut body, 8, &mark.to_be_bytes());
        let mut socket = QuerySocket::open(NETLINK_NETFILTER).unwrap();
        socket.change(1 << 8, 0, &body).unwrap();
    }

    /// How long the kernel's entry has to live, in seconds.
    pub fn timeout(self) -> Option<u32> {
        Conntrack::open().unwrap().get(&self.tuple(), 0).unwrap()?.timeout_s
    }
}

/// The programs on tracked links, and who answers their queries.
pub struct Tracked {
    pub compared: Compared,
    pub table: ConnectionTable,
    connections: Connections,
    pub queries: Queries,
}

impl Tracked {
    pub fn new() -> Self {
        // Any rule about connections makes the kernel track them.
        sh("nft add table inet t");
        sh("nft add chain inet t f { type filter hook forward priority 0 ; }");
        sh("nft add rule inet t f ct state established accept");
        let mut compared = Compared::new();
        for number in 0..compared.ports.len() {
            let mut changed = compared.ports[number].clone();
            for link in &mut changed.links {
                let not_tracked = KernelPath::default();
                link.kernel_path = KernelPath { tracked4: true, tracked6: true, ..not_tracked };
            }
            compared.programs.set_port(changed.clone()).unwrap();
            compared.ports[number] = changed;
            compared.reload(number as u8);
        }
        compared.programs.state().set_udp_timeout_ms(77_000);
        // Some ticks behind a change of a port, tracks judge again.
        std::thread::sleep(Duration::from_millis(150));
        let (table, queries) = compared.programs.connections().unwrap();
        let connections = table.connections().clone();
        Self { compared, table, connections, queries }
    }

    fn run(&self, version: Version, packet: &Packet) -> Run {
        self.compared.run(0, &version.frame(packet))
    }

    pub fn insert(&mut self, version: Version, treatment: Treatment, source: (IpAddr, u16)) {
        self.insert_marked(version, treatment, source, 0);
    }

    pub fn insert_marked(
        &mut self,
        version: Version,
        treatment: Treatment,
        source: (IpAddr, u16),
        mark: u32,
    ) {
        let generation = self.compared.programs.state().connections_generation();
        let translation = Translation { source, destination: version.destination() };
        let connection = Connection { generation, treatment, translation, mark, track: None };
        assert!(self.table.insert(&version.key(), &connection, generation));
    }

    fn assert_kernels(&self, version: Version) {
        let reason = self.run(version, &version.packet()).reason;
        assert_eq!(reason, Some(PassReason::Connection), "{version:?}");
    }
}

/// The packets leave with the other source, by either engine, and with right checksums; without one in UDP over IPv4, if
/// they had none. Over IPv6, those are the kernel's.
fn translated(tracked: &Tracked, version: Version) {
    let header_len = version.header_len();
    for has_checksum in [true, false] {
        let mut frame = version.frame(&version.packet().size(100));
        if !has_checksum {
            frame[14 + header_len + 6..][..2].fill(0);
        }
        let (xdp, tc) = (tracked.compared.run(0, &frame), tracked.compared.run_by_tc(0, &frame));
        if !has_checksum && version == Version::V6 {
            assert_eq!([xdp.reason, tc.reason], [Some(PassReason::Connection); 2]);
            continue;
        }
        // The tag of a packet in tc lies beside the frame.
        for (run, at) in [(&xdp, 18), (&tc, 14)] {
            assert_eq!(run.action, Action::Redirect, "{version:?}: {:?}", run.reason);
            let packet = &run.output[at..];
            let (from, to, is_right) = version.addresses(packet);
            assert_eq!((from, to), (version.outside().0, version.destination().0));
            let (udp, _) = UdpHeader::from_slice(&packet[header_len..]).unwrap();
            assert_eq!((udp.source_port, udp.destination_port), (OUTSIDE, PORTS.1));
            assert!(is_right);
            assert_eq!(udp.checksum, if has_checksum { version.checksum(packet) } else { 0 });
        }
        assert_eq!(xdp.output[18..], tc.output[14..]);
    }
    sums(tracked, version);
}

/// Whatever the checksum is, the packet leaves with the right one: of 0 and all ones, the one that the kernel writes.
fn sums(tracked: &Tracked, version: Version) {
    let header_len = version.header_len();
    let mut outputs = [0; 2];
    // A word of the data takes all values, and so does the checksum.
    for word in (0..=u16::MAX).step_by(97).chain(zeros(version)) {
        let mut packet = version.packet().size(100);
        packet.body[20..22].copy_from_slice(&word.to_be_bytes());
        let frame = version.frame(&packet);
        let runs = [tracked.compared.run(0, &frame), tracked.compared.run_by_tc(0, &frame)];
        for (run, at) in runs.into_iter().zip([18, 14]) {
            assert_eq!(run.action, Action::Redirect, "{version:?}: {:?}", run.reason);
            let packet = &run.output[at..];
            let (udp, _) = UdpHeader::from_slice(&packet[header_len..]).unwrap();
            assert_eq!(udp.checksum, version.checksum(packet), "{version:?}, {word}");
            outputs[usize::from(udp.checksum == u16::MAX)] += 1;
        }
    }
    assert_eq!(outputs[1], 2, "{version:?}: a checksum of 0 is written as all ones");
}

/// The word of the data with which the checksum of a packet that leaves is 0.
fn zeros(version: Version) -> Option<u16> {
    let [source, destination] = [version.outside().0, version.destination().0];
    (0..=u16::MAX).find(|word| {
        let mut packet = Packet::between(source, destination).ports(OUTSIDE, PORTS.1).size(100);
        packet.body[20..22].copy_from_slice(&word.to_be_bytes());
        let frame = version.frame(&packet);
        frame[14 + version.header_len() + 6..][..2] == [0xff; 2]
    })
}

/// A packet with a wrong checksum is the kernel's, if it looks at them; whatever its length.
fn summed(tracked: &Tracked, version: Version) {
    let state = tracked.compared.programs.state();
    for size in (60..80).chain([555, 556, 1066, 1100, 1500, 1501]) {
        let right = version.frame(&version.packet().size(size));
        let mut wrong = right.clone();
        let last = wrong.len() - 1;
        wrong[last] ^= 1;
        for (frame, verifies, is_forwarded) in
            [(&right, true, true), (&wrong, true, false), (&wrong, false, true)]
        {
            state.set_verifies_sums(verifies);
            for run in [tracked.compared.run(0, frame), tracked.compared.run_by_tc(0, frame)] {
                let reason = (!is_forwarded).then_some(PassReason::Connection);
                assert_eq!(run.reason, reason, "{size} bytes, {verifies}, {is_forwarded}");
            }
        }
    }
    state.set_verifies_sums(false);
}

/// Only established connections of UDP are forwarded, of which packets are whole and plain.
fn others(tracked: &Tracked, version: Version) {
    let packet = || version.packet();
    let long = tracked.run(version, &packet().size(9100));
    assert_eq!(long.reason, Some(PassReason::MtuExceeded));
    let mut others = vec![packet().ttl(1), packet().ports(PORTS.0 + 1, PORTS.1)];
    match version {
        Version::V4 => others.extend([packet().options(&[1; 4]), packet().fragment(0, true)]),
        Version::V6 => {
            others.extend([packet().fragment(0, true), packet().fragment(0, false)]);
            let kinds = [IpNumber::IPV6_DESTINATION_OPTIONS, IpNumber::IPV6_HEADER_HOP_BY_HOP];
            others.extend(kinds.map(|kind| packet().extension(kind, 8)));
        }
    }
    for packet in others {
        let frame = packet.build();
        let runs = [tracked.compared.run(0, &frame), tracked.compared.run_by_tc(0, &frame)];
        for run in runs {
            assert!(run.reason.is_some(), "{packet:?}: {:?}", run.action);
        }
    }
}

/// A query comes with a packet that is old enough; then the entry says what becomes of the packets, and the kernel whether it
/// still counts.
pub fn entries() {
    let mut tracked = Tracked::new();
    for version in Version::ALL {
        asked(&mut tracked, version);
        entered(&mut tracked, version);
        ended(&mut tracked, version);
    }
}

fn asked(tracked: &mut Tracked, version: Version) {
    while tracked.queries.take().is_some() {}
    tracked.assert_kernels(version);
    assert_eq!(tracked.queries.take(), None, "for a first packet");
    std::thread::sleep(Duration::from_millis(20));
    tracked.assert_kernels(version);
    let output = OUT.link(1);
    let query = Query { key: version.key(), output: Some(output) };
    assert_eq!(tracked.queries.take(), Some(query));
    tracked.assert_kernels(version);
    assert_eq!(tracked.queries.take(), None, "twice at once");

    // The rules have not been evaluated for the link that it leaves by.
    version.make(version.source(), "SEEN_REPLY,ASSURED");
    for treatment in [Treatment::Unruled { retry: 0 }, Treatment::Forwarded(LinkId(output.0 + 1))] {
        tracked.insert(version, treatment, version.source());
        std::thread::sleep(Duration::from_millis(20));
        tracked.assert_kernels(version);
        assert_eq!(tracked.queries.take(), Some(query), "{treatment:?}");
    }
}

fn entered(tracked: &mut Tracked, version: Version) {
    let (output, plain) = (OUT.link(1), version.source());
    tracked.insert(version, Treatment::Forwarded(output), plain);
    let run = tracked.run(version, &version.packet());
    assert_eq!(run.action, Action::Redirect, "{version:?}: {:?}", run.reason);
    let frame = version.frame(&version.packet());
    assert_eq!(run.output, OUT.forwarded(1, &frame));
    assert!(version.timeout().is_some_and(|timeout| timeout > 60), "{:?}", version.timeout());
    let (_, used) = tracked.connections.get(&version.key()).unwrap();
    assert_eq!(used, [1, (frame.len() - 14) as u64]);
    noted::next_hop(tracked, version);
    noted::conditions(tracked, version);
    summed(tracked, version);
    others(tracked, version);
    tracked.insert(version, Treatment::Dropped(output), plain);
    assert!(tracked.run(version, &version.packet()).dropped.is_some());

    // Somebody has deleted it.
    sh("conntrack -F");
    tracked.insert(version, Treatment::Forwarded(output), plain);
    tracked.assert_kernels(version);
    assert_eq!(tracked.connections.get(&version.key()), None, "ended");
    // It is another one: its packets leave with another address.
    version.make(version.outside(), "SEEN_REPLY,ASSURED");
    tracked.insert(version, Treatment::Forwarded(output), plain);
    tracked.assert_kernels(version);
    tracked.insert(version, Treatment::Forwarded(output), version.outside());
    translated(tracked, version);
}

fn ended(tracked: &mut Tracked, version: Version) {
    let (forwarded, plain) = (Treatment::Forwarded(OUT.link(1)), version.source());
    let is_kernels = |tracked: &Tracked| {
        tracked.run(version, &version.packet()).reason == Some(PassReason::Connection)
    };
    // It is no longer what it was: by the next tick, the program notices.
    let ended = |tracked: &mut Tracked, source, change: &str| {
        sh(change);
        tracked.insert(version, forwarded, source);
        until(change, || is_kernels(tracked));
    };
    ended(tracked, version.outside(), "conntrack -F");
    version.make(plain, "SEEN_REPLY");
    ended(tracked, plain, "conntrack -L");
    assert!(version.timeout().is_some_and(|timeout| timeout <= 30));
    sh("conntrack -F");
    version.make(plain, "SEEN_REPLY,ASSURED");
    tracked.insert(version, forwarded, plain);
    assert_eq!(tracked.run(version, &version.packet()).action, Action::Redirect);
    version.set_mark(7);
    until("the mark is seen", || is_kernels(tracked));

    // Everything is void after a change.
    sh("conntrack -F");
    version.make(plain, "SEEN_REPLY,ASSURED");
    tracked.insert(version, forwarded, plain);
    assert_eq!(tracked.run(version, &version.packet()).action, Action::Redirect);
    tracked.compared.programs.state().bump_generation();
    tracked.assert_kernels(version);
}
