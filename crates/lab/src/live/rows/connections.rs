//! Flows of connections that the kernel tracks: established ones of UDP, with and without translation.

use tollway_linux::netlink::{QuerySocket, push};

use super::super::generator::{Flows, PORT, Stream};
use super::super::host::Host;
use super::super::sink::SinkHook;
use super::super::topology::RIGHT;
use super::follow::{AS_CARDS, Follower};
use super::pairs::in_turn;
use super::wire::Wire;
use super::{Bench, Outcome, rulesets};

/// What connections are tracked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracking {
    /// A firewall that accepts packets of established connections, and drops others.
    Stateful,
    /// The same, and the source addresses are translated.
    Translated,
}

/// The kernel's limit of connections (`nf_conntrack_max`), of all network namespaces.
const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Seconds for which the kernel keeps connections without packets: longer than the row takes.
const TIMEOUT_S: u32 = 3600;

/// Measures so many connections, and the kernel in turn.
pub(super) fn measure(
    bench: &Bench<'_>,
    tracking: Tracking,
    flows: u32,
) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    topologies.tollway.kernel_forwards(true)?;
    let both = [&topologies.kernel, &topologies.tollway];
    let _limit = Limit::raise(4 * flows)?;
    for topology in both {
        rulesets::load(&topology.r, rulesets::ESTABLISHED)?;
        if tracking == Tracking::Translated {
            rulesets::load(&topology.r, rulesets::MASQUERADE)?;
        }
        topology.r.sysctl("netfilter/nf_conntrack_udp_timeout_stream", &TIMEOUT_S.to_string())?;
        connect(&topology.r, tracking, flows)?;
    }
    let wire = |topology| {
        let stream = Stream { flows: Flows::InTurn(flows), vid: None, rate: None };
        Wire::new(topology, stream, SinkHook::Xdp, None)
    };
    let (kernel, side) = (wire(both[0])?, wire(both[1])?);
    // Room for twice as many.
    let room = (2 * flows).max(1 << 17).to_string();
    let arguments = [&AS_CARDS[..], &["--xdp-flows", &room]].concat();
    let tollway = Follower::start(both[1], &arguments, true)?;
    side.send_until_stable()?;
    let pairs = in_turn(&kernel, &side, bench.pairs, bench.step)?;
    let note = tollway.note();
    tollway.stop()?;
    for topology in both {
        rulesets::clear(&topology.r)?;
        disconnect(&topology.r)?;
    }
    Ok(Outcome::Measured { pairs, note })
}

/// A raised limit of connections, until dropped.
struct Limit(Option<String>);

impl Limit {
    fn raise(least: u32) -> Result<Self, String> {
        let failed = |error| format!("cannot set {LIMIT}: {error}");
        let before = std::fs::read_to_string(LIMIT).map_err(failed)?;
        if before.trim().parse().is_ok_and(|limit: u32| limit >= least) {
            return Ok(Self(None));
        }
        std::fs::write(LIMIT, least.to_string()).map_err(failed)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = std::fs::write(LIMIT, before);
        }
    }
}

/// Messages and attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const NETLINK_NETFILTER: isize = 12;
const NEW: u16 = 1 << 8;
const DELETE: u16 = 1 << 8 | 2;
const NESTED: u16 = 1 << 15;
const CREATE: u16 = 0x400;
/// `struct nfgenmsg` of IPv4.
const HEADER: [u8; 4] = [2, 0, 0, 0];
const UDP: u8 = 17;
/// `IPS_SEEN_REPLY`, `IPS_ASSURED` and `IPS_CONFIRMED`.
const STATUS: u32 = 1 << 1 | 1 << 2 | 1 << 3;

/// The addresses and ports of one direction.
type Tuple = ([u8; 4], [u8; 4], u16, u16);

/// Makes the connections of the generator's flows known to a host's kernel, as established ones.
fn connect(host: &Host, tracking: Tracking, flows: u32) -> Result<(), String> {
    let outside: [u8; 4] = address(RIGHT[1])?;
    let connect = move || {
        let mut socket = QuerySocket::open(NETLINK_NETFILTER)?;
        (0..flows).try_for_each(|flow| {
            let own @ (source, destination, sport, dport) = tuple(flow);
            let (source, sport) = match tracking {
                Tracking::Stateful => (source, sport),
                // One port for each flow to a destination.
                Tracking::Translated => {
                    (outside, 1024 + (flow & 0xff) as u16 + (flow >> 16 << 8) as u16)
                }
            };
            let reply = (destination, source, dport, sport);
            socket.change(NEW, CREATE, &message(own, reply, tracking))
        })
    };
    let failed = |error: std::io::Error| format!("the kernel does not take connections: {error}");
    host.run(connect)?.map_err(failed)
}

/// Makes a host's kernel forget all connections.
fn disconnect(host: &Host) -> Result<(), String> {
    let forget = || QuerySocket::open(NETLINK_NETFILTER)?.change(DELETE, 0, &HEADER);
    host.run(forget)?.map_err(|error| format!("the kernel keeps its connections: {error}"))
}

/// The tuple of a flow (`flow_in_turn` of bpf/generator.c).
const fn tuple(flow: u32) -> Tuple {
    let source = 0xc612_0000 + (flow & 0xff);
    let destination = 0xc613_0000 + (flow >> 8 & 0xff);
    (source.to_be_bytes(), destination.to_be_bytes(), 1024 + (flow >> 16) as u16, PORT)
}

fn address(text: &str) -> Result<[u8; 4], String> {
    let address: std::net::Ipv4Addr = text.parse().map_err(|_| format!("{text} is no address"))?;
    Ok(address.octets())
}

fn message(original: Tuple, reply: Tuple, tracking: Tracking) -> Vec<u8> {
    let mut body = HEADER.to_vec();
    // Before its translation, a connection has the addresses that it begins with.
    let plain = (original.1, original.0, original.3, original.2);
    let answered = if tracking == Tracking::Stateful { reply } else { plain };
    for (kind, tuple) in [(1, original), (2, answered)] {
        push(&mut body, kind | NESTED, &written(tuple));
    }
    push(&mut body, 3, &STATUS.to_be_bytes());
    push(&mut body, 7, &TIMEOUT_S.to_be_bytes());
    if tracking == Tracking::Translated {
        // CTA_NAT_SRC with the only address and the only port to choose.
        let (mut ports, mut nat) = (Vec::new(), Vec::new());
        push(&mut ports, 1, &reply.3.to_be_bytes());
        push(&mut ports, 2, &reply.3.to_be_bytes());
        push(&mut nat, 1, &reply.1);
        push(&mut nat, 2, &reply.1);
        push(&mut nat, 3 | NESTED, &ports);
        push(&mut body, 6 | NESTED, &nat);
    }
    body
}

/// A tuple's nested attributes.
fn written((source, destination, sport, dport): Tuple) -> Vec<u8> {
    let (mut addresses, mut protocol, mut all) = (Vec::new(), Vec::new(), Vec::new());
    push(&mut addresses, 1, &source);
    push(&mut addresses, 2, &destination);
    push(&mut protocol, 1, &[UDP]);
    push(&mut protocol, 2, &sport.to_be_bytes());
    push(&mut protocol, 3, &dport.to_be_bytes());
    push(&mut all, 1 | NESTED, &addresses);
    push(&mut all, 2 | NESTED, &protocol);
    all
}
