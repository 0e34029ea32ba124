//! Connections that the kernel tracks: Tollway forwards the packets of those that are established, and the kernel
//! still makes, translates, times and ends them.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tollway_commands::control::ShowRequest;

use super::namespaces::{Host, ready, sh, until};
use super::running::{KernelRouter, Net, answered};

/// The family of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

impl Version {
    const fn server(self) -> &'static str {
        match self {
            Self::V4 => "10.0.2.2:7001",
            Self::V6 => "[fd00:2::2]:7001",
        }
    }

    const fn client(self) -> &'static str {
        match self {
            Self::V4 => "10.0.1.2:7000",
            Self::V6 => "[fd00:1::2]:7000",
        }
    }

    /// The router's address towards the server.
    fn outside(self) -> IpAddr {
        let text = if self == Self::V4 { "10.0.2.1" } else { "fd00:2::1" };
        text.parse().unwrap()
    }

    /// The words that name the role of a server, and of a client.
    const fn roles(self) -> [&'static str; 2] {
        match self {
            Self::V4 => ["server", "client"],
            Self::V6 => ["server6", "client6"],
        }
    }
}

/// How long the client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(300);
/// The time between two questions.
const PACE: Duration = Duration::from_millis(1);
/// What makes a connection of UDP assured: packets in both directions for two seconds
/// (`nf_conntrack_udp_packet`).
pub const ASSURED_MS: u64 = 2100;

/// Says whether these words name a role.
pub fn is_role(words: &str) -> bool {
    ["server", "server6"].contains(&words)
        || ["client:", "client6:"].iter().any(|role| words.starts_with(role))
}

/// Runs as server, or as client for some milliseconds (`client:1000`); over IPv6 with a 6 (`client6:1000`).
pub fn role(words: &str) -> ExitCode {
    match words.split_once(':') {
        Some(("client", milliseconds)) => ask(Version::V4, milliseconds.parse().unwrap()),
        Some((_, milliseconds)) => ask(Version::V6, milliseconds.parse().unwrap()),
        None if words == "server6" => answer(Version::V6),
        None => answer(Version::V4),
    }
    ExitCode::SUCCESS
}

/// Answers each datagram with itself, and the address that it came from.
fn answer(version: Version) {
    let socket = UdpSocket::bind(version.server()).unwrap();
    println!("ready");
    let mut bytes = [0; 64];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
        let text = format!("{} {from}", std::str::from_utf8(&bytes[..len]).unwrap());
        let _ = socket.send_to(text.as_bytes(), from);
    }
}

/// Sends numbers, and prints how many came back, and from which address the server got the last one.
fn ask(version: Version, milliseconds: u64) {
    let socket = UdpSocket::bind(version.client()).unwrap();
    socket.connect(version.server()).unwrap();
    let start = Instant::now();
    let (mut sent, mut answered, mut from) = (0_u64, 0_u64, "nobody".to_owned());
    while start.elapsed() < Duration::from_millis(milliseconds) {
        sent += 1;
        // A firewall that rejects makes the next call fail.
        let _ = socket.send(sent.to_string().as_bytes());
        if let Some(address) = receive(&socket, sent) {
            answered += 1;
            from = address;
        }
        std::thread::sleep(PACE);
    }
    println!("{sent} {answered} {from}");
}

/// The address in the answer to a number; none if there is no answer.
fn receive(socket: &UdpSocket, number: u64) -> Option<String> {
    let (mut bytes, until) = ([0; 64], Instant::now() + PATIENCE);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(left).filter(|left| !left.is_zero())).unwrap();
        if left.is_zero() {
            return None;
        }
        let Ok(len) = socket.recv(&mut bytes) else { continue };
        let text = std::str::from_utf8(&bytes[..len]).unwrap();
        let (own, from) = text.split_once(' ').unwrap();
        if own == number.to_string() {
            return Some(from.to_owned());
        }
    }
}

/// What a client has printed: questions, answers, and its address as the server saw it.
pub fn talk(host: &Host, milliseconds: u64) -> (u64, u64, String) {
    talk_by(Version::V4, host, milliseconds)
}

