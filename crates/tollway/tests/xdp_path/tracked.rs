//! Packets of connections that the kernel tracks: the programs forward them by their entries, while the kernel has the
//! connections.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use etherparse::{Ipv4Header, UdpHeader};
use tollway_conntrack::{Tuple, get};
use tollway_dataplane::id::LinkId;
use tollway_linux::netlink::{QuerySocket, push};
use tollway_net::KernelPath;
use tollway_xdp::Action;
use tollway_xdp::connections::{
    Connection, ConnectionTable, Connections, Queries, Query, Translation, Treatment,
};
use tollway_xdp::counts::PassReason;
use tollway_xdp::flows::Flow4Key;

use crate::compared::{Compared, Run};
use crate::namespaces::{sh, until};
use crate::testkit::packet::Packet;
use crate::testkit::wires::LinkVariant;

/// The link that packets leave by.
const OUT: LinkVariant = LinkVariant::Vlan;
const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const PORTS: (u16, u16) = (4000, 53);
const NETLINK_NETFILTER: isize = 12;
/// The address and port that a source gets.
const OUTSIDE: (Ipv4Addr, u16) = (Ipv4Addr::new(198, 51, 100, 77), 1024);

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
        sh("nft add table ip t");
        sh("nft add chain ip t f { type filter hook forward priority 0 ; }");
        sh("nft add rule ip t f ct state established accept");
        let mut compared = Compared::new();
        for number in 0..compared.ports.len() {
            let mut changed = compared.ports[number].clone();
            for link in &mut changed.links {
                link.kernel_path = KernelPath { tracked4: true, ..KernelPath::default() };
            }
            compared.programs.set_port(changed.clone()).unwrap();
            compared.ports[number] = changed;
            compared.reload(number as u8);
        }
        compared.programs.state().set_udp_timeout_ms(77_000);
        let (table, queries) = compared.programs.connections().unwrap();
        let connections = table.connections().clone();
        Self { compared, table, connections, queries }
    }

    fn destination() -> Ipv4Addr {
        match OUT.host4(1) {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => panic!("host4 is of IPv4"),
        }
    }

    fn key() -> Flow4Key {
        let link = LinkVariant::Plain.link(0);
        Flow4Key::new(link, 17, (SOURCE, PORTS.0), (Self::destination(), PORTS.1))
    }

    fn packet() -> Packet {
        LinkVariant::Plain.packet(0, Self::destination().into()).ports(PORTS.0, PORTS.1)
    }

    fn run(&self, packet: &Packet) -> Run {
        self.compared.run(0, &packet.build())
    }

    fn insert(&mut self, treatment: Treatment, source: (Ipv4Addr, u16)) {
        let generation = self.compared.programs.state().connections_generation();
        let destination = (Self::destination(), PORTS.1);
        let translation = Translation { source, destination };
        let connection = Connection { generation, treatment, translation, mark: 0, track: None };
        assert!(self.table.insert(&Self::key(), &connection, generation));
    }

    /// Makes the kernel's own entry, whose packets leave with this source.
    fn kernel(outside: (Ipv4Addr, u16), status: &str) {
        let (destination, (sport, dport)) = (Self::destination(), PORTS);
        let nat = match outside == (SOURCE, sport) {
            true => String::new(),
            false => format!("--src-nat {}:{}", outside.0, outside.1),
        };
        sh(&format!(
            "conntrack -I -p udp -s {SOURCE} -d {destination} --sport {sport} --dport {dport} \
             -t 30 -u {status} {nat}"
        ));
    }

    /// Changes the mark of the kernel's entry (linux/netfilter/nfnetlink_conntrack.h).
    fn set_mark(mark: u32) {
        let ends = [(SOURCE, PORTS.0), (Self::destination(), PORTS.1)];
        let [from, to] = ends.map(|(address, port)| (IpAddr::V4(address), port));
        let mut body = get(&Tuple::with_ports(17, from, to), 0).unwrap();
        push(&mut body, 8, &mark.to_be_bytes());
        let mut socket = QuerySocket::open(NETLINK_NETFILTER).unwrap();
        socket.change(1 << 8, 0, &body).unwrap();
    }

    /// How long the kernel's entry has to live, in seconds.
    fn timeout() -> Option<u64> {
        let list = std::fs::read_to_string("/proc/net/nf_conntrack").unwrap();
        let line = list.lines().find(|line| line.contains(&format!("src={SOURCE} ")))?;
        line.split_whitespace().nth(4)?.parse().ok()
    }
}

/// The packets leave with the other source, by either engine, and with right checksums; without one in UDP, if they
/// had none.
fn translated(tracked: &Tracked) {
    for has_checksum in [true, false] {
        let mut frame = with_checksum(Tracked::packet().size(100).build());
        if !has_checksum {
            frame[40..42].fill(0);
        }
        let (xdp, tc) = (tracked.compared.run(0, &frame), tracked.compared.run_by_tc(0, &frame));
        // The tag of a packet in tc lies beside the frame.
        for (run, at) in [(&xdp, 18), (&tc, 14)] {
            assert_eq!(run.action, Action::Redirect, "{:?}", run.reason);
            let (ip, rest) = Ipv4Header::from_slice(&run.output[at..]).unwrap();
            assert_eq!(ip.source, OUTSIDE.0.octets());
            assert_eq!(ip.destination, Tracked::destination().octets());
            assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
            let (udp, data) = UdpHeader::from_slice(rest).unwrap();
            assert_eq!((udp.source_port, udp.destination_port), (OUTSIDE.1, PORTS.1));
            let checksum = udp.calc_checksum_ipv4(&ip, data).unwrap();
            assert_eq!(udp.checksum, if has_checksum { checksum } else { 0 });
        }
        assert_eq!(xdp.output[18..], tc.output[14..]);
    }
}

