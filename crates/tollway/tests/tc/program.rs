//! Compares the tc program with the user path over the same tables. The kernel runs it on frames in memory
//! (BPF_PROG_TEST_RUN): those without a tag on ingress, since only a device takes tags out of frames.

use std::sync::Arc;

use tollway_dataplane::frame::Umem;
use tollway_dataplane::host::Host;
use tollway_dataplane::id::PortId;
use tollway_dataplane::memory::Memory;
use tollway_dataplane::worker::Worker;
use tollway_net::{KernelPath, Mac};
use tollway_xdp::counts::PassReason;
use tollway_xdp::{Action, Mode, Options, Program, TableMaps, XdpLink, XdpPort, XdpPrograms};

use super::namespaces::{ifindex, sh};
use super::testkit::dice::Dice;
use super::testkit::mixed;
use super::testkit::net::Net;
use super::testkit::packet::{Ip, Packet};
use super::testkit::wires::{LinkVariant, PORTS, tables_in};

const CHUNK: u32 = 16_384;
/// The kernel takes frames with a whole IP header and of up to a page, with room around them.
const SHORTEST: usize = 54;
const LONGEST: usize = 3000;

/// Why nothing leaves.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    ByKernel(PassReason),
    Dropped,
}

/// The programs of the test network's ports, and the user path over the same tables.
struct Bench {
    net: Net,
    programs: XdpPrograms,
    loaded: Vec<(u32, Program)>,
}

fn port(number: u8) -> XdpPort {
    let (device, mac) = (format!("p{number}"), LinkVariant::Plain.mac(number));
    let text = mac.map(|byte| format!("{byte:02x}")).join(":");
    sh(&format!("ip link add {device} address {text} type veth peer name q{number}"));
    let link = XdpLink {
        tag: None,
        outer: None,
        link: LinkVariant::Plain.link(number),
        kernel_path: KernelPath::default(),
    };
    let (port, ifindex) = (PortId(number.into()), ifindex(&device));
    XdpPort {
        port,
        device,
        ifindex,
        mac: Mac(mac),
        queues: 0,
        links: vec![link],
        is_bridge_port: false,
    }
}

impl Bench {
    fn new() -> Self {
        let tables = tables_in(&Memory::lent(Arc::new(TableMaps::new(0).unwrap())));
        let ports: Vec<_> = (0..PORTS).map(port).collect();
        let mut programs = XdpPrograms::load(&ports, &Options::default()).unwrap();
        programs.state().set_bypass(false);
        programs.use_tables(&tables).unwrap();
        tables.write_engines();
        let load =
            |port: &XdpPort| (port.ifindex, programs.program(port.port, Mode::Tcx, true).unwrap());
        let loaded = ports.iter().map(load).collect();
        let mut net = Net::with_memory(256, CHUNK);
        net.worker = Worker::alone(tables, Umem::new(256, CHUNK).unwrap(), Host::new());
        Self { net, programs, loaded }
    }

    /// Runs the program of a port on a frame; if `segment` is not 0, on a super-frame. Returns what leaves, or why
    /// nothing does.
    fn run(&self, port: u8, frame: &[u8], segment: u32) -> Result<Vec<u8>, Kept> {
        let (ifindex, program) = &self.loaded[usize::from(port)];
        // On a busy machine the heartbeat may become stale, but not each time.
        for _ in 0..10 {
            let counts = || self.programs.counts().port(PortId(port.into())).unwrap();
            let before = counts();
            self.programs.state().beat(0);
            let (action, output) = program
                .probe_super((*ifindex, segment), frame)
                .unwrap_or_else(|error| panic!("{error} for {} bytes", frame.len()));
            let after = counts();
            let reason = |reason: &&PassReason| after.passed(**reason) > before.passed(**reason);
            match (action, PassReason::ALL.iter().find(reason)) {
                (_, Some(PassReason::Stale)) => {}
                (Action::Pass, Some(reason)) => {
                    assert_eq!(output, frame, "the kernel gets the frame unchanged");
                    return Err(Kept::ByKernel(*reason));
                }
                (Action::Redirect, None) => return Ok(output),
                (Action::Drop, None) => return Err(Kept::Dropped),
                other => panic!("{other:?} for {frame:02x?}"),
            }
        }
        panic!("this machine is too busy for a heartbeat");
    }

    /// Asserts that the user path makes of a frame what the program made of it. The outer tag lies beside the frame.
    fn compare(&mut self, port: u8, frame: &[u8], output: &[u8]) {
        let sent = self.net.send(port, frame);
        assert_eq!(sent.len(), 1, "the program forwards what the path does not: {frame:02x?}");
        let mut wanted = sent[0].1.clone();
        if matches!(wanted[12..14], [0x81, 0x00] | [0x88, 0xa8]) {
            wanted.drain(12..16);
        }
        let (same, padding) = output.split_at(wanted.len().min(output.len()));
        assert_eq!(same, wanted, "of {frame:02x?}");
        assert!(padding.is_empty() || frame.len() <= 14 + 46, "{output:02x?}");
    }
}

