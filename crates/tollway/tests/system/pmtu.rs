//! Path MTU discovery. The hosts' links have an MTU of 1500, the router's second link 1400.

use crate::namespaces::sh;
use crate::router::Net;
use crate::transfer::Transfer;
use crate::variants::{alike, output_of, ports};

const MTU: u16 = 1400;

pub fn ipv4() {
    discovery("10.0.2.2", "10.0.2.2:7000");
}

pub fn ipv6() {
    discovery("fd00:2::2", "[fd00:2::2]:7000");
}

fn discovery(target: &str, server: &str) {
    let net = Net::new(1500, 1);
    sh(&format!("ip link set rb mtu {MTU}"));
    alike(&net, &ports(MTU), |net| {
        let mut all = Vec::new();
        forget(net);
        let ping = output_of(&net.a, &format!("ping -n -M do -s 1400 -c 3 -i 0.2 -W 1 {target}"));
        all.extend(ping.lines().filter(|line| line.contains("mtu")).map(str::to_owned));
        assert!(all.iter().any(|line| line.contains("1400")), "{ping}");
        all.push(learned(net, target));

        forget(net);
        let path = output_of(&net.a, &format!("tracepath -n -m 4 {target}"));
        for line in path.lines() {
            let words = line.split_whitespace().filter(|word| !word.ends_with("ms"));
            all.push(words.collect::<Vec<_>>().join(" "));
        }
        assert!(path.contains("Resume: pmtu 1400 hops 2 back 2"), "{path}");
        all.push(learned(net, target));

        forget(net);
        Transfer::start(net, server, 0).finish();
        all.push(learned(net, target));
        all
    });
}

/// Has A forget what it has learned.
fn forget(net: &Net) {
    for what in ["-4 route", "-6 route", "tcp_metrics"] {
        let what = if what == "tcp_metrics" {
            "tcp_metrics flush"
        } else {
            &format!("{what} flush cache")
        };
        output_of(&net.a, &format!("ip {what}"));
    }
    for target in ["10.0.2.2", "fd00:2::2"] {
        let route = net.a.sh(&format!("ip route get {target}"));
        assert!(!route.contains("mtu"), "{route}");
    }
}

/// Returns the path MTU that A knows for a target.
fn learned(net: &Net, target: &str) -> String {
    let route = net.a.sh(&format!("ip route get {target}"));
    let words: Vec<&str> = route.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "mtu");
    let mtu = words[at.unwrap_or_else(|| panic!("no MTU was learned: {route}")) + 1];
    assert_eq!(mtu, MTU.to_string(), "{route}");
    format!("learned {mtu}")
}
