//! The express lane's half in user space: tells the steering program which flows it may forward
//! itself, and with what.
//!
//! The lane never decides, it repeats: what goes in is what the path has just done with a packet of
//! the flow, be it that it left the packet to the kernel. A flow is what the path's verdict depends on: the link that it arrived on, addresses,
//! protocol, ports. It enters with its second packet (`seen.rs`), so that a flood of single packets
//! changes nothing, and stays until something that decides changes, or others need its place.
//!
//! Kernel equivalent: `net/netfilter/nf_flow_table_core.c` (flowtable offload).
//!
//! Limits: never enter fragments, IPv4 options, IPv6 extension headers, frames that arrive under more
//! than one VLAN tag, protocols other than TCP, UDP, ICMP and ICMPv6, packets to a port that XDP can
//! not send by, packets that are [`Burst::bound`], and flows of which the firewall's rules want to know
//! more than what they are told apart by, or that meet too many of its counters (`tallies.rs`). A flow
//! on a next-hop group stays on the member that it has, for the entry holds it, until the group changes.

mod counted;
mod counts;
mod entry;
mod outdated;
mod seen;
mod tallies;
#[cfg(test)]
pub(crate) mod tests;
mod waiting;

use std::io;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use tollway_dataplane::burst::{BURST, Burst, Lanes};
use tollway_dataplane::changes::{Changes, Version};
use tollway_dataplane::express::Express;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::PortId;
use tollway_dataplane::stages::filter::Count;
use tollway_dataplane::tables::{Record, RecordId, Tables};
use tollway_dataplane::verdict::{PuntReason, Verdict};

use crate::steer::flows::{Flow, Flow4Key, Flow6Key, FlowMaps};
use crate::steer::{Refusals, State};
pub use counted::Counted;
pub use counts::{Reading, Tally};
use entry::{Key, Words};
pub use outdated::Outdated;
use outdated::Void;
use seen::{FlowHash, Mark, Moment, Seen};
use tallies::Tallies;
use waiting::WaitingRoom;

/// Where flows are entered: the maps of the steering program, or a test's.
pub trait Flows: Send {
    /// The lane's generation. A flow is in force under the sum of it and those of the flow's regions
    /// ([`Flow::generation`]).
    fn generation(&self) -> u32;

    /// Gives the lane its next generation: no entry of an earlier one is in force.
    fn bump_generation(&self);

    /// The generation of a region.
    fn region_generation(&self, region: u32) -> u32;

    /// How often regions have had their next generation.
    fn region_changes(&self) -> u32;

    /// Gives regions their next generation, after it has counted that.
    fn bump_regions(&self, regions: &[u32]);

    /// Enters IPv4 flows, `flows[i]` for `keys[i]`; for how many there was room.
    fn enter4(&mut self, keys: &[Flow4Key], flows: &[Flow]) -> usize;

    /// Enters IPv6 flows, `flows[i]` for `keys[i]`; for how many there was room.
    fn enter6(&mut self, keys: &[Flow6Key], flows: &[Flow]) -> usize;

    /// Packets, and their bytes of layer 3, of all flows ever that were entered with this tally.
    ///
    /// # Errors
    /// The system refused.
    fn tally(&self, number: u16) -> io::Result<(u64, u64)>;
}

impl Flows for (State, FlowMaps) {
    fn generation(&self) -> u32 {
        self.0.generation()
    }

    fn bump_generation(&self) {
        self.0.bump_generation();
    }

    fn region_generation(&self, region: u32) -> u32 {
        self.0.region_generation(region)
    }

    fn region_changes(&self) -> u32 {
        self.0.region_changes()
    }

    fn bump_regions(&self, regions: &[u32]) {
        self.0.bump_regions(regions.iter().copied());
    }

    fn enter4(&mut self, keys: &[Flow4Key], flows: &[Flow]) -> usize {
        self.1.insert4(keys, flows)
    }

    fn enter6(&mut self, keys: &[Flow6Key], flows: &[Flow]) -> usize {
        self.1.insert6(keys, flows)
    }

    fn tally(&self, number: u16) -> io::Result<(u64, u64)> {
        self.1.tally(number)
    }
}

/// What the lane needs to know of the ports; changed by whoever looks after them, at any time.
#[derive(Debug)]
pub struct Ports {
    ports: Vec<PortState>,
    changes: AtomicU64,
    /// What devices refuse of what the lane sends, where that can be known.
    refusals: OnceLock<Refusals>,
}

