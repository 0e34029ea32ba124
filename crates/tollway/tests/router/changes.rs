//! Tests changes of links, addresses, neighbours and routes.

use std::fs::File;
use std::time::{Duration, Instant};

use tollway_commands::control::ShowRequest;

use super::namespaces::{Host, Process, ping, sh, unanswered, until};
use super::running::{KernelRouter, Net, configure, plug};

pub fn forwards() {
    let net = Net::new();
    let mut router = KernelRouter::start("ra rb");
    for (host, addresses) in
        [(&net.a, ["10.0.2.2", "fd00:2::2"]), (&net.b, ["10.0.1.2", "fd00:1::2"])]
    {
        for address in addresses {
            router.forwards(host, address);
        }
    }
    // 10.0.2.1 is an address of the router itself.
    let (answered, counts) = router.ping(&net.a, "10.0.2.1");
    assert_eq!((answered, counts.received), (5, 0), "own addresses stay in the kernel");
    let summary = router.stop();
    assert!(summary.contains("received"), "{summary}");
}

pub fn routes() {
    let net = Net::new();
    for address in ["172.16.5.5/32", "2001:db8:5::5/128"] {
        net.b.sh(&format!("ip address add {address} dev lo"));
    }
    let router = KernelRouter::start("ra rb");
    for (to, by, inside) in [
        ("172.16.0.0/16", "10.0.2.2", "172.16.5.5"),
        ("2001:db8:5::/48", "fd00:2::2", "2001:db8:5::5"),
    ] {
        router.stops(&net.a, inside);
        sh(&format!("ip route add {to} via {by}"));
        router.forwards(&net.a, inside);
        for kind in ["blackhole", "unreachable", "prohibit"] {
            sh(&format!("ip route replace {kind} {to}"));
            router.stops(&net.a, inside);
        }
        sh(&format!("ip route replace {to} via {by}"));
        router.forwards(&net.a, inside);
        // A longer prefix wins, wherever it leads.
        sh(&format!("ip route add blackhole {inside}"));
        router.stops(&net.a, inside);
        sh(&format!("ip route del blackhole {inside}"));
        router.forwards(&net.a, inside);
        sh(&format!("ip route del {to}"));
        router.stops(&net.a, inside);
        // The route uses a nexthop object, which changes while the route stays.
        sh(&format!("ip nexthop add id 7 via {by} dev rb"));
        sh(&format!("ip route add {to} nhid 7"));
        router.forwards(&net.a, inside);
        let family = if by.contains(':') { "-6" } else { "-4" };
        sh(&format!("ip {family} nexthop replace id 7 blackhole"));
        router.stops(&net.a, inside);
        sh("ip nexthop del id 7");
        router.stops(&net.a, inside);
    }
    assert_eq!(router.status().rebuilds, 0, "no route costs new tables");
}

pub fn addresses() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.stops(&net.a, "10.9.0.2");
    net.b.sh("ip address add 10.9.0.2/24 dev hb");
    sh("ip address add 10.9.0.1/24 dev rb");
    router.forwards(&net.a, "10.9.0.2");
    let (answered, counts) = router.ping(&net.a, "10.9.0.1");
    assert_eq!((answered, counts.received), (5, 0), "the new address is the kernel's");
    sh("ip address del 10.9.0.1/24 dev rb");
    router.stops(&net.a, "10.9.0.2");
    // An address that the router no longer has may belong to any host.
    net.b.sh("ip address add 10.9.0.1/32 dev lo");
    sh("ip route add 10.9.0.1/32 via 10.0.2.2");
    router.forwards(&net.a, "10.9.0.1");
    assert_eq!(router.status().rebuilds, 0, "no address costs new tables");
}

