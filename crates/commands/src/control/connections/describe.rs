//! Describes a connection of the kernel, and the path of its packets.

use tollway_conntrack::{Connection as Tracked, Counters, Labels, Reason, Tuple, TupleL4};

use tollway_dataplane::id::LinkId;
use tollway_dataplane::wire::l4::{TCP, UDP};
use tollway_worker::connections::{self, KernelReason};
use tollway_xdp::connections::{ConnectionKey, ConnectionsByTuple, Entry, Treatment};

use super::message::{Connection, ConnectionCounts, ConnectionEntry, ConnectionTuple, IcmpQuery};
use super::protocol::Protocol;
use super::state::state;

/// Packets and bytes.
pub type Sum = [u64; 2];

/// What the programs do with connections.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// Their entries.
    pub entries: ConnectionsByTuple,
    /// The names of the links, by number.
    pub links: Vec<String>,
    /// Why all packets of a version of IP take the kernel path, if they do: IPv4, IPv6.
    pub all_by_kernel: [Option<String>; 2],
}

impl Programs {
    /// The entries of a connection, original and reply.
    fn of(&self, tracked: &Tracked) -> [Option<Entry>; 2] {
        [&tracked.original, &tracked.reply]
            .map(|tuple| key_of(tuple).and_then(|key| self.entries.get(&key)))
    }

    /// Why all packets of a connection's version of IP take the kernel path.
    fn by_kernel(&self, tracked: &Tracked) -> Option<&str> {
        self.all_by_kernel[usize::from(tracked.original.source.is_ipv6())].as_deref()
    }

    fn link(&self, link: LinkId) -> String {
        let name = self.links.get(usize::from(link.0));
        name.map_or_else(|| format!("link {}", link.0), String::clone)
    }
}

/// Why a connection's packets take the kernel path, or are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Why {
    /// The connection itself keeps them there.
    #[error("{0}")]
    Connection(Reason),
    /// The entry of a direction says so.
    #[error("{0}")]
    Entry(KernelReason),
    /// Rules drop them.
    #[error("rules drop them")]
    Dropped,
    /// A program has to ask by which link they leave.
    #[error("its rules are not evaluated before its next packet")]
    Unruled,
    /// The programs have no entry for it.
    #[error("no packets have come lately, or the table has no room")]
    NotEntered,
}

/// The keywords of the reasons that no [`KernelReason`] has.
const OTHER_REASONS: [&str; 3] = ["dropped", "unruled", "not_entered"];
/// The keyword where all packets of the version of IP take the kernel path.
const ALL_BY_KERNEL: &str = "kernel_path";

/// The keywords of all reasons.
pub fn connection_reasons() -> impl Iterator<Item = &'static str> {
    let others = OTHER_REASONS.into_iter().chain([ALL_BY_KERNEL]);
    KernelReason::ALL.map(KernelReason::name).into_iter().chain(others)
}

impl Why {
    /// What an entry says; none if it forwards, or is not active.
    fn of_entry(entry: Entry) -> Option<Self> {
        match entry.treatment? {
            Treatment::Kernel { why, .. } => KernelReason::of(why).map(Self::Entry),
            Treatment::Unruled { .. } => Some(Self::Unruled),
            Treatment::Dropped(_) => Some(Self::Dropped),
            Treatment::Forwarded(_) | Treatment::ForwardedInvalid(_) | Treatment::Untracked(_) => {
                None
            }
        }
    }

    /// Why all packets of a connection take the kernel path.
    fn of(tracked: &Tracked, entries: [Option<Entry>; 2]) -> Self {
        match tracked.offload() {
            Err(reason) => Self::Connection(reason),
            Ok(()) => {
                let known = entries.into_iter().flatten().find_map(Self::of_entry);
                known.unwrap_or(Self::NotEntered)
            }
        }
    }

    const fn name(self) -> &'static str {
        let [dropped, unruled, not_entered] = OTHER_REASONS;
        match self {
            Self::Connection(reason) => reason.name(),
            Self::Entry(reason) => reason.name(),
            Self::Dropped => dropped,
            Self::Unruled => unruled,
            Self::NotEntered => not_entered,
        }
    }
}

