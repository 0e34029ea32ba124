//! A router whose ports are a bridge.

use crate::burst::BURST;
use crate::frame::Umem;
use crate::host::Host;
use crate::id::PortId;
use crate::port::MemoryPort;
use crate::stages::bridge::{BridgePortSettings, BridgeSettings, LearningCounts};
use crate::tables::Tables;
use crate::verdict::DropReason;
use crate::worker::Worker;

/// Chunks of memory.
const CHUNKS: u32 = 256;

/// A station's address.
pub fn station(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// A frame of `len` bytes, each other than its neighbours.
pub fn frame(dst: [u8; 6], src: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb5]].concat();
    frame.extend((frame.len()..len).map(|at| at as u8));
    frame
}

pub struct Bench {
    pub worker: Worker,
    ports: Vec<MemoryPort>,
    pub now_ns: u64,
}

impl Bench {
    pub fn new(ports: u16, change: impl FnOnce(&mut BridgeSettings)) -> Self {
        Self::with_mtus(&vec![1500; ports.into()], change)
    }

    /// One bridge of all ports.
    pub fn with_mtus(mtus: &[u16], change: impl FnOnce(&mut BridgeSettings)) -> Self {
        let mut bridge = BridgeSettings {
            ports: (0..mtus.len()).map(|id| BridgePortSettings::new(PortId(id as u16))).collect(),
            ageing_s: 300,
            max_entries: 10_000,
            entries: Vec::new(),
        };
        change(&mut bridge);
        Self::with_bridges(mtus, &[bridge])
    }

    pub fn with_bridges(mtus: &[u16], bridges: &[BridgeSettings]) -> Self {
        let mut tables = Tables::new();
        let vrf = tables.add_vrf().expect("a VRF");
        for (number, mtu) in mtus.iter().enumerate() {
            tables.add_port([2, 0xff, 0, 0, 0, number as u8], vrf, *mtu).expect("a port");
        }
        tables.set_bridges(bridges).expect("room");
        let umem = Umem::new(CHUNKS, 4096).expect("memory");
        let worker = Worker::alone(tables, umem, Host::new());
        let ports = mtus.iter().map(|_| MemoryPort::new(BURST)).collect();
        Self { worker, ports, now_ns: 1_000_000_000 }
    }

    /// Sends a frame; returns what comes out, by port.
    pub fn send(&mut self, port: u16, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.burst(port, &[frame])
    }

    /// Sends up to 64 frames at once.
    pub fn burst(&mut self, port: u16, frames: &[impl AsRef<[u8]>]) -> Vec<(u16, Vec<u8>)> {
        self.inject(port, frames);
        self.turn(port);
        self.check();
        self.take_sent()
    }

    pub fn inject(&mut self, port: u16, frames: &[impl AsRef<[u8]>]) {
        for frame in frames {
            let Some(stored) = self.worker.umem.store(frame.as_ref()) else { continue };
            self.ports[usize::from(port)].inject(stored);
        }
    }

    pub fn turn(&mut self, port: u16) {
        self.worker.turn(PortId(port), &mut self.ports, self.now_ns);
    }

    fn take_sent(&mut self) -> Vec<(u16, Vec<u8>)> {
        let mut sent = Vec::new();
        for (number, port) in self.ports.iter_mut().enumerate() {
            for frame in port.take_sent() {
                sent.push((number as u16, self.worker.umem.whole(frame).into_owned()));
                self.worker.umem.free(frame.addr);
            }
        }
        sent
    }

    /// Asserts that counters add up and that no chunk is lost.
    pub fn check(&self) {
        self.worker.counters.check().expect("packets add up");
        self.worker.check_memory(&self.ports).expect("no chunk is lost or free twice");
    }

    /// Lets seconds pass.
    pub fn pass(&mut self, seconds: u64) {
        for _ in 0..10 * seconds {
            self.now_ns += 100_000_000;
            self.worker.tick(&mut self.ports, self.now_ns);
        }
    }

    /// What the first bridge has counted.
    pub fn counts(&self) -> LearningCounts {
        let bridges = self.worker.state().bridges.as_ref().expect("bridges");
        bridges.counts().next().expect("a bridge")
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.worker.counters.drops[reason as usize]
    }
}
