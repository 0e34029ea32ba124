//! Changes while the router runs, and its end.

use std::time::Instant;

use serde_json::Value;
use tollway_commands::control::{Client, ShowRequest};
use tollway_xdp::Mode;

use super::namespaces::{Host, patience, sh, until};
use super::running::{KernelRouter, SILENCE, answered, by_kernel};
use super::scene::{Net, start, until_forwarded};

/// Says whether Tollway's program is at the ingress of a device.
fn has_program(device: &str) -> bool {
    let own = tollway_xdp::program_of(super::namespaces::ifindex(device));
    let tcx = tollway_xdp::tcx(super::namespaces::ifindex(device)).unwrap();
    let tcx = tcx.unwrap_or_default().ingress;
    match own {
        // The kernel has no tcx.
        Some((Mode::Clsact, _)) => tcx.is_empty() && filters(device).contains("tollway"),
        Some((_, id)) => tcx == [id],
        None => !tcx.is_empty() || filters(device).contains("tollway"),
    }
}

fn filters(device: &str) -> String {
    sh(&format!("tc filter show dev {device} ingress"))
}

pub fn route() {
    let net = Net::new();
    net.b.sh("ip address add 10.9.0.2/32 dev lo");
    sh("ip route add 10.9.0.0/16 via 10.0.2.2");
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.9.0.2");
    for _ in 0..5 {
        sh("ip route replace blackhole 10.9.0.0/16");
        router.sync();
        let before = net.b.received("hb");
        assert_eq!(answered(&net.a, "10.9.0.2"), 0);
        // Neighbours may look for each other meanwhile.
        assert!(net.b.received("hb") - before < 5, "a packet followed the old route");
        sh("ip route replace 10.9.0.0/16 via 10.0.2.2");
        router.sync();
        assert_eq!(answered(&net.a, "10.9.0.2"), 5);
    }
    until_forwarded(&router, &net.a, "10.9.0.2");
}

/// The program evaluates rules, and the kernel those that it cannot evaluate.
pub fn rules() {
    let net = Net::new();
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    sh("nft add table ip t");
    sh("nft add chain ip t c { type filter hook forward priority 0 ; }");
    sh("nft add rule ip t c icmp type echo-request counter meta mark set 7");
    until_forwarded(&router, &net.a, "10.0.2.2");
    let dropped = |by: &str| router.show(&ShowRequest::Drops)["drops"][by].as_u64().unwrap_or(0);
    sh("nft add rule ip t c ip daddr 10.0.2.2 ip ttl 63 drop");
    router.sync();
    let before = dropped("netfilter_drop");
    assert_eq!(answered(&net.a, "10.0.2.2"), 0);
    until("drops by the program", || dropped("netfilter_drop") >= before + 5);
    sh("nft insert rule ip t c ip daddr 10.0.2.2 limit rate over 1/day burst 1 packets accept");
    router.sync();
    let before = by_kernel();
    until("packets by the kernel", || answered(&net.a, "10.0.2.2") == 5);
    assert!(by_kernel() > before);
    sh("nft delete table ip t");
    until_forwarded(&router, &net.a, "10.0.2.2");
}

/// The program looks into large sets as they are, and the kernel gets nothing for their sake.
pub fn sets() {
    let net = Net::new();
    let router = start("ra rb");
    let all: Vec<_> =
        (0..1000).map(|number| format!("10.9.{}.{}", number / 250, number % 250 + 1)).collect();
    let script = format!(
        "table ip t {{
            set s {{ type ipv4_addr; elements = {{ {} }} }}
            chain c {{ type filter hook forward priority 0; ip saddr @s counter drop; }}
        }}",
        all.join(", ")
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), script).unwrap();
    sh(&format!("nft -f {}", file.path().display()));
    router.sync();
    until_forwarded(&router, &net.a, "10.0.2.2");
    // While a worker waits for a processor, the kernel forwards.
    until("a round without the kernel", || {
        let before = by_kernel();
        assert_eq!(answered(&net.a, "10.0.2.2"), 5);
        sh("nft add element ip t s { 10.0.1.2 }");
        router.sync();
        assert_eq!(answered(&net.a, "10.0.2.2"), 0);
        sh("nft delete element ip t s { 10.0.1.2 }");
        router.sync();
        assert_eq!(answered(&net.a, "10.0.2.2"), 5);
        by_kernel() == before
    });
}

/// The kernel evaluates chains at egress, also for what a program sends.
pub fn egress() {
    let net = Net::new();
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    chain_at_egress(&net, &router);
}

/// A chain at the egress of `rb` sees what goes there: the kernel sends it, as long as the chain is there.
pub fn chain_at_egress(net: &Net, router: &KernelRouter) {
    let has_reason = || router.show(&ShowRequest::Offload).to_string().contains("hook egress");
    sh("nft add table netdev t");
    sh("nft add chain netdev t c { type filter hook egress device rb priority 0 ; }");
    sh("nft add rule netdev t c ip daddr 10.0.2.2 counter");
    until("the reason", has_reason);
    router.sync();
    let before = by_kernel();
    assert_eq!(answered(&net.a, "10.0.2.2"), 5);
    assert!(by_kernel() >= before + 10);
    let table = sh("nft list table netdev t");
    assert!(table.contains("packets 5 "), "{table}");
    sh("nft delete table netdev t");
    until("no reason", || !has_reason());
    until_forwarded(router, &net.a, "10.0.2.2");
}

