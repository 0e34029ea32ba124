//! A worker's state beside the rules: counters, marks, and scratch memory for its lookups.

use super::aliases::Translations;
use super::classifier::ByRule;
use super::head::HEAD;
use super::scratch::{Flows, Scratch, new_cache};
use super::tracking::Connections;
use super::{Count, Filter, LogQueue, POINTS, Point, Reject};
use crate::burst::{BURST, Burst, Lanes};
use crate::id::{NextHopId, VrfId};

/// Packets that the host will forward, IPv4 and IPv6.
pub(super) type Detoured = [Lanes; 2];

/// The target to which rules reroute a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyRoute {
    /// None: the packet follows its route.
    #[default]
    Not,
    /// This next hop.
    Next(NextHopId),
    /// The packet's route in this VRF.
    Vrf(VrfId),
}

/// The state of one worker for a [`Filter`].
#[derive(Clone, Debug)]
pub struct State {
    /// Counts by counter number.
    pub counts: Vec<Count>,
    /// The time in ns, for limits.
    pub now_ns: u64,
    /// The burst's marks.
    pub mark: [u32; BURST],
    /// The notifications to the senders of packets that rules reject; garbage for other packets.
    pub reject: [Reject; BURST],
    /// Packets of the burst that rules reroute.
    pub(super) policy_routed: Lanes,
    /// Their targets; garbage for other packets.
    pub(super) policy_route: [PolicyRoute; BURST],
    /// Packets that rules have logged.
    pub log: LogQueue,
    /// Packets of the burst that are forwarded off the path.
    pub(super) detoured: Detoured,
    /// The connections of the burst's packets.
    pub(super) connections: Connections,
    /// What a rule changes in the packet that is walked through the rules.
    pub(super) translations: Option<Translations>,
    /// Packets of the burst that instances of aliases have changed.
    pub(super) aliased: Lanes,
    /// Whether the kernel has the same rules and evaluates them for packets that exit the path. If
    /// so, this filter does nothing for them.
    pub(crate) kernel_has_rules: bool,
    /// The original header starts of the burst's packets into which rules have written.
    pub(super) written: Vec<(usize, [u8; HEAD])>,
    /// Counts of the burst's packets that the kernel may count as well.
    counted: Vec<(Point, Lanes, u32)>,
    /// The bytes of these packets that each point counts; garbage for other packets.
    counted_bytes: [[u16; BURST]; POINTS],
    pub(super) scratch: Box<Scratch>,
}

impl State {
    /// Creates the state for no rules.
    #[must_use]
    pub fn new() -> Self {
        Self {
            counts: Vec::new(),
            now_ns: 0,
            mark: [0; BURST],
            reject: [Reject::TcpReset; BURST],
            policy_routed: Lanes::NONE,
            policy_route: [PolicyRoute::Not; BURST],
            log: LogQueue::default(),
            detoured: [Lanes::NONE; 2],
            connections: Connections::default(),
            translations: None,
            aliased: Lanes::NONE,
            kernel_has_rules: false,
            written: Vec::new(),
            counted: Vec::new(),
            counted_bytes: [[0; BURST]; POINTS],
            scratch: Box::new(Scratch::new()),
        }
    }

    /// Starts over for other rules of this number, or none. Counts begin at 0; log entries that were not taken yet
    /// stay.
    pub fn renew(&mut self, filter: Option<&Filter>, rules: u64) {
        let none = Filter::default();
        let filter = filter.unwrap_or(&none);
        self.log.renew(filter.logs(), rules);
        // Without rules, no burst starts over.
        (self.aliased, self.policy_routed) = (Lanes::NONE, Lanes::NONE);
        self.counts = vec![Count::default(); filter.counters.len()];
        for (index, flows) in self.scratch.flows.iter_mut().enumerate() {
            *flows = if filter.decides_by_flow(index) { Flows::new() } else { Flows::default() };
        }
        for (index, cache) in self.scratch.caches.iter_mut().enumerate() {
            *cache = if filter.caches_results(index) { new_cache() } else { Vec::new() };
        }
    }

    /// The target to which rules reroute a packet of the burst.
    #[must_use]
    pub fn policy_route_of(&self, lane: usize) -> PolicyRoute {
        if self.policy_routed.has(lane) { self.policy_route[lane] } else { PolicyRoute::Not }
    }

