//! The programs follow the windows of TCP as the kernel does: two connections have the same conversation, one of them by
//! the kernel alone, and the other by the programs, with the kernel behind them.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tollway_conntrack::{Change, Conntrack, TcpFlags, Tuple};
use tollway_xdp::connections::{Connection, ConnectionKey, Part, Track, Translation, Treatment};
use tollway_xdp::{Action, TcpSettings};

use crate::namespaces::tun::tun;
use crate::namespaces::{sh, until};
use crate::tcp_segments::{ACK, SYN, Segment, Talk};
use crate::testkit::dice::Dice;
use crate::testkit::wires::LinkVariant;
use crate::tracked::{Tracked, Version};

/// The links by which the packets of both ways leave.
pub const OUT: [LinkVariant; 2] = [LinkVariant::Vlan, LinkVariant::Plain];
pub const PORTS_OUT: [u8; 2] = [1, 2];
/// Conversations, and the segments of each, at most.
const TALKS: u64 = 1000;
const SEGMENTS: usize = 120;
/// After so many invalid segments of a way in a row, the programs start over (`MOST_STRAYS`), and the kernel does not.
const STRAYS: usize = 3;
/// How often a conversation is tried.
const TRIES: u32 = 5;
/// Ports of the connection of the kernel alone, and of the other one.
const ALONE: [u16; 2] = [4001, 80];
const WITH: [u16; 2] = [4002, 80];

/// Those of the kernel unless somebody changes them.
pub const SETTINGS: TcpSettings = TcpSettings {
    timeout_ms: 432_000_000,
    close_timeout_ms: 10_000,
    is_liberal: false,
    ignores_invalid_resets: false,
};

/// Both ends of the kernel, and what it forwards from one to the other.
pub struct Kernel([File; 2]);

impl Kernel {
    pub fn new() -> Self {
        let devices = [tun("in0", 0, true), tun("out0", 0, true)];
        sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0");
        sh("sysctl -qw net.ipv6.conf.all.forwarding=1");
        for (name, way) in [("in0", 0), ("out0", 1)] {
            sh(&format!("ip link set {name} up"));
            for version in Version::ALL {
                sh(&format!("ip route add {} dev {name}", hosts(version)[way]));
            }
        }
        Self(devices)
    }

    /// Gives the kernel a packet; says whether it forwards it.
    fn forwards(&mut self, way: usize, packet: &[u8]) -> bool {
        let version = if packet[0] >> 4 == 4 { Version::V4 } else { Version::V6 };
        let ports = version.header_len()..version.header_len() + 4;
        // Of the same ports, and not something of the kernel's own.
        let is_it = |out: &Vec<u8>| {
            out.len() == packet.len() && out[ports.clone()] == packet[ports.clone()]
        };
        self.outputs(way, packet).iter().any(is_it)
    }

