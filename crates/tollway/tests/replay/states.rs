//! Rules of ipfw that keep states, between captures: what comes back passes as long as the state lives.

use std::time::Duration;

use etherparse::PacketBuilder;
use pcap_file::TsResolution;

use super::{A, Bench, CONFIG, at, read};

const RULES: &str = "\
add 100 check-state
add 200 deny tcp from any to any established
add 300 allow tcp from 10.0.1.0/24 to any setup keep-state
add 310 allow udp from 10.0.1.0/24 to any 53 limit src-addr 2
add 320 allow icmp from 10.0.1.0/24 to any icmptypes 8 keep-state :ping
add 330 check-state :ping
add 340 allow udp from 2001:db8:1::/64 to any keep-state
";

const B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const INSIDE: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const CLIENT: [u8; 4] = [10, 0, 1, 2];
const SERVER: [u8; 4] = [10, 0, 2, 2];

/// The port that a packet comes by.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Inside,
    Outside,
}
use self::Side::{Inside, Outside};

fn ends(from: Side) -> ([u8; 6], [u8; 6], [u8; 4], [u8; 4]) {
    match from {
        Inside => (INSIDE, A, CLIENT, SERVER),
        Outside => (OUTSIDE, B, SERVER, CLIENT),
    }
}

/// A packet of the connection from port 4000, or another, to the server.
fn tcp(from: Side, client: u16, server: u16, flags: &str, ack: u32) -> Vec<u8> {
    let (source_mac, mac, source, destination) = ends(from);
    let ports = if from == Inside { (client, server) } else { (server, client) };
    let mut builder = PacketBuilder::ethernet2(source_mac, mac)
        .ipv4(source, destination, 64)
        .tcp(ports.0, ports.1, 1, 1000);
    for flag in flags.chars() {
        builder = match flag {
            'S' => builder.syn(),
            'F' => builder.fin(),
            'R' => builder.rst(),
            _ => builder.ack(ack),
        };
    }
    let mut frame = Vec::new();
    builder.write(&mut frame, b"data").unwrap();
    frame
}

fn udp(from: Side, client: u16) -> Vec<u8> {
    let (source_mac, mac, source, destination) = ends(from);
    let (source_port, port) = if from == Inside { (client, 53) } else { (53, client) };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(source_mac, mac)
        .ipv4(source, destination, 64)
        .udp(source_port, port)
        .write(&mut frame, b"name")
        .unwrap();
    frame
}

fn echo(from: Side) -> Vec<u8> {
    let (source_mac, mac, source, destination) = ends(from);
    let builder = PacketBuilder::ethernet2(source_mac, mac).ipv4(source, destination, 64);
    let builder = match from {
        Inside => builder.icmpv4_echo_request(7, 1),
        Outside => builder.icmpv4_echo_reply(7, 1),
    };
    let mut frame = Vec::new();
    builder.write(&mut frame, b"ping").unwrap();
    frame
}

fn udp6(from: Side, client: u16) -> Vec<u8> {
    let (source_mac, mac, ..) = ends(from);
    let address = |net: u8| {
        let mut address = [0; 16];
        address[..6].copy_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, net]);
        address[15] = 2;
        address
    };
    let (nets, ports) = match from {
        Inside => ((1, 2), (client, 443)),
        Outside => ((2, 1), (443, client)),
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(source_mac, mac)
        .ipv6(address(nets.0), address(nets.1), 64)
        .udp(ports.0, ports.1)
        .write(&mut frame, b"6")
        .unwrap();
    frame
}

/// The milliseconds at which packets come, where from, and whether they pass.
fn script() -> Vec<(u64, Side, Vec<u8>, bool)> {
    vec![
        (0, Outside, tcp(Outside, 4000, 80, "SA", 2), false),
        (1, Inside, tcp(Inside, 4000, 80, "S", 0), true),
        (2, Outside, tcp(Outside, 4000, 80, "SA", 2), true),
        (3, Inside, tcp(Inside, 4000, 80, "A", 2), true),
        (4, Outside, tcp(Outside, 4000, 80, "A", 6), true),
        (5, Outside, tcp(Outside, 4000, 81, "A", 6), false),
        (6, Outside, tcp(Outside, 22, 80, "S", 0), false),
        // The connection is open, so it lives for 300 s.
        (299_000, Outside, tcp(Outside, 4000, 80, "A", 6), true),
        (299_100, Inside, tcp(Inside, 4000, 80, "A", 6), true),
        (299_200, Inside, tcp(Inside, 4000, 80, "FA", 6), true),
        (299_300, Outside, tcp(Outside, 4000, 80, "FA", 7), true),
        (299_400, Inside, tcp(Inside, 4000, 80, "A", 7), true),
        (301_000, Outside, tcp(Outside, 4000, 80, "A", 7), false),
        // Nobody answers: 20 s.
        (310_000, Inside, tcp(Inside, 4001, 80, "S", 0), true),
        (331_000, Outside, tcp(Outside, 4001, 80, "SA", 2), false),
        // Two at a time.
        (400_000, Inside, udp(Inside, 5000), true),
        (400_100, Inside, udp(Inside, 5001), true),
        (400_200, Inside, udp(Inside, 5002), false),
        (400_300, Outside, udp(Outside, 5000), true),
        (400_400, Outside, udp(Outside, 5002), false),
        (412_000, Inside, udp(Inside, 5003), true),
        (500_000, Outside, echo(Outside), false),
        (500_100, Inside, echo(Inside), true),
        (500_200, Outside, echo(Outside), true),
        (506_000, Outside, echo(Outside), false),
        (600_000, Inside, udp6(Inside, 6000), true),
        (600_100, Outside, udp6(Outside, 6000), true),
        (600_200, Outside, udp6(Outside, 6001), false),
    ]
}

#[test]
fn answers_pass_while_the_state_lives() {
    let bench = Bench::new();
    std::fs::write(bench.path("rules.ipfw"), RULES).unwrap();
    let neighbours = ["10.0.1.2", "2001:db8:1::2"].map(|address| {
        format!(
            "[[neighbours]]\ndev = \"a\"\naddress = \"{address}\"\nmac = \"02:00:00:00:00:11\"\n"
        )
    });
    let config = format!("filter = \"rules.ipfw\"\n{CONFIG}\n{}", neighbours.concat());
    std::fs::write(bench.path("router.toml"), config).unwrap();

    let script = script();
    for (port, name) in [(Inside, "a.pcap"), (Outside, "b.pcap")] {
        let frames = script.iter().filter(|(_, from, ..)| *from == port);
        let frames: Vec<_> =
            frames.map(|(ms, _, frame, _)| (at(ms * 1_000_000), frame.clone())).collect();
        bench.pcap(name, TsResolution::NanoSecond, &frames);
    }
    let json = bench.replay_json(&["--in", "a=a.pcap", "--in", "b=b.pcap"]);

    let mut passed: Vec<Duration> = Vec::new();
    for name in ["out/a.pcap", "out/b.pcap"] {
        passed.extend(read(&bench.path(name)).iter().map(|(time, _)| *time));
    }
    passed.sort_unstable();
    let expected = script.iter().filter(|(.., passes)| *passes);
    let expected: Vec<_> = expected.map(|(ms, ..)| at(ms * 1_000_000)).collect();
    assert_eq!(passed, expected);
    assert_eq!(json["drops"]["netfilter_drop"], script.len() - expected.len(), "{json}");
}
