//! Tests path MTUs that apply to forwarded packets. The kernel sends no event for them.

use std::time::{Duration, Instant};

use tollway_net::Mac;

use super::icmp;
use super::load;
use super::namespaces::{sh, until};
use super::running::{KernelRouter, Net};
use super::socket::Wire;

/// An address behind host B.
const FAR: &str = "198.18.0.1";
/// The time within which Tollway applies a path MTU, on a machine that is not busy.
const SOON: Duration = Duration::from_millis(150);
/// Number of tries, each with a new exception: a busy machine may be late.
const TRIES: usize = 5;

/// Returns the Ethernet address of a device, in bytes.
fn mac_of(device: &str) -> [u8; 6] {
    Mac::parse(&load::mac_of(device)).unwrap().0
}

/// Returns the number of pieces in which a packet of 1000 bytes arrives at host B.
fn pieces(net: &Net, address: &str) -> u64 {
    let before = net.b.received("hb");
    net.a.sh(&format!("ping -n -q -c 1 -W 5 -s 1000 -M dont {address}"));
    net.b.received("hb") - before
}

/// Has the router learn a small path MTU for an address. Returns how long packets still leave
/// whole.
fn learn(net: &Net, wire: &mut Wire, address: &str) -> Duration {
    // A neighbour reports that an echo reply to this address was too big, and gives 400 bytes.
    let message =
        icmp::too_big(["10.0.2.2", "10.0.2.1", address].map(|ip| ip.parse().unwrap()), 400, 0, 1);
    let frame = [&mac_of("rb")[..], &[2, 0, 0, 0, 0, 9, 8, 0], &message].concat();
    let start = Instant::now();
    wire.send(&frame).unwrap();
    until("a packet that is cut", || pieces(net, address) == 2);
    start.elapsed()
}

pub fn locked() {
    let net = Net::new();
    sh("ip route add 198.18.0.0/15 via 10.0.2.2");
    net.b.sh(&format!("ip address add {FAR}/32 dev lo"));
    std::fs::write("/proc/sys/net/ipv4/route/mtu_expires", "3").unwrap();
    let index = net.b.ifindex("hb") as i32;
    let mut wire = Wire::open_in(net.b.0.0.id(), index).unwrap();
    // Checks first that the kernel alone does the same.
    net.a.pings(1, FAR);
    learn(&net, &mut wire, FAR);
    until("it to expire", || pieces(&net, FAR) == 1);

    let router = KernelRouter::start("ra rb");
    for address in [FAR, "10.0.2.2"] {
        let mut tried = Vec::new();
        let is_soon = (0..TRIES).any(|_| {
            router.forwards(&net.a, address);
            until("a whole packet", || pieces(&net, address) == 1);
            tried.push(learn(&net, &mut wire, address));
            let before = router.counts().sent;
            assert_eq!(pieces(&net, address), 2, "{address}");
            assert!(router.counts().sent <= before + 1, "{address} is the kernel's");
            until("it to expire", || pieces(&net, address) == 1);
            *tried.last().unwrap() < SOON
        });
        assert!(is_soon, "{address}: {tried:?}");
        println!("{address}: cut after {tried:?}");
    }
    until("all to be fast again", || {
        let before = router.counts().sent;
        net.a.pings(1, FAR);
        router.counts().sent >= before + 2
    });
}
