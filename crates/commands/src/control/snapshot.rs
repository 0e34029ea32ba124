//! A snapshot of all counters. Each worker takes its part between two of its bursts.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollway_dataplane::counters::{self, Counters};
use tollway_dataplane::stages::Stage;
use tollway_dataplane::tolls;
use tollway_dataplane::verdict::{DropReason, PuntReason};
use tollway_dataplane::worker::Worker;

use super::message::{PortState, Ports, StageToll, Tolls, Totals, Traffic, Xdp};
use super::workers::{WorkerReport, WorkerState};
use tollway_model::names::Names;
use tollway_net::Mac;
use tollway_worker::Activity;
use tollway_worker::ports::{Devices, State};

/// The counters and states, copied from the workers.
pub(super) struct Snapshot {
    first: FirstPart,
    /// One part for each worker.
    workers: Vec<WorkerPart>,
}

/// What the first worker adds for all of them: the ports' states and the XDP path.
pub(super) struct FirstPart {
    names: Arc<Names>,
    ports: Vec<Port>,
    xdp: Option<Vec<(&'static str, u64)>>,
}

/// A worker's part of a snapshot.
pub(super) struct WorkerPart {
    counters: Counters,
    tolls: tolls::Tolls,
    report: WorkerReport,
}

impl WorkerPart {
    /// Takes a worker's part. Call this on the worker's thread.
    pub(super) fn take(worker: &mut Worker, devices: &Devices, activity: &Activity) -> Self {
        let report = WorkerReport::take(worker, devices, activity);
        Self { counters: worker.counters_in_all(), tolls: worker.tolls.clone(), report }
    }
}

/// The state of a port, as the device reports it.
struct Port {
    how: String,
    state: State,
    missed: u64,
    mac: Mac,
    mtu: u16,
}

impl FirstPart {
    /// Takes the first worker's additional part, after its part as a worker. Call this on the worker's thread.
    pub(super) fn take(names: &Arc<Names>, worker: &Worker, devices: &mut Devices) -> Self {
        let tables = worker.state();
        let ports = devices.iter_mut().zip(&tables.ports).map(|(device, record)| {
            let link = tables.link(record.link);
            Port {
                how: device.how(),
                state: device.state(),
                missed: device.missed(),
                mac: Mac(link.mac_bytes),
                mtu: link.mtu,
            }
        });
        Self {
            names: Arc::clone(names),
            ports: ports.collect(),
            xdp: worker.xdp_path.as_ref().map(|xdp| xdp.report()),
        }
    }
}

impl Snapshot {
    /// Composes the parts of all workers.
    pub(super) const fn new(first: FirstPart, workers: Vec<WorkerPart>) -> Self {
        Self { first, workers }
    }

    /// What became of the packets of all workers.
    fn counters(&self) -> Counters {
        let mut parts = self.workers.iter().map(|part| &part.counters);
        let mut all = parts.next().cloned().unwrap_or_default();
        parts.for_each(|part| all.add(part));
        all
    }

    /// The samples of all workers.
    fn samples(&self) -> tolls::Tolls {
        let mut parts = self.workers.iter().map(|part| &part.tolls);
        let mut all = parts.next().cloned().unwrap_or_default();
        parts.for_each(|part| all.add(part));
        all
    }

    /// The ports, and what became of all packets.
    pub(super) fn ports(&self) -> Ports {
        Ports { totals: self.totals(), ports: self.port_states() }
    }

    /// The names of the ports, in the order of their numbers.
    pub(super) fn port_names(&self) -> impl Iterator<Item = &str> {
        self.first.names.ports.iter().map(|port| port.name.as_str())
    }

    /// What became of all packets.
    pub(super) fn totals(&self) -> Totals {
        let counters = self.counters();
        let Counters { cloned, sent, delivered, held, originated, originated_lost, .. } = counters;
        Totals {
            received: counters.received_packets(),
            cloned,
            sent,
            dropped: counters.dropped_packets(),
            punted: counters.punted_packets(),
            delivered,
            held,
            transmitted: counters.tx.iter().map(|traffic| traffic.packets).sum(),
            originated,
            originated_lost,
            defect: counters.check().err(),
        }
    }

