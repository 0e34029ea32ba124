//! Compares the XDP path with the user path: both must forward a frame in the same way.

mod counting;
mod drops;
mod regions;
mod repeats;
mod rules;
mod within;
mod workers;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tollway_dataplane::id::PortId;

use super::{Entered, Exit, Flows, Ports, XdpFlows};
use crate::flows::{Flow, Flow4Key, Flow6Key};
use crate::regions::{region4, region6};
use crate::testkit::net::Net;
use crate::testkit::wires::PORTS;

/// Flow maps in plain memory.
#[derive(Clone, Default)]
struct Maps {
    generation: Arc<AtomicU32>,
    /// Generations of regions that were raised.
    regions: Arc<Mutex<HashMap<u32, u32>>>,
    region_changes: Arc<AtomicU32>,
    v4: Arc<Mutex<HashMap<Flow4Key, Flow>>>,
    v6: Arc<Mutex<HashMap<Flow6Key, Flow>>>,
    full: bool,
    /// How many entries were written.
    writes: Arc<AtomicU32>,
    /// Packets and bytes by tally.
    tallies: Arc<Mutex<HashMap<u16, (u64, u64)>>>,
}

impl Maps {
    fn len(&self) -> usize {
        self.v4.lock().unwrap().len() + self.v6.lock().unwrap().len()
    }

    fn writes(&self) -> u32 {
        self.writes.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.v4.lock().unwrap().clear();
        self.v6.lock().unwrap().clear();
    }

    /// All flows, whatever their key.
    fn flows(&self) -> Vec<Flow> {
        let v4 = self.v4.lock().unwrap();
        v4.values().chain(self.v6.lock().unwrap().values()).copied().collect()
    }

    /// Whether a flow between these addresses is active.
    fn is_active(&self, src: &[u8], dst: &[u8], flow: &Flow) -> bool {
        let of = |address: &[u8]| {
            let first = |bytes: usize| {
                address[..bytes].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
            };
            let region = match address.len() {
                4 => region4(first(2) as u16),
                _ => region6(first(4)),
            };
            self.region_generation(region)
        };
        let by_source = if flow.by_source { of(src) } else { 0 };
        flow.generation == self.generation() + of(dst) + by_source
    }

    /// The number of active flows.
    fn installed(&self) -> usize {
        self.active_flows().len()
    }

    fn active_flows(&self) -> Vec<Flow> {
        let (v4, v6) = (self.v4.lock().unwrap(), self.v6.lock().unwrap());
        let v4 = v4.iter().filter(|(key, flow)| self.is_active(&key.src_be, &key.dst_be, flow));
        let v6 = v6.iter().filter(|(key, flow)| self.is_active(&key.src_be, &key.dst_be, flow));
        v4.map(|(_, flow)| *flow).chain(v6.map(|(_, flow)| *flow)).collect()
    }
}

impl Flows for Maps {
    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    fn bump_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn region_generation(&self, region: u32) -> u32 {
        self.regions.lock().unwrap().get(&region).copied().unwrap_or_default()
    }

    fn region_changes(&self) -> u32 {
        self.region_changes.load(Ordering::Acquire)
    }

    fn bump_regions(&self, regions: &[u32]) {
        self.region_changes.fetch_add(1, Ordering::AcqRel);
        let mut all = self.regions.lock().unwrap();
        regions.iter().for_each(|region| *all.entry(*region).or_default() += 1);
    }

    fn enter4(&mut self, keys: &[Flow4Key], flows: &[Flow]) -> usize {
        if self.full {
            return 0;
        }
        self.writes.fetch_add(keys.len() as u32, Ordering::Relaxed);
        self.v4.lock().unwrap().extend(keys.iter().copied().zip(flows.iter().copied()));
        keys.len()
    }

    fn enter6(&mut self, keys: &[Flow6Key], flows: &[Flow]) -> usize {
        if self.full {
            return 0;
        }
        self.writes.fetch_add(keys.len() as u32, Ordering::Relaxed);
        self.v6.lock().unwrap().extend(keys.iter().copied().zip(flows.iter().copied()));
        keys.len()
    }

    fn tally(&self, number: u16) -> std::io::Result<(u64, u64)> {
        Ok(self.tallies.lock().unwrap().get(&number).copied().unwrap_or_default())
    }
}

/// The device behind a port, with an MTU that leaves room for a second tag.
fn exit(port: u8) -> Exit {
    let ifindex = NonZeroU32::new(100 + u32::from(port)).unwrap();
    Exit { ifindex, mtu: u16::MAX, takes_pieces: true }
}

/// The ports of the test network, all with the XDP path.
fn ports() -> Arc<Ports> {
    let ports = Ports::new(usize::from(PORTS));
    for port in 0..PORTS {
        ports.set_entrance(PortId(port.into()), true);
        ports.set_exit(PortId(port.into()), Some(exit(port)));
    }
    ports
}

/// The test network with an XDP path.
struct Bench {
    net: Net,
    maps: Maps,
    ports: Arc<Ports>,
    entered: Arc<Entered>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Maps::default())
    }

    fn with(maps: Maps) -> Self {
        let (mut net, ports) = (Net::with_memory(256, 16_384), ports());
        let flows = XdpFlows::new(maps.clone(), Arc::clone(&ports), 1 << 12);
        let entered = flows.entered();
        net.worker.xdp_path = Some(Box::new(flows));
        Self { net, maps, ports, entered }
    }

    /// Sends a frame through the path; returns the frames that came out.
    fn send(&mut self, port: u8, frame: &[u8]) -> Vec<(u8, Vec<u8>)> {
        self.net.send(port, frame)
    }

    /// Sends a frame twice; returns the number of flows in the XDP path after each.
    fn twice(&mut self, port: u8, frame: &[u8]) -> [usize; 2] {
        [(); 2].map(|()| {
            self.send(port, frame);
            self.maps.len()
        })
    }
}
