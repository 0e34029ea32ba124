//! Flows that the path drops: which of them the XDP program drops by itself.
//!
//! A flow enters if nothing but its key decides that its packets are dropped: a blackhole route, or rules that look at
//! nothing else (`Filter::of_flow`). Rules drop at one of two places:
//!
//! - **Before the route lookup**, at hooks ingress and prerouting. The rules alone decide, whatever the route, the
//!   MTU or the egress device.
//! - **At hook forward**, which packets reach only if they have a next hop and fit it. So the entry has the next hop's
//!   MTU. Longer packets do not belong to it, because the path fragments or answers some of them. Without a known
//!   neighbour, the next hop has no MTU, and the flow stays out.
//!
//! A flow enters at once: none of its packets leaves, so there is no order to keep. It gives way to flows of other kinds
//! (`flows.rs`).
//!
//! To drop a packet on the user path costs less than to look for room for its flow. So while a flood has more flows than
//! the table has room for, one burst in 10 ms tries, and the others are just dropped.
//!
//! Limits: these never enter, as their drops depend on more than the flow: invalid headers and addresses, sources that
//! fail the reverse path check, what exceeds a limit, what the kernel did not take.

use tollway_dataplane::burst::{BURST, Burst, Lanes};
use tollway_dataplane::frame::Umem;
use tollway_dataplane::next_hops::Action;
use tollway_dataplane::stages::filter::{Point, Touched};
use tollway_dataplane::tables::ForwardingState;
use tollway_dataplane::verdict::{DropReason, Verdict};

use super::entry::{self, FlowWords};
use super::flow_stats::{FlowHash, Mark};
use super::{Due, Flows, XdpFlows};
use crate::flows::Flow;

/// How long dropped packets are ignored after most flows of a burst found no room.
const REST_NS: u64 = 10_000_000;

/// A decision to drop every packet of a flow.
struct DropDecision {
    /// The counters of the rules that the packets count in.
    touched: Touched,
    /// The largest packet, bytes.
    mtu: u16,
    /// Whether the counters count all bytes of a frame after the Ethernet header.
    counts_frames: bool,
}

impl DropDecision {
    /// What the tables decide for all packets of a flow, one of which, in `lane`, was dropped. `None` if that depends
    /// on more than the flow's key.
    fn of(
        burst: &Burst,
        tables: &ForwardingState,
        (lane, flow): (usize, FlowWords),
        reason: DropReason,
    ) -> Option<Self> {
        match reason {
            DropReason::Blackhole => Self::by_route(burst, tables, (lane, flow)),
            DropReason::NetfilterDrop if burst.routed.has(lane) => {
                Self::at_hook_forward(burst, tables, (lane, flow))
            }
            DropReason::NetfilterDrop => Self::before_route(tables, flow),
            _ => None,
        }
    }

    fn by_route(
        burst: &Burst,
        tables: &ForwardingState,
        (lane, flow): (usize, FlowWords),
    ) -> Option<Self> {
        let record = tables.routes.next_hops.view().record(burst.next[lane])?;
        if record.action() != Action::Drop(DropReason::Blackhole) {
            return None;
        }
        let touched = match &tables.filter {
            None => Touched::default(),
            Some(filter) => {
                let report = filter.of_flow(&flow.for_rules(None))?;
                report.dropped_at.is_none().then_some(report.touched)?
            }
        };
        Some(Self { touched, mtu: u16::MAX, counts_frames: false })
    }

    fn before_route(tables: &ForwardingState, flow: FlowWords) -> Option<Self> {
        let report = tables.filter.as_ref()?.of_flow(&flow.for_rules(None))?;
        let counts_frames = report.dropped_at? == Point::Ingress;
        Some(Self { touched: report.touched, mtu: u16::MAX, counts_frames })
    }

    fn at_hook_forward(
        burst: &Burst,
        tables: &ForwardingState,
        (lane, flow): (usize, FlowWords),
    ) -> Option<Self> {
        let record = tables.routes.next_hops.view().record(burst.next[lane])?;
        if record.action() != Action::Forward {
            return None;
        }
        let report = tables.filter.as_ref()?.of_flow(&flow.for_rules(Some(record.link())))?;
        (report.dropped_at == Some(Point::Forward)).then_some(Self {
            touched: report.touched,
            mtu: record.mtu(),
            counts_frames: false,
        })
    }
}

/// Why a packet was dropped, if that may be because of its flow.
fn reason_of(burst: &Burst, lane: usize) -> Option<DropReason> {
    match burst.verdict[lane] {
        Verdict::Drop(reason) if reason.may_be_of_flow() => Some(reason),
        _ => None,
    }
}

impl<F: Flows> XdpFlows<F> {
    /// Enters flows of dropped packets among those that exited the path.
    pub(super) fn enter_dropped(
        &mut self,
        burst: &Burst,
        umem: &Umem,
        tables: &ForwardingState,
        exited: Lanes,
    ) {
        let mut hashes = [FlowHash::default(); BURST];
        let mut known = Lanes::NONE;
        for lane in exited.without(burst.bound) {
            if reason_of(burst, lane).is_some()
                && let Some(flow) = FlowWords::of(burst, umem, lane, burst.l3[lane])
            {
                let hash = self.flow_stats.hash(flow);
                self.flow_stats.prefetch(hash);
                hashes[lane] = hash;
                known.put(lane, true);
            }
        }
        for lane in known {
            let Some(reason) = reason_of(burst, lane) else { continue };
            let Some(flow) = FlowWords::of(burst, umem, lane, burst.l3[lane]) else { continue };
            let by_source = tables.checks_source_route(burst.link[lane]);
            let under = (self.generation_of(flow, by_source), by_source);
            if self.flow_stats.is_due(hashes[lane], Mark::of(under.0), self.now)
                && let Some(decision) = DropDecision::of(burst, tables, (lane, flow), reason)
                && let Some(tally) = self.tally_of(decision.touched)
            {
                let label = entry::label(burst, umem, lane, burst.l3[lane]);
                let flow_entry = Flow {
                    tally,
                    mtu: decision.mtu,
                    ..entry::dropped((reason, decision.counts_frames), under, label)
                };
                let at = (hashes[lane], burst.port);
                self.due.push(Due { at, key: flow.key(), flow: flow_entry });
            }
        }
        let count = self.due.len();
        if 2 * self.enter_at_once() > count {
            self.drops_from_ns = self.now_ns + REST_NS;
        }
    }
}
