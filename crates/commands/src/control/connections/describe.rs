//! Describes a connection of the kernel, and the path of its packets.

use tollway_conntrack::{Connection as Tracked, Counters, Labels, Reason, Tuple, TupleL4};

use tollway_dataplane::id::LinkId;
use tollway_dataplane::wire::l4::{TCP, UDP};
use tollway_worker::connections;
use tollway_xdp::connections::ConnectionsByTuple;
use tollway_xdp::flows::Flow4Key;

use super::message::{Connection, ConnectionCounts, ConnectionTuple, IcmpQuery};
use super::protocol::Protocol;
use super::state::state;

/// Bytes of an Ethernet header without tags.
const ETHERNET: u64 = 14;

/// Why a connection's packets take the kernel path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum KernelPath {
    /// The connection itself keeps them there.
    #[error("{0}")]
    Connection(Reason),
    /// Tollway forwards connections over IPv4 only.
    #[error("the engines forward connections over IPv4 only")]
    NoEngine,
    /// The programs have no entry for it.
    #[error(
        "no packets have come lately, or rules decide by more than what its packets have in common"
    )]
    NotEntered,
}

impl KernelPath {
    fn of(connection: &Tracked) -> Self {
        match connection.offload() {
            Err(reason) => Self::Connection(reason),
            Ok(()) if key_of(&connection.original).is_none() => Self::NoEngine,
            Ok(()) => Self::NotEntered,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Connection(reason) => reason.name(),
            Self::NoEngine => "no_engine",
            Self::NotEntered => "not_entered",
        }
    }
}

/// The key of packets with a tuple in the table of the programs, on any link; none if the programs forward none.
fn key_of(tuple: &Tuple) -> Option<Flow4Key> {
    [TCP, UDP].contains(&tuple.protocol).then(|| connections::key_of(tuple, LinkId(0))).flatten()
}

/// Describes a connection; `entries` are those of the programs.
pub(super) fn describe(tracked: Tracked, entries: &ConnectionsByTuple) -> Connection {
    let path = KernelPath::of(&tracked);
    let of = |tuple| key_of(tuple).and_then(|key| entries.get(&key));
    let fast = [of(&tracked.original), of(&tracked.reply)];
    let is_fast = fast.iter().any(Option::is_some);
    Connection {
        protocol: Protocol(tracked.original.protocol),
        state: state(&tracked).to_owned(),
        original: tuple(&tracked.original),
        reply: tuple(&tracked.reply),
        status: tracked.status.names().map(str::to_owned).collect(),
        timeout_s: tracked.timeout_s,
        mark: tracked.mark,
        zone: tracked.zone,
        reply_zone: tracked.reply_zone,
        labels: labels(tracked.labels),
        helper: tracked.helper,
        id: tracked.id,
        counts: tracked.counters.map(|counters| counts(counters, fast)),
        path: if is_fast { "fast" } else { "kernel" }.to_owned(),
        reason: if is_fast { String::new() } else { path.name().to_owned() },
        why: if is_fast { String::new() } else { path.to_string() },
    }
}

fn tuple(tuple: &Tuple) -> ConnectionTuple {
    let icmp = match tuple.l4 {
        TupleL4::Icmp { id, kind, code } => Some(IcmpQuery { id, r#type: kind, code }),
        TupleL4::Ports { .. } | TupleL4::None => None,
    };
    ConnectionTuple {
        source: tuple.source,
        destination: tuple.destination,
        source_port: tuple.source_port(),
        destination_port: tuple.destination_port(),
        icmp,
    }
}

fn labels(labels: Labels) -> Vec<u8> {
    (0..128).filter(|bit| labels.has(*bit)).collect()
}

/// What the kernel has counted, and what the programs have forwarded, original and reply.
fn counts(counters: Counters, fast: [Option<[u64; 2]>; 2]) -> ConnectionCounts {
    let [original, reply] = [counters.original, counters.reply].map(|one| [one.packets, one.bytes]);
    // The kernel counts from the IP header on.
    let fast = fast.map(|one| {
        let [packets, bytes] = one.unwrap_or_default();
        [packets, bytes.saturating_sub(packets * ETHERNET)]
    });
    let sum = |kernel: [u64; 2], fast: [u64; 2]| [kernel[0] + fast[0], kernel[1] + fast[1]];
    let ([packets, bytes], [reply_packets, reply_bytes]) =
        (sum(original, fast[0]), sum(reply, fast[1]));
    ConnectionCounts { packets, bytes, reply_packets, reply_bytes }
}