#[derive(Debug, Default)]
struct PortState {
    entrance: AtomicBool,
    /// 0 for none.
    ifindex: AtomicU32,
}

impl Ports {
    /// So many ports, none of which has the lane.
    #[must_use]
    pub fn new(ports: usize) -> Arc<Self> {
        let ports = (0..ports).map(|_| PortState::default()).collect();
        Arc::new(Self { ports, changes: AtomicU64::new(0), refusals: OnceLock::new() })
    }

    /// Keeps flows out that leave by a device that refuses them; to be called once.
    pub fn set_refusals(&self, refusals: Refusals) {
        // Another would be the same: all are of one steering.
        let _ = self.refusals.set(refusals);
    }

    /// What devices refuse, where that can be known.
    #[must_use]
    pub fn refusals(&self) -> Option<&Refusals> {
        self.refusals.get()
    }

    /// Says if flows that arrive by a port enter the lane.
    pub fn set_entrance(&self, port: PortId, on: bool) {
        if let Some(state) = self.ports.get(usize::from(port.0)) {
            state.entrance.store(on, Relaxed);
            self.changes.fetch_add(1, Release);
        }
    }

    /// Says which device flows leave by where the path sends them to a port; none where XDP can not
    /// send there.
    pub fn set_exit(&self, port: PortId, ifindex: Option<NonZeroU32>) {
        let ifindex = ifindex.map_or(0, NonZeroU32::get);
        if let Some(state) = self.ports.get(usize::from(port.0))
            && state.ifindex.swap(ifindex, Relaxed) != ifindex
        {
            self.changes.fetch_add(1, Release);
        }
    }

    /// Whether flows that arrive by a port enter the lane.
    #[must_use]
    pub fn is_entrance(&self, port: PortId) -> bool {
        self.ports.get(usize::from(port.0)).is_some_and(|state| state.entrance.load(Relaxed))
    }

    /// To be asked after the generation was read that a flow is to enter under: a device that refuses says so
    /// before it raises that.
    fn is_exit(&self, port: PortId) -> bool {
        let refuses = || self.refusals().is_some_and(|refusals| refusals.cause(port).is_some());
        self.ports.get(usize::from(port.0)).is_some_and(|state| state.ifindex.load(Relaxed) != 0)
            && !refuses()
    }
}

/// What the lane's half in user space has done.
#[derive(Debug, Default)]
pub struct Entered {
    entered: AtomicU64,
    refused: AtomicU64,
}

impl Entered {
    /// Flows entered, those included that entered again.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.entered.load(Relaxed)
    }

    /// Flows that found no room; each tries again with later packets.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

/// The worker's side of the lane.
pub struct Lane<F> {
    flows: F,
    ports: Arc<Ports>,
    entered: Arc<Entered>,
    seen: Seen,
    tallies: Tallies,
    /// What all entries in force depend on: the tables, and the ports.
    version: Option<(Version, u64)>,
    /// What the entries of this turn are made under, with the generations of their regions.
    generation: u32,
    /// How often regions had changed then.
    region_changes: u32,
    outdated: Outdated,
    now: Moment,
    now_ns: u64,
    /// Flows that this burst has brought.
    due: Vec<Due>,
    /// Where they wait for a pause of their packets; without it they enter at once.
    waiting: Option<WaitingRoom>,
    v4: Batch<Flow4Key>,
    v6: Batch<Flow6Key>,
}

impl<F: Flows> Lane<F> {
    /// A lane that is empty: what anyone has entered before is not in force any more. Some twice
    /// `most_flows` are told apart; what is beyond enters later or not at all.
    #[must_use]
    pub fn new(flows: F, ports: Arc<Ports>, most_flows: usize) -> Self {
        flows.bump_generation();
        Self {
            generation: flows.generation(),
            region_changes: flows.region_changes(),
            outdated: Outdated::new(),
            flows,
            ports,
            entered: Arc::default(),
            seen: Seen::new(most_flows),
            tallies: Tallies::new(),
            version: None,
            now: Moment::default(),
            now_ns: 0,
            due: Vec::with_capacity(BURST),
            waiting: None,
            v4: Batch::new(),
            v6: Batch::new(),
        }
    }

