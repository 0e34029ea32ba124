//! The lane against the path: whatever it would forward, the path forwards just so.

mod counting;
mod repeats;
mod rules;
#[path = "../../../dataplane/src/testkit/mod.rs"]
mod testkit;
mod within;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tollway_dataplane::id::PortId;

use super::{Entered, Flows, Lane, Ports};
use crate::steer::flows::{Flow, Flow4Key, Flow6Key};
use testkit::net::Net;
use testkit::wires::PORTS;

/// Maps in plain memory.
#[derive(Clone, Default)]
struct Maps {
    generation: Arc<AtomicU32>,
    v4: Arc<Mutex<HashMap<Flow4Key, Flow>>>,
    v6: Arc<Mutex<HashMap<Flow6Key, Flow>>>,
    full: bool,
    /// How often anything was entered.
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

    /// Flows that are in force.
    fn in_force(&self) -> usize {
        self.flows().iter().filter(|flow| flow.generation == self.generation()).count()
    }
}

impl Flows for Maps {
    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    fn bump_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
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

/// The device behind a port.
fn ifindex(port: u8) -> NonZeroU32 {
    NonZeroU32::new(100 + u32::from(port)).unwrap()
}

/// The ports of the test network, all with the lane.
fn ports() -> Arc<Ports> {
    let ports = Ports::new(usize::from(PORTS));
    for port in 0..PORTS {
        ports.set_entrance(PortId(port.into()), true);
        ports.set_exit(PortId(port.into()), Some(ifindex(port)));
    }
    ports
}

/// The test network with a lane.
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
        let lane = Lane::new(maps.clone(), Arc::clone(&ports), 1 << 12);
        let entered = lane.entered();
        net.router.express = Some(Box::new(lane));
        Self { net, maps, ports, entered }
    }

    /// Sends a frame by the path; what came out.
    fn send(&mut self, port: u8, frame: &[u8]) -> Vec<(u8, Vec<u8>)> {
        self.net.send(port, frame)
    }

    /// Sends a frame twice and says how many flows are in the lane after each.
    fn twice(&mut self, port: u8, frame: &[u8]) -> [usize; 2] {
        [(); 2].map(|()| {
            self.send(port, frame);
            self.maps.len()
        })
    }
}
