//! Rates per second, computed from two answers of a router.

use std::collections::BTreeMap;

use crate::control::{
    All, PathCounts, PortState, StageToll, Totals, Traffic, WorkerCounts, WorkerState,
};

/// Rates per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Received, sent on, dropped, punted, delivered.
    pub(super) totals: [(&'static str, f64); 5],
    pub(super) ports: Vec<PortRates>,
    pub(super) workers: Vec<WorkerRates>,
    pub(super) drops: Vec<Reason>,
    pub(super) punts: Vec<Reason>,
    pub(super) tolls: Vec<Toll>,
    /// Where packets went that arrived in this interval; none if none did, or if nobody counts them.
    pub(super) paths: Option<PathShares>,
    /// None if the router forwards no connections.
    pub(super) connections: Option<ConnectionRates>,
    /// The counters of the XDP path.
    pub(super) xdp: Vec<(String, u64)>,
}

/// How many of the packets that arrived took the kernel path.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PathShares {
    /// In percent; the others took the fast path.
    pub(super) kernel: f64,
    /// The reason of most packets on the kernel path.
    pub(super) why: Option<String>,
}

/// The connections that the kernel tracks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ConnectionRates {
    pub(super) tracked: u64,
    /// How many of their directions the programs forward, in percent.
    pub(super) forwarded: f64,
    /// How many directions have come to be forwarded.
    pub(super) entered: f64,
    /// Why most of the others take the kernel path, of those that the programs have asked about.
    pub(super) why: Option<String>,
}

/// A port's rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PortRates {
    pub(super) name: String,
    pub(super) state: String,
    pub(super) rx: Flow,
    pub(super) tx: Flow,
    pub(super) missed: f64,
}

/// A worker's load and rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WorkerRates {
    pub(super) worker: usize,
    pub(super) processor: Option<usize>,
    pub(super) load_percent: Option<f64>,
    pub(super) received: f64,
    pub(super) sent: f64,
    pub(super) dropped: f64,
    pub(super) punted: f64,
    pub(super) packets_per_burst: Option<f64>,
}

/// Packets and bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Flow {
    pub(super) packets: f64,
    pub(super) bits: f64,
}

/// A reason for drops or punts: rate and total.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reason {
    pub(super) name: String,
    pub(super) rate: f64,
    pub(super) count: u64,
}

/// The toll of a stage, ns per packet: in this interval, and since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Toll {
    pub(super) stage: String,
    pub(super) now: Option<f64>,
    pub(super) ever: Option<f64>,
}

impl Rates {
    /// The rates between `old` and `new`, two answers of the same router.
    pub(super) fn between(old: &All, new: &All) -> Self {
        let seconds = new.uptime_ns.saturating_sub(old.uptime_ns) as f64 / 1e9;
        let rate = |old: u64, new: u64| {
            // A counter that fell belongs to another router, or to tables that were replaced.
            if seconds > 0.0 { new.saturating_sub(old) as f64 / seconds } else { 0.0 }
        };
        let flow = |old: Traffic, new: Traffic| Flow {
            packets: rate(old.packets, new.packets),
            bits: rate(old.bytes, new.bytes) * 8.0,
        };
        let port = |new: &PortState| {
            let old = old.ports.ports.iter().find(|old| old.name == new.name);
            let zero = (Traffic::default(), Traffic::default(), 0);
            let (rx, tx, missed) = old.map_or(zero, |old| (old.rx, old.tx, old.missed));
            PortRates {
                name: new.name.clone(),
                state: new.state.clone(),
                rx: flow(rx, new.rx),
                tx: flow(tx, new.tx),
                missed: rate(missed, new.missed),
            }
        };
        let reasons = |old: &BTreeMap<String, u64>, new: &BTreeMap<String, u64>| {
            let reason = |(name, count): (&String, &u64)| {
                let before = old.get(name).copied().unwrap_or(0);
                Reason { name: name.clone(), rate: rate(before, *count), count: *count }
            };
            let mut reasons: Vec<_> = new.iter().map(reason).collect();
            reasons.sort_by(|a, b| b.rate.total_cmp(&a.rate).then(b.count.cmp(&a.count)));
            reasons
        };
        let (was, is) = (&old.ports.totals, &new.ports.totals);
        let total = |name, of: fn(&Totals) -> u64| (name, rate(of(was), of(is)));
        Self {
            totals: [
                total("received", |totals| totals.received),
                total("sent on", |totals| totals.sent),
                total("dropped", |totals| totals.dropped),
                total("punted", |totals| totals.punted),
                total("delivered", |totals| totals.delivered),
            ],
            ports: new.ports.ports.iter().map(port).collect(),
            workers: new.workers.iter().map(|worker| worker_between(old, worker, rate)).collect(),
            drops: reasons(&old.drops, &new.drops),
            punts: reasons(&old.punts, &new.punts),
            tolls: new.tolls.tolls.iter().map(|toll| toll_between(old, toll)).collect(),
            paths: paths_between(&old.paths, &new.paths),
            connections: connections_between(old, new, rate),
            xdp: new.xdp.counts.iter().map(|(name, n)| (name.clone(), *n)).collect(),
        }
    }
}

