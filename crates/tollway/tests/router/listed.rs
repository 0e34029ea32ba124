//! Tests rules that nft does not list completely. Each test first checks what the kernel does, then that
//! Tollway does the same.

use std::time::Duration;

use tollway_commands::control::ShowRequest;

use super::namespaces::{sh, until};
use super::raw;
use super::running::{KernelRouter, Net};
use super::socket::Wire;

/// The router's Ethernet address at `ra`, and host B's.
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const B: [u8; 6] = [2, 0, 0, 0, 2, 2];
/// The payload of the packets.
const MARK: &[u8] = b"the payload of this test's packets";

/// The sockets at host A and host B between which packets go.
struct HostPath {
    from: Wire,
    to: Wire,
}

impl HostPath {
    fn new(net: &Net) -> Self {
        sh("ip link set ra address 02:00:00:00:00:0a");
        net.b.sh("ip link set hb address 02:00:00:00:02:02");
        sh("ip -6 neigh replace fd00:2::2 lladdr 02:00:00:00:02:02 dev rb nud permanent");
        Self { from: Wire::at(&net.a, "ha"), to: Wire::at(&net.b, "hb") }
    }

    /// Returns how many of five packets arrive.
    fn arrive(&mut self, frame: &[u8]) -> usize {
        while self.to.receive().unwrap().is_some() {}
        (0..5).for_each(|_| self.from.send(frame).unwrap());
        let mut seen = 0;
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(5));
            while let Some(frame) = self.to.receive().unwrap() {
                let is_it = frame.windows(MARK.len()).any(|bytes| bytes == MARK);
                seen += usize::from(is_it && frame.starts_with(&B));
            }
        }
        seen
    }
}

/// Returns UDP from fd00:1::2 to port 53 of fd00:2::2 behind extension headers, the first of type
/// `next`.
fn frame(next: u8, extensions: &[u8]) -> Vec<u8> {
    let len = 8 + MARK.len() as u16;
    let address = |net: u8| [[0xfd, 0, 0, net], [0; 4], [0; 4], [0, 0, 0, 2]].concat();
    let mut udp =
        [1000_u16.to_be_bytes(), 53_u16.to_be_bytes(), len.to_be_bytes(), [0; 2]].concat();
    udp.extend(MARK);
    let pseudo = [&address(1)[..], &address(2), &[0, 17], &len.to_be_bytes(), &udp].concat();
    let words = pseudo.chunks(2);
    let words = words.map(|pair| u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    let mut sum: u32 = words.map(u32::from).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    udp[6..8].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let length = (len + extensions.len() as u16).to_be_bytes();
    let header = [&[0x60, 0, 0, 0], &length[..], &[next, 64], &address(1), &address(2)].concat();
    [&ROUTER[..], &[2, 0, 0, 0, 1, 0x99], &[0x86, 0xdd], &header, extensions, &udp].concat()
}

pub fn as_the_kernel() {
    let net = Net::new();
    let mut path = HostPath::new(&net);
    let plain = frame(17, &[]);
    // Destination options, and a routing header with no segments left.
    let options = frame(60, &[17, 0, 1, 4, 0, 0, 0, 0]);
    let routing = frame(43, &[17, 0, 254, 0, 0, 0, 0, 0]);
    // The only fragment of its packet.
    let fragment = frame(44, &[17, 0, 0, 0, 0, 0, 0, 1]);
    let extended = [&options, &routing, &fragment];
    until("the kernel to forward", || extended.iter().all(|frame| path.arrive(frame) == 5));
    let load = |rules: &str| {
        sh("nft flush ruleset");
        sh("nft add table ip6 f");
        sh("nft add chain ip6 f fw { type filter hook forward priority 0 ; policy drop ; }");
        sh(&format!("nft add rule ip6 f fw {rules}"));
    };
    let whole = "ip6 nexthdr udp udp dport 53 accept";
    load(whole);
    for frame in extended {
        assert_eq!(path.arrive(frame), 0, "the kernel drops it");
    }
    sh("nft flush ruleset");

    let router = KernelRouter::start("ra rb");
    let fast = |path: &mut HostPath, frame: &[u8]| {
        // On a busy machine the worker may be late, and the kernel then forwards.
        until("Tollway to forward", || {
            router.sync();
            let before = router.counts().sent;
            path.arrive(frame) == 5 && router.counts().sent >= before + 5
        });
    };
    // On a veth the other frames take the kernel path: their checksums may be unfinished.
    for frame in [&plain, &fragment] {
        fast(&mut path, frame);
    }
    load(whole);
    router.sync();
    fast(&mut path, &plain);
    for frame in extended {
        assert_eq!(path.arrive(frame), 0, "{whole}");
    }

    // After `continue` in a map, the rest of the same rule still applies.
    load("udp dport 53 ip6 saddr vmap { fd00:1::2 : continue } ip6 daddr fd00:2::2 drop");
    sh("nft add rule ip6 f fw accept");
    router.sync();
    assert_eq!((path.arrive(&plain), path.arrive(&options)), (0, 0));

    // A rule that nft does not list may match any packet that reaches it.
    sh("nft flush chain ip6 f fw");
    let inner = raw::within_vxlan([10, 0, 0, 1]);
    let vxlan =
        [raw::protocol(17), raw::payload(2, 0, &1000_u16.to_be_bytes()), inner, raw::drop()];
    raw::add_rule(10, "f", "fw", &vxlan);
    sh("nft add rule ip6 f fw accept");
    router.sync();
    let before = router.counts().sent;
    assert_eq!(path.arrive(&plain), 5);
    assert_eq!(router.counts().sent, before, "it is the kernel's");
    if !sh("nft list ruleset").contains("vxlan") {
        let offload = router.show(&ShowRequest::Offload).to_string();
        assert!(offload.contains("nft does not list"), "{offload}");
    }
}
