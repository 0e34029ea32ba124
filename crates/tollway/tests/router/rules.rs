//! Tests changes of policy rules, sysctls and rules of nftables.

use std::process::Stdio;
use std::time::Duration;

use tollway_commands::control::ShowRequest;

use super::namespaces::{Process, sh, until};
use super::running::{KernelRouter, Net};

pub fn policy() {
    let net = Net::new();
    net.b.sh("ip address add 172.16.5.5/32 dev lo");
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    for (rule, stops) in [
        ("blackhole", true),
        ("from 10.0.1.2 prohibit", true),
        ("from 10.0.1.0/24 to 10.0.2.0/24 unreachable", true),
        ("from 10.0.9.0/24 blackhole", false),
        ("iif ra blackhole", true),
        ("iif rb blackhole", true),
        ("iif lo blackhole", false),
        ("fwmark 7 blackhole", false),
    ] {
        sh(&format!("ip rule add pref 100 {rule}"));
        match stops {
            // The rule stops the requests or the replies.
            true => assert_eq!(router.ping(&net.a, "10.0.2.2").0, 0, "{rule}"),
            false => router.forwards(&net.a, "10.0.2.2"),
        }
        sh("ip rule del pref 100");
        router.forwards(&net.a, "10.0.2.2");
    }
    // Some packets use a routing table of their own.
    sh("ip route add 172.16.0.0/16 via 10.0.2.2 table 77");
    router.stops(&net.a, "172.16.5.5");
    sh("ip rule add pref 100 from 10.0.1.0/24 lookup 77");
    router.forwards(&net.a, "172.16.5.5");
    router.forwards(&net.a, "10.0.2.2");
    sh("ip route del 172.16.0.0/16 table 77");
    router.stops(&net.a, "172.16.5.5");
    sh("ip rule add pref 90 iif ra ipproto icmp blackhole");
    let (answered, counts) = router.ping(&net.a, "10.0.2.2");
    assert_eq!(answered, 0, "what Tollway cannot decide, the kernel does: {counts:?}");
}

pub fn sysctls() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    for (host, address, sysctl) in [
        (&net.a, "10.0.2.2", "net.ipv4.conf.ra.forwarding"),
        (&net.a, "10.0.2.2", "net.ipv4.conf.all.forwarding"),
        (&net.a, "fd00:2::2", "net.ipv6.conf.all.forwarding"),
    ] {
        router.forwards(host, address);
        sh(&format!("sysctl -qw {sysctl}=0"));
        let (answered, counts) = router.ping(host, address);
        assert_eq!((answered, counts.received), (0, 0), "{sysctl}: all is the kernel's");
        sh(&format!("sysctl -qw {sysctl}=1"));
        // While the router does not forward, host A's kernel removes its default route.
        net.a.sh("ip route replace default via fd00:1::1");
        router.forwards(host, address);
    }
    let offload = router.show(&ShowRequest::Offload).to_string();
    assert!(!offload.contains("forwarding"), "{offload}");
    // With rp_filter, the route to the source must lead to the ingress device.
    sh("ip route add 198.51.100.0/24 via 10.0.2.2");
    net.a.sh("ip address add 198.51.100.7/32 dev lo");
    let from = |router: &KernelRouter| {
        router.sync();
        let before = router.counts();
        let line = "ping -n -c 5 -l 5 -i 1 -W 1 -I 198.51.100.7 10.0.2.2";
        let _ = net.a.command(line).output().unwrap();
        router.counts().dropped - before.dropped
    };
    assert_eq!(from(&router), 0);
    sh("sysctl -qw net.ipv4.conf.ra.rp_filter=1");
    // On a busy machine the kernel handles some packets, and drops them as well.
    let tries: Vec<_> =
        (0..10).map(|_| from(&router)).take_while(|dropped| *dropped != 5).collect();
    assert!(tries.len() < 10, "they do not come from where they say: {tries:?}");
    sh("sysctl -qw net.ipv4.conf.ra.rp_filter=0");
    assert_eq!(from(&router), 0);
}

