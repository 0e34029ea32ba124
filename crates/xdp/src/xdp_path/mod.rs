//! The user-space half of the XDP path: enters flows that the XDP program may forward or drop itself, and
//! what to do with their packets.
//!
//! The XDP path never decides; it repeats. An entry holds what the path has just done with a packet
//! of the flow, even if that was to drop it or to punt it to the kernel. A flow is what the path's verdict
//! depends on: ingress link, addresses, protocol, ports. It enters with its second packet
//! (`flow_stats.rs`), so that a flood of single packets changes nothing. It stays until something
//! changes that its verdict depends on, or other flows need its place.
//!
//! Kernel equivalent: `net/netfilter/nf_flow_table_core.c` (flowtable offload).
//!
//! Limits: these never enter:
//!
//! - fragments, IPv4 options, IPv6 extension headers
//! - frames that arrive under more than one VLAN tag
//! - protocols other than TCP, UDP, ICMP and ICMPv6
//! - packets to a port that XDP cannot send to
//! - packets in [`Burst::bound`]
//! - flows for which the firewall's rules need more than the flow's key
//! - flows that match too many of the firewall's counters (`tallies.rs`)
//!
//! A flow on a next-hop group stays on its member, which the entry holds, until the group changes.

mod batch;
mod counted;
mod counts;
mod destination;
mod dropped;
mod entry;
mod flow_stats;
mod outdated;
mod ports;
mod tallies;
#[cfg(test)]
pub(crate) mod tests;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use tollway_dataplane::burst::{BURST, Burst, Lanes};
use tollway_dataplane::changes::{Basis, Changes, Voided};
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::{PortId, RecordId};
use tollway_dataplane::next_hops::Record;
use tollway_dataplane::stages::filter::{Count, Touched};
use tollway_dataplane::tables::ForwardingState;
use tollway_dataplane::verdict::{PuntReason, Verdict};
use tollway_dataplane::xdp_path::XdpPath;

use crate::flows::{Flow, Flow4Key, Flow6Key};
use batch::{Batch, put};
pub use counted::Counted;
pub use counts::{Reading, XdpTotals};
pub use destination::Flows;
use entry::{FlowWords, Key};
use flow_stats::{FlowHash, FlowStats, Mark, Moment};
pub use outdated::Outdated;
use outdated::Void;
pub use ports::{Exit, Ports};
use tallies::Tallies;
use waiting::WaitingRoom;

/// Counters of the user-space half of the XDP path.
#[derive(Debug, Default)]
pub struct Entered {
    entered: AtomicU64,
    refused: AtomicU64,
}

impl Entered {
    /// Flows entered; repeated entries count again.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.entered.load(Relaxed)
    }

    /// Flows that found no room; each of them tries again with later packets.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

/// A worker's side of the XDP path. Workers that share a path's maps enter their flows by themselves: each has its
/// own part of the flows, because a flow's packets come to one worker.
pub struct XdpFlows<F> {
    flows: F,
    ports: Arc<Ports>,
    entered: Arc<Entered>,
    flow_stats: FlowStats,
    tallies: Tallies,
    /// What all active entries depend on, as of the last turn.
    basis: Option<Basis>,
    /// The generation for this turn's entries, to which those of their regions are added.
    generation: u32,
    /// The number of region changes at that time.
    region_changes: u32,
    outdated: Outdated,
    now: Moment,
    now_ns: u64,
    /// Flows to enter after this burst.
    due: Vec<Due>,
    /// When flows that are dropped may enter again.
    drops_from_ns: u64,
    /// Where flows wait for a pause of their packets; without it they enter at once.
    waiting: Option<WaitingRoom>,
    v4: Batch<Flow4Key>,
    v6: Batch<Flow6Key>,
}

impl<F: Flows> XdpFlows<F> {
    /// Creates an empty XDP path of one worker; earlier entries become inactive. It distinguishes about
    /// twice `most_flows` flows; further flows enter later or not at all.
    #[must_use]
    pub fn new(flows: F, ports: Arc<Ports>, most_flows: usize) -> Self {
        flows.bump_generation();
        Self::part(flows, ports, most_flows, Tallies::of_worker(0, 1))
    }

