//! Tests flows over several next hops. Each flow keeps its next hop, whether the kernel or Tollway
//! forwards it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tollway_net::Mac;

use super::load::mac_of;
use super::namespaces::{Host, ifindex, sh, until};
use super::running::{KernelRouter, Net, answered, plug};
use super::socket::Wire;

/// Number of flows of each address family.
const FLOWS: u16 = 256;
/// Number of flows sent at once. Their packets fit into a socket's queue, fragments included.
const AT_ONCE: usize = 32;
const SEED: &str = "net.ipv4.fib_multipath_hash_seed";

/// The exits that each flow took, by IP version and flow number.
type PortsByFlow = BTreeMap<(u8, u16), BTreeSet<usize>>;

/// Host A, and two links from the router towards the destinations of its flows.
struct Spread {
    net: Net,
    _other: Host,
    sender: Wire,
    exits: [Wire; 2],
    router: [u8; 6],
}

impl Spread {
    fn new() -> Self {
        let net = Net::new();
        let other = Host::new();
        plug(&other, "c", 3);
        sh("ip link set rb mtu 1300");
        sh("ip link set rc mtu 1300");
        for (prefix, of) in [("20.0.0.0/8", "10.0."), ("2001:db8::/32", "fd00:")] {
            let via = |net: u8, dev: &str| match of {
                "10.0." => format!("nexthop via 10.0.{net}.2 dev {dev}"),
                _ => format!("nexthop via fd00:{net}::2 dev {dev}"),
            };
            sh(&format!("ip route add {prefix} {} {} weight 2", via(2, "rb"), via(3, "rc")));
        }
        for address in ["10.0.2.2", "10.0.3.2", "fd00:2::2", "fd00:3::2"] {
            until("the next hops", || answered(&net.a, address) == 5);
        }
        let exits = [Wire::at(&net.b, "hb"), Wire::at(&other, "hc")];
        let sender = Wire::at(&net.a, "ha");
        assert!(ifindex("ra") > 0);
        Self { net, _other: other, sender, exits, router: Mac::parse(&mac_of("ra")).unwrap().0 }
    }

    /// Sends one packet of `len` bytes in each flow. Returns the exits that each flow took.
    fn ports_by_flow(&mut self, len: usize) -> PortsByFlow {
        let mut ports_by_flow = PortsByFlow::new();
        let flows: Vec<_> = (1..=FLOWS).flat_map(|number| [(4, number), (6, number)]).collect();
        for flows in flows.chunks(AT_ONCE) {
            until("each flow", || {
                let missing = flows.iter().filter(|flow| !ports_by_flow.contains_key(*flow));
                for (version, number) in missing {
                    let frame = frame(self.router, *version, *number, len);
                    self.sender.send(&frame).unwrap();
                }
                // A packet that comes later still counts for its flow.
                std::thread::sleep(Duration::from_millis(2));
                self.receive(&mut ports_by_flow);
                flows.iter().all(|flow| ports_by_flow.contains_key(flow))
            });
        }
        std::thread::sleep(Duration::from_millis(10));
        self.receive(&mut ports_by_flow);
        ports_by_flow
    }

    fn receive(&mut self, ports_by_flow: &mut PortsByFlow) {
        for (number, exit) in self.exits.iter_mut().enumerate() {
            while let Some(frame) = exit.receive().unwrap() {
                if let Some(flow) = flow_of(&frame) {
                    ports_by_flow.entry(flow).or_default().insert(number);
                }
            }
        }
    }

    /// Asserts that each flow takes the same exit as before, with short and long packets.
    #[track_caller]
    fn stays(&mut self, as_before: &PortsByFlow, whatever: &str) {
        for len in [100, 1400] {
            let ports_by_flow = self.ports_by_flow(len);
            let moved: Vec<_> =
                ports_by_flow.iter().filter(|(flow, way)| as_before[flow] != **way).collect();
            assert!(
                moved.is_empty(),
                "{whatever}: of {len} bytes {} moved: {moved:?}",
                moved.len()
            );
        }
    }
}