/// Each device has its engine, and a reason for it.
pub fn engines() {
    let net = Net::new();
    // The host finishes its own checksums, for XDP.
    net.b.sh("ethtool -K hb tx off txvlan off gro on");
    sh("ethtool -K rb rx off rxvlan off");
    let router = KernelRouter::start("--engine user --engine ra=tc ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    let ports = router.show(&ShowRequest::Ports);
    let engine = |port: usize| ports["ports"][port]["engine"].as_str().unwrap().to_owned();
    assert_eq!([engine(0), engine(1)], ["tc", "user"]);
    let shown = router.show(&ShowRequest::Engines);
    let how = |port: usize| shown["engines"][port]["how"].as_str().unwrap().to_owned();
    assert_eq!(shown["engines"][0]["because"], "selected", "{shown}");
    assert!(how(0).contains("tc program") && how(1).contains("AF_XDP"), "{shown}");
}

pub fn devices() {
    let net = Net::new();
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    sh("ip link set rb down");
    assert_eq!(answered(&net.a, "10.0.2.2"), 0);
    sh("ip link set rb up");
    until_forwarded(&router, &net.a, "10.0.2.2");
    // Another device of the same name.
    sh("ip link del rb");
    let pid = net.b.0.0.id();
    sh(&format!("ip link add rb type veth peer name hb netns {pid}"));
    sh("ip link set rb up");
    net.b.sh("ip link set hb up");
    sh("ip address add 10.0.2.1/24 dev rb");
    net.b.sh("ip address add 10.0.2.2/24 dev hb");
    net.b.sh("ip route replace default via 10.0.2.1");
    until("the port to come back", || {
        router.show(&ShowRequest::Ports)["ports"][1]["state"] == "up" && has_program("rb")
    });
    until_forwarded(&router, &net.a, "10.0.2.2");
}

pub fn stop() {
    let net = Net::new();
    let mut router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    assert!(has_program("ra") && has_program("rb"));
    router.stop();
    assert!(!has_program("ra") && !has_program("rb"));
    assert_eq!(std::fs::read_dir("/sys/fs/bpf/tollway").unwrap().count(), 0);
    net.a.pings(3, "10.0.2.2");
}

/// A successor's programs replace those of the router that it takes the ports over from; no packet is lost.
pub fn takeover() {
    let net = Net::new();
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    let _router =
        router.replaced_beside_pings((&net.a, "10.0.2.2"), "--engine tc ra rb", |router| {
            assert!(has_program("ra") && has_program("rb"));
            until_forwarded(router, &net.a, "10.0.2.2");
        });
}

/// A killed router leaves its programs, which leave all to the kernel. A successor replaces them.
pub fn kill() {
    let net = Net::new();
    let mut router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    router.process.0.kill().unwrap();
    router.process.0.wait().unwrap();
    let killed = Instant::now();
    assert!(has_program("ra") && has_program("rb"));
    until("an answer", || single_ping(&net.a));
    // A second, or more where the processor is emulated.
    assert!(killed.elapsed() < patience() / 20, "{:?}", killed.elapsed());
    std::thread::sleep(SILENCE);
    let before = by_kernel();
    net.a.pings(20, "10.0.2.2");
    assert!(by_kernel() - before >= 40);
    let router = start("ra rb");
    assert!(has_program("ra") && has_program("rb"));
    until_forwarded(&router, &net.a, "10.0.2.2");
}

fn single_ping(host: &Host) -> bool {
    host.command("ping -n -c 1 -W 0.1 10.0.2.2").output().unwrap().status.success()
}

/// A router by a file has an engine for each port; between them, packets go both ways.
pub fn file() {
    let net = Net::new();
    // The host finishes its own checksums, for XDP.
    net.b.sh("ethtool -K hb tx off gro on");
    let config = "
        [ports.ra]
        kind = \"af_xdp\"
        engine = \"tc\"
        addresses = [\"10.0.1.1/24\", \"fd00:1::1/64\"]
        [ports.rb]
        kind = \"af_xdp\"
        engine = \"user\"
        addresses = [\"10.0.2.1/24\", \"fd00:2::1/64\"]
    ";
    let router = crate::file_router::Router::start(config);
    let show = || -> Value {
        Client::connect(Some(&router.path("control.sock")))
            .unwrap()
            .show(&ShowRequest::Ports)
            .unwrap()
    };
    let ports = show();
    let engines = [0, 1].map(|port| ports["ports"][port]["engine"].as_str().unwrap().to_owned());
    assert_eq!(engines, ["tc", "user"]);
    until("packets by Tollway both ways", || {
        net.a.pings(10, "10.0.2.2");
        let ports = show();
        let count = |port: usize, way: &str| ports["ports"][port][way]["packets"].as_u64().unwrap();
        count(0, "rx") > 10 && count(1, "tx") > 10 && count(1, "rx") > 10 && count(0, "tx") > 10
    });
}
