//! Packets that rules keep out of connection tracking, beside a firewall that tracks: Tollway forwards them, and the kernel
//! has no connections for them.

use super::namespaces::{Host, ready, sh, until};
use super::running::{KernelRouter, by_kernel};
use super::tracked::{ASSURED_MS, by_engine, firewall, forwards, talk};

const STREAMS: &str = "10.0.2.2:5001";

/// Rules of nft that keep packets to and from servers out of tracking.
fn by_nft() {
    for line in [
        "table inet raw",
        "chain inet raw pre { type filter hook prerouting priority raw ; }",
        "rule inet raw pre meta l4proto { tcp, udp } th dport { 5001, 7001 } notrack",
        "rule inet raw pre meta l4proto { tcp, udp } th sport { 5001, 7001 } notrack",
        "rule inet fw forward ct state untracked accept",
    ] {
        sh(&format!("nft add {line}"));
    }
}

/// The same of iptables.
fn by_iptables() {
    for (protocol, port) in [("tcp", 5001), ("udp", 7001)] {
        for side in ["--dport", "--sport"] {
            let rule = format!("-p {protocol} {side} {port} -j CT --notrack");
            sh(&format!("iptables-nft -t raw -A PREROUTING {rule}"));
        }
    }
    sh("iptables-nft -A FORWARD -m conntrack --ctstate UNTRACKED -j ACCEPT");
    sh("nft add rule inet fw forward ct state untracked accept");
}

fn connections() -> String {
    std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap()
}

/// UDP, and TCP with its beginning and end.
pub fn forwarded() {
    let both: [(fn(), &str); 2] =
        [(by_nft, "nft flush table inet raw"), (by_iptables, "iptables-nft -t raw -F")];
    for (rules, end) in both {
        by_engine(|net, router| {
            let _server = ready(&mut net.b.role("--serve", STREAMS));
            firewall();
            rules();
            router.sync();
            forwards(router, &net.a);
            streams(router, &net.a);
            assert_eq!(connections(), "");
            until("both directions in the totals", || {
                let totals = super::connections::totals(router);
                totals["directions_untracked"].as_u64() >= Some(2)
            });
            // A rule holds at once.
            sh("nft insert rule inet fw forward ct state untracked udp dport 7001 drop");
            router.sync();
            let (sent, answered, _) = talk(&net.a, 300);
            assert!(sent > 0 && answered == 0, "{answered} of {sent}");
            // The packets become those of a connection.
            sh("nft delete table inet fw");
            firewall();
            sh(end);
            router.sync();
            let (sent, answered, _) = talk(&net.a, ASSURED_MS);
            assert_eq!(sent, answered);
            forwards(router, &net.a);
            assert!(connections().contains("[ASSURED]"));
        });
    }
}

/// A stream of TCP, nearly all packets of which Tollway forwards.
fn streams(router: &KernelRouter, host: &Host) {
    let before = (router.counts().sent, by_kernel());
    assert!(host.role("--client", STREAMS).status().unwrap().success());
    std::thread::sleep(std::time::Duration::from_millis(20));
    let (fast, kernel) = (router.counts().sent - before.0, by_kernel() - before.1);
    assert!(fast > 100 && kernel * 5 < fast, "{fast} by Tollway, {kernel} by the kernel");
}