    /// Creates an empty XDP path of so many workers, a part for each; earlier entries become inactive. Create all
    /// parts at once: other parts of the same maps would use the same tallies. `voided` is what all who void
    /// entries share, beside the workers those that change tables ([`Outdated`]).
    #[must_use]
    pub fn of_workers(
        workers: usize,
        flows: &F,
        ports: &Arc<Ports>,
        most_flows: usize,
        voided: &Arc<Voided>,
    ) -> Vec<Self>
    where
        F: Clone,
    {
        flows.bump_generation();
        let entered = Arc::default();
        let part = |worker| Self {
            entered: Arc::clone(&entered),
            outdated: Outdated::new(Arc::clone(voided)),
            ..Self::part(
                flows.clone(),
                Arc::clone(ports),
                most_flows.div_ceil(workers),
                Tallies::of_worker(worker, workers),
            )
        };
        (0..workers).map(part).collect()
    }

    fn part(flows: F, ports: Arc<Ports>, most_flows: usize, tallies: Tallies) -> Self {
        Self {
            generation: flows.generation(),
            region_changes: flows.region_changes(),
            outdated: Outdated::new(Arc::default()),
            flows,
            ports,
            entered: Arc::default(),
            flow_stats: FlowStats::new(most_flows),
            tallies,
            basis: None,
            now: Moment::default(),
            now_ns: 0,
            due: Vec::with_capacity(BURST),
            drops_from_ns: 0,
            waiting: None,
            v4: Batch::new(),
            v6: Batch::new(),
        }
    }