    /// The destination with which a packet of the burst has come, if its connection gives it another one; the port, if it
    /// has one.
    pub(crate) fn destination_before(
        &self,
        filter: &Filter,
        lane: usize,
    ) -> Option<(u128, Option<u16>)> {
        filter.tracker().and_then(|_| self.connections.destination_before(lane))
    }

    /// The packets of the burst that instances of aliases have changed.
    #[inline]
    pub(crate) const fn aliased(&self) -> Lanes {
        self.aliased
    }

    /// The packets among `lanes` that these rules translate, by themselves or in answers to others.
    pub(crate) fn translated(&self, filter: &Filter, lanes: Lanes) -> Lanes {
        let mut translated = Lanes(self.aliased.0 & lanes.0);
        if filter.tracker().is_some() {
            for lane in lanes {
                translated.put(lane, translated.has(lane) || self.connections.is_translated(lane));
            }
        }
        translated
    }

    /// The packets of the burst whose VRF rules have selected.
    pub(crate) fn with_vrf(&self) -> Lanes {
        let mut lanes = Lanes::NONE;
        for lane in self.policy_routed {
            lanes.put(lane, matches!(self.policy_route[lane], PolicyRoute::Vrf(_)));
        }
        lanes
    }

    /// Records the target of a packet. A VRF does not replace a next hop.
    pub(super) fn policy_route(&mut self, lane: usize, policy_route: PolicyRoute) {
        if !matches!(
            (self.policy_route_of(lane), policy_route),
            (PolicyRoute::Next(_), PolicyRoute::Vrf(_))
        ) {
            self.policy_route[lane] = policy_route;
            self.policy_routed.put(lane, true);
        }
    }

    /// Resets the state of the previous burst.
    #[inline(always)]
    pub(super) fn begin(&mut self, filter: &Filter) {
        if let Some(states) = filter.states() {
            states.sweep(self.now_ns);
        }
        if let Some(aliases) = filter.aliases() {
            aliases.sweep(self.now_ns);
        }
        if let Some(tracker) = filter.tracker() {
            tracker.sweep(self.now_ns);
            self.connections.begin();
        }
        self.mark = [0; BURST];
        self.aliased = Lanes::NONE;
        self.policy_routed = Lanes::NONE;
        self.written.clear();
        self.counted.clear();
    }

    /// The original start of a packet's header, if rules have written into it.
    #[must_use]
    pub fn received_head(&self, lane: usize) -> Option<&[u8; HEAD]> {
        self.written.iter().find(|(written, _)| *written == lane).map(|(_, head)| head)
    }

    /// Counts a packet of the burst.
    #[inline]
    pub(super) fn count(&mut self, point: Point, lane: usize, counter: u32, bytes: u64) {
        add(&mut self.counts, counter, 1, bytes);
        if self.kernel_has_rules {
            self.counted.push((point, Lanes(1 << lane), counter));
            self.counted_bytes[point as usize][lane] = bytes as u16;
        }
    }

    /// Counts the packets for which a list was executed rule by rule.
    #[inline]
    pub(super) fn count_tally(&mut self, point: Point, by_rule: &ByRule, burst: &Burst) {
        let Self { counts, counted, scratch, .. } = self;
        let mut all = Lanes::NONE;
        for hit in scratch.tally.hits() {
            for counter in by_rule.counters(hit.rule) {
                add(counts, *counter, hit.lanes.count() as u64, hit.bytes);
                if self.kernel_has_rules {
                    counted.push((point, hit.lanes, *counter));
                    all = all.or(hit.lanes);
                }
            }
        }
        let bytes = &mut self.counted_bytes[point as usize];
        for lane in all {
            bytes[lane] = burst.layer3_bytes(lane);
        }
    }

    /// Takes back a packet's counts: the kernel's rules count it.
    pub(crate) fn uncount(&mut self, lane: usize) {
        for (point, _, counter) in self.counted.iter().filter(|(_, lanes, _)| lanes.has(lane)) {
            if let Some(count) = self.counts.get_mut(*counter as usize) {
                let bytes = self.counted_bytes[*point as usize][lane];
                count.packets = count.packets.saturating_sub(1);
                count.bytes = count.bytes.saturating_sub(bytes.into());
            }
        }
    }
}

#[inline]
fn add(counts: &mut [Count], counter: u32, packets: u64, bytes: u64) {
    if let Some(count) = counts.get_mut(counter as usize) {
        count.packets += packets;
        count.bytes += bytes;
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}