/// The path of a connection's packets, and the reason as a keyword and in words.
fn path(tracked: &Tracked, entries: [Option<Entry>; 2]) -> (&'static str, &'static str, String) {
    let forwards = |entry: &Entry| entry.treatment.is_some_and(Treatment::forwards);
    let is_fast = |entry: &Entry| forwards(entry) || is_dropped(entry);
    if !entries.iter().flatten().any(is_fast) {
        let why = Why::of(tracked, entries);
        return ("kernel", why.name(), why.to_string());
    }
    let reason = |(entry, packets): (Option<Entry>, &str)| {
        let (why, entry) = (Why::of_entry(entry?)?, entry?);
        let words = match is_dropped(&entry) {
            true => format!("{packets}: {why}"),
            false => format!("{packets} take the kernel path: {why}"),
        };
        Some((why.name(), words))
    };
    let one_way = entries.into_iter().zip(["packets of the first direction", "replies"]);
    let (name, words) = one_way.into_iter().find_map(reason).unwrap_or_default();
    ("fast", name, words)
}

fn is_dropped(entry: &Entry) -> bool {
    matches!(entry.treatment, Some(Treatment::Dropped(_)))
}

/// The key of packets with a tuple in the table of the programs, on any link; none if the programs forward none.
fn key_of(tuple: &Tuple) -> Option<ConnectionKey> {
    [TCP, UDP].contains(&tuple.protocol).then(|| connections::key_of(tuple, LinkId(0))).flatten()
}

/// The packets and bytes that the programs have forwarded of both directions of a connection.
pub fn fast(tracked: &Tracked, programs: &Programs) -> Sum {
    let [original, reply] = programs.of(tracked).map(forwarded);
    [original[0] + reply[0], original[1] + reply[1]]
}

/// Describes a connection.
pub fn describe(tracked: Tracked, programs: &Programs) -> Connection {
    let entries = programs.of(&tracked);
    let (path, reason, why) = match programs.by_kernel(&tracked) {
        Some(why) => ("kernel", ALL_BY_KERNEL, format!("all of its IP version is there: {why}")),
        None => path(&tracked, entries),
    };
    let [original_entry, reply_entry] =
        entries.map(|found| found.and_then(|found| entry(found, programs)));
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
        counts: tracked.counters.map(|counters| counts(counters, entries.map(forwarded))),
        rates: None,
        original_entry,
        reply_entry,
        path: path.to_owned(),
        reason: reason.to_owned(),
        why,
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

/// Describes an active entry.
fn entry(entry: Entry, programs: &Programs) -> Option<ConnectionEntry> {
    let [packets, bytes] = entry.used;
    let treatment = entry.treatment?;
    let name = match treatment {
        Treatment::Kernel { .. } => "kernel",
        Treatment::Unruled { .. } => "unruled",
        Treatment::Forwarded(_) | Treatment::ForwardedInvalid(_) => "forwarded",
        Treatment::Dropped(_) => "dropped",
        Treatment::Untracked(_) => return None,
    };
    let reason = Why::of_entry(entry).map_or("", Why::name);
    Some(ConnectionEntry {
        treatment: name.to_owned(),
        device: programs.link(entry.link),
        output: treatment.output().map(|link| programs.link(link)),
        reason: reason.to_owned(),
        packets,
        bytes,
    })
}

/// What a direction's entry has forwarded, or the one before it. The kernel counts what rules drop, too: it has passed
/// connection tracking.
fn forwarded(entry: Option<Entry>) -> Sum {
    entry.map_or([0; 2], |entry| entry.used)
}

/// What the kernel has counted, and the programs, original and reply.
fn counts(counters: Counters, fast: [Sum; 2]) -> ConnectionCounts {
    let [original, reply] = [counters.original, counters.reply].map(|one| [one.packets, one.bytes]);
    let sum = |kernel: Sum, fast: Sum| [kernel[0] + fast[0], kernel[1] + fast[1]];
    let ([packets, bytes], [reply_packets, reply_bytes]) =
        (sum(original, fast[0]), sum(reply, fast[1]));
    ConnectionCounts { packets, bytes, reply_packets, reply_bytes }
}
