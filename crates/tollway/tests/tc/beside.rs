//! From a card with an XDP program to a device with a tc program: the kernel puts packets together, and a tc program
//! beside the XDP program forwards the result.

use serde_json::Value;
use tollway_commands::control::ShowRequest;

use super::changes::chain_at_egress;
use super::namespaces::{Host, ifindex, sh, until};
use super::running::{KernelRouter, answered};
use super::scene::{Net, arrives, carried, until_forwarded};
use super::tcx;

/// The veth `ra` stands for the card: its host finishes its own packets, as before a wire, and the kernel puts them
/// together, as it does for cards by default.
fn net() -> Net {
    let net = Net::new();
    as_wire(&net.a, "a");
    net
}

fn as_wire(host: &Host, cable: &str) {
    host.sh(&format!("ethtool -K h{cable} tx off txvlan off"));
    sh(&format!("ethtool -K r{cable} rx off rxvlan off gro on"));
}

const DEVICES: &str = "--engine xdp --engine rb=tc ra rb";

fn engines() -> KernelRouter {
    KernelRouter::start(DEVICES)
}

fn has_program() -> bool {
    tollway_xdp::program_beside(ifindex("ra")).is_some()
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug)]
struct Load {
    packets: u64,
    bytes: u64,
}

impl Load {
    const fn since(self, before: Self) -> Self {
        Self { packets: self.packets - before.packets, bytes: self.bytes - before.bytes }
    }

    /// Whether it differs from another by at most two per cent.
    fn is_close_to(self, other: Self) -> bool {
        let is_close = |a: u64, b: u64| a.abs_diff(b) * 50 <= b;
        is_close(self.packets, other.packets) && is_close(self.bytes, other.bytes)
    }
}

/// What a router has received by its first port and sent by the second.
fn by_router(router: &KernelRouter) -> [Load; 2] {
    let ports: Value = router.show(&ShowRequest::Ports);
    [(0, "rx"), (1, "tx")].map(|(port, way)| {
        let count = |what: &str| ports["ports"][port][way][what].as_u64().unwrap();
        Load { packets: count("packets"), bytes: count("bytes") }
    })
}

/// What the host at the card has sent, as packets on a wire. The kernel does not count the Ethernet headers of what
/// arrives at a veth with an XDP program (`veth_xdp_rcv`), and sent is what has arrived.
fn on_wire(host: &Host) -> Load {
    let counts = host.counts("ha");
    Load { packets: counts[9], bytes: counts[8] + 14 * counts[9] }
}

/// Asserts that a stream from the card to the other host arrives whole and in super-frames, and waits until the router
/// has forwarded one nearly whole, and has counted what the card counts.
#[track_caller]
fn is_put_together(router: &KernelRouter, net: &Net, address: &str) {
    // While a worker waits for a processor, the kernel forwards.
    until("a stream by Tollway, counted as the card counts", || {
        let super_frames = || net.b.counts("hb")[1];
        let (before, card, arrived) = (by_router(router), on_wire(&net.a), super_frames());
        carried(router, (&net.a, &net.b), address);
        let [received, sent] = by_router(router);
        let (received, sent) = (received.since(before[0]), sent.since(before[1]));
        let (card, arrived) = (on_wire(&net.a).since(card), super_frames() - arrived);
        eprintln!(
            "{address}: received {received:?}, sent {sent:?}, card {card:?}, arrived {arrived:?}"
        );
        // Acknowledgements, and what has begun to flow, take the other way or come alone.
        assert!(arrived * 4 < card.packets, "{address}: {arrived} of {card:?}");
        received.is_close_to(card) && sent.packets == received.packets
    });
}

pub fn streams() {
    let net = net();
    let router = engines();
    until_forwarded(&router, &net.a, "10.0.2.2");
    until_forwarded(&router, &net.a, "fd00:2::2");
    assert!(has_program());
    is_put_together(&router, &net, "10.0.2.2:5001");
    is_put_together(&router, &net, "[fd00:2::2]:5001");
    arrives(&router, (&net.b, &net.a), "10.0.1.2:5001");
    let ports: Value = router.show(&ShowRequest::Ports);
    let engine = |port: usize| ports["ports"][port]["engine"].as_str().unwrap().to_owned();
    assert_eq!([engine(0), engine(1)], ["xdp", "tc"], "{ports}");
    until("its name", || {
        let ports: Value = router.show(&ShowRequest::Ports);
        ports["ports"][0]["how"].as_str().unwrap().ends_with(", tc program (tcx)")
    });
}

/// By routes that rules of routing select, and by several next hops; and into a small MTU.
pub fn ways() {
    let net = net();
    net.b.sh("ip address add 10.0.9.9/32 dev lo");
    net.b.sh("ip address add 10.0.2.3/24 dev hb");
    sh("ip rule add from 10.0.1.2 to 10.0.9.9 lookup 7");
    sh("ip route add default via 10.0.2.3 table 7");
    let router = engines();
    until_forwarded(&router, &net.a, "10.0.9.9");
    is_put_together(&router, &net, "10.0.9.9:5001");
    sh("ip rule delete from 10.0.1.2 to 10.0.9.9 lookup 7");
    sh("ip route add 10.0.9.9/32 nexthop via 10.0.2.2 nexthop via 10.0.2.3");
    router.sync();
    until_forwarded(&router, &net.a, "10.0.9.9");
    is_put_together(&router, &net, "10.0.9.9:5001");
    sh("ip link set rb mtu 1300");
    net.b.sh("ip link set hb mtu 1300");
    router.sync();
    until_forwarded(&router, &net.a, "10.0.9.9");
    is_put_together(&router, &net, "10.0.9.9:5001");
    is_put_together(&router, &net, "[fd00:2::2]:5001");
}

/// From a VLAN at the card, and to one.
pub fn vlans() {
    let net = net();
    Net::tag(&net.b, "b", 20, 22);
    let router = engines();
    until_forwarded(&router, &net.a, "10.0.22.2");
    is_put_together(&router, &net, "10.0.22.2:5001");
    Net::tag(&net.a, "a", 10, 11);
    until_forwarded(&router, &net.a, "10.0.22.2");
    is_put_together(&router, &net, "10.0.22.2:5001");
    is_put_together(&router, &net, "[fd00:22::2]:5001");
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
    let links = std::fs::read_dir("/sys/fs/bpf/tollway").unwrap().flatten();
    let pins = links.map(|pins| pins.path().join("link-beside"));
    let link = pins.into_iter().find(|link| link.exists()).unwrap();
    tcx::detach(&link);
    assert_eq!(answered(&net.a, "10.0.2.2"), 5, "the kernel forwards");
    until("a line about it", || {
        router.read("stderr").contains("the tc program on ra was detached or replaced")
    });
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
