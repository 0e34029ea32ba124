//! Tests changes of policy rules, sysctls and rules of nftables.

use std::process::Stdio;
use std::time::Duration;

use tollway::control::Ask;

use super::namespaces::{Process, sh, until};
use super::running::{Mirror, Net};

pub fn policy() {
    let net = Net::new();
    net.b.sh("ip address add 172.16.5.5/32 dev lo");
    let mirror = Mirror::start("ra rb");
    mirror.forwards(&net.a, "10.0.2.2");
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
            true => assert_eq!(mirror.ping(&net.a, "10.0.2.2").0, 0, "{rule}"),
            false => mirror.forwards(&net.a, "10.0.2.2"),
        }
        sh("ip rule del pref 100");
        mirror.forwards(&net.a, "10.0.2.2");
    }
    // Some packets use a routing table of their own.
    sh("ip route add 172.16.0.0/16 via 10.0.2.2 table 77");
    mirror.stops(&net.a, "172.16.5.5");
    sh("ip rule add pref 100 from 10.0.1.0/24 lookup 77");
    mirror.forwards(&net.a, "172.16.5.5");
    mirror.forwards(&net.a, "10.0.2.2");
    sh("ip route del 172.16.0.0/16 table 77");
    mirror.stops(&net.a, "172.16.5.5");
    sh("ip rule add pref 90 iif ra ipproto icmp blackhole");
    let (answered, counts) = mirror.ping(&net.a, "10.0.2.2");
    assert_eq!(answered, 0, "what Tollway cannot tell, the kernel does: {counts:?}");
}

pub fn sysctls() {
    let net = Net::new();
    let mirror = Mirror::start("ra rb");
    for (host, address, sysctl) in [
        (&net.a, "10.0.2.2", "net.ipv4.conf.ra.forwarding"),
        (&net.a, "10.0.2.2", "net.ipv4.conf.all.forwarding"),
        (&net.a, "fd00:2::2", "net.ipv6.conf.all.forwarding"),
    ] {
        mirror.forwards(host, address);
        sh(&format!("sysctl -qw {sysctl}=0"));
        let (answered, counts) = mirror.ping(host, address);
        assert_eq!((answered, counts.received), (0, 0), "{sysctl}: all is the kernel's");
        sh(&format!("sysctl -qw {sysctl}=1"));
        // While the router does not forward, host A's kernel removes its default route.
        net.a.sh("ip route replace default via fd00:1::1");
        mirror.forwards(host, address);
    }
    let offload = mirror.ask(&Ask::Offload).to_string();
    assert!(!offload.contains("forwarding"), "{offload}");
    // With rp_filter, the route to the source must lead to the ingress device.
    sh("ip route add 198.51.100.0/24 via 10.0.2.2");
    net.a.sh("ip address add 198.51.100.7/32 dev lo");
    let from = |mirror: &Mirror| {
        mirror.sync();
        let before = mirror.counts();
        let line = "ping -n -c 5 -l 5 -i 1 -W 1 -I 198.51.100.7 10.0.2.2";
        let _ = net.a.command(line).output().unwrap();
        mirror.counts().dropped - before.dropped
    };
    assert_eq!(from(&mirror), 0);
    sh("sysctl -qw net.ipv4.conf.ra.rp_filter=1");
    // On a busy machine the kernel handles some packets, and drops them as well.
    let tries: Vec<_> =
        (0..10).map(|_| from(&mirror)).take_while(|dropped| *dropped != 5).collect();
    assert!(tries.len() < 10, "they do not come from where they say: {tries:?}");
    sh("sysctl -qw net.ipv4.conf.ra.rp_filter=0");
    assert_eq!(from(&mirror), 0);
}

/// Only rules for the host use conntrack. Forwarded packets stay on the fast path, except
/// fragments.
pub fn host() {
    let net = Net::new();
    let mirror = Mirror::start("ra rb");
    // Each packet has three fragments, in both directions. A busy machine leaves some to the
    // kernel.
    let large = |address: &str, fast: u64| {
        let mut tried = Vec::new();
        for _ in 0..10 {
            mirror.sync();
            let before = mirror.counts().sent;
            let line = format!("ping -n -c 5 -l 5 -i 1 -W 1 -s 3000 {address}");
            let told = net.a.command(&line).output().unwrap().stdout;
            let answered = String::from_utf8_lossy(&told).matches("bytes from").count();
            tried.push((answered, mirror.counts().sent - before));
            if tried.last() == Some(&(5, fast)) {
                return;
            }
        }
        panic!("{address}: {tried:?}");
    };
    for address in ["10.0.2.2", "fd00:2::2"] {
        mirror.forwards(&net.a, address);
        large(address, 30);
    }
    sh("nft add table inet f");
    sh("nft add chain inet f in { type filter hook input priority 0 ; policy drop ; }");
    sh("nft add rule inet f in ct state established,related accept");
    sh("nft add rule inet f in meta l4proto { icmp, icmpv6 } accept");
    for address in ["10.0.2.2", "fd00:2::2"] {
        mirror.forwards(&net.a, address);
        large(address, 0);
    }
    let offload = mirror.ask(&Ask::Offload);
    let parts = offload["parts"].to_string();
    assert!(parts.contains("IPv4 fragments") && parts.contains("ct state established"), "{parts}");
    assert_eq!(offload["links"][0]["ipv4_fast"], true, "{offload}");
    // A rule that forwarded packets meet.
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    sh("nft add rule inet f fw ct state invalid drop");
    mirror.leaves(&net.a, "10.0.2.2");
    sh("nft flush chain inet f fw");
    mirror.forwards(&net.a, "10.0.2.2");
    // For conntrack accounting, the kernel has to see all packets.
    sh("sysctl -qw net.netfilter.nf_conntrack_acct=1");
    mirror.leaves(&net.a, "10.0.2.2");
    sh("sysctl -qw net.netfilter.nf_conntrack_acct=0");
    mirror.forwards(&net.a, "10.0.2.2");
}