/// A packet with a wrong checksum is the kernel's, if it looks at them; whatever its length.
fn summed(tracked: &Tracked) {
    let state = tracked.compared.programs.state();
    for size in (60..80).chain([555, 556, 1066, 1100, 1500, 1501]) {
        let right = with_checksum(Tracked::packet().size(size).build());
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

/// A frame of UDP with the right length and checksum.
fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let udp_len = frame.len() as u16 - 34;
    frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
    let (ip, rest) = Ipv4Header::from_slice(&frame[14..]).unwrap();
    let (udp, data) = UdpHeader::from_slice(rest).unwrap();
    let checksum = udp.calc_checksum_ipv4(&ip, data).unwrap();
    frame[40..42].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// A query comes with a packet that is old enough; then the entry says what becomes of the packets, and the kernel whether it
/// still counts.
pub fn entries() {
    let mut tracked = Tracked::new();
    let plain = (SOURCE, PORTS.0);
    let assert_kernels = |tracked: &Tracked| {
        assert_eq!(tracked.run(&Tracked::packet()).reason, Some(PassReason::Connection));
    };
    assert_kernels(&tracked);
    assert_eq!(tracked.queries.take(), None, "for a first packet");
    std::thread::sleep(Duration::from_millis(20));
    assert_kernels(&tracked);
    let output = OUT.link(1);
    let query = Query { key: Tracked::key(), output: Some(output) };
    assert_eq!(tracked.queries.take(), Some(query));
    assert_kernels(&tracked);
    assert_eq!(tracked.queries.take(), None, "twice at once");

    // The rules have not been evaluated for the link that it leaves by.
    Tracked::kernel(plain, "SEEN_REPLY,ASSURED");
    for treatment in [Treatment::Unruled { retry: 0 }, Treatment::Forwarded(LinkId(output.0 + 1))] {
        tracked.insert(treatment, plain);
        std::thread::sleep(Duration::from_millis(20));
        assert_kernels(&tracked);
        let asked = Query { key: Tracked::key(), output: Some(output) };
        assert_eq!(tracked.queries.take(), Some(asked), "{treatment:?}");
    }
    tracked.insert(Treatment::Forwarded(output), plain);
    let run = tracked.run(&Tracked::packet());
    assert_eq!(run.action, Action::Redirect, "{:?}", run.reason);
    assert_eq!(run.output, OUT.forwarded(1, &Tracked::packet().build()));
    assert!(Tracked::timeout().is_some_and(|timeout| timeout > 60), "{:?}", Tracked::timeout());
    let (_, used) = tracked.connections.get(&Tracked::key()).unwrap();
    assert_eq!(used, [1, Tracked::packet().build().len() as u64]);
    summed(&tracked);
    // Only established connections of UDP are forwarded.
    for packet in [
        Tracked::packet().ttl(1),
        Tracked::packet().ports(PORTS.0 + 1, PORTS.1),
        Tracked::packet().options(&[1; 4]),
    ] {
        assert!(tracked.run(&packet).reason.is_some(), "{packet:?}");
    }
    tracked.insert(Treatment::Dropped(output), plain);
    assert!(tracked.run(&Tracked::packet()).dropped.is_some());

    // Somebody has deleted it.
    sh("conntrack -D -p udp");
    tracked.insert(Treatment::Forwarded(output), plain);
    assert_kernels(&tracked);
    assert_eq!(tracked.connections.get(&Tracked::key()), None, "ended");
    // It is another one: its packets leave with another address.
    Tracked::kernel(OUTSIDE, "SEEN_REPLY,ASSURED");
    tracked.insert(Treatment::Forwarded(output), plain);
    assert_kernels(&tracked);
    tracked.insert(Treatment::Forwarded(output), OUTSIDE);
    translated(&tracked);

    // It is no longer what it was: by the next tick, the program notices.
    let ended = |tracked: &mut Tracked, source, change: &str| {
        sh(change);
        tracked.insert(Treatment::Forwarded(output), source);
        until(change, || tracked.run(&Tracked::packet()).reason == Some(PassReason::Connection));
    };
    ended(&mut tracked, OUTSIDE, "conntrack -F");
    Tracked::kernel(plain, "SEEN_REPLY");
    ended(&mut tracked, plain, "conntrack -L");
    assert!(Tracked::timeout().is_some_and(|timeout| timeout <= 30));
    sh("conntrack -F");
    Tracked::kernel(plain, "SEEN_REPLY,ASSURED");
    tracked.insert(Treatment::Forwarded(output), plain);
    assert_eq!(tracked.run(&Tracked::packet()).action, Action::Redirect);
    Tracked::set_mark(7);
    until("the mark is seen", || {
        tracked.run(&Tracked::packet()).reason == Some(PassReason::Connection)
    });

    // Everything is void after a change.
    sh("conntrack -F");
    Tracked::kernel(plain, "SEEN_REPLY,ASSURED");
    tracked.insert(Treatment::Forwarded(output), plain);
    assert_eq!(tracked.run(&Tracked::packet()).action, Action::Redirect);
    tracked.compared.programs.state().bump_generation();
    assert_kernels(&tracked);
}
