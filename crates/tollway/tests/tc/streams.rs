//! Streams between hosts whose segmentation and checksums are left to cards that do not exist.

use std::time::{Duration, Instant};

use tollway_commands::control::ShowRequest;

use super::namespaces::{sh, until};
use super::scene::{Net, arrives, bond, bridge, carried, macvlan, start, tunnel, until_forwarded};

pub fn plain() {
    let net = Net::new();
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    until_forwarded(&router, &net.a, "fd00:2::2");
    arrives(&router, (&net.a, &net.b), "10.0.2.2:5001");
    arrives(&router, (&net.b, &net.a), "10.0.1.2:5001");
    arrives(&router, (&net.a, &net.b), "[fd00:2::2]:5001");
    let ports = router.show(&ShowRequest::Ports);
    assert_eq!(ports["ports"][0]["engine"], "tc", "{ports}");
    assert!(ports["ports"][0]["how"].as_str().unwrap().starts_with("tc program"), "{ports}");
}

/// From VLAN to VLAN, from a VLAN to none, and back, and with two tags; a host's own tag is taken out of the frame on
/// the way.
pub fn vlans() {
    let net = Net::new();
    Net::tag(&net.b, "b", 20, 22);
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.22.2");
    arrives(&router, (&net.a, &net.b), "10.0.22.2:5001");
    arrives(&router, (&net.b, &net.a), "10.0.1.2:5001");
    arrives(&router, (&net.a, &net.b), "[fd00:22::2]:5001");
    Net::tag(&net.a, "a", 10, 11);
    until_forwarded(&router, &net.a, "10.0.22.2");
    arrives(&router, (&net.a, &net.b), "10.0.22.2:5001");
    arrives(&router, (&net.b, &net.a), "[fd00:11::2]:5001");
    Net::tag(&net.a, "a.10", 7, 17);
    until_forwarded(&router, &net.a, "10.0.22.2");
    arrives(&router, (&net.a, &net.b), "10.0.22.2:5001");
    arrives(&router, (&net.b, &net.a), "10.0.17.2:5001");
    arrives(&router, (&net.a, &net.b), "[fd00:22::2]:5001");
    arrives(&router, (&net.b, &net.a), "[fd00:17::2]:5001");
    // The kernel sets priorities by tags.
    sh("ip link set ra.10 type vlan ingress-qos-map 2:5");
    let offload = || router.show(&ShowRequest::Offload).to_string();
    until("the kernel path", || offload().contains("ingress_qos"));
}

/// By a bridge that is a port: the program sees what its members have received.
pub fn bridges() {
    let net = Net::new();
    bridge(&net.a, "a", 1);
    by_masters(&net, "bra rb");
}

/// By a macvlan that is a port.
pub fn macvlans() {
    let net = Net::new();
    macvlan(&net.a, "a", 1);
    by_masters(&net, "mva rb");
}

/// By a bond that is a port.
pub fn bonds() {
    let net = Net::new();
    bond(&net.a, "a", 1);
    by_masters(&net, "boa rb");
}

fn by_masters(net: &Net, ports: &str) {
    let router = start(ports);
    until_forwarded(&router, &net.a, "10.0.2.2");
    arrives(&router, (&net.a, &net.b), "10.0.2.2:5001");
    arrives(&router, (&net.b, &net.a), "10.0.1.2:5001");
    arrives(&router, (&net.b, &net.a), "[fd00:1::2]:5001");
}

/// Into a tunnel and out of it; the kernel answers what does not fit.
pub fn tunnels() {
    let net = Net::new();
    tunnel(&net.b, "b", (2, 22));
    let router = start("ra vxb");
    until_forwarded(&router, &net.a, "10.0.22.2");
    arrives(&router, (&net.a, &net.b), "10.0.22.2:5001");
    arrives(&router, (&net.b, &net.a), "10.0.1.2:5001");
    arrives(&router, (&net.a, &net.b), "[fd00:22::2]:5001");
}

/// The kernel answers packets that do not fit, and the segments of a stream fit from then on.
pub fn small_mtu() {
    let net = Net::new();
    sh("ip link set rb mtu 1300");
    net.b.sh("ip link set hb mtu 1300");
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    let ping = |size: u16| {
        let line = format!("ping -n -c 1 -W 2 -M do -s {size} 10.0.2.2");
        let output = net.a.command(&line).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    assert!(ping(1273).contains("mtu = 1300"));
    net.a.sh("ip route flush cache");
    assert!(ping(1272).contains("1 received"));
    arrives(&router, (&net.a, &net.b), "10.0.2.2:5001");
    arrives(&router, (&net.a, &net.b), "[fd00:2::2]:5001");
    let line = "ping -n -c 1 -W 2 -M dont -s 1400 10.0.2.2";
    assert!(net.a.sh(line).contains("1 received"), "the kernel fragments");
}

/// Super-frames of more than 64 KB, which IPv6 headers cannot state the length of.
pub fn big_tcp() {
    let net = Net::new();
    for (host, cable) in [(&net.a, "a"), (&net.b, "b")] {
        let sizes = "gso_max_size 180000 gro_max_size 180000";
        sh(&format!("ip link set r{cable} {sizes}"));
        host.sh(&format!("ip link set h{cable} {sizes}"));
    }
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "fd00:2::2");
    let (sent, kernel) = carried(&router, (&net.a, &net.b), "[fd00:2::2]:5001");
    // They have a jumbo option, so they are the kernel's.
    let counts = router.show(&ShowRequest::Offload)["counts"].clone();
    let big = counts["ports"][0]["kernel"]["options"].as_u64().unwrap_or(0);
    assert!(big > 20 && sent > 20, "{sent} by Tollway, {kernel} by the kernel: {counts}");
    carried(&router, (&net.b, &net.a), "[fd00:1::2]:5001");
    arrives(&router, (&net.a, &net.b), "10.0.2.2:5001");
}

/// The kernel's queueing disciplines order packets, so the kernel forwards where they are.
pub fn queueing_discipline() {
    let net = Net::new();
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    sh("tc qdisc add dev rb root handle 1: tbf rate 200mbit burst 128kb latency 200ms");
    let offload = || router.show(&ShowRequest::Offload).to_string();
    until("the kernel path", || offload().contains("qdisc"));
    let bytes = || json("tc -s -j qdisc show dev rb")[0]["bytes"].as_u64().unwrap();
    let (before, start) = (bytes(), Instant::now());
    let (sent, kernel) = carried(&router, (&net.a, &net.b), "10.0.2.2:5001");
    // Acknowledgements leave by the other device.
    assert!(kernel > 200, "{sent} by Tollway, {kernel} by the kernel");
    // 10 MB are 80 Mbit, and the stream begins with a full bucket.
    assert!(start.elapsed() > Duration::from_millis(300), "{:?}", start.elapsed());
    assert!(bytes() - before > 10_000_000, "{}", bytes() - before);
    sh("tc qdisc delete dev rb root");
    until_forwarded(&router, &net.a, "10.0.2.2");
}

fn json(command: &str) -> serde_json::Value {
    serde_json::from_str(&sh(command)).unwrap()
}