/// Returns a packet of a flow. Each fragment contains the flow's number. An IPv6 packet is always
/// small.
fn frame(to: [u8; 6], version: u8, number: u16, len: usize) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let udp = |len: usize| {
        let mut udp = vec![4, low, 0, 53, 0, 0, 0, 0];
        udp[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        udp.resize(len, 0);
        udp
    };
    let mut frame = [&to[..], &[6, 0, 0, 0, 0, 1]].concat();
    if version == 6 {
        frame.extend([0x86, 0xdd, 0x60, 0, high, low, 0, 60, 17, 64]);
        frame.extend([0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        frame.extend([0x20, 1, 0x0d, 0xb8, low, high, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend(udp(60));
        return frame;
    }
    let mut header =
        vec![0x45, 0, 0, 0, high, low, 0, 0, 64, 17, 0, 0, 10, 0, 1, 2, 20, 7, low, high];
    header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    let sum: u32 = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend([8, 0]);
    frame.extend(header);
    frame.extend(udp(len - 20));
    frame
}

/// Returns the flow of a received packet or fragment.
fn flow_of(frame: &[u8]) -> Option<(u8, u16)> {
    let number = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    match (frame.get(12..14)?, frame.get(30)?, frame.get(38..40)) {
        ([8, 0], 20, _) => Some((4, number(18)?)),
        ([0x86, 0xdd], _, Some([0x20, 1])) => Some((6, number(16)?)),
        _ => None,
    }
}

pub fn stay() {
    sh(&format!("sysctl -qw {SEED}=4711"));
    let mut spread = Spread::new();
    let by_ports = |on: u8| {
        for family in ["ipv4", "ipv6"] {
            sh(&format!("sysctl -qw net.{family}.fib_multipath_hash_policy={on}"));
        }
    };
    by_ports(1);
    let with_ports = spread.ports_by_flow(100);
    by_ports(0);
    let kernel = spread.ports_by_flow(100);
    for exit in [0, 1] {
        let count = kernel.values().filter(|way| **way == BTreeSet::from([exit])).count();
        assert!(count > usize::from(FLOWS) / 3, "{count} of exit {exit}");
    }
    spread.stays(&kernel, "the kernel alone");
    let mut router = KernelRouter::start("ra rb rc");
    until("Tollway and its XDP program to forward them", || {
        spread.stays(&kernel, "Tollway");
        router.by_xdp_path() >= u64::from(FLOWS)
    });
    assert!(router.counts().sent >= u64::from(FLOWS));
    sh("nft add table ip t");
    sh("nft add chain ip t c { type filter hook forward priority 0 ; }");
    for port in 0..4 {
        sh(&format!("nft add rule ip t c tcp dport {port} drop"));
        spread.stays(&kernel, "rules that are read");
    }
    // A veth's packets may carry a hash, by which the kernel then selects the next hop.
    by_ports(1);
    router.sync();
    assert_eq!(spread.ports_by_flow(100), with_ports);
    by_ports(0);
    router.sync();
    spread.stays(&kernel, "again");
    sh(&format!("kill -STOP {}", router.process.0.id()));
    spread.stays(&kernel, "stopped");
    router.process.0.kill().unwrap();
    router.process.0.wait().unwrap();
    spread.stays(&kernel, "killed");
    assert_eq!(answered(&spread.net.a, "10.0.2.2"), 5);
}

/// The kernel does not reveal its own hash seed, so Tollway sets one as soon as the seed matters.
pub fn seed() {
    let seed = || sh(&format!("sysctl -n {SEED}")).trim().parse::<u32>().unwrap();
    let mut spread = Spread::new();
    let mut router = KernelRouter::start("ra rb rc");
    assert_ne!(seed(), 0);
    assert!(router.read("stderr").contains(SEED));
    let ports_by_flow = spread.ports_by_flow(100);
    router.stop();
    spread.stays(&ports_by_flow, "ended");
    // Multipath routes may come later.
    sh(&format!("sysctl -qw {SEED}=0"));
    sh("ip route flush 20.0.0.0/8");
    sh("ip -6 route flush 2001:db8::/32");
    let router = KernelRouter::start("ra rb rc");
    assert_eq!(seed(), 0, "nothing needs another");
    sh("ip route add 20.0.0.0/8 nexthop via 10.0.2.2 nexthop via 10.0.3.2");
    router.sync();
    assert_ne!(seed(), 0);
}
