//! A worker with memory ports, and frames of its own flows.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_dataplane::burst::BURST;
use tollway_dataplane::clock;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::host::Host;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::router::Router;
use tollway_dataplane::worker::Worker;

use crate::frames::{FRAME_LEN, Source};
use crate::{bench, memory, stats, tolls};

/// The row of `lab tolls` that has the tables and the flows.
const ROW: &str = "ip4-filter-0";

/// Packets of a pass.
const PASS: usize = 4 * BURST;

/// Share of the passes cut off at each end, to discard interrupted ones.
const TRIM: f64 = 0.05;

/// A worker without its processor for this part (1 / this) of the time has not forwarded beside the other one.
const LONGEST_GAP: u32 = 10;

/// The number of a router's chunks, and their size in bytes.
const CHUNKS: u32 = 8192;
const CHUNK: u32 = 4096;

/// A worker and what it forwards.
pub(super) struct Side {
    pub(super) worker: Worker,
    pub(super) ports: [MemoryPort; 2],
    source: Arc<Source>,
    flows: Range<usize>,
    next: usize,
    frames: Vec<Descriptor>,
}

/// Two workers of one router, each with half of the flows.
#[allow(unsafe_code)]
pub(super) fn of_one_router() -> Result<[Side; 2], String> {
    let (router, source) = router()?;
    let umem = umem()?;
    // SAFETY: a side accesses only frames that it has allocated by its own handle, and frees each once, after its
    // worker has sent it. No frame goes from one side to the other.
    let other = unsafe { umem.share() };
    let half = source.len() / 2;
    Ok([
        Side::new(&router, umem, &source, 0..half),
        Side::new(&router, other, &source, half..2 * half),
    ])
}

/// The workers of two routers that share nothing, each with half of the flows.
pub(super) fn of_two_routers() -> Result<[Side; 2], String> {
    let side = |second: bool| {
        let (router, source) = router()?;
        let half = source.len() / 2;
        let flows = if second { half..2 * half } else { 0..half };
        Ok::<_, String>(Side::new(&router, umem()?, &source, flows))
    };
    Ok([side(false)?, side(true)?])
}

fn router() -> Result<(Arc<Router>, Arc<Source>), String> {
    let stage = tolls::scenario(ROW)?.stage()?;
    Ok((Router::new(stage.tables, Host::new()), Arc::new(stage.source)))
}

fn umem() -> Result<Umem, String> {
    memory::umem(CHUNKS, CHUNK).ok_or_else(|| "no memory for the frames".to_owned())
}

impl Side {
    fn new(router: &Arc<Router>, umem: Umem, source: &Arc<Source>, flows: Range<usize>) -> Self {
        let worker = Worker::new(router, umem);
        worker.park();
        Self {
            worker,
            ports: [MemoryPort::new(BURST), MemoryPort::new(BURST)],
            source: Arc::clone(source),
            next: flows.start,
            flows,
            frames: Vec::with_capacity(PASS),
        }
    }

    /// Forwards from `begin` to `end`; returns packets a TSC clock, or none if something took the processor away for
    /// long. Only what a worker does counts, not the making of frames: it would gain from a second processor as well.
    pub(super) fn forward(&mut self, begin: Instant, end: Instant) -> Option<f64> {
        let mut clocks = Vec::with_capacity(1 << 14);
        let (mut last, mut longest) = (begin, Duration::ZERO);
        self.worker.wake();
        while last < end {
            clocks.push(self.pass() as f64);
            let now = Instant::now();
            longest = longest.max(now - last);
            last = now;
        }
        self.worker.park();
        (longest < (end - begin) / LONGEST_GAP)
            .then(|| PASS as f64 / stats::trimmed_mean(clocks, TRIM))
    }

    /// Forwards a pass of frames and frees them; returns its clocks.
    fn pass(&mut self) -> u64 {
        let start = clock::now();
        let umem = &mut self.worker.umem;
        self.frames.clear();
        for _ in 0..PASS {
            let Some(addr) = umem.alloc() else { break };
            self.frames.push(Descriptor { addr, len: FRAME_LEN as u32 });
        }
        let allocated = clock::now();
        self.write();
        let written = clock::now();
        self.ports[0].inject_all(&self.frames);
        bench::forward(&mut self.worker, &mut self.ports);
        let sent = self.ports[1].sent().iter().map(|frame| frame.addr);
        self.worker.umem.free_all(sent);
        self.ports[1].clear();
        (clock::now() - written) + (allocated - start)
    }

    /// Writes the frames of the next flows.
    fn write(&mut self) {
        for frame in &self.frames {
            self.source.write(self.next, self.worker.umem.bytes_mut(frame.addr, 0));
            self.next += 1;
            if self.next == self.flows.end {
                self.next = self.flows.start;
            }
        }
    }
}