fn talk_by(version: Version, host: &Host, milliseconds: u64) -> (u64, u64, String) {
    let [_, role] = version.roles();
    let output = host.role("--role", &format!("{role}:{milliseconds}")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<_> = text.split_whitespace().collect();
    let &[sent, answered, from] = &words[..] else { panic!("{text}") };
    (sent.parse().unwrap(), answered.parse().unwrap(), from.to_owned())
}

/// Talks until Tollway forwards nearly all packets of the connection, none of which may be lost.
pub fn forwards(router: &KernelRouter, host: &Host) -> String {
    forwards_by(Version::V4, router, host)
}

fn forwards_by(version: Version, router: &KernelRouter, host: &Host) -> String {
    let mut address = String::new();
    until("packets of the connection by Tollway", || {
        let before = router.counts().sent;
        let (sent, answered, from) = talk_by(version, host, 400);
        // Tollway counts packets of the XDP path with a delay.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(sent, answered, "an answer is lost");
        address = from;
        router.counts().sent - before > 2 * sent * 9 / 10
    });
    address
}

/// Makes a stateful firewall and an assured connection, and asserts that Tollway forwards its packets.
pub fn is_forwarded(router: &KernelRouter, host: &Host) {
    is_forwarded_by(Version::V4, router, host);
}

fn is_forwarded_by(version: Version, router: &KernelRouter, host: &Host) {
    firewall();
    router.sync();
    let (sent, answered, from) = talk_by(version, host, ASSURED_MS);
    assert_eq!((sent, from.as_str()), (answered, version.client()));
    assert_eq!(forwards_by(version, router, host), version.client());
}

/// The kernel's list of connections of UDP.
fn kernels() -> Vec<String> {
    let list = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    list.lines().filter(|line| line.contains(" udp ")).map(str::to_owned).collect()
}

/// How long the kernel keeps its only connection of UDP, in seconds.
fn timeout() -> u64 {
    let all = kernels();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].split_whitespace().nth(4).unwrap().parse().unwrap()
}

/// A firewall that drops what is not of a connection, unless it begins one towards `rb`.
pub fn firewall() {
    for line in [
        "table inet fw",
        "chain inet fw forward { type filter hook forward priority 0 ; policy drop ; }",
        "rule inet fw forward ct state vmap { established : accept, related : accept, invalid : drop }",
        "rule inet fw forward oifname rb accept",
    ] {
        sh(&format!("nft add {line}"));
    }
}

/// Runs a test for each engine.
pub fn by_engine(test: impl Fn(&Net, &KernelRouter)) {
    by_engine_of(Version::V4, test);
}

fn by_engine_of(version: Version, test: impl Fn(&Net, &KernelRouter)) {
    let net = Net::new();
    // Before the router knows that nobody else has its link-local address, it asks for no neighbour.
    let address = if version == Version::V4 { "10.0.2.2" } else { "fd00:2::2" };
    until("neighbours", || answered(&net.a, address) == 5);
    let [server, _] = version.roles();
    let _server = ready(&mut net.b.role("--role", server));
    for engine in ["xdp", "tc"] {
        let mut router = KernelRouter::start(&format!("ra rb --engine {engine}"));
        test(&net, &router);
        router.stop();
        sh("nft flush ruleset");
        sh("conntrack -F");
    }
}

/// A stateful firewall: the kernel's entry lives as long as without Tollway, and its end is the end.
pub fn stateful() {
    by_engine(|net, router| {
        is_forwarded(router, &net.a);
        assert!((118..=120).contains(&timeout()), "{}", timeout());
        // Another timeout holds for the next packets, and while these come, the entry lives on.
        sh("sysctl -qw net.netfilter.nf_conntrack_udp_timeout_stream=3");
        std::thread::sleep(Duration::from_millis(250));
        let (sent, answered, _) = talk(&net.a, 4000);
        assert_eq!(sent, answered);
        assert!(timeout() <= 3);
        assert!(kernels()[0].contains("[ASSURED]"));
        forwards(router, &net.a);
        until("the connection's end", || kernels().is_empty());
        sh("sysctl -qw net.netfilter.nf_conntrack_udp_timeout_stream=120");
        // Packets of the other direction begin no connection now.
        let (_, answered, _) = talk(&net.a, 50);
        assert!(answered > 0, "they begin one in this direction");
    });
}

/// A translated source: packets leave with the router's address, and answers come back.
pub fn masquerade() {
    by_engine(|net, router| {
        firewall();
        sh("nft add table ip nat");
        sh("nft add chain ip nat post { type nat hook postrouting priority 100 ; }");
        sh("nft add rule ip nat post oifname rb masquerade");
        router.sync();
        talk(&net.a, ASSURED_MS);
        let from: SocketAddr = forwards(router, &net.a).parse().unwrap();
        assert_eq!(from.ip().to_string(), "10.0.2.1");
        // The kernel's entry is gone: the next packet begins another one.
        sh("conntrack -F");
        std::thread::sleep(Duration::from_millis(100));
        let (sent, answered, _) = talk(&net.a, ASSURED_MS);
        assert_eq!(sent, answered);
        assert_eq!(kernels().len(), 1);
        forwards(router, &net.a);
    });
}