/// Rules do not fit the tables. Until they do, all packets take the kernel path.
pub fn many() {
    use std::fmt::Write as _;
    let net = Net::new();
    let mirror = Mirror::start("ra rb");
    mirror.forwards(&net.a, "10.0.2.2");
    // Each pair becomes a rule.
    let mut pairs = String::new();
    for n in 0..40_000 {
        let _ = write!(pairs, "192.168.{}.{} . 7,", n >> 8, n & 255);
    }
    let file = mirror.path("rules.nft");
    let table = format!(
        "table inet f {{\n set s {{ type ipv4_addr . inet_service; elements = {{ {pairs} }}\n }}\n\
         chain fw {{ type filter hook forward priority 0; ip daddr 10.0.2.3 drop\n\
         ip saddr . tcp dport @s drop\n }}\n}}\n"
    );
    std::fs::write(&file, table).unwrap();
    sh(&format!("nft -f {}", file.display()));
    mirror.leaves(&net.a, "10.0.2.2");
    let offload = mirror.ask(&Ask::Offload);
    let general = offload["general"]["ipv4"].to_string();
    assert!(general.contains("the rules of nftables take the kernel path"), "{offload}");
    assert_eq!(mirror.status().bypassed, None, "it is known what to do");
    // The controller still follows other changes.
    sh("ip route add 192.0.2.0/24 via 10.0.2.2");
    mirror.leaves(&net.a, "10.0.2.2");
    sh("nft flush set inet f s");
    mirror.forwards(&net.a, "10.0.2.2");
    let offload = mirror.ask(&Ask::Offload);
    assert_eq!(offload["general"]["ipv4"], serde_json::json!([]), "{offload}");
    sh("nft delete table inet f");
    mirror.forwards(&net.a, "10.0.2.2");
}

/// A packet counts once: in Tollway, or in the kernel if a later rule sends it there.
pub fn counted() {
    let net = Net::new();
    let mirror = Mirror::start("ra rb");
    mirror.forwards(&net.a, "10.0.2.2");
    sh("nft add table inet f");
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    sh("nft add rule inet f fw ip protocol icmp counter");
    sh("nft add rule inet f fw ip saddr 10.0.1.2 fib daddr type local drop");
    mirror.sync();
    let punted = mirror.counts().punted;
    net.a.sh("ping -n -c 10 -i 0.02 10.0.2.2");
    let in_kernel = || -> u64 {
        let told = sh("nft list chain inet f fw");
        let count = told.split("counter packets ").nth(1).unwrap().split(' ').next().unwrap();
        count.parse().unwrap()
    };
    let in_tollway = || {
        let answer = mirror.ask(&Ask::Filter);
        let rules = answer["chains"][0]["rules"].as_array().unwrap();
        rules.iter().find_map(|rule| rule["packets"].as_u64()).unwrap()
    };
    until("all to be counted", || in_kernel() + in_tollway() >= 20);
    // After the first packet of a flow, the others go to the kernel at once.
    assert!(mirror.counts().punted > punted, "some go to the kernel by way of Tollway");
    assert_eq!(in_kernel() + in_tollway(), 20, "{} in Tollway", in_tollway());
}

/// A flow on the XDP path meets a new rule.
pub fn nft() {
    let net = Net::new();
    let mirror = Mirror::start("ra rb");
    mirror.forwards(&net.a, "10.0.2.2");
    sh("nft add table inet f");
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    mirror.sync();
    for _ in 0..3 {
        let mut ping = net.a.command("ping -n -i 0.002 -c 1000000 10.0.2.2");
        let _ping = Process(ping.stdout(Stdio::null()).spawn().unwrap());
        std::thread::sleep(Duration::from_millis(500));
        let xdp_path = || mirror.by_xdp_path();
        let before = xdp_path();
        std::thread::sleep(Duration::from_millis(300));
        let told = || format!("{}\n{}", mirror.ask(&Ask::All), mirror.ask(&Ask::Offload));
        assert!(xdp_path() > before, "the flow is in the XDP path: {}", told());
        sh("nft add rule inet f fw ip protocol icmp drop");
        mirror.sync();
        let (sent, xdp_path_then) = (mirror.counts().sent, xdp_path());
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!((mirror.counts().sent, xdp_path()), (sent, xdp_path_then), "it stops");
        sh("nft flush chain inet f fw");
        mirror.sync();
        std::thread::sleep(Duration::from_millis(300));
        assert!(mirror.counts().sent > sent, "it goes on");
    }
    sh("nft delete table inet f");
    assert_eq!(mirror.status().rebuilds, 0, "no rule costs new tables");
}