    /// Gives the kernel a packet; returns what it sends the other way.
    pub fn outputs(&mut self, way: usize, packet: &[u8]) -> Vec<Vec<u8>> {
        self.0[way].write_all(packet).unwrap();
        let mut bytes = [0; 2048];
        let mut outputs = Vec::new();
        loop {
            match self.0[1 - way].read(&mut bytes) {
                Ok(len) => outputs.push(bytes[..len].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return outputs,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// The family of a conversation, by its number, and the program that runs.
fn version_of(seed: u64) -> (Version, bool) {
    (Version::ALL[(seed / 2 % 2) as usize], seed % 2 == 1)
}

pub fn hosts(version: Version) -> [IpAddr; 2] {
    [0, 1].map(|way: usize| version.host(OUT[1 - way], PORTS_OUT[1 - way]))
}

fn tuple(version: Version, ports: [u16; 2]) -> Tuple {
    let [from, to] = hosts(version);
    Tuple::with_ports(6, (from, ports[0]), (to, ports[1]))
}

/// The state of a connection in the kernel.
fn state(conntrack: &mut Conntrack, version: Version, ports: [u16; 2]) -> Option<&'static str> {
    let found = conntrack.get(&tuple(version, ports), 0).unwrap()?;
    found.tcp.map(|tcp| tcp.state.name())
}

/// The key of the packets of a way, which all arrive at the first port.
fn key(version: Version, way: usize) -> ConnectionKey {
    let hosts = hosts(version);
    let ends = [(hosts[0], WITH[0]), (hosts[1], WITH[1])];
    ConnectionKey::new(LinkVariant::Plain.link(0), 6, ends[way], ends[1 - way]).unwrap()
}

/// Enters both directions of the connection.
fn enter(tracked: &mut Tracked, conntrack: &mut Conntrack, version: Version) -> Track {
    let generation = tracked.compared.programs.state().connections_generation();
    let set = |conntrack: &mut Conntrack, mask, flags| {
        let change = Change::TcpFlags { mask, flags };
        assert!(conntrack.change(&tuple(version, WITH), 0, change).unwrap());
    };
    set(conntrack, TcpFlags::LIBERAL, TcpFlags::LIBERAL);
    let track = tracked.table.begin_track(&key(version, 0), false).unwrap();
    for way in [0, 1] {
        let key = key(version, way);
        let entry = Connection {
            generation,
            treatment: Treatment::Forwarded(OUT[way].link(PORTS_OUT[way])),
            translation: Translation::none(&key),
            mark: 0,
            track: Some((track, way == 1)),
        };
        assert!(tracked.table.insert(&key, &entry, generation));
    }
    set(conntrack, TcpFlags::OF_PACKETS, TcpFlags(0));
    track
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Forwarded,
    Dropped,
    /// The kernel decides.
    Kernels,
}

fn run(tracked: &Tracked, packet: &[u8], is_tc: bool) -> Verdict {
    let ethertype: &[u8] = if packet[0] >> 4 == 4 { &[8, 0] } else { &[0x86, 0xdd] };
    let header = [&LinkVariant::Plain.mac(0)[..], &[6, 0, 0, 0, 0, 9], ethertype].concat();
    let frame = [&header, packet].concat();
    let run = match is_tc {
        true => tracked.compared.run_by_tc(0, &frame),
        false => tracked.compared.run(0, &frame),
    };
    match (run.action, run.dropped) {
        (Action::Redirect, _) => Verdict::Forwarded,
        (_, Some(_)) => Verdict::Dropped,
        _ => Verdict::Kernels,
    }
}

/// Has one conversation twice. Returns how many segments were forwarded and dropped by the program. If packets went past it
/// meanwhile, as on a busy machine, the track judges less: then the conversation begins again, so many times at most.
fn converse(tracked: &mut Tracked, kernel: &mut Kernel, seed: u64, tries: u32) -> [usize; 2] {
    let unserved = tracked.compared.programs.state().unserved_tick();
    sh("conntrack -F");
    let (version, is_tc) = version_of(seed);
    let hosts = hosts(version);
    let mut conntrack = Conntrack::open().unwrap();
    let mut talk = Talk::new(Dice(seed));
    for segment in talk.opening() {
        for ports in [ALONE, WITH] {
            assert!(kernel.forwards(segment.way, &segment.packet(hosts, ports)), "{segment:?}");
        }
    }
    assert_eq!(state(&mut conntrack, version, ALONE), Some("ESTABLISHED"));
    let track = enter(tracked, &mut conntrack, version);
    let (mut counts, mut strays) = ([0; 2], [0; 2]);
    let mut told: Vec<Segment> = Vec::new();
    for number in 0..SEGMENTS {
        // The windows count when both sides have been followed.
        let segment = if number < 2 { talk.segment(number, 0) } else { talk.draw() };
        told.push(segment.clone());
        let by_kernel = kernel.forwards(segment.way, &segment.packet(hosts, ALONE));
        let packet = segment.packet(hosts, WITH);
        let verdict = run(tracked, &packet, is_tc);
        let is_closed = tracked.table.track_state(track).is_closed;
        let by_program = match verdict {
            Verdict::Forwarded => true,
            Verdict::Dropped => false,
            Verdict::Kernels => kernel.forwards(segment.way, &packet),
        };
        let context = || {
            format!(
                "seed {seed}, {version:?}, {verdict:?}: {:#?}",
                &told[told.len().saturating_sub(6)..]
            )
        };
        let has_missed = tracked.compared.programs.state().unserved_tick() != unserved;
        if by_program != by_kernel && has_missed && tries > 1 {
            std::thread::sleep(Duration::from_millis(150));
            return converse(tracked, kernel, seed, tries - 1);
        }
        assert_eq!(by_program, by_kernel, "{}", context());
        let states = [ALONE, WITH].map(|ports| state(&mut conntrack, version, ports));
        assert_eq!(states[0], states[1], "{}", context());
        assert_eq!(
            is_closed,
            states[0] != Some("ESTABLISHED") || segment.flags & 2 != 0 && is_closed,
            "{}",
            context()
        );
        strays[segment.way] = if by_kernel { 0 } else { strays[segment.way] + 1 };
        if is_closed || strays.contains(&STRAYS) {
            break;
        }
        counts[0] += usize::from(verdict == Verdict::Forwarded);
        counts[1] += usize::from(verdict == Verdict::Dropped);
        if by_kernel {
            talk.arrived(&segment);
        }
    }
    counts
}

/// Drawn conversations by the kernel alone and by the programs: the same segments arrive, and the same states follow.
pub fn drawn() {
    let mut tracked = Tracked::new();
    sh("nft insert rule inet t f ct state invalid drop");
    tracked.compared.programs.state().set_tcp(Some(SETTINGS));
    tracked.compared.programs.state().set_verifies_sums(true);
    let mut kernel = Kernel::new();
    let counts = (0..TALKS).map(|seed| converse(&mut tracked, &mut kernel, seed, TRIES));
    let [forwarded, dropped] =
        counts.fold([0; 2], |sum, more| [sum[0] + more[0], sum[1] + more[1]]);
    println!("{forwarded} segments forwarded, {dropped} dropped");
    for version in Version::ALL {
        quiet(&mut tracked, &mut kernel, version);
        missed(&mut tracked, &mut kernel, version);
    }
    assert!(forwarded > 1000 && dropped > 50, "{forwarded} forwarded, {dropped} dropped");
}

/// Opens a connection by the kernel, and enters it.
fn opened(
    tracked: &mut Tracked,
    kernel: &mut Kernel,
    version: Version,
    seed: u64,
) -> (Talk, Track) {
    sh("conntrack -F");
    let mut talk = Talk::new(Dice(seed));
    for segment in talk.opening() {
        assert!(kernel.forwards(segment.way, &segment.packet(hosts(version), WITH)));
    }
    (talk, enter(tracked, &mut Conntrack::open().unwrap(), version))
}

/// A segment that goes past the programs makes no later one invalid, and the track no longer says what the connection waits for.
fn missed(tracked: &mut Tracked, kernel: &mut Kernel, version: Version) {
    let hosts = hosts(version);
    let (mut talk, track) = opened(tracked, kernel, version, 2);
    let programs = tracked.compared.programs.state();
    let mut next = |way, bytes| {
        let segment = talk.segment(way, bytes);
        talk.arrived(&segment);
        segment.packet(hosts, WITH)
    };
    for (way, bytes) in [(0, 100), (1, 100), (0, 100), (1, 0)] {
        assert_eq!(run(tracked, &next(way, bytes), false), Verdict::Forwarded);
    }
    let may_have_missed =
        || tracked.table.track_state(track).may_have_missed(programs.unserved_tick());
    assert!(!may_have_missed());
    programs.set_tcp(None);
    assert_eq!(run(tracked, &next(0, 1000), false), Verdict::Kernels);
    assert!(may_have_missed());
    programs.set_tcp(Some(SETTINGS));
    assert_eq!(
        run(tracked, &next(1, 0), false),
        Verdict::Forwarded,
        "it acknowledges what went past"
    );
    // Some ticks behind that, tracks judge again.
    std::thread::sleep(Duration::from_millis(150));
}

/// A connection that waits for an acknowledgment when it goes quiet is reported, once that is a second ago.
fn quiet(tracked: &mut Tracked, kernel: &mut Kernel, version: Version) {
    let hosts = hosts(version);
    let (talk, _) = opened(tracked, kernel, version, 1);
    let reported = |tracked: &mut Tracked| {
        let mut found = Vec::new();
        let all = Part { of: 1, until: Instant::now() + Duration::from_secs(10) };
        let note = |key: &ConnectionKey, idle_ms, state| {
            found.push((*key, idle_ms, state));
            Ok(())
        };
        tracked.table.sweep(all, note).unwrap();
        found
    };
    for (way, bytes) in [(0, 0), (1, 0), (0, 100)] {
        assert_eq!(
            run(tracked, &talk.segment(way, bytes).packet(hosts, WITH), false),
            Verdict::Forwarded
        );
    }
    assert!(reported(tracked).is_empty(), "packets have just come");
    until("a quiet connection", || {
        let found = reported(tracked);
        found.iter().any(|(of, idle_ms, track)| {
            [key(version, 0), key(version, 1)].contains(of)
                && *idle_ms > 900
                && track.has_unacknowledged
                && !track.is_closed
        })
    });
    assert!(reported(tracked).is_empty(), "no packet has come since");
}

/// A connection is asked about some milliseconds after its first packet, even if an earlier one had the same ports.
pub fn newcomers() {
    /// Longer than nobody asks (`LEAST_AGE`, `RETRY_SOON` of `bpf/connections.h`).
    const OLD: Duration = Duration::from_millis(40);
    let mut tracked = Tracked::new();
    tracked.compared.programs.state().set_tcp(Some(SETTINGS));
    let mut is_asked_about = |version, flags| {
        let segment = Segment {
            way: 0,
            seq: 1,
            ack: 1,
            flags,
            win: 1000,
            options: Vec::new(),
            bytes: 0,
            is_damaged: false,
        };
        assert_eq!(run(&tracked, &segment.packet(hosts(version), WITH), false), Verdict::Kernels);
        tracked.queries.take().is_some()
    };
    for version in [Version::V4, Version::V6, Version::V4] {
        assert!(!is_asked_about(version, SYN), "its first packet, whatever was there before");
        std::thread::sleep(OLD);
        assert!(is_asked_about(version, ACK), "by now it is old");
        std::thread::sleep(OLD);
    }
}