pub fn as_the_user_path() {
    let mut bench = Bench::new();
    for (to, out) in (0..PORTS).flat_map(|to| LinkVariant::ALL.map(|out| (to, out))) {
        if (to, out) == (0, LinkVariant::Plain) {
            continue;
        }
        for dst in [out.host4(to), out.host6(to)] {
            for bytes in [60, 200, 1280] {
                let frame = LinkVariant::Plain.packet(0, dst).size(bytes).build();
                let output = bench.run(0, &frame, 0);
                let output = output.unwrap_or_else(|why| panic!("{why:?}: {to} {out:?} {dst}"));
                bench.compare(0, &frame, &output);
            }
        }
    }
    let (mut dice, mut hits, mut drops) = (Dice(4711), 0, 0);
    for _ in 0..16_000 {
        let port = dice.below(PORTS.into()) as u8;
        let frame = mixed::frame(port, dice.roll());
        if !(SHORTEST..=LONGEST).contains(&frame.len()) {
            continue;
        }
        match bench.run(port, &frame, 0) {
            Ok(output) => {
                bench.compare(port, &frame, &output);
                hits += 1;
            }
            Err(Kept::Dropped) => {
                let before = bench.net.counters().dropped_packets();
                assert!(bench.net.send(port, &frame).is_empty(), "{frame:02x?}");
                assert_eq!(bench.net.counters().dropped_packets(), before + 1, "{frame:02x?}");
                drops += 1;
            }
            Err(Kept::ByKernel(_)) => {}
        }
        if bench.net.counters().held > 100 {
            bench.net.pass(5);
            bench.net.take_all();
        }
    }
    assert!(hits > 300 && drops > 30, "{hits} hits, {drops} drops");
}

/// What the kernel gets, and why.
pub fn reasons() {
    let bench = Bench::new();
    let why_of = |frame: &[u8]| match bench.run(0, frame, 0) {
        Err(Kept::ByKernel(reason)) => reason,
        other => panic!("{other:02x?}"),
    };
    let why = |packet: &Packet| why_of(&packet.build());
    let plain = LinkVariant::Plain;
    for dst in [plain.host4(1), plain.host6(1)] {
        let packet = || plain.packet(0, dst);
        assert!(bench.run(0, &packet().build(), 0).is_ok());
        assert_eq!(why(&packet().to([2; 6])), PassReason::NotOursMac);
        assert_eq!(why(&packet().to([0xff; 6])), PassReason::GroupMac);
        assert_eq!(why(&packet().ttl(1)), PassReason::Ttl);
        assert_eq!(why(&packet().padded(60)), PassReason::Undecided, "bytes behind the packet");
        // A device has taken out the first tag, so this is the second one.
        assert_eq!(why(&packet().tagged(&[(0x8100, 7)])), PassReason::Undecided);
        let short = packet().build();
        assert_eq!(why_of(&short[..short.len() - 1]), PassReason::Malformed);
    }
    for dst in [plain.host4(0), plain.host6(0)] {
        assert_eq!(why(&plain.packet(0, dst)), PassReason::Undecided, "a redirect may be due");
    }
    let packet = || plain.packet(0, plain.host4(1));
    assert_eq!(why(&packet().options(&[1; 4])), PassReason::Options);
    let mut wrong = packet().build();
    wrong[24] ^= 1;
    assert_eq!(why_of(&wrong), PassReason::Malformed, "the checksum");
    let mut other = packet().build();
    other[12..14].copy_from_slice(&[0x12, 0x34]);
    assert_eq!(why_of(&other), PassReason::Ethertype);
    bench.programs.state().set_bypass(true);
    assert_eq!(why(&packet()), PassReason::Bypass);
}

/// Makes a frame with a TCP packet of so many bytes, whose header has 20 bytes, or one with UDP.
fn super_frame(packet: Packet, protocol: u8) -> Vec<u8> {
    let mut packet = packet.size(LONGEST - 100);
    let header = match &mut packet.ip {
        Ip::V4(header) => {
            header.protocol = protocol.into();
            20
        }
        Ip::V6 { header, .. } => {
            header.next_header = protocol.into();
            40
        }
    };
    let mut frame = packet.build();
    frame[14 + header + 12] = 5 << 4;
    frame
}

/// A super-frame is forwarded if its segments fit the next hop; otherwise the kernel answers it.
pub fn segments() {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const SCTP: u8 = 132;
    let bench = Bench::new();
    let too_long = Err(Kept::ByKernel(PassReason::MtuExceeded));
    let to = LinkVariant::Vlan;
    // From port 1 to port 0, which has an MTU of 1500.
    for (dst, header) in [(to.host4(0), 20), (to.host6(0), 40)] {
        let frame = |protocol| super_frame(LinkVariant::Plain.packet(1, dst), protocol);
        let room = 1500 - header - 20;
        let tcp = frame(TCP);
        let output = bench.run(1, &tcp, room).unwrap();
        assert_eq!(output.len(), tcp.len(), "it stays whole");
        assert_eq!(bench.run(1, &tcp, room + 1), too_long);
        assert_eq!(bench.run(1, &tcp, 0), too_long, "a plain frame");
        // The segments of UDP may be a tunnel's, with longer headers.
        assert!(bench.run(1, &frame(UDP), 1000).is_ok());
        assert_eq!(bench.run(1, &frame(UDP), 1400), too_long);
        assert_eq!(bench.run(1, &frame(SCTP), 100), too_long);
    }
}
