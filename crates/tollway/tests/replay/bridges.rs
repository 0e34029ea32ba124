//! A bridge of the file, between captures.

use std::time::Duration;

use pcap_file::TsResolution;
use serde_json::json;

use super::{Bench, at, read};

const CONFIG: &str = r#"
[ports.a]
kind = "memory"

[ports.b]
kind = "memory"

[ports.c]
kind = "memory"

[bridges.br0]
ports = ["a", "b", { port = "c", storm_limit = 1 }]
ageing_s = 10

[[bridges.br0.entries]]
mac = "02:00:00:00:00:cc"
port = "c"
"#;

const BROADCAST: [u8; 6] = [0xff; 6];
const BPDU: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 0];

fn station(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A frame of a local experiment (IEEE 802, 9.2.3), which has its number behind the header.
fn frame(dst: [u8; 6], src: [u8; 6], number: u8) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb5, number]].concat();
    frame.resize(60, 0);
    frame
}

fn second(number: u64) -> Duration {
    at(number * 1_000_000_000)
}

/// The numbers of the frames that a port has sent.
fn sent(bench: &Bench, port: &str) -> Vec<u8> {
    read(&bench.path(&format!("out/{port}.pcap"))).iter().map(|(_, frame)| frame[14]).collect()
}

#[test]
fn a_bridge_learns_floods_and_forgets() {
    let bench = Bench::new();
    std::fs::write(bench.path("router.toml"), CONFIG).unwrap();
    let (one, two, fixed) = (station(1), station(2), station(0xcc));
    let by_a = [
        (second(0), frame(BROADCAST, one, 1)),
        (second(2), frame(two, one, 2)),
        (second(3), frame(fixed, one, 3)),
        (second(4), frame(BPDU, one, 4)),
        (second(20), frame(two, one, 5)),
    ];
    let by_b = [(second(1), frame(one, two, 10)), (second(5), frame(BROADCAST, BROADCAST, 11))];
    let by_c = [(second(6), frame(BROADCAST, fixed, 20)), (second(6), frame(BROADCAST, fixed, 21))];
    bench.pcap("a.pcap", TsResolution::NanoSecond, &by_a);
    bench.pcap("b.pcap", TsResolution::NanoSecond, &by_b);
    bench.pcap("c.pcap", TsResolution::NanoSecond, &by_c);
    let json = bench.replay_json(&["--in", "a=a.pcap", "--in", "b=b.pcap", "--in", "c=c.pcap"]);

    assert_eq!(sent(&bench, "a"), [10, 20]);
    assert_eq!(sent(&bench, "b"), [1, 2, 20, 5], "the last one is flooded, since 2 is forgotten");
    assert_eq!(sent(&bench, "c"), [1, 3, 5]);
    assert_eq!(
        (&json["received"], &json["cloned"], &json["sent"]),
        (&json!(9), &json!(3), &json!(9))
    );
    let drops = json!({"mac_reserved": 1, "mac_invalid_source": 1, "storm_limit": 1});
    assert_eq!(json["drops"], drops);
    // The station that sent last.
    assert_eq!(json["bridges"]["br0"], json!({"learned": 1, "moved": 0, "full": 0}));
}