/// Over IPv6 likewise: Tollway forwards all packets of a connection, which the kernel counts none of, and keeps as long as it
/// would; what deletes or marks its entry ends that.
pub fn stateful6() {
    by_engine_of(Version::V6, |net, router| {
        sh("sysctl -qw net.netfilter.nf_conntrack_acct=1");
        is_forwarded_by(Version::V6, router, &net.a);
        assert!((118..=120).contains(&timeout()), "{}", timeout());
        let [before, line] = [router.counts().sent, packets_of_kernel()];
        let (sent, answered, _) = talk_by(Version::V6, &net.a, 300);
        assert_eq!(sent, answered);
        let by_kernel = packets_of_kernel() - line;
        until("all packets are counted once", || {
            router.counts().sent - before + by_kernel == 2 * sent
        });
        assert!(kernels()[0].contains("[ASSURED]") && timeout() >= 118, "{:?}", kernels());
        // The rules know another mark than the entry then.
        let before = router.counts().sent;
        sh("conntrack -U -f ipv6 -p udp --mark 7");
        std::thread::sleep(Duration::from_millis(150));
        sh("nft insert rule inet fw forward ct mark 7 drop");
        router.sync();
        let (_, answered, _) = talk_by(Version::V6, &net.a, 700);
        assert_eq!((answered, router.counts().sent), (0, before));
        sh("conntrack -F");
        std::thread::sleep(Duration::from_millis(150));
        assert!(kernels().is_empty());
        let (sent, answered, _) = talk_by(Version::V6, &net.a, 50);
        assert_eq!(sent, answered, "they begin a connection in this direction");
        sh("sysctl -qw net.netfilter.nf_conntrack_acct=0");
    });
}

/// The packets of the kernel's only connection that it has seen itself, both ways.
fn packets_of_kernel() -> u64 {
    let line = kernels().remove(0);
    let counts = line.split_whitespace().filter_map(|word| word.strip_prefix("packets="));
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

/// A translated source, over IPv6 (NAT66).
pub fn masquerade6() {
    by_engine_of(Version::V6, |net, router| {
        firewall();
        for line in [
            "table ip6 nat",
            "chain ip6 nat post { type nat hook postrouting priority 100 ; }",
            "rule ip6 nat post oifname rb masquerade",
        ] {
            sh(&format!("nft add {line}"));
        }
        router.sync();
        talk_by(Version::V6, &net.a, ASSURED_MS);
        let from: SocketAddr = forwards_by(Version::V6, router, &net.a).parse().unwrap();
        assert_eq!(from.ip(), Version::V6.outside());
    });
}

/// A rule that drops packets of the connection holds for all packets after the change.
pub fn dropped() {
    by_engine(|net, router| {
        firewall();
        router.sync();
        talk(&net.a, ASSURED_MS);
        forwards(router, &net.a);
        for rule in [
            "udp dport 7001",
            "ct state established",
            "meta l4proto udp ct original proto-dst 7001",
        ] {
            sh(&format!("nft insert rule inet fw forward {rule} drop"));
            // On a busy machine, the report takes its time.
            router.sync();
            let (sent, answered, _) = talk(&net.a, 700);
            assert!(sent > 0 && answered == 0, "{rule}: {answered} of {sent}");
            sh("nft flush table inet fw");
            sh("nft delete table inet fw");
            firewall();
            router.sync();
            forwards(router, &net.a);
        }
        // Only the kernel can evaluate this one: the connection is its own.
        sh("nft insert rule inet fw forward ct bytes > 1 accept");
        router.sync();
        let before = router.counts().sent;
        let (sent, answered, _) = talk(&net.a, 500);
        assert_eq!(sent, answered);
        assert_eq!(router.counts().sent, before);
    });
}

/// Where the kernel has to count all packets, it gets them.
pub fn counted() {
    let net = Net::new();
    let _server = ready(&mut net.b.role("--role", "server"));
    firewall();
    let router = KernelRouter::start("ra rb --engine tc --exact-counters");
    sh("sysctl -qw net.netfilter.nf_conntrack_acct=1");
    let general = || router.show(&ShowRequest::Offload)["general"]["ipv4"].to_string();
    // Tollway looks at this now and then.
    until("connections are the kernel's", || general().contains("--exact-counters"));
    talk(&net.a, ASSURED_MS);
    let before = router.counts().sent;
    let (sent, answered, _) = talk(&net.a, 500);
    assert_eq!((sent, router.counts().sent), (answered, before));
    sh("sysctl -qw net.netfilter.nf_conntrack_acct=0");
    until("connections may be fast", || general() == "[]");
    forwards(&router, &net.a);
}