pub fn neighbour() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    for mac in ["02:00:00:00:02:0a", "02:00:00:00:02:0b"] {
        sh(&format!("ip neigh replace 10.0.2.2 lladdr {mac} dev rb nud permanent"));
        router.stops_there(&net.a, "10.0.2.2");
        net.b.sh(&format!("ip link set hb address {mac}"));
        net.b.sh("ip route replace default via 10.0.2.1");
        router.forwards(&net.a, "10.0.2.2");
    }
    sh("ip neigh del 10.0.2.2 dev rb");
    router.forwards(&net.a, "10.0.2.2");
    assert_eq!(router.status().rebuilds, 0, "no neighbour costs new tables");
}

/// Tests a neighbour that stops answering. The sender gets an ICMP error when the kernel's timers
/// have run out, which takes three seconds here.
pub fn dead() {
    let net = Net::new();
    for timer in ["base_reachable_time_ms=1000", "delay_first_probe_time=1", "retrans_time_ms=200"]
    {
        sh(&format!("sysctl -qw net.ipv4.neigh.rb.{timer}"));
    }
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    let file = router.path("pings");
    let mut command = net.a.command("ping -n -i 0.05 -w 60 10.0.2.2");
    let pings = command.stdout(File::create(&file).unwrap()).spawn().unwrap();
    let _pings = Process(pings);
    let shows = |words: &str| std::fs::read_to_string(&file).unwrap().contains(words);
    until("answers", || shows("icmp_seq=10 "));
    net.b.sh("ip address flush dev hb");
    let start = Instant::now();
    until("an error", || shows("Destination Host Unreachable"));
    let after = start.elapsed();
    assert!(after < Duration::from_secs(8), "{after:?}\n{}", router.read("stderr"));
}

pub fn links() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    for _ in 0..3 {
        router.forwards(&net.a, "10.0.2.2");
        sh("ip link set rb down");
        router.stops(&net.a, "10.0.2.2");
        sh("ip link set rb up");
        // The other end gets its carrier back with a delay.
        until("the carrier", || sh("ip link show rb").contains("LOWER_UP"));
        router.forwards(&net.a, "10.0.2.2");
        // The other end of the cable goes down.
        net.b.sh("ip link set hb down");
        until("no carrier", || sh("ip link show rb").contains("NO-CARRIER"));
        router.stops_there(&net.a, "10.0.2.2");
        net.b.sh("ip link set hb up");
        net.b.sh("ip route replace default via 10.0.2.1");
        until("the carrier", || sh("ip link show rb").contains("LOWER_UP"));
    }
    assert_eq!(router.status().rebuilds, 0, "no link that goes down or up costs new tables");
}

pub fn port() {
    let net = Net::new();
    let mut router = KernelRouter::start("ra rb");
    for round in 1..=3 {
        router.forwards(&net.a, "10.0.2.2");
        sh("ip link del rb");
        router.stops(&net.a, "10.0.2.2");
        plug(&net.b, "b", 2);
        // The kernel forwards until the port is back. A new cable loses packets that come too
        // early.
        let tried: Vec<_> = (0..3).map(|_| router.ping(&net.a, "10.0.2.2")).collect();
        assert!(tried.iter().any(|(answered, _)| *answered >= 4), "{tried:?}");
        let backs = || router.read("stderr").matches("rb is back").count();
        until("the port to be back", || backs() >= round);
        router.sync();
        // On a busy machine, the other port may have been alone for so long that it was detached.
        let ports = || router.show(&ShowRequest::Ports).to_string();
        until("the programs to be attached", || !ports().contains("not attached"));
    }
    router.forwards(&net.a, "10.0.2.2");
    router.stop();
}

/// A device gets more queues than it had when the router started. The other ports keep memory to
/// receive in.
pub fn queues() {
    const MOST: u32 = 16;
    let net = Net::new();
    let queues = format!("numrxqueues {MOST} numtxqueues {MOST}");
    let pid = net.b.0.0.id();
    sh("ip link del rb");
    sh(&format!("ip link add rb {queues} type veth peer name hb netns {pid}"));
    sh("ethtool -L rb rx 1 tx 1");
    configure(&net.b, "b", 2);
    let mut router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    sh(&format!("ethtool -L rb rx {MOST}"));
    // The log has the new number before the port has opened their sockets.
    until("sockets of all queues", || sockets(&router, "rb") == MOST as usize);
    router.forwards(&net.a, "10.0.2.2");
    // The other port now needs its memory a second time.
    sh("ip link del ra");
    router.stops(&net.a, "10.0.2.2");
    plug(&net.a, "a", 1);
    until("the port to be back", || router.read("stderr").contains("port ra: ra is back"));
    router.sync();
    router.forwards(&net.a, "10.0.2.2");
    router.stop();
}

