//! From a card with an XDP program to a device with a tc program: the kernel puts packets together, and a tc program
//! beside the XDP program forwards the result.

use serde_json::Value;
use tollway_commands::control::ShowRequest;

use super::changes::chain_at_egress;
use super::namespaces::{Host, ifindex, sh, until};
use super::running::{KernelRouter, answered};
use super::scene::{Net, arrives, until_forwarded};
use super::tcx;

/// The veth `ra` stands for the card: its host finishes its own packets, as before a wire.
fn net() -> Net {
    let net = Net::new();
    as_wire(&net.a, "a");
    net
}

fn as_wire(host: &Host, cable: &str) {
    host.sh(&format!("ethtool -K h{cable} tx off txvlan off"));
    sh(&format!("ethtool -K r{cable} rx off rxvlan off"));
}

const DEVICES: &str = "--engine xdp --engine rb=tc ra rb";

fn engines() -> KernelRouter {
    KernelRouter::start(DEVICES)
}

fn has_program() -> bool {
    tollway_xdp::program_beside(ifindex("ra")).is_some()
}

fn passed(router: &KernelRouter, reason: &str) -> u64 {
    let offload = router.show(&ShowRequest::Offload);
    offload["counts"]["ports"][0]["kernel"][reason].as_u64().unwrap_or(0)
}

pub fn streams() {
    let net = net();
    let router = engines();
    until_forwarded(&router, &net.a, "10.0.2.2");
    until_forwarded(&router, &net.a, "fd00:2::2");
    assert!(has_program());
    let before = passed(&router, "kernel_exit");
    arrives(&router, (&net.a, &net.b), "10.0.2.2:5001");
    arrives(&router, (&net.b, &net.a), "10.0.1.2:5001");
    arrives(&router, (&net.a, &net.b), "[fd00:2::2]:5001");
    let after = passed(&router, "kernel_exit");
    assert!(after < before + 100, "the kernel has forwarded {} packets", after - before);
    let ports: Value = router.show(&ShowRequest::Ports);
    let engine = |port: usize| ports["ports"][port]["engine"].as_str().unwrap().to_owned();
    assert_eq!([engine(0), engine(1)], ["xdp", "tc"], "{ports}");
}

/// Packets count as the card counts them, and each packet once.
pub fn counts() {
    let net = net();
    let router = engines();
    until_forwarded(&router, &net.a, "10.0.2.2");
    let before = router.counts();
    net.a.pings(50, "10.0.2.2");
    let after = router.counts();
    let (received, sent) = (after.received - before.received, after.sent - before.sent);
    assert!((100..130).contains(&sent) && received >= sent, "{received} and {sent}");
}

/// Rules, routes of the kernel and chains at egress hold as they do for other packets.
pub fn rules() {
    let net = net();
    let router = engines();
    until_forwarded(&router, &net.a, "10.0.2.2");
    sh("nft add table ip t");
    sh("nft add chain ip t c { type filter hook forward priority 0 ; }");
    sh("nft add rule ip t c ip daddr 10.0.2.2 counter drop");
    router.sync();
    assert_eq!(answered(&net.a, "10.0.2.2"), 0);
    sh("nft delete table ip t");
    until_forwarded(&router, &net.a, "10.0.2.2");
    chain_at_egress(&net, &router);
    let behind = tcx::drop_all("ra");
    until("the kernel path", || answered(&net.a, "10.0.2.2") == 0);
    drop(behind);
    until_forwarded(&router, &net.a, "10.0.2.2");
}

/// Programs come and go with the router; a successor takes them over, and after a kill the kernel forwards.
pub fn ends() {
    let net = net();
    let router = engines();
    until_forwarded(&router, &net.a, "10.0.2.2");
    let offload = router.show(&ShowRequest::Offload).to_string();
    assert!(!offload.contains("filters_in"), "its own program is no other's: {offload}");
    let mut router = router.replace(DEVICES);
    assert!(has_program());
    until_forwarded(&router, &net.a, "10.0.2.2");
    router.process.0.kill().unwrap();
    router.process.0.wait().unwrap();
    until("packets by the kernel", || answered(&net.a, "10.0.2.2") == 5);
    let mut router = engines();
    until_forwarded(&router, &net.a, "10.0.2.2");
    router.stop();
    assert!(!has_program());
    assert_eq!(std::fs::read_dir("/sys/fs/bpf/tollway").unwrap().count(), 0);
    assert_eq!(answered(&net.a, "10.0.2.2"), 5);
    // Without a port that sends by tc, there is none.
    as_wire(&net.b, "b");
    let router = KernelRouter::start("--engine xdp ra rb");
    until("the XDP program", || tollway_xdp::program_of(ifindex("ra")).is_some());
    assert!(!has_program());
    drop(router);
}
