//! The test network as a whole router: three memory ports, host and counters.

use std::borrow::Cow;

use tollway_dataplane::burst::BURST;
use tollway_dataplane::counters::Counters;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::host::Host;
use tollway_dataplane::id::{LinkId, PortId};
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::worker::Worker;

use super::packet::ip;
use super::wires::{PORTS, tables};

/// Bytes of the smallest frame with an IPv4 packet.
const SMALLEST: usize = 34;

/// A router with its ports.
pub struct Net {
    pub worker: Worker,
    pub ports: Vec<MemoryPort>,
    /// The time in ns.
    pub now_ns: u64,
    /// Bytes after each frame that a port receives.
    trailer: usize,
}

impl Net {
    /// Creates the test network with memory for `chunks` frames of usual size.
    pub fn new(chunks: u32) -> Self {
        Self::with_memory(chunks, 2048)
    }

    /// Creates the test network with this much memory.
    pub fn with_memory(chunks: u32, chunk_bytes: u32) -> Self {
        Self::with_umem(Umem::new(chunks, chunk_bytes).expect("memory"))
    }

    /// Creates the test network with small chunks, and so many bytes after each frame that it takes
    /// several.
    pub fn in_pieces(chunks: u32) -> Self {
        let umem = Umem::for_frames(chunks, 512, 9000, |_, _| {}).expect("memory");
        Self { trailer: 1000, ..Self::with_umem(umem) }
    }

    fn with_umem(umem: Umem) -> Self {
        let mut host = Host::new();
        host.add_address(LinkId(0), ip("10.255.0.254"), 24);
        host.add_address(LinkId(0), ip("2001:db8:fe::1"), 64);
        Self {
            worker: Worker::alone(tables(), umem, host),
            ports: (0..PORTS).map(|_| MemoryPort::new(BURST)).collect(),
            now_ns: 1_000_000_000,
            trailer: 0,
        }
    }

    /// The bytes for a frame in every chunk of this size.
    pub fn room(chunk_bytes: u32) -> usize {
        Umem::new(1, chunk_bytes).expect("memory").room()
    }

    /// Queues a frame at a port; false if it does not fit or no memory is left.
    pub fn inject(&mut self, port: u8, frame: &[u8]) -> bool {
        let frame = if self.trailer == 0 { Cow::from(frame) } else { self.trailed(frame) };
        let Some(frame) = self.worker.umem.store(&frame) else { return false };
        self.ports[usize::from(port)].inject(frame);
        true
    }

    /// A frame with its trailer; a frame that ends within its headers has none.
    pub fn trailed<'a>(&self, frame: &'a [u8]) -> Cow<'a, [u8]> {
        let has = frame.len() >= SMALLEST;
        let trailer = vec![0xee; if has { self.trailer } else { 0 }];
        Cow::from([frame, &trailer].concat())
    }

    /// Runs the router until no frame waits.
    pub fn run(&mut self) {
        for port in 0..u16::from(PORTS) {
            while self.worker.turn(PortId(port), &mut self.ports, self.now_ns) > 0 {}
        }
    }

    /// Lets time pass, in steps of 100 ms.
    pub fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.now_ns += 100_000_000;
            self.worker.tick(&mut self.ports, self.now_ns);
        }
    }

    /// Takes the frames that a port has sent.
    pub fn take_sent(&mut self, port: u8) -> Vec<Vec<u8>> {
        let sent = self.ports[usize::from(port)].take_sent();
        let umem = &mut self.worker.umem;
        sent.into_iter()
            .map(|frame| {
                let bytes = umem.whole(frame).into_owned();
                umem.free(frame.addr);
                bytes
            })
            .collect()
    }

    /// Takes the frames that all ports have sent: port numbers and frames.
    pub fn take_all(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut sent = Vec::new();
        for port in 0..PORTS {
            sent.extend(self.take_sent(port).into_iter().map(|frame| (port, frame)));
        }
        sent
    }

    /// Sends a frame and returns the frames that come out.
    pub fn send(&mut self, port: u8, frame: &[u8]) -> Vec<(u8, Vec<u8>)> {
        assert!(self.inject(port, frame), "no memory for the frame");
        self.run();
        self.check();
        self.take_all()
    }

    /// The counters of the router.
    pub fn counters(&self) -> &Counters {
        &self.worker.counters
    }

    /// Asserts that counters add up and that no chunk is lost.
    pub fn check(&self) {
        let counters = self.counters();
        counters.check().expect("packets add up");
        self.worker.check_memory(&self.ports).expect("no chunk is lost or free twice");
    }
}
