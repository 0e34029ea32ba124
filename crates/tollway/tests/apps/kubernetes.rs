//! The rules of kube-proxy: services whose connections it spreads over pods.

use std::collections::BTreeSet;

use serde_json::Value;

use super::namespaces::{Host, sh, until};
use super::running::{KernelRouter, Net, plug};
use super::scene::{compared, entries, is_fast, load, reaches, until_all};
use super::talk::{Talk, server};

/// Of the mode `iptables`, and of the mode `nftables` (Kubernetes 1.31).
const IPTABLES: &str = include_str!("rules/kube-proxy.iptables");
const NFTABLES: &str = include_str!("rules/kube-proxy.nft");
/// So many connections come to both pods, but for one time in 30,000.
const COUNT: usize = 16;
/// The ports of services and pods.
const PORTS: [u16; 4] = [53, 80, 8080, 30080];

/// What the pods have seen, and the kernel's list, of each conversation; and whether a service without pods can be reached.
type Outcome = (Vec<(BTreeSet<String>, BTreeSet<String>)>, bool);

/// Talks to services from outside and from a pod, and asserts that all conversations become fast.
fn talks(router: Option<&KernelRouter>, (outside, pod): (&Host, &Host)) -> Outcome {
    let talks = [
        // By the node's address, by that of the service, and by that of one of UDP.
        (outside, "tcp", "10.0.1.1:30080", COUNT),
        (outside, "tcp", "10.96.0.20:80", COUNT),
        (outside, "udp", "10.96.0.10:53", 1),
        // Half of these come back to the same pod.
        (pod, "tcp", "10.96.0.20:80", COUNT),
    ];
    let mut all = Vec::new();
    for (host, protocol, address, count) in talks {
        let mut talk = Talk::start_all(host, (protocol, address), count, 0);
        if host.0.0.id() == pod.0.0.id() {
            router.map(are_fast_to_others);
        } else {
            is_fast(router, &mut talk);
        }
        talk.is_going_on();
        talk.lasts(2500);
        let listed: BTreeSet<_> = entries(&PORTS).into_iter().collect();
        let (mut seen, mut listed) = (talk.seen(), listed);
        if count == 1 {
            // One of the pods.
            let is_pod = |pod: &str| seen.iter().all(|one| one.ends_with(&format!("{pod}:8080")));
            assert!(is_pod("10.0.2.2") || is_pod("10.0.3.2"), "{seen:?}");
            let other = |text: &String| text.replace("10.0.3.", "10.0.2.");
            seen = seen.iter().map(other).collect();
            listed = listed.iter().map(other).collect();
        }
        all.push((seen, listed));
        talk.end();
        sh("conntrack -F");
    }
    (all, reaches(outside, "10.96.0.30:80"))
}

/// Waits until those connections of a pod that come to another one are fast. Those that come back to itself leave by the link
/// that they arrive on, for which the kernel may send redirects.
fn are_fast_to_others(router: &KernelRouter) {
    let is_so = |one: &Value| {
        let comes_back = one["reply"]["source"] == "10.0.2.2";
        one["path"] == if comes_back { "kernel" } else { "fast" }
    };
    let words = "--source 10.0.2.2 --protocol tcp --state established";
    until_all(router, words, COUNT, is_so);
    let before = router.counts().sent;
    until("their packets by Tollway", || router.counts().sent > before + 100);
    until_all(router, words, COUNT, is_so);
}

fn services(program: &str, rules: &str, engine: &str) {
    let net = Net::new();
    let other = Host::new();
    plug(&other, "c", 3);
    let _servers = [server(&net.b, "10.0.2.2:8080"), server(&other, "10.0.3.2:8080")];
    compared("ra rb rc", &[engine], |router| {
        load(program, rules);
        router.map(KernelRouter::sync);
        talks(router, (&net.a, &net.b))
    });
}

/// The rules of the mode `iptables`.
pub fn iptables() {
    services("iptables-nft-restore", IPTABLES, "xdp");
}

/// The rules of the mode `nftables`.
pub fn nftables() {
    services("nft -f -", NFTABLES, "tc");
}
