//! A stand-in for `tollway` with a known cost per packet, so that the tests can check the result of a
//! comparison of two builds. The tests replace CLOCKS and HAS_PROBE before they build it.

use std::io::BufRead;

/// Additional clocks at every level of optimisation below 3.
const LEVEL: f64 = if matches!(env!("LEVEL").as_bytes(), b"3") { 0.0 } else { 5.0 };

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["lab", "probe", row, ..] if HAS_PROBE && row == "ip4-one-flow" => probe(),
        ["lab", "tolls", "--json", "--only", row] if row == "ip4-one-flow" => tolls(),
        _ => {
            eprintln!("error: unrecognized subcommand");
            std::process::exit(2);
        }
    }
}

fn clocks(at: usize) -> f64 {
    CLOCKS + LEVEL + (at * 7 % 5) as f64 * 0.001
}

fn probe() {
    for (at, _) in std::io::stdin().lock().lines().enumerate() {
        let clocks = clocks(at);
        println!("{{\"clocks_per_packet\":{clocks},\"ns_per_packet\":1,\"packets\":65536}}");
    }
}

fn tolls() {
    let median = clocks(0);
    println!(
        "{{\"rows\":[{{\"name\":\"ip4-one-flow\",\"clocks_per_packet\":{{\"median\":{median}}}}}]}}"
    );
}