/// Only rules for the host use conntrack. Forwarded packets stay on the fast path, except
/// fragments.
pub fn host() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    // Each packet has three fragments, in both directions. A busy machine leaves some to the
    // kernel.
    let large = |address: &str, fast: u64| {
        let mut tried = Vec::new();
        for _ in 0..10 {
            router.sync();
            let before = router.counts().sent;
            let line = format!("ping -n -c 5 -l 5 -i 1 -W 1 -s 3000 {address}");
            let output = net.a.command(&line).output().unwrap().stdout;
            let answered = String::from_utf8_lossy(&output).matches("bytes from").count();
            tried.push((answered, router.counts().sent - before));
            if tried.last() == Some(&(5, fast)) {
                return;
            }
        }
        panic!("{address}: {tried:?}");
    };
    for address in ["10.0.2.2", "fd00:2::2"] {
        router.forwards(&net.a, address);
        large(address, 30);
    }
    sh("nft add table inet f");
    sh("nft add chain inet f in { type filter hook input priority 0 ; policy drop ; }");
    sh("nft add rule inet f in ct state established,related accept");
    sh("nft add rule inet f in meta l4proto { icmp, icmpv6 } accept");
    for address in ["10.0.2.2", "fd00:2::2"] {
        router.forwards(&net.a, address);
        large(address, 0);
    }
    let offload = router.show(&ShowRequest::Offload);
    let parts = offload["parts"].to_string();
    assert!(parts.contains("IPv4 fragments") && parts.contains("ct state established"), "{parts}");
    assert_eq!(offload["links"][0]["ipv4_fast"], true, "{offload}");
    // A rule that forwarded packets meet.
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    sh("nft add rule inet f fw ct state invalid drop");
    router.passes_to_kernel(&net.a, "10.0.2.2");
    sh("nft flush chain inet f fw");
    router.forwards(&net.a, "10.0.2.2");
    // For conntrack accounting, the kernel has to see all packets.
    sh("sysctl -qw net.netfilter.nf_conntrack_acct=1");
    router.passes_to_kernel(&net.a, "10.0.2.2");
    sh("sysctl -qw net.netfilter.nf_conntrack_acct=0");
    router.forwards(&net.a, "10.0.2.2");
}

/// Rules do not fit the tables. Until they do, all packets take the kernel path.
pub fn many() {
    use std::fmt::Write as _;
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    // Each pair becomes a rule.
    let mut pairs = String::new();
    for n in 0..40_000 {
        let _ = write!(pairs, "192.168.{}.{} . 7,", n >> 8, n & 255);
    }
    let file = router.path("rules.nft");
    let table = format!(
        "table inet f {{\n set s {{ type ipv4_addr . inet_service; elements = {{ {pairs} }}\n }}\n\
         chain fw {{ type filter hook forward priority 0; ip daddr 10.0.2.3 drop\n\
         ip saddr . tcp dport @s drop\n }}\n}}\n"
    );
    std::fs::write(&file, table).unwrap();
    sh(&format!("nft -f {}", file.display()));
    router.passes_to_kernel(&net.a, "10.0.2.2");
    let offload = router.show(&ShowRequest::Offload);
    let general = offload["general"]["ipv4"].to_string();
    assert!(general.contains("the rules of nftables take the kernel path"), "{offload}");
    assert_eq!(router.status().bypassed, None, "it is known what to do");
    // The controller still follows other changes.
    sh("ip route add 192.0.2.0/24 via 10.0.2.2");
    router.passes_to_kernel(&net.a, "10.0.2.2");
    sh("nft flush set inet f s");
    router.forwards(&net.a, "10.0.2.2");
    let offload = router.show(&ShowRequest::Offload);
    assert_eq!(offload["general"]["ipv4"], serde_json::json!([]), "{offload}");
    sh("nft delete table inet f");
    router.forwards(&net.a, "10.0.2.2");
}