    /// Lets flows enter only in a pause of their packets, which keeps these in order.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { waiting: Some(WaitingRoom::new()), ..self }
    }

    /// The counters of all workers, readable from any thread.
    #[must_use]
    pub fn entered(&self) -> Arc<Entered> {
        Arc::clone(&self.entered)
    }

    /// The tally that counts a flow's packets for the firewall's rules; 0 if none is needed. `None`
    /// if the rules depend on more than the flow's key, so that the flow must stay on the path.
    fn tally(&mut self, tables: &ForwardingState, flow: FlowWords, record: &Record) -> Option<u16> {
        let Some(filter) = &tables.filter else { return Some(0) };
        let report = filter.of_flow(&flow.for_rules(Some(record.link())))?;
        report.dropped_at.is_none().then_some(())?;
        self.tally_of(report.touched)
    }

    /// The tally that counts in these counters; 0 for none. `None` if no tally is left.
    fn tally_of(&mut self, touched: Touched) -> Option<u16> {
        self.tallies.number(touched, |number| self.flows.tally(number))
    }

    /// The generation for a flow's entry.
    #[inline(always)]
    fn generation_of(&self, flow: FlowWords, by_source: bool) -> u32 {
        let [src, dst] = flow.regions();
        let sum = self.generation.wrapping_add(self.flows.region_generation(dst));
        if by_source { sum.wrapping_add(self.flows.region_generation(src)) } else { sum }
    }

    /// Invalidates entries that predate the changes up to `now`, unless somebody has done so.
    fn follow(&mut self, changes: &Changes, now: Basis) {
        let Self { flows, outdated, .. } = self;
        outdated.follow(changes, now, |void| match void {
            Void::Regions(regions) => flows.bump_regions(regions),
            Void::Flows => flows.bump_flows(),
            Void::All => flows.bump_generation(),
        });
        self.basis = Some(now);
    }

    /// Queues a flow to enter after the burst.
    fn put(
        &mut self,
        (flow, label): (FlowWords, Option<u32>),
        at: (FlowHash, PortId),
        record: &Record,
        (under, tally): ((u32, bool), u16),
    ) {
        if let Some(value) = entry::flow(record, under, label) {
            self.due.push(Due { at, key: flow.key(), flow: Flow { tally, ..value } });
        }
    }

    /// As [`Self::put`], for a flow whose packets the path punts: all of them, or only those that
    /// exceed the egress MTU. The XDP program passes packets that exceed a flow's MTU to the
    /// kernel.
    fn put_punted(
        &mut self,
        (flow, label): (FlowWords, Option<u32>),
        at: (FlowHash, PortId),
        (next, under): (Next, (u32, bool)),
        tables: &ForwardingState,
    ) {
        match next {
            Next::Kernel => {
                self.due.push(Due { at, key: flow.key(), flow: entry::to_kernel(under) });
            }
            Next::Route(id) => {
                let next_hops = tables.routes.next_hops.view();
                if let Some(record) = next_hops.record(id)
                    && self.ports.is_exit(record)
                    && let Some(tally) = self.tally(tables, flow, record)
                {
                    self.put((flow, label), at, record, (under, tally));
                }
            }
        }
    }

    /// Enters the burst's flows, or queues them in the waiting room.
    fn enter(&mut self) {
        if !self.has_due() {
            return;
        }
        let Self { due, waiting, v4, v6, now_ns, .. } = self;
        for Due { at, key, flow } in due.drain(..) {
            let entry = match waiting {
                None => Some((key, flow)),
                Some(waiting) => waiting.put(at, (key, flow), *now_ns),
            };
            if let Some((key, flow)) = entry {
                put(v4, v6, key, flow);
            }
        }
        self.flush();
    }

    /// Enters the burst's flows, none of which has packets whose order matters. Returns how many found no room.
    fn enter_at_once(&mut self) -> usize {
        if !self.has_due() {
            return 0;
        }
        let Self { due, v4, v6, .. } = self;
        due.drain(..).for_each(|Due { key, flow, .. }| put(v4, v6, key, flow));
        self.flush()
    }

    /// Whether flows are to enter after this burst.
    fn has_due(&mut self) -> bool {
        if !self.due.is_empty() && self.flows.region_changes() != self.region_changes {
            // Another worker has changed regions, so the generations that were read may be later
            // than the lookups.
            self.due.clear();
        }
        !self.due.is_empty()
    }

    /// Enters waiting flows after a port received `count` packets: none, or a burst. A burst that
    /// is not full has emptied the port's queues.
    #[cold]
    fn enter_waiting(&mut self, port: PortId, count: usize) {
        let Self { waiting: Some(waiting), v4, v6, now_ns, .. } = self else { return };
        let enter = |key, flow| put(v4, v6, key, flow);
        match count {
            0 => waiting.idle(port, *now_ns, enter),
            _ => waiting.busy((port, count >= BURST), *now_ns, enter),
        }
        self.flush();
    }

    /// Notes a packet of a flow that may be waiting.
    #[inline(always)]
    fn touch(&mut self, hash: FlowHash) {
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| !waiting.is_empty()) {
            waiting.touch(hash, self.now_ns);
        }
    }

    #[inline(always)]
    fn has_waiting(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| !waiting.is_empty())
    }

    /// Enters the queued flows; returns how many found no room.
    fn flush(&mut self) -> usize {
        let Self { flows, v4, v6, .. } = self;
        let count = v4.len() + v6.len();
        if count == 0 {
            return 0;
        }
        let done = v4.empty(|keys, values| flows.enter4(keys, values))
            + v6.empty(|keys, values| flows.enter6(keys, values));
        self.entered.entered.fetch_add(done as u64, Relaxed);
        let refused = count.saturating_sub(done);
        self.entered.refused.fetch_add(refused as u64, Relaxed);
        refused
    }
}

impl<F: Flows> XdpPath for XdpFlows<F> {
    fn begin(&mut self, changes: &Changes, now_ns: u64) {
        (self.now, self.now_ns) = (Moment::at(now_ns), now_ns);
        let basis = Basis { tables: changes.version(), ports: self.ports.changes() };
        // The order of these three steps makes the XDP path correct:
        //
        // 1. A writer changes a table first, and counts the change afterwards.
        // 2. This function reads the count. If it is new, it then raises the generation: the XDP
        //    path's, or, if only routes have changed, those of the regions that they cover. Entries
        //    that predate the change are void from then on. If somebody has done that already, it
        //    does nothing (`Voided`).
        // 3. It reads the generation, and only then any lookup of this turn happens.
        //
        // So an entry made from old tables carries a generation from before step 2, and is void, no
        // matter whether its burst was under way meanwhile at this worker or another: a worker that
        // reads the generation after step 2, whoever took it, also sees the change. An entry made
        // from new tables may be void too; then it enters again.
        //
        // There are too many regions to read all their generations in step 3. So a flow's are read
        // when it enters, which is after the lookup. They still are from before the lookup: a
        // writer counts a change of regions before it raises them, step 3 reads that count, and
        // nothing enters under another count. This worker itself raises regions only before that.
        //
        // Another thread that changes a table also does step 2 at once (`Outdated::void`), because
        // a sleeping worker takes no turn for milliseconds.
        if self.basis != Some(basis) {
            self.follow(changes, basis);
        }
        self.region_changes = self.flows.region_changes();
        self.generation = self.flows.generation();
    }