    /// The same lane, which flows enter in a pause of their packets, so that these keep their order.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { waiting: Some(WaitingRoom::new()), ..self }
    }

    /// What it has done, for any thread to look at.
    #[must_use]
    pub fn entered(&self) -> Arc<Entered> {
        Arc::clone(&self.entered)
    }

    /// Where a flow's packets are counted for the firewall's rules, 0 for nowhere; none where these look
    /// at more than its key, so that it has to stay on the path.
    fn tally(&mut self, tables: &Tables, flow: Words, record: &Record) -> Option<u16> {
        let Some(filter) = &tables.filter else { return Some(0) };
        let touched = filter.of_flow(&flow.for_rules(record.link()))?;
        self.tallies.number(touched, |number| self.flows.tally(number))
    }

    /// What a flow's entry is made under.
    #[inline(always)]
    fn generation_of(&self, flow: Words, by_source: bool) -> u32 {
        let [src, dst] = flow.regions();
        let sum = self.generation.wrapping_add(self.flows.region_generation(dst));
        if by_source { sum.wrapping_add(self.flows.region_generation(src)) } else { sum }
    }

    /// Makes void what knows nothing of the changes since the last turn.
    fn follow(&mut self, changes: &Changes, now: (Version, u64)) {
        let (_, of_ports) = self.version.replace(now).unwrap_or_default();
        match self.outdated.since_last(changes, now.0) {
            Void::Regions(regions) if of_ports == now.1 => self.flows.bump_regions(regions),
            _ => self.flows.bump_generation(),
        }
    }

    /// Puts a flow among those that enter after the burst.
    fn put(
        &mut self,
        (flow, label): (Words, Option<u32>),
        at: (FlowHash, PortId),
        record: &Record,
        (under, tally): ((u32, bool), u16),
    ) {
        if let Some(value) = entry::flow(record, under, label) {
            self.due.push(Due { at, key: flow.key(), flow: Flow { tally, ..value } });
        }
    }

    /// The same for a flow that the path punts: all of it, or only what is larger than where it leaves. What
    /// is larger than a flow's MTU the steering program leaves to the kernel.
    fn put_punted(
        &mut self,
        (flow, label): (Words, Option<u32>),
        at: (FlowHash, PortId),
        (next, under): (Next, (u32, bool)),
        tables: &Tables,
    ) {
        match next {
            Next::Kernel => {
                self.due.push(Due { at, key: flow.key(), flow: entry::to_kernel(under) });
            }
            Next::Route(id) => {
                let next_hops = tables.next_hops.view();
                if let Some(record) = next_hops.record(id)
                    && self.ports.is_exit(record.port())
                    && let Some(tally) = self.tally(tables, flow, record)
                {
                    self.put((flow, label), at, record, (under, tally));
                }
            }
        }
    }

    /// Enters what the burst has brought, or has it wait.
    fn enter(&mut self) {
        if self.due.is_empty() {
            return;
        }
        if self.flows.region_changes() != self.region_changes {
            // Another worker's: what was read of regions may be of after the lookups.
            self.due.clear();
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

    /// Enters flows that have waited for so many packets of a port: none, or a burst. One that is not full
    /// has left nothing in the port's queues.
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

    /// A packet of a flow that may wait.
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

    /// Enters a batch.
    fn flush(&mut self) {
        let Self { flows, v4, v6, .. } = self;
        let count = v4.flows.len() + v6.flows.len();
        if count == 0 {
            return;
        }
        let done = v4.empty(|keys, values| flows.enter4(keys, values))
            + v6.empty(|keys, values| flows.enter6(keys, values));
        self.entered.entered.fetch_add(done as u64, Relaxed);
        self.entered.refused.fetch_add(count.saturating_sub(done) as u64, Relaxed);
    }
}

impl<F: Flows> Express for Lane<F> {
    fn begin(&mut self, changes: &Changes, now_ns: u64) {
        (self.now, self.now_ns) = (Moment::at(now_ns), now_ns);
        let version = (changes.version(), self.ports.changes.load(Acquire));
        // Three things in this order, and the order is what makes the lane right:
        //  1. Whoever changes a table counts the change after it was made.
        //  2. Here the count is read, and only then, if it is new, the generation raised: the lane's, or
        //     where only routes have changed those of the regions that they cover. Entries that know
        //     nothing of the change are void from then on.
        //  3. The generation is read, and only then anything is looked up for this turn.
        // An entry made of what was there before a change therefore carries a generation from before
        // 2, and is void; whether its burst was under way meanwhile, at this worker or another, makes
        // no difference. One made of what is there since may be void too, and enters again.
        //
        // There are too many regions to read all their generations in 3, so a flow's are read when it
        // enters, which is after the lookup. They are from before it all the same: whoever raises them
        // counts that first, the count is read in 3, and nothing enters under another count. This worker
        // itself raises them nowhere but here.
        //
        // Whoever changes a table from another thread does 2 as well, at once (`Outdated::void`): a worker
        // that sleeps takes no turn for milliseconds.
        if self.version != Some(version) {
            self.follow(changes, version);
        }
        self.region_changes = self.flows.region_changes();
        self.generation = self.flows.generation();
    }

    fn forwarded(&mut self, burst: &Burst, umem: &Umem, tables: &Tables, lanes: Lanes) {
        if self.has_waiting() {
            self.enter_waiting(burst.port, burst.count);
        }
        let lanes = lanes.without(burst.bound);
        if lanes.is_empty() || !self.ports.is_entrance(burst.port) {
            return;
        }
        let next_hops = tables.next_hops.view();
        let mut hashes = [FlowHash::default(); BURST];
        let mut generations = [0; BURST];
        let mut known = Lanes::NONE;
        for lane in lanes {
            let Some(record) = next_hops.record(burst.next[lane]) else { continue };
            if let Some(flow) = Words::of(burst, umem, lane, record.header_len()) {
                let hash = self.seen.hash(flow);
                self.seen.prefetch(hash);
                hashes[lane] = hash;
                let by_source = tables.asks_for_source(burst.link[lane]);
                generations[lane] = self.generation_of(flow, by_source);
                known.put(lane, true);
            }
        }
        for lane in known {
            let generation = generations[lane];
            if !self.seen.is_due(hashes[lane], Mark::of(generation), self.now) {
                self.touch(hashes[lane]);
                continue;
            }
            let Some(record) = next_hops.record(burst.next[lane]) else { continue };
            let flow = Words::of(burst, umem, lane, record.header_len());
            if let Some(flow) = flow.filter(|_| self.ports.is_exit(record.port()))
                && let Some(tally) = self.tally(tables, flow, record)
            {
                let by_source = tables.asks_for_source(burst.link[lane]);
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

    fn punted(&mut self, burst: &Burst, umem: &Umem, tables: &Tables, lanes: Lanes) {
        if !self.ports.is_entrance(burst.port) {
            return;
        }
        for lane in lanes.without(burst.bound) {
            let next = match burst.verdict[lane] {
                Verdict::Punt(PuntReason::MtuExceeded) => Next::Route(burst.next[lane]),
                Verdict::Punt(reason) if reason.is_of_flow() => Next::Kernel,
                _ => continue,
            };
            if let Some(flow) = Words::of(burst, umem, lane, burst.l3[lane]) {
                let by_source = tables.asks_for_source(burst.link[lane]);
                let under = (self.generation_of(flow, by_source), by_source);
                let label = entry::label(burst, umem, lane, burst.l3[lane]);
                let hash = self.seen.hash(flow);
                if self.seen.is_due(hash, Mark::of(under.0), self.now) {
                    self.put_punted((flow, label), (hash, burst.port), (next, under), tables);
                } else {
                    self.touch(hash);
                }
            }
        }
        self.enter();
    }

    fn add_to_rules(&mut self, counts: &mut [Count], end: bool) {
        self.tallies.settle(counts, |number| self.flows.tally(number));
        if end {
            self.tallies.forget();
        }
    }
}

/// Where packets of a flow go that the path punts.
#[derive(Clone, Copy)]
enum Next {
    /// All to the kernel.
    Kernel,
    /// There what fits.
    Route(RecordId),
}

/// A flow that is to enter, and what came by which port told so.
struct Due {
    at: (FlowHash, PortId),
    key: Key,
    flow: Flow,
}

/// Puts a flow into the batch of its family.
fn put(v4: &mut Batch<Flow4Key>, v6: &mut Batch<Flow6Key>, key: Key, flow: Flow) {
    match key {
        Key::V4(key) => v4.put(key, flow),
        Key::V6(key) => v6.put(key, flow),
    }
}

/// Flows of one family that enter together.
struct Batch<K> {
    keys: Vec<K>,
    flows: Vec<Flow>,
}

impl<K> Batch<K> {
    fn new() -> Self {
        Self { keys: Vec::with_capacity(BURST), flows: Vec::with_capacity(BURST) }
    }

    fn put(&mut self, key: K, flow: Flow) {
        self.keys.push(key);
        self.flows.push(flow);
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.flows.clear();
    }

    /// Hands over what waits; says how many were taken.
    fn empty(&mut self, take: impl FnOnce(&[K], &[Flow]) -> usize) -> usize {
        if self.keys.is_empty() {
            return 0;
        }
        let done = take(&self.keys, &self.flows);
        self.clear();
        done
    }
}
