//! Rules of ipfw that translate and keep states, between captures: each frame as it leaves.

use etherparse::PacketBuilder;
use pcap_file::TsResolution;

use super::{A, Bench, CONFIG, at, read};

/// The order that FreeBSD's handbook has: what comes is translated first, what leaves last.
const RULES: &str = "\
nat 1 config if b same_ports deny_in redirect_port tcp 10.0.1.2:22 2200
add 100 nat 1 ip4 from any to any in recv b
add 110 check-state
add 120 skipto 500 tcp from 10.0.1.0/24 to any out xmit b setup keep-state
add 130 skipto 500 tcp from any to 10.0.1.2 22 out xmit a setup keep-state
add 140 allow ip from any to any in recv a
add 200 deny ip from any to any
add 500 nat 1 ip4 from any to any out xmit b
add 510 allow ip from any to any
";

const B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const INSIDE: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const CLIENT: [u8; 4] = [10, 0, 1, 2];
const ALIAS: [u8; 4] = [10, 0, 2, 1];
const SERVER: [u8; 4] = [10, 0, 2, 2];

type End = ([u8; 4], u16);

/// A segment on one of the cables, from a host to the router or the other way.
fn tcp(macs: ([u8; 6], [u8; 6]), ttl: u8, from: End, to: End, is_first: bool) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(macs.0, macs.1)
        .ipv4(from.0, to.0, ttl)
        .tcp(from.1, to.1, 1, 1000)
        .syn();
    let builder = if is_first { builder } else { builder.ack(2) };
    let mut frame = Vec::new();
    builder.write(&mut frame, b"data").unwrap();
    frame
}

/// Whether the frame comes by the inside port, when, and it as it comes and leaves.
type Line = (bool, u64, Vec<u8>, Option<Vec<u8>>);

fn from_inside(ms: u64, from: End, seen: Option<End>, to: End, is_first: bool) -> Line {
    let left = seen.map(|seen| tcp((B, OUTSIDE), 63, seen, to, is_first));
    (true, ms, tcp((INSIDE, A), 64, from, to, is_first), left)
}

fn from_outside(ms: u64, from: End, to: End, goes: Option<End>, is_first: bool) -> Line {
    let left = goes.map(|goes| tcp((A, INSIDE), 63, from, goes, is_first));
    (false, ms, tcp((OUTSIDE, B), 64, from, to, is_first), left)
}

fn script() -> Vec<Line> {
    let server = (SERVER, 80);
    let client = (CLIENT, 4000);
    let alias = (ALIAS, 4000);
    vec![
        from_outside(0, server, alias, None, false),
        from_inside(1, client, Some(alias), server, true),
        from_outside(2, server, alias, Some(client), false),
        from_outside(3, (SERVER, 81), alias, None, false),
        from_outside(4, (SERVER, 5000), (ALIAS, 2201), None, true),
        from_outside(5, (SERVER, 5000), (ALIAS, 2200), Some((CLIENT, 22)), true),
        from_inside(6, (CLIENT, 22), Some((ALIAS, 2200)), (SERVER, 5000), false),
        // Of no state.
        from_inside(7, (CLIENT, 4001), None, server, false),
    ]
}

#[test]
fn frames_leave_with_the_alias_and_come_inside() {
    let bench = Bench::new();
    std::fs::write(bench.path("rules.ipfw"), RULES).unwrap();
    let neighbour =
        "[[neighbours]]\ndev = \"a\"\naddress = \"10.0.1.2\"\nmac = \"02:00:00:00:00:11\"\n";
    let config = format!("filter = \"rules.ipfw\"\n{CONFIG}\n{neighbour}");
    std::fs::write(bench.path("router.toml"), config).unwrap();
    let script = script();
    for (is_inside, name) in [(true, "a.pcap"), (false, "b.pcap")] {
        let frames = script.iter().filter(|(inside, ..)| *inside == is_inside);
        let frames: Vec<_> =
            frames.map(|(_, ms, frame, _)| (at(ms * 1_000_000), frame.clone())).collect();
        bench.pcap(name, TsResolution::NanoSecond, &frames);
    }
    let json = bench.replay_json(&["--in", "a=a.pcap", "--in", "b=b.pcap"]);
    for (is_inside, name) in [(true, "out/b.pcap"), (false, "out/a.pcap")] {
        let left: Vec<_> = read(&bench.path(name)).into_iter().map(|(_, frame)| frame).collect();
        let lines = script.iter().filter(|(inside, ..)| *inside == is_inside);
        let expected: Vec<_> = lines.filter_map(|(.., left)| left.clone()).collect();
        assert_eq!(left, expected, "{name}");
    }
    let dropped = script.iter().filter(|(.., left)| left.is_none()).count();
    assert_eq!(json["drops"]["netfilter_drop"], dropped, "{json}");
}
