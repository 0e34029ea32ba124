//! traceroute with UDP and with echo requests.

use std::time::Duration;

use crate::namespaces::sh;
use crate::router::Net;
use crate::variants::{alike, output_of, ports};

/// Returns the hops without their times.
fn trace(net: &Net, arguments: &str) -> String {
    let line = format!("traceroute -n -q 1 -w 1 -m 4 -N 1 {arguments}");
    let output = output_of(&net.a, &line);
    let mut seen = line;
    for hop in output.lines().skip(1) {
        let words: Vec<&str> = hop.split_whitespace().collect();
        // From "1  10.0.1.1  0.051 ms  !N" the time is left out.
        let is_time = |at: usize| words[at] == "ms" || words.get(at + 1) == Some(&"ms");
        for at in (0..words.len()).filter(|at| !is_time(*at)) {
            seen = format!("{seen} {}", words[at]);
        }
        seen += ";";
    }
    seen
}

/// Compares the hops to host B.
pub fn hops() {
    let net = Net::new(1500, 1);
    alike(&net, &ports(1500), |net| {
        let mut all = Vec::new();
        for kind in ["", "-I "] {
            for (target, gateway) in [("10.0.2.2", "10.0.1.1"), ("fd00:2::2", "fd00:1::1")] {
                let seen = trace(net, &format!("{kind}{target}"));
                assert!(seen.ends_with(&format!(" 1 {gateway}; 2 {target};")), "{seen}");
                all.push(seen);
            }
        }
        all
    });
}

/// Compares routes that refuse packets, and destinations without a route.
pub fn refusals() {
    let net = Net::new(1500, 1);
    let mut config = ports(1500);
    for (kind, third) in [("unreachable", 1), ("prohibit", 2), ("blackhole", 3)] {
        for prefix in [format!("10.8.{third}.0/24"), format!("fd08:{third}::/64")] {
            sh(&format!("ip route add {kind} {prefix}"));
            config += &format!("[[routes]]\nto = \"{prefix}\"\ntype = \"{kind}\"\n");
        }
    }
    alike(&net, &config, |net| {
        // A kernel sends a host five such errors at once, then one per second
        // (`ip_rt_error_burst`), whatever the limits are.
        std::thread::sleep(Duration::from_secs(5));
        let mut all = Vec::new();
        for third in [1, 2, 3, 4] {
            for target in [format!("10.8.{third}.1"), format!("fd08:{third}::1")] {
                all.push(trace(net, &format!("-m 2 {target}")));
            }
        }
        all
    });
}
