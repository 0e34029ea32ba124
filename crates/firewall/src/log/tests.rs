use std::sync::Arc;

use etherparse::PacketBuilder;
use tollway_dataplane::burst::Burst;
use tollway_dataplane::dispatch::Path;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::PortId;
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::filter::State;
use tollway_dataplane::stages::transmit::Egress;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::tolls::Tolls;

use super::recent::Recent;
use super::*;
use crate::ir::{Base, Chain, Family, Hook, Place, Policy, Rule};
use crate::program;
use tollway_capture::CaptureReader;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 7, 9];

fn links() -> Vec<Link> {
    let link = |name: &str| Link { name: name.into(), ..Link::default() };
    vec![link("eth0"), link("eth1")]
}

fn log(prefix: &str, group: Option<u16>) -> Step {
    Step::Do(Action::Log(Log { prefix: prefix.into(), group }))
}

/// One rule at a hook.
fn ruleset(hook: Hook, family: Family, steps: Vec<Step>) -> Ruleset {
    let mut rules = Ruleset::default();
    let mut chain = Chain::new("test", family);
    chain.base = Some(Base::new(hook, 0, Policy::Accept));
    chain.rules.push(Rule { place: Place::default(), text: String::new(), steps });
    rules.add_chain(chain);
    rules
}

/// Tables with a filter, by which frames that arrive by the first link are sent by the second.
fn tables(rules: &Ruleset) -> Tables {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf().unwrap();
    let links = [0; 2].map(|_| tables.add_port(OWN, vrf, 9000).unwrap().1);
    let via = "10.0.0.1".parse().unwrap();
    let next = tables.set_neigh(links[1], via, Some(PEER)).unwrap();
    tables.insert(vrf, RoutePrefix::V4(Prefix::v4(0, 0)), next).unwrap();
    tables.insert(vrf, RoutePrefix::V6(Prefix::v6(0x2001 << 112, 16)), next).unwrap();
    let filter = program::compile(rules, &self::links(), &tables.epochs).unwrap();
    tables.filter = Some(Arc::new(filter));
    tables
}

/// A worker's state for the filter of tables.
fn state(tables: &Tables) -> State {
    let mut state = State::new();
    state.renew(tables.filter.as_deref(), 0);
    state
}

/// Has the filter of tables log frames.
fn send(tables: &Tables, frames: &[Vec<u8>], now_ns: u64, state: &mut State) {
    state.now_ns = now_ns;
    let (mut umem, mut burst) = (Umem::new(64, 2048).unwrap(), Burst::new());
    burst.reset(PortId(0));
    for frame in frames {
        let stored = umem.store(frame).unwrap();
        assert!(burst.push(stored.addr, frame.len() as u16));
    }
    let (mut tolls, mut egress) = (Tolls::new(), Egress::new(2));
    Path::detect().forward(&mut burst, &mut umem, tables, &mut tolls, &mut egress, state);
}

/// The log lines of frames.
fn lines(hook: Hook, family: Family, frames: &[Vec<u8>]) -> Vec<String> {
    let rules = ruleset(hook, family, vec![log("seen: ", None)]);
    let (tables, logger) = (tables(&rules), Logger::new(&rules, &links()));
    let mut state = state(&tables);
    send(&tables, frames, 1, &mut state);
    std::iter::from_fn(|| state.log.pop()).filter_map(|one| logger.line(&one)).collect()
}

fn line(hook: Hook, frame: Vec<u8>) -> String {
    let mut lines = lines(hook, Family::Inet, &[frame]);
    assert_eq!(lines.len(), 1);
    lines.remove(0)
}

fn write(builder: etherparse::PacketBuilderStep<etherparse::IpHeaders>, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    builder.tcp(4000, 22, 7, 512).syn().write(&mut frame, body).unwrap();
    frame
}

fn four() -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ethernet2(PEER, OWN).ipv4([192, 0, 2, 1], [198, 51, 100, 7], 64)
}

fn six() -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    let dst = [0x20, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    PacketBuilder::ethernet2(PEER, OWN).ipv6([0x20; 16], dst, 64)
}

const MAC: &str = "MAC=02:00:00:00:00:01:02:00:00:00:07:09:";