/// A packet counts once: in Tollway, or in the kernel if a later rule sends it there.
pub fn counted() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    sh("nft add table inet f");
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    sh("nft add rule inet f fw ip protocol icmp counter");
    sh("nft add rule inet f fw ip saddr 10.0.1.2 fib daddr type local drop");
    router.sync();
    net.a.sh("ping -n -c 10 -i 0.02 10.0.2.2");
    let in_kernel = || -> u64 {
        let output = sh("nft list chain inet f fw");
        let count = output.split("counter packets ").nth(1).unwrap().split(' ').next().unwrap();
        count.parse().unwrap()
    };
    let in_tollway = || {
        let answer = router.show(&ShowRequest::Filter);
        let rules = answer["chains"][0]["rules"].as_array().unwrap();
        rules.iter().find_map(|rule| rule["packets"].as_u64()).unwrap()
    };
    until("all to be counted", || in_kernel() + in_tollway() >= 20);
    // The requests come to the second rule, the answers do not.
    assert!(in_kernel() >= 10 && in_tollway() > 0, "{} in Tollway", in_tollway());
    assert_eq!(in_kernel() + in_tollway(), 20, "{} in Tollway", in_tollway());
}

/// A flow on the XDP path meets a new rule.
pub fn nft() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    sh("nft add table inet f");
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    router.sync();
    for _ in 0..3 {
        let mut ping = net.a.command("ping -n -i 0.002 -c 1000000 10.0.2.2");
        let _ping = Process(ping.stdout(Stdio::null()).spawn().unwrap());
        std::thread::sleep(Duration::from_millis(500));
        let xdp_path = || router.by_xdp_path();
        let before = xdp_path();
        std::thread::sleep(Duration::from_millis(300));
        let state = || {
            format!("{}\n{}", router.show(&ShowRequest::All), router.show(&ShowRequest::Offload))
        };
        assert!(xdp_path() > before, "the flow is in the XDP path: {}", state());
        sh("nft add rule inet f fw ip protocol icmp drop");
        router.sync();
        let (sent, xdp_path_then) = (router.counts().sent, xdp_path());
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!((router.counts().sent, xdp_path()), (sent, xdp_path_then), "it stops");
        sh("nft flush chain inet f fw");
        router.sync();
        std::thread::sleep(Duration::from_millis(300));
        assert!(router.counts().sent > sent, "it goes on");
    }
    sh("nft delete table inet f");
    assert_eq!(router.status().rebuilds, 0, "no rule costs new tables");
}

/// XDP drops packets of a flow that a rule drops, and the rule counts them, each once.
pub fn dropped() {
    const PINGS: u64 = 200;
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    sh("nft add table ip f");
    sh("nft add chain ip f early { type filter hook prerouting priority raw ; }");
    sh("nft add rule ip f early ip daddr 10.0.2.2 counter drop");
    router.sync();
    let by_xdp = || router.show(&ShowRequest::Xdp)["counts"]["packets_dropped"].as_u64().unwrap();
    let in_tollway = || {
        let filter = router.show(&ShowRequest::Filter);
        filter["chains"][0]["rules"][0]["packets"].as_u64().unwrap()
    };
    // A busy machine leaves some to the kernel.
    let in_kernel = || {
        let list = sh("nft list chain ip f early");
        let count = list.split("counter packets ").nth(1).unwrap().split(' ').next().unwrap();
        count.parse::<u64>().unwrap()
    };
    let before = router.counts();
    let line = format!("ping -n -q -i 0.002 -c {PINGS} -W 0.1 10.0.2.2");
    assert!(!net.a.command(&line).output().unwrap().status.success(), "no reply");
    until("all to be counted", || in_kernel() + in_tollway() >= PINGS);
    assert_eq!(in_kernel() + in_tollway(), PINGS);
    assert_eq!(router.counts().dropped - before.dropped, in_tollway());
    assert!(by_xdp() > PINGS / 2, "{} of {}", by_xdp(), in_tollway());
    sh("nft delete table ip f");
    router.forwards(&net.a, "10.0.2.2");
}
