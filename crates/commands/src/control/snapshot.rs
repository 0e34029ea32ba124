//! A snapshot of all counters, taken between two bursts.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollway_dataplane::counters::{self, Counters};
use tollway_dataplane::stages::Stage;
use tollway_dataplane::tolls;
use tollway_dataplane::verdict::{DropReason, PuntReason};
use tollway_dataplane::worker::Worker;

use super::message::{PortState, Ports, StageToll, Tolls, Totals, Traffic, Xdp};
use tollway_model::names::Names;
use tollway_net::Mac;
use tollway_worker::ports::{Devices, State};

/// The counters and states, copied from the worker.
pub(super) struct Snapshot {
    names: Arc<Names>,
    counters: Counters,
    ports: Vec<Port>,
    xdp: Option<Vec<(&'static str, u64)>>,
    tolls: tolls::Tolls,
}

/// The state of a port, as the device reports it.
struct Port {
    how: String,
    state: State,
    missed: u64,
    mac: Mac,
    mtu: u16,
}

/// Takes a snapshot. Call this on the worker's thread.
pub(super) fn take(names: &Arc<Names>, worker: &mut Worker, devices: &mut Devices) -> Snapshot {
    let counters = worker.counters_in_all();
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
    Snapshot {
        names: Arc::clone(names),
        ports: ports.collect(),
        counters,
        xdp: worker.xdp_path.as_ref().map(|xdp| xdp.report()),
        tolls: worker.tolls.clone(),
    }
}

impl Snapshot {
    /// The ports, and what became of all packets.
    pub(super) fn ports(&self) -> Ports {
        Ports { totals: self.totals(), ports: self.port_states() }
    }

    /// The names of the ports, in the order of their numbers.
    pub(super) fn port_names(&self) -> impl Iterator<Item = &str> {
        self.names.ports.iter().map(|port| port.name.as_str())
    }

    /// What became of all packets.
    pub(super) fn totals(&self) -> Totals {
        let Counters { sent, delivered, held, originated, originated_lost, .. } = self.counters;
        Totals {
            received: self.counters.received_packets(),
            sent,
            dropped: self.counters.dropped_packets(),
            punted: self.counters.punted_packets(),
            delivered,
            held,
            transmitted: self.counters.tx.iter().map(|traffic| traffic.packets).sum(),
            originated,
            originated_lost,
            defect: self.counters.check().err(),
        }
    }

    fn port_states(&self) -> Vec<PortState> {
        let traffic = |list: &[counters::Traffic], index: usize| {
            let counters::Traffic { packets, bytes } = list.get(index).copied().unwrap_or_default();
            Traffic { packets, bytes }
        };
        let ports = self.names.ports.iter().zip(&self.ports).enumerate();
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
                how: port.how.clone(),
                state: state.to_owned(),
                why,
                mac: port.mac.to_string(),
                mtu: port.mtu,
                rx: traffic(&self.counters.rx, index),
                tx: traffic(&self.counters.tx, index),
                missed: port.missed,
            }
        };
        ports.map(state).collect()
    }

    /// Drops by reason; reasons without packets are absent.
    pub(super) fn drops(&self) -> BTreeMap<String, u64> {
        let names = DropReason::ALL.iter().map(|reason| reason.name());
        counts(names.zip(self.counters.drops))
    }

    /// Punts by reason; reasons without packets are absent.
    pub(super) fn punts(&self) -> BTreeMap<String, u64> {
        let names = PuntReason::ALL.iter().map(|reason| reason.name());
        counts(names.zip(self.counters.punts))
    }

    /// The XDP path, or why there is none.
    pub(super) fn xdp(&self) -> Xdp {
        match &self.xdp {
            Some(report) => {
                let counts = report.iter().map(|(name, count)| ((*name).to_owned(), *count));
                Xdp { on: true, why: None, counts: counts.collect() }
            }
            None => {
                let kinds = self.names.ports.iter();
                let kinds = kinds.map(|port| format!("{} is {}", port.name, port.kind.name()));
                let kinds = kinds.take(8).collect::<Vec<_>>().join(", ");
                let why = format!(
                    "this router was started without one; it takes ports with an XDP program ({kinds})"
                );
                Xdp { on: false, why: Some(why), counts: BTreeMap::new() }
            }
        }
    }

    /// The toll of each stage.
    pub(super) fn tolls(&self, tsc_mhz: f64) -> Tolls {
        let toll = |stage: &Stage| {
            let tolls::Toll { packets, bursts, .. } = self.tolls.of(*stage);
            let clocks_per_packet = self.tolls.per_packet(*stage);
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
