//! The XDP path together with the counters of its XDP program.

use std::io;

use tollway_dataplane::burst::{Burst, Lanes};
use tollway_dataplane::changes::Changes;
use tollway_dataplane::counters::Counters;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::PortId;
use tollway_dataplane::stages::filter::Count;
use tollway_dataplane::tables::ForwardingState;
use tollway_dataplane::xdp_path::XdpPath;

use super::{Flows, Reading, XdpFlows, XdpTotals};
use crate::Refusals;
use crate::maps::CountMap;

/// An XDP path, and the counts of the packets that its XDP program forwards and drops. Of several workers, one has these
/// counts beside its part of the path.
pub struct Counted<F> {
    flows: XdpFlows<F>,
    counts: CountMap,
    refusals: Option<Refusals>,
    ports: usize,
    totals: XdpTotals,
    is_reported: bool,
}

impl<F: Flows> Counted<F> {
    /// Wraps a new, empty XDP path for so many ports.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn new(flows: XdpFlows<F>, counts: CountMap, ports: usize) -> io::Result<Self> {
        let refusals = flows.ports.refusals().cloned();
        let totals = XdpTotals::new(Reading::of(&counts, refusals.as_ref(), ports)?);
        Ok(Self { flows, counts, refusals, ports, totals, is_reported: false })
    }

    /// Reads the XDP program's counters; keeps the last values if that fails.
    fn count(&mut self) {
        match Reading::of(&self.counts, self.refusals.as_ref(), self.ports) {
            Ok(reading) => self.totals.update(reading),
            Err(error) if !self.is_reported => {
                self.is_reported = true;
                tracing::error!("cannot read the counts of the XDP path: {error}");
            }
            Err(_) => {}
        }
    }
}

impl<F: Flows> XdpPath for Counted<F> {
    #[inline]
    fn begin(&mut self, changes: &Changes, now_ns: u64) {
        self.flows.begin(changes, now_ns);
    }

    #[inline]
    fn forwarded(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        self.flows.forwarded(burst, umem, tables, lanes);
    }

    fn idle(&mut self, port: PortId) {
        self.flows.idle(port);
    }

    fn punted(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        self.flows.punted(burst, umem, tables, lanes);
    }

    fn dropped(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        self.flows.dropped(burst, umem, tables, lanes);
    }

    fn add_to(&mut self, counters: &mut Counters) {
        self.count();
        self.totals.add_to(counters);
    }

    fn add_to_rules(&mut self, counts: &mut [Count], end: bool) {
        self.flows.add_to_rules(counts, end);
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        let (packets, bytes) = self.totals.sent().fold((0, 0), add);
        let refused = self.totals.sum().refused.iter().sum();
        let entered = self.flows.entered();
        vec![
            ("packets", packets),
            ("bytes", bytes),
            ("packets_refused", refused),
            ("packets_dropped", self.totals.dropped().map(|traffic| traffic.packets).sum()),
            ("flows_entered", entered.entered()),
            ("flows_refused", entered.refused()),
        ]
    }
}

fn add(sum: (u64, u64), more: tollway_dataplane::counters::Traffic) -> (u64, u64) {
    (sum.0 + more.packets, sum.1 + more.bytes)
}
