//! The largest connections: by rate, packets or bytes.
//!
//! The router lists all connections, and keeps those that the client gets. For rates it lists them twice: the counts of
//! the first time take some 230 bytes for each connection meanwhile.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tollway_conntrack::Connection as Tracked;

use super::describe::Sum;
use super::filter::{ConnectionFilter, ConnectionOrder};
use super::message::{Connection, ConnectionRates};
use super::pager::{Pager, PagesError, each};
use super::source::Source;

/// How many connections a client gets, unless it says so, and at most.
const USUAL: usize = 20;
const MOST: usize = 10_000;
/// The time over which rates are measured, unless the client says so, and at most.
const INTERVAL: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The connections that a filter selects, the largest first.
pub(super) fn ranked(
    filter: &ConnectionFilter,
    order: ConnectionOrder,
    source: &mut dyn Source,
    pager: &mut Pager<'_>,
) -> Result<Vec<Connection>, PagesError> {
    let before = match order {
        ConnectionOrder::Rate => {
            let samples = Samples::take(filter, source, pager)?;
            let interval = filter.interval_ms.map_or(INTERVAL, Duration::from_millis);
            pager.rest(interval.min(LONGEST)).map_err(PagesError::Client)?;
            source.refresh();
            Some(samples)
        }
        ConnectionOrder::Packets | ConnectionOrder::Bytes => None,
    };
    let refreshed = Instant::now();
    let mut best = Best::new(filter.limit.unwrap_or(USUAL).min(MOST));
    each(filter, source, pager, |connection, _| {
        let now = Sample::of(&connection, source);
        let rates = before.as_ref().map(|before| before.rates(&connection, now, refreshed));
        let [packets, bytes] = now.sum();
        let size = match (order, rates) {
            (ConnectionOrder::Packets, _) => (packets, bytes),
            (ConnectionOrder::Bytes, _) => (bytes, packets),
            (ConnectionOrder::Rate, rates) => {
                let rates = rates.unwrap_or_default();
                (rates.bytes_per_s, rates.packets_per_s)
            }
        };
        if best.takes(size) {
            let described = Connection { rates, ..source.describe(connection) };
            if filter.selects_described(&described) {
                best.add(size, described);
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(best.sorted())
}

/// What a connection has counted.
#[derive(Clone, Copy, Debug)]
struct Sample {
    kernel: Sum,
    fast: Sum,
    at: Instant,
}

impl Sample {
    fn of(connection: &Tracked, source: &dyn Source) -> Self {
        let counters = connection.counters.map(|counters| [counters.original, counters.reply]);
        let kernel = counters.into_iter().flatten().fold([0; 2], |[packets, bytes]: Sum, one| {
            [packets.saturating_add(one.packets), bytes.saturating_add(one.bytes)]
        });
        Self { kernel, fast: source.fast(connection), at: Instant::now() }
    }

    fn sum(self) -> Sum {
        [0, 1].map(|at: usize| self.kernel[at].saturating_add(self.fast[at]))
    }
}

/// The counts of all connections that a filter selects, by the hash of the tuple and zone.
struct Samples {
    /// When the counts of the programs were read.
    refreshed: Instant,
    hasher: RandomState,
    known: HashMap<u64, Sample>,
}

impl Samples {
    fn take(
        filter: &ConnectionFilter,
        source: &dyn Source,
        pager: &mut Pager<'_>,
    ) -> Result<Self, PagesError> {
        let refreshed = Instant::now();
        let mut samples = Self { refreshed, hasher: RandomState::new(), known: HashMap::new() };
        // A connection may come to have the state and mark only later, and is then no new one.
        let unchanging = ConnectionFilter { state: None, mark: None, ..filter.clone() };
        each(&unchanging, source, pager, |connection, _| {
            let key = samples.key(&connection);
            samples.known.insert(key, Sample::of(&connection, source));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(samples)
    }

    fn key(&self, connection: &Tracked) -> u64 {
        self.hasher.hash_one((&connection.original, connection.zone))
    }

    /// The rates since these samples. One that is new has counted all since then.
    fn rates(&self, connection: &Tracked, now: Sample, refreshed: Instant) -> ConnectionRates {
        let before = self.known.get(&self.key(connection));
        let fast_s = (refreshed - self.refreshed).as_secs_f64();
        let kernel_s = before.map_or(fast_s, |before| (now.at - before.at).as_secs_f64());
        let rate = |at: usize| {
            // A smaller count is that of another connection, or of another entry.
            let grown = |before: Option<Sum>, now: Sum| {
                now[at].checked_sub(before.map_or(0, |before| before[at])).unwrap_or(now[at])
            };
            let kernel = grown(before.map(|before| before.kernel), now.kernel);
            let fast = grown(before.map(|before| before.fast), now.fast);
            let per_s = |count: u64, seconds: f64| count as f64 / seconds.max(1e-3);
            (per_s(kernel, kernel_s) + per_s(fast, fast_s)).round() as u64
        };
        ConnectionRates {
            packets_per_s: rate(0),
            bytes_per_s: rate(1),
            interval_ms: (fast_s * 1e3).round() as u64,
        }
    }
}

/// The largest connections so far.
struct Best {
    most: usize,
    added: u64,
    heap: BinaryHeap<Reverse<Ranked>>,
}

struct Ranked {
    size: (u64, u64),
    /// The order in which connections came: of equal ones, the first are kept.
    number: Reverse<u64>,
    connection: Connection,
}

impl Best {
    fn new(most: usize) -> Self {
        Self { most, added: 0, heap: BinaryHeap::new() }
    }

    /// Whether a connection of this size would be among them.
    fn takes(&self, size: (u64, u64)) -> bool {
        let smallest = self.heap.peek().map(|Reverse(smallest)| smallest.size);
        self.most > 0 && (self.heap.len() < self.most || smallest.is_some_and(|one| one < size))
    }

    fn add(&mut self, size: (u64, u64), connection: Connection) {
        self.added += 1;
        self.heap.push(Reverse(Ranked { size, number: Reverse(self.added), connection }));
        if self.heap.len() > self.most {
            self.heap.pop();
        }
    }

    fn sorted(self) -> Vec<Connection> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse(ranked)| ranked.connection).collect()
    }
}

impl Ranked {
    const fn rank(&self) -> ((u64, u64), Reverse<u64>) {
        (self.size, self.number)
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Ranked {}