/// The shares of the paths in this interval.
fn paths_between(old: &PathCounts, new: &PathCounts) -> Option<PathShares> {
    let arrived = new.arrived().checked_sub(old.arrived()).filter(|count| *count > 0)?;
    let before = old.kernel();
    let grown = new.kernel().into_iter().map(|(reason, count)| {
        (reason, count.saturating_sub(before.get(reason).copied().unwrap_or(0)))
    });
    let grown: Vec<_> = grown.filter(|(_, count)| *count > 0).collect();
    let kernel = grown.iter().map(|(_, count)| count).sum::<u64>().min(arrived);
    let why = grown.iter().max_by_key(|(_, count)| count).map(|(reason, _)| (*reason).to_owned());
    Some(PathShares { kernel: kernel as f64 * 100.0 / arrived as f64, why })
}

/// The connections, if some are tracked.
fn connections_between(
    old: &All,
    new: &All,
    rate: impl Fn(u64, u64) -> f64,
) -> Option<ConnectionRates> {
    let now = new.connections.as_ref().filter(|now| now.tracked > 0)?;
    let before = old.connections.as_ref();
    let before = before.map_or(now.directions_entered, |old| old.directions_entered);
    let kernel = now.directions_kernel.iter().filter(|(_, count)| **count > 0);
    // The counts are not of one moment.
    let forwarded = now.directions_forwarded as f64 * 50.0 / now.tracked as f64;
    Some(ConnectionRates {
        tracked: now.tracked,
        forwarded: forwarded.min(100.0),
        entered: rate(before, now.directions_entered),
        why: kernel.max_by_key(|(_, count)| **count).map(|(reason, _)| reason.clone()),
    })
}

/// The toll of a stage, from the samples of this interval.
fn toll_between(old: &All, new: &StageToll) -> Toll {
    let old = old.tolls.tolls.iter().find(|old| old.stage == new.stage);
    let sum = |toll: &StageToll| toll.ns_per_packet.unwrap_or(0.0) * toll.packets as f64;
    let (before, packets) = old.map_or((0.0, 0), |old| (sum(old), old.packets));
    let sampled = new.packets.saturating_sub(packets);
    let now = (sampled > 0).then(|| ((sum(new) - before) / sampled as f64).max(0.0));
    Toll { stage: new.stage.clone(), now, ever: new.ns_per_packet }
}

/// A worker's load and rates in this interval; `rate` is that of a count.
fn worker_between(old: &All, new: &WorkerState, rate: impl Fn(u64, u64) -> f64) -> WorkerRates {
    let of = |worker: Option<&WorkerState>| worker.and_then(|one| one.counts.clone());
    let before = of(old.workers.iter().find(|old| old.worker == new.worker));
    let (was, is) = (before.unwrap_or_default(), of(Some(new)).unwrap_or_default());
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let grown = |of: fn(&WorkerCounts) -> u64| of(&is).saturating_sub(of(&was));
    let (busy_ns, asleep_ns) = (grown(|all| all.busy_ns), grown(|all| all.asleep_ns));
    WorkerRates {
        worker: new.worker,
        processor: new.processor,
        load_percent: share(busy_ns, busy_ns + asleep_ns).map(|load| load * 100.0),
        received: rate(was.received, is.received),
        sent: rate(was.sent, is.sent),
        dropped: rate(was.dropped, is.dropped),
        punted: rate(was.punted, is.punted),
        packets_per_burst: share(grown(|all| all.received), grown(|all| all.bursts)),
    }
}