    fn forwarded(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        if self.has_waiting() {
            self.enter_waiting(burst.port, burst.count);
        }
        let lanes = lanes.without(burst.bound);
        if lanes.is_empty() || !self.ports.is_entrance(burst.port) {
            return;
        }
        let next_hops = tables.routes.next_hops.view();
        let mut hashes = [FlowHash::default(); BURST];
        let mut generations = [0; BURST];
        let mut known = Lanes::NONE;
        for lane in lanes {
            let Some(record) = next_hops.record(burst.next[lane]) else { continue };
            if let Some(flow) = FlowWords::of(burst, umem, lane, record.header_len()) {
                let hash = self.flow_stats.hash(flow);
                self.flow_stats.prefetch(hash);
                hashes[lane] = hash;
                let by_source = tables.checks_source_route(burst.link[lane]);
                generations[lane] = self.generation_of(flow, by_source);
                known.put(lane, true);
            }
        }
        for lane in known {
            let generation = generations[lane];
            if !self.flow_stats.is_due(hashes[lane], Mark::of(generation), self.now) {
                self.touch(hashes[lane]);
                continue;
            }
            let Some(record) = next_hops.record(burst.next[lane]) else { continue };
            let flow = FlowWords::of(burst, umem, lane, record.header_len());
            if let Some(flow) = flow.filter(|_| self.ports.is_exit(record))
                && let Some(tally) = self.tally(tables, flow, record)
            {
                let by_source = tables.checks_source_route(burst.link[lane]);
                let at = (hashes[lane], burst.port);
                let label = entry::label(burst, umem, lane, record.header_len());
                self.put((flow, label), at, record, ((generation, by_source), tally));
            }
        }
        self.enter();
    }

    fn idle(&mut self, port: PortId) {
        if self.has_waiting() {
            self.enter_waiting(port, 0);
        }
    }

    fn punted(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        if !self.ports.is_entrance(burst.port) {
            return;
        }
        for lane in lanes.without(burst.bound) {
            let next = match burst.verdict[lane] {
                Verdict::Punt(PuntReason::MtuExceeded) => Next::Route(burst.next[lane]),
                Verdict::Punt(reason) if reason.is_of_flow() => Next::Kernel,
                _ => continue,
            };
            if let Some(flow) = FlowWords::of(burst, umem, lane, burst.l3[lane]) {
                let by_source = tables.checks_source_route(burst.link[lane]);
                let under = (self.generation_of(flow, by_source), by_source);
                let label = entry::label(burst, umem, lane, burst.l3[lane]);
                let hash = self.flow_stats.hash(flow);
                if self.flow_stats.is_due(hash, Mark::of(under.0), self.now) {
                    self.put_punted((flow, label), (hash, burst.port), (next, under), tables);
                } else {
                    self.touch(hash);
                }
            }
        }
        self.enter();
    }

    fn dropped(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        if self.ports.is_entrance(burst.port) && self.now_ns >= self.drops_from_ns {
            self.enter_dropped(burst, umem, tables, lanes);
        }
    }

    fn add_to_rules(&mut self, counts: &mut [Count], end: bool) {
        self.tallies.drain(counts, |number| self.flows.tally(number));
        if end {
            self.tallies.forget();
        }
    }
}

/// What becomes of a flow that the path punts.
#[derive(Clone, Copy)]
enum Next {
    /// All packets take the kernel path.
    Kernel,
    /// Packets that fit the route's MTU are forwarded; the others take the kernel path.
    Route(RecordId),
}

/// A flow to enter, with its hash and ingress port.
struct Due {
    at: (FlowHash, PortId),
    key: Key,
    flow: Flow,
}
