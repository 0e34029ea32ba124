//! Streams between hosts behind ports of a bridge.

use super::namespaces::{sh, until};
use super::running::KernelRouter;
use super::scene::{Net, carried, start, until_forwarded};

/// Connects the hosts by a bridge, with the addresses 10.0.3.1 and 10.0.3.2, fd00:3::1 and fd00:3::2.
fn bridged() -> Net {
    let net = Net::new();
    sh("ip link add br0 type bridge");
    sh("ip link set br0 up");
    for (host, cable, last) in [(&net.a, "a", 1), (&net.b, "b", 2)] {
        sh(&format!("ip address flush dev r{cable}"));
        sh(&format!("ip link set r{cable} master br0"));
        host.sh(&format!("ip address add 10.0.3.{last}/24 dev h{cable}"));
        host.sh(&format!("ip address add fd00:3::{last}/64 dev h{cable} nodad"));
    }
    until("the ports to forward", || {
        let shown = sh("bridge link show");
        shown.lines().filter(|line| line.contains("state forwarding")).count() == 2
    });
    net
}

/// Frames that both hosts have sent; a super-frame is one.
fn sent_by_hosts(net: &Net) -> u64 {
    net.a.counts("ha")[9] + net.b.counts("hb")[9]
}

/// Streams that are tried: while a worker waits for a processor, the kernel forwards.
const STREAMS: usize = 3;

/// Asserts that streams and datagrams arrive whole, and that Tollway forwards most frames of one of them.
#[track_caller]
fn arrives(router: &KernelRouter, net: &Net, address: &str) {
    let mut seen = Vec::new();
    for _ in 0..STREAMS {
        let before = sent_by_hosts(net);
        let (forwarded, _) = carried(router, (&net.a, &net.b), address);
        let all = sent_by_hosts(net) - before;
        if forwarded > 200 && forwarded * 3 > all * 2 {
            return;
        }
        seen.push((forwarded, all));
    }
    panic!("forwarded and all frames of streams to {address}: {seen:?}");
}

pub fn streams() {
    let net = bridged();
    let router = start("ra rb");
    for (address, server) in [("10.0.3.2", "10.0.3.2:5001"), ("fd00:3::2", "[fd00:3::2]:5001")] {
        until_forwarded(&router, &net.a, address);
        arrives(&router, &net, server);
    }
}

/// With tags, which lie beside the frames.
pub fn vlans() {
    let net = bridged();
    let router = start("ra rb");
    for (host, device, last) in [(&net.a, "ha", 1), (&net.b, "hb", 2)] {
        host.sh(&format!("ip link add link {device} name {device}.7 type vlan id 7"));
        host.sh(&format!("ip link set {device}.7 up"));
        host.sh(&format!("ip address add 10.0.7.{last}/24 dev {device}.7"));
    }
    until_forwarded(&router, &net.a, "10.0.7.2");
    arrives(&router, &net, "10.0.7.2:5001");
}

/// By a bridge that shows packets to hooks without rules.
pub fn validated() {
    let net = bridged();
    for family in ["iptables", "ip6tables"] {
        sh(&format!("ip link set br0 type bridge nf_call_{family} 1"));
    }
    let router = start("ra rb");
    for (address, server) in [("10.0.3.2", "10.0.3.2:5001"), ("fd00:3::2", "[fd00:3::2]:5001")] {
        until_forwarded(&router, &net.a, address);
        arrives(&router, &net, server);
    }
}
