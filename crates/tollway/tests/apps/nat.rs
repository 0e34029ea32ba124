//! Translated addresses: forwarded and redirected ports, and ways to the outside that fail.

use std::collections::BTreeSet;
use std::time::Duration;

use super::namespaces::{sh, until};
use super::running::{KernelRouter, Net, plug};
use super::scene::{ENGINES, compared, entries, is_fast, load, paths};
use super::talk::{Talk, server, server_here};

/// A far address behind host B, which two cables lead to.
const FAR: &str = "10.9.0.1";
const FAR_SERVER: &str = "10.9.0.1:7001";

/// Ports forwarded by a map, with another source too, and ports redirected to the router itself.
pub fn ports() {
    let net = Net::new();
    let _servers = [server(&net.b, "10.0.2.2:80"), server_here("10.0.1.1:3128")];
    compared("ra rb", &ENGINES, |router| {
        load(
            "nft -f -",
            "table ip nat {
                chain pre {
                    type nat hook prerouting priority dstnat;
                    ip daddr 10.0.1.1 dnat to tcp dport map { 8080 : 10.0.2.2 . 80 }
                    iifname ra ip daddr 10.0.2.2 tcp dport 81 redirect to :3128
                }
                chain post {
                    type nat hook postrouting priority srcnat;
                    meta l4proto tcp ct status dnat oifname rb snat to 10.0.2.1:20000-20999
                }
            }",
        );
        router.map(KernelRouter::sync);
        let mut forwarded = Talk::start(&net.a, "tcp", "10.0.1.1:8080");
        is_fast(router, &mut forwarded);
        let mut redirected = Talk::start(&net.a, "tcp", "10.0.2.2:81");
        redirected.lasts(1500);
        redirected.is_going_on();
        if let Some(router) = router {
            let path = |words| paths(router, words).into_iter().next().unwrap().0;
            assert_eq!(path("--port 8080"), "fast");
            assert_eq!(path("--port 81"), "kernel", "the router itself is the other end");
        }
        forwarded.is_going_on();
        let seen = (forwarded.seen(), redirected.seen(), entries(&[80, 81, 8080, 3128]));
        forwarded.end();
        redirected.end();
        seen
    });
}

/// Connects the router and host B by a second cable, `rc`.
fn two_ways(net: &Net) {
    plug(&net.b, "c", 3);
    net.b.sh("ip route replace default via 10.0.2.1");
    net.b.sh(&format!("ip address add {FAR}/32 dev lo"));
    for device in ["all", "default", "hb", "hc"] {
        net.b.sh(&format!("sysctl -qw net.ipv4.conf.{device}.rp_filter=0"));
    }
}

/// Has the far address by the first way.
fn first_way(rule: &str) {
    sh(&format!("ip route replace {FAR} via 10.0.2.2 dev rb"));
    let rules = format!(
        "table ip nat {{
            chain post {{ type nat hook postrouting priority srcnat; oifname {{ rb, rc }} {rule}; }}
        }}
        table ip fw {{
            chain forward {{
                type filter hook forward priority filter; policy drop;
                ct state established,related accept
                iifname ra accept
            }}
        }}"
    );
    load("nft -f -", &rules);
}

/// What became of a conversation behind a change: what the server has seen by then, and why it ended, if it did.
type Outcome = (BTreeSet<String>, Option<String>, Vec<String>);

/// Waits until a conversation goes on, or has ended.
fn outcome(router: Option<&KernelRouter>, mut talk: Talk) -> Outcome {
    let mut progress = talk.progress();
    until("the conversation to go on, or to end", || {
        let before = progress.answered;
        std::thread::sleep(Duration::from_millis(300));
        progress = talk.progress();
        progress.broken.is_some() || progress.answered > before + 5
    });
    if progress.broken.is_none() {
        is_fast(router, &mut talk);
        // A new connection of UDP is assured two seconds later.
        std::thread::sleep(Duration::from_millis(2500));
        talk.is_going_on();
    }
    (progress.seen, progress.broken, entries(&[7001]))
}

/// A change under a conversation of each protocol, by `masquerade` or `snat`.
fn change(rules: &[&str], does: &str, undoes: &str) {
    let net = Net::new();
    two_ways(&net);
    let _server = server(&net.b, FAR_SERVER);
    for rule in rules {
        for (protocol, engine) in ["udp", "tcp"].into_iter().zip(ENGINES) {
            compared("ra rb rc", &[engine], |router| {
                first_way(rule);
                router.map(KernelRouter::sync);
                let mut talk = Talk::start(&net.a, protocol, FAR_SERVER);
                is_fast(router, &mut talk);
                talk.lasts(2500);
                does.split(';').for_each(|line| drop(sh(line)));
                let outcome = outcome(router, talk);
                undoes.split(';').for_each(|line| drop(sh(line)));
                outcome
            });
        }
    }
}

/// The route to the outside changes: a masqueraded connection is the kernel's to end, one with a fixed address keeps that.
pub fn failover() {
    change(
        &["masquerade", "snat to 10.0.2.1"],
        &format!("ip route replace {FAR} via 10.0.3.2 dev rc"),
        &format!("ip route replace {FAR} via 10.0.2.2 dev rb"),
    );
}

/// The address goes by which connections are masqueraded.
pub fn address() {
    let before =
        "sysctl -qw net.ipv4.conf.rb.promote_secondaries=1;ip address add 10.0.2.9/24 dev rb";
    let after = "ip address del 10.0.2.9/24 dev rb;ip address add 10.0.2.1/24 dev rb";
    change(&["masquerade"], &format!("{before};ip address del 10.0.2.1/24 dev rb"), after);
}