/// Returns the number of queues of a port that workers serve.
fn sockets(router: &KernelRouter, port: &str) -> usize {
    let answer = router.show(&ShowRequest::Workers);
    answer["queues"].as_array().unwrap().iter().filter(|queue| queue["port"] == port).count()
}

/// Two devices exchange their names. Each port, and its XDP path, stays on its device.
pub fn swapped() {
    let net = Net::new();
    // The XDP path may not redirect to rb: without GRO at its peer, rb loses redirected frames.
    net.b.sh("ethtool -K hb gro off");
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    for (from, to) in [("ra", "rc"), ("rb", "ra"), ("rc", "rb")] {
        sh(&format!("ip link set {from} down"));
        sh(&format!("ip link set {from} name {to}"));
        sh(&format!("ip link set {to} up"));
    }
    for name in ["ra", "rb"] {
        until("the carrier", || sh(&format!("ip link show {name}")).contains("LOWER_UP"));
        until("the name", || router.read("stderr").contains(&format!("called {name} now")));
    }
    let mut tried = Vec::new();
    for (host, address) in [(&net.a, "10.0.2.2"), (&net.b, "10.0.1.2")] {
        // The XDP path may notice half a second late that a device is up again.
        let goes = |_| {
            let before = router.by_xdp_path();
            let output = host.command(&ping(50, address)).output().unwrap();
            let lost = unanswered(&String::from_utf8_lossy(&output.stdout), 50);
            let by_xdp_path = router.by_xdp_path().saturating_sub(before);
            tried.push((address, lost.len(), by_xdp_path));
            lost.is_empty() && by_xdp_path >= 40
        };
        assert!((0..5).any(goes), "{tried:?}\n{}", router.read("stderr"));
    }
}

/// Devices of containers come and go beside the router's ports.
pub fn others() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    let before = router.status().rebuilds;
    let third = Host::new();
    for _ in 0..5 {
        plug(&third, "c", 3);
        // Both directions use a device that is not a port of Tollway.
        router.passes_to_kernel(&net.a, "10.0.3.2");
        router.passes_to_kernel(&third, "10.0.1.2");
        router.forwards(&net.a, "10.0.2.2");
        sh("ip link del rc");
        router.stops(&net.a, "10.0.3.2");
    }
    assert_eq!(router.status().rebuilds, before, "others' devices cost no new tables");
}

/// The router's own changes, programs and TAP devices on its ports, cause no drift.
pub fn audit() {
    let net = Net::new();
    // Without GRO, a veth sends no event when its peer gets an XDP program.
    net.a.sh("ethtool -K ha gro off");
    net.b.sh("ethtool -K hb gro off");
    let router = KernelRouter::start("ra rb --audit 1");
    until("two audits", || router.status().audits >= 2);
    // Waits until a finding would be certain.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(router.status().drift, 0, "{}", router.read("stderr"));
    assert!(
        !router.read("stderr").contains("difference from the kernel"),
        "{}",
        router.read("stderr")
    );
    let output = sh("ip -6 -oneline address show");
    assert!(!output.contains("toll"), "{output}");
}

/// SIGHUP starts an audit, which is counted like others.
pub fn signal() {
    let _net = Net::new();
    let router = KernelRouter::start("ra rb --audit 3600");
    assert_eq!(router.status().audits, 0);
    for audits in 1..=2 {
        sh(&format!("kill -HUP {}", router.process.0.id()));
        until("an audit", || router.status().audits == audits);
    }
    assert_eq!(router.status().drift, 0);
}