#[test]
fn tcp_is_logged_as_the_kernel_logs_it() {
    let packet = "SRC=192.0.2.1 DST=198.51.100.7 LEN=44 TOS=0x00 PREC=0x00 TTL=63 ID=0 DF PROTO=TCP \
                  SPT=4000 DPT=22 WINDOW=512 RES=0x00 SYN URGP=0";
    let frame = write(four(), b"data");
    assert_eq!(
        line(Hook::Forward, frame.clone()),
        format!("seen: IN=eth0 OUT=eth1 {MAC}08:00 {packet}")
    );
    // At this hook there is no egress link yet, and the TTL is not decremented.
    let packet = packet.replace("TTL=63", "TTL=64");
    assert_eq!(line(Hook::Prerouting, frame), format!("seen: IN=eth0 OUT= {MAC}08:00 {packet}"));
    assert_eq!(
        line(Hook::Forward, write(six(), b"")),
        format!(
            "seen: IN=eth0 OUT=eth1 {MAC}86:dd SRC=2020:2020:2020:2020:2020:2020:2020:2020 \
             DST=2001:0000:0000:0000:0000:0000:0000:0002 LEN=60 TC=0 HOPLIMIT=63 FLOWLBL=0 PROTO=TCP \
             SPT=4000 DPT=22 WINDOW=512 RES=0x00 SYN URGP=0"
        )
    );
}

#[test]
fn other_protocols_too() {
    let mut udp = Vec::new();
    four().udp(1, 2).write(&mut udp, b"data").unwrap();
    assert!(line(Hook::Forward, udp.clone()).ends_with("PROTO=UDP SPT=1 DPT=2 LEN=12"));
    let mut echo = Vec::new();
    four().icmpv4_echo_request(3, 4).write(&mut echo, b"data").unwrap();
    assert!(line(Hook::Forward, echo).ends_with("PROTO=ICMP TYPE=8 CODE=0 ID=3 SEQ=4"));
    let mut echo = Vec::new();
    six().icmpv6_echo_request(3, 4).write(&mut echo, b"data").unwrap();
    assert!(line(Hook::Forward, echo).ends_with("PROTO=ICMPv6 TYPE=128 CODE=0 ID=3 SEQ=4"));
    let quoted = four().icmpv4(etherparse::Icmpv4Type::DestinationUnreachable(
        etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1400 },
    ));
    let mut error = Vec::new();
    quoted.write(&mut error, &udp[14..]).unwrap();
    let logged = line(Hook::Forward, error);
    assert!(logged.contains("PROTO=ICMP TYPE=3 CODE=4 [SRC=192.0.2.1 DST="), "{logged}");
    assert!(logged.ends_with("PROTO=UDP SPT=1 DPT=2 LEN=12 ] MTU=1400"), "{logged}");
}

#[test]
fn missing_parts_are_reported_as_missing() {
    let mut frame = write(four(), b"");
    frame.truncate(14 + 25);
    let logged = lines(Hook::Ingress, Family::Netdev, &[frame.clone(), frame[..30].to_vec()]);
    assert!(logged[0].ends_with("DF PROTO=TCP INCOMPLETE [5 bytes]"), "{}", logged[0]);
    assert!(logged[1].ends_with("08:00 TRUNCATED"), "{}", logged[1]);
    let mut arp = [&OWN[..], &PEER, &[8, 6], &[0, 1, 8, 0, 6, 4, 0, 1]].concat();
    arp.extend_from_slice(&[PEER.as_slice(), &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 2]].concat());
    assert_eq!(
        lines(Hook::Ingress, Family::Netdev, &[arp]),
        ["seen: IN=eth0 OUT= ARP HTYPE=1 PTYPE=0x0800 OPCODE=1 MACSRC=02:00:00:00:07:09 \
          IPSRC=10.0.0.1 MACDST=00:00:00:00:00:00 IPDST=10.0.0.2"]
    );
}

#[test]
fn any_bytes_make_some_line() {
    for seed in 0_u64..2000 {
        let mut frame = write(if seed % 2 == 0 { four() } else { six() }, &[7; 30]);
        let mut word = seed;
        for _ in 0..4 {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let at = 14 + (word >> 33) as usize % (frame.len() - 14);
            frame[at] = (word >> 13) as u8;
        }
        frame.truncate(14 + (word >> 40) as usize % (frame.len() - 13));
        assert_eq!(lines(Hook::Ingress, Family::Netdev, &[frame]).len(), 1);
    }
}

#[test]
fn lines_are_limited_and_captures_are_not() {
    let steps = vec![log("", None), log("taken", Some(5))];
    let rules = ruleset(Hook::Forward, Family::Inet, steps);
    let tables = tables(&rules);
    let mut state = state(&tables);
    let frames = vec![write(four(), &[1; 400]); 50];
    send(&tables, &frames, 1, &mut state);
    assert_eq!((state.log.limited, state.log.lost), (30, 0));
    send(&tables, &frames, 1_000_000_001, &mut state);
    assert_eq!(state.log.limited, 70, "ten a second");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("filter.pcap");
    let mut logger = Logger::new(&rules, &links());
    logger.capture_to(&file).unwrap();
    Journal::new(logger).finish([&mut state]);
    assert!(state.log.is_empty());
    let mut reader = CaptureReader::open(&file).unwrap();
    let mut count = 0;
    while let Some(captured) = reader.next_frame().unwrap() {
        assert_eq!(captured.bytes[..22], frames[0][..22]);
        assert_eq!(captured.bytes.len(), 256);
        count += 1;
    }
    assert_eq!(count, 100);
    for _ in 0..30 {
        send(&tables, &frames, 2_000_000_000, &mut state);
    }
    assert!(state.log.lost > 0, "more than wait");
}