    fn port_states(&self) -> Vec<PortState> {
        let traffic = |list: &[counters::Traffic], index: usize| {
            let counters::Traffic { packets, bytes } = list.get(index).copied().unwrap_or_default();
            Traffic { packets, bytes }
        };
        let counters = self.counters();
        let ports = self.first.names.ports.iter().zip(&self.first.ports).enumerate();
        let state = |(index, (named, port)): (usize, (&tollway_model::Port, &Port))| {
            let (state, why) = match &port.state {
                State::Up => ("up", None),
                State::Down(why) => ("down", Some(why.clone())),
                State::Gone(why) => ("gone", Some(why.clone())),
                State::Detached(why) => ("not attached", Some(why.clone())),
            };
            PortState {
                name: named.name.clone(),
                kind: named.kind.name().to_owned(),
                device: named.kind.device().map(str::to_owned),
                engine: named.kind.engine().map(|engine| engine.name().to_owned()),
                because: named.kind.because().map(str::to_owned),
                how: port.how.clone(),
                state: state.to_owned(),
                why,
                mac: super::neighs::mac_text(port.mac),
                mtu: port.mtu,
                rx: traffic(&counters.rx, index),
                tx: traffic(&counters.tx, index),
                missed: port.missed,
            }
        };
        ports.map(state).collect()
    }

    /// Drops by reason; reasons without packets are absent.
    pub(super) fn drops(&self) -> BTreeMap<String, u64> {
        let names = DropReason::ALL.iter().map(|reason| reason.name());
        counts(names.zip(self.counters().drops))
    }

    /// Punts by reason; reasons without packets are absent.
    pub(super) fn punts(&self) -> BTreeMap<String, u64> {
        let names = PuntReason::ALL.iter().map(|reason| reason.name());
        counts(names.zip(self.counters().punts))
    }

    /// The XDP path, or why there is none.
    pub(super) fn xdp(&self) -> Xdp {
        match &self.first.xdp {
            Some(report) => {
                let counts = report.iter().map(|(name, count)| ((*name).to_owned(), *count));
                Xdp { on: true, why: None, counts: counts.collect() }
            }
            None => {
                let kinds = self.first.names.ports.iter();
                let kinds = kinds.map(|port| format!("{} is {}", port.name, port.kind.name()));
                let kinds = kinds.take(8).collect::<Vec<_>>().join(", ");
                let why = format!(
                    "this router was started without one; it takes ports with an XDP program ({kinds})"
                );
                Xdp { on: false, why: Some(why), counts: BTreeMap::new() }
            }
        }
    }

    /// The workers.
    pub(super) fn workers(&self) -> Vec<WorkerState> {
        let parts = self.workers.iter().enumerate();
        parts.map(|(number, part)| part.report.state(number)).collect()
    }

    /// The toll of each stage, over the packets of all workers.
    pub(super) fn tolls(&self, tsc_mhz: f64) -> Tolls {
        let all = self.samples();
        let toll = |stage: &Stage| {
            let tolls::Toll { packets, bursts, .. } = all.of(*stage);
            let clocks_per_packet = all.per_packet(*stage);
            StageToll {
                stage: stage.name().to_owned(),
                clocks_per_packet,
                ns_per_packet: clocks_per_packet.map(|clocks| clocks * 1000.0 / tsc_mhz),
                packets,
                bursts,
            }
        };
        Tolls { tsc_mhz, tolls: Stage::ALL.iter().map(toll).collect() }
    }
}

fn counts<'a>(all: impl Iterator<Item = (&'a str, u64)>) -> BTreeMap<String, u64> {
    let some = all.filter(|(_, count)| *count > 0);
    some.map(|(name, count)| (name.to_owned(), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(received: u64, held: u64) -> WorkerPart {
        let mut counters = Counters::new(1);
        counters.rx[0].add(received, 100 * received);
        counters.held = held;
        counters.sent = received.wrapping_sub(held);
        counters.tx[0].add(counters.sent, 0);
        WorkerPart { counters, tolls: tolls::Tolls::new(), report: WorkerReport::default() }
    }

    fn totals_of(workers: Vec<WorkerPart>) -> Totals {
        let first = FirstPart { names: Arc::default(), ports: Vec::new(), xdp: None };
        Snapshot::new(first, workers).totals()
    }

    #[test]
    fn the_counts_of_workers_add_up_in_sum() {
        // One worker holds packets, of which the other sends some.
        let other = part(5, 2_u64.wrapping_neg());
        assert_eq!(other.counters.sent, 7);
        let totals = totals_of(vec![part(10, 3), other]);
        assert_eq!((totals.received, totals.sent, totals.held), (15, 14, 1));
        assert_eq!(totals.transmitted, 14);
        assert_eq!(totals.defect, None);
        let mut lost = part(10, 0);
        lost.counters.sent -= 1;
        assert!(totals_of(vec![part(10, 3), lost]).defect.is_some());
    }
}