/// The captured packets of a file by their source port.
fn ports_in(file: &std::path::Path) -> Vec<u16> {
    let mut reader = CaptureReader::open(file).unwrap();
    let frames = std::iter::from_fn(|| reader.next_frame().unwrap());
    frames.map(|captured| u16::from_be_bytes([captured.bytes[34], captured.bytes[35]])).collect()
}

fn from_port(port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    four().udp(port, 2).write(&mut frame, b"data").unwrap();
    frame
}

/// Two workers log by rules that are replaced twice before they drain anything. Each packet goes where its rules
/// said.
#[test]
fn packets_that_wait_when_rules_change_are_logged_by_their_own() {
    let captured = ruleset(Hook::Forward, Family::Inet, vec![log("", Some(1))]);
    let printed = ruleset(Hook::Forward, Family::Inet, vec![log("seen", None)]);
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first.pcap", "second.pcap"].map(|name| folder.path().join(name));
    let logger = |rules, file| Logger::of(Some(rules), &links(), file).unwrap();
    let journal = Journal::new(logger(&captured, Some(&first)));
    let mut states = [1, 2].map(|port| {
        let tables = tables(&captured);
        let mut state = state(&tables);
        send(&tables, &[from_port(port)], 1, &mut state);
        state
    });
    // The capture stays, then another one comes. Only the first worker takes the second rules.
    journal.change(1, logger(&printed, None), true);
    let others = tables(&printed);
    states[0].renew(others.filter.as_deref(), 1);
    send(&others, &[from_port(3)], 2, &mut states[0]);
    journal.change(2, logger(&captured, Some(&second)), false);
    let tables = tables(&captured);
    for (state, port) in states.iter_mut().zip([4, 5]) {
        state.renew(tables.filter.as_deref(), 2);
        send(&tables, &[from_port(port)], 3, state);
    }
    let [one, other] = &mut states;
    std::thread::scope(|scope| {
        let journal = &journal;
        scope.spawn(move || journal.drain(one));
        scope.spawn(move || journal.drain(other));
    });
    // A worker that found the other one writing still has its entries.
    journal.finish(&mut states);
    assert!(states.iter().all(|state| state.log.is_empty()));
    for (file, expected) in [(&first, [1, 2]), (&second, [4, 5])] {
        let mut found = ports_in(file);
        found.sort_unstable();
        assert_eq!(found, expected, "{}", file.display());
    }
}

#[test]
fn a_capture_can_be_created_again_at_once() {
    let rules = ruleset(Hook::Forward, Family::Inet, vec![log("", Some(1))]);
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first.pcap", "second.pcap"].map(|name| folder.path().join(name));
    let logger = |file| Logger::of(Some(&rules), &links(), Some(file)).unwrap();
    let tables = tables(&rules);
    let mut state = state(&tables);
    let journal = Journal::new(logger(&first));
    for (number, file) in [(1, &second), (2, &first)] {
        send(&tables, &[from_port(number as u16)], 1, &mut state);
        journal.drain(&mut state);
        journal.end_replaced();
        journal.change(number, logger(file), false);
        state.renew(tables.filter.as_deref(), number);
    }
    send(&tables, &[from_port(3)], 1, &mut state);
    journal.finish([&mut state]);
    assert_eq!((ports_in(&first), ports_in(&second)), (vec![3], vec![2]));
}

/// What a worker logged before its last rules stays in its queue. If it is late by more than loggers are kept, it is lost.
#[test]
fn entries_outlive_their_rules_until_their_logger_ends() {
    let rules = ruleset(Hook::Forward, Family::Inet, vec![log("", Some(1))]);
    let tables = tables(&rules);
    let mut state = state(&tables);
    send(&tables, &[from_port(1), from_port(2)], 1, &mut state);
    state.renew(None, 1);
    send(&tables, &[from_port(3)], 1, &mut state);
    assert_eq!(state.log.lost, 1, "no rule logs, so there is no room");
    let waiting: Vec<_> = std::iter::from_fn(|| state.log.pop()).collect();
    assert_eq!(waiting.iter().map(|logged| logged.rules).collect::<Vec<_>>(), [0, 0]);
    let mut recent = Recent::new(Logger::new(&rules, &links()));
    recent.begin(1, Logger::none(), true, std::time::Instant::now()).unwrap();
    assert!(recent.write(&waiting[0], 1).unwrap());
    recent.end_replaced().unwrap();
    assert!(!recent.write(&waiting[1], 1).unwrap());
}
