//! The measuring core of the benches: a router that forwards the same frames from one memory port
//! to another, pass by pass, and the clocks that a packet takes.

mod ports;

use std::collections::BTreeMap;
use std::sync::Arc;

use tollway_dataplane::clock;
use tollway_dataplane::dispatch::Path;
use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::frame::Descriptor;
use tollway_dataplane::host::Host;
use tollway_dataplane::stages::Stage;
use tollway_dataplane::stages::filter::Filter;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::verdict::DropReason;
use tollway_dataplane::wire::{checksum, word32};
use tollway_dataplane::worker::Worker;

use crate::frames::{FRAME_LEN, Source};
use crate::{memory, stats, sys};
use ports::Ports;
pub(crate) use ports::forward;

/// Number of frames in flight at once.
pub const IN_FLIGHT: usize = 1024;

/// Share of the passes cut off at each end, to discard interrupted ones. It is small enough to keep
/// the sampled bursts, which occur in one pass of four.
const TRIM: f64 = 0.05;

/// Memory per frame in bytes, as in a port with 4 KB pages.
const CHUNK: u32 = 4096;

/// A router between two memory ports, and the frames that it forwards repeatedly.
pub struct Bench {
    worker: Worker,
    ports: Ports,
    frames: Vec<Descriptor>,
    source: Source,
    /// The index in the source of the next frame, in passes that only restore and in those that
    /// forward.
    position: [usize; 2],
    floor: bool,
    /// Whether every packet has to be dropped instead of sent.
    dropped: bool,
    /// Clocks to waste after every forwarding pass.
    delay: u64,
    /// Whether the headers are in no cache when a pass begins.
    cold: bool,
}

impl Bench {
    /// A router with these tables, which receives these frames in turn.
    ///
    /// # Errors
    /// A message, if memory is short.
    pub fn over(tables: Tables, source: Source, burst: usize) -> Result<Self, String> {
        Self::with_path(Path::detect(), tables, source, burst)
    }

    /// The same with a certain build of the path.
    ///
    /// # Errors
    /// As [`Bench::over`].
    pub fn with_path(
        path: Path,
        tables: Tables,
        source: Source,
        burst: usize,
    ) -> Result<Self, String> {
        let umem = memory::umem(IN_FLIGHT as u32, CHUNK).ok_or("no memory for the frames")?;
        let mut worker = Worker::alone_with_path(path, tables, umem, Host::new());
        let umem = &mut worker.umem;
        let frames = std::iter::from_fn(|| umem.alloc());
        let frames = frames.map(|addr| Descriptor { addr, len: FRAME_LEN as u32 }).collect();
        // The two kinds of passes start half of the frames apart, so that neither finds in the
        // caches what the other has just read.
        let position = [0, source.len() / 2];
        Ok(Self {
            worker,
            ports: Ports::memory(burst),
            frames,
            source,
            position,
            floor: false,
            dropped: false,
            delay: 0,
            cold: false,
        })
    }

    /// Replaces forwarding by the work that no router can omit.
    pub fn set_floor(&mut self) {
        self.floor = true;
    }

    /// Hands every frame over to the worker that has the egress port.
    pub fn set_relay(&mut self, burst: usize) {
        self.ports = Ports::relay(burst);
    }

    /// Has ports that prefetch what arrives, like those of a card that writes to memory.
    pub fn set_prefetch(&mut self, burst: usize) {
        self.ports = Ports::with_prefetch(burst);
    }

    /// Removes the frames' headers from all caches before each pass, as if a card had just written them to memory.
    pub fn set_cold(&mut self) {
        self.cold = true;
    }

    /// Installs rules; `dropped` says that they drop every packet.
    pub fn filter(&mut self, filter: Arc<Filter>, dropped: bool) {
        self.worker.set_filter(Some(filter), &[]);
        self.dropped = dropped;
    }

    /// Makes every packet cost that many TSC clocks more, wasted pass by pass: a known difference,
    /// to test what detects differences.
    pub fn inject(&mut self, clocks_per_packet: f64) {
        let clocks = (clocks_per_packet * IN_FLIGHT as f64) as u64;
        self.delay = clocks.saturating_sub(if clocks > 0 { overshoot() } else { 0 });
    }

    /// The epochs of the router's tables, for rules with changing sets.
    #[must_use]
    pub fn epochs(&self) -> Arc<Epochs> {
        Arc::clone(&self.worker.state().epochs)
    }

    /// Turns the recording of tolls on or off.
    pub fn sample(&mut self, on: bool) {
        self.worker.tolls.switch(on);
    }

    /// TSC clocks per packet for forwarding, over `passes` passes of each sort in turn.
    ///
    /// # Panics
    /// If a packet was not forwarded, since the figure would then measure something else.
    pub fn clocks_per_packet(&mut self, passes: usize) -> f64 {
        let before = self.done();
        let (mut both, mut restoring) = (Vec::new(), Vec::new());
        for _ in 0..passes {
            both.push(self.time(true));
            restoring.push(self.time(false));
        }
        if !self.floor {
            let packets = (passes * IN_FLIGHT) as u64;
            assert_eq!(self.done() - before, packets, "packets went astray");
            assert_eq!(self.worker.counters.check(), Ok(()));
        }
        (stats::trimmed_mean(both, TRIM) - stats::trimmed_mean(restoring, TRIM)) / IN_FLIGHT as f64
    }

    /// Number of packets with the intended outcome.
    fn done(&self) -> u64 {
        let counters = &self.worker.counters;
        match self.dropped {
            true => counters.drops[DropReason::NetfilterDrop as usize],
            false => counters.sent,
        }
    }

    /// Clocks per packet in each stage, from samples so far.
    pub fn stages(&self) -> BTreeMap<&'static str, f64> {
        let tolls = &self.worker.tolls;
        let toll = |stage: &Stage| Some((stage.name(), tolls.per_packet(*stage)?));
        Stage::ALL.iter().filter_map(toll).collect()
    }

    /// Clocks of one pass.
    fn time(&mut self, forward: bool) -> f64 {
        let mut start = clock::now();
        self.restore(forward);
        if self.cold {
            // What restores and flushes is measured in neither kind of pass.
            start = clock::now();
        }
        if forward {
            self.work();
        } else {
            self.ports.take_back();
        }
        let clocks = clock::now() - start;
        if forward && self.dropped {
            self.take_back();
        }
        clocks as f64
    }

    /// Forwards `passes` passes without measuring them. Calls `gate` when each begins and ends.
    pub fn watch(&mut self, passes: usize, gate: fn(bool)) {
        for _ in 0..passes {
            self.restore(true);
            gate(true);
            self.work();
            gate(false);
            if self.dropped {
                self.take_back();
            }
        }
    }

    /// Does the work of a forwarding pass.
    #[inline(always)]
    fn work(&mut self) {
        if self.floor {
            self.touch();
        } else {
            self.forward();
        }
        if self.delay > 0 {
            waste(self.delay);
        }
    }

    /// Reclaims the dropped frames, in the order in which they were dropped.
    fn take_back(&mut self) {
        let umem = &mut self.worker.umem;
        while umem.alloc().is_some() {}
    }

    /// Forwards all frames that wait. The counting of instructions knows it by its name (`callgrind`).
    #[inline(never)]
    fn forward(&mut self) {
        self.ports.forward(&mut self.worker);
    }

    /// Rewrites every frame's header and puts it where the first port finds it.
    #[inline(never)]
    fn restore(&mut self, forward: bool) {
        let position = &mut self.position[usize::from(forward)];
        for frame in &self.frames {
            self.source.write(*position, self.worker.umem.bytes_mut(frame.addr, 0));
            *position += 1;
            if *position == self.source.len() {
                *position = 0;
            }
        }
        self.ports.inject(&self.frames);
        if self.cold {
            self.flush();
        }
    }

    #[inline(never)]
    fn flush(&self) {
        sys::flush(
            self.frames.iter().map(|frame| self.worker.umem.bytes::<FRAME_LEN>(frame.addr, 0)),
        );
    }

    /// Does what no router can omit.
    #[inline(never)]
    fn touch(&mut self) {
        for frame in &self.frames {
            let header: &mut [u8; FRAME_LEN] = self.worker.umem.bytes_mut(frame.addr, 0);
            header[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0x22, 2, 0, 0, 0, 0, 2, 8, 0]);
            let word = checksum::after_ttl_decrement(word32(header, 22));
            header[22..26].copy_from_slice(&word.to_le_bytes());
        }
        self.ports.take_back();
    }
}

#[inline(never)]
fn waste(clocks: u64) {
    let end = clock::now() + clocks;
    while clock::now() < end {
        std::hint::spin_loop();
    }
}

/// Clocks that [`waste`] takes beyond its argument; the least of eight times 64.
fn overshoot() -> u64 {
    const WASTED: u64 = 2000;
    let batch = || {
        let start = clock::now();
        (0..64).for_each(|_| waste(WASTED));
        (clock::now() - start) / 64
    };
    (0..8).map(|_| batch()).min().map_or(0, |taken| taken.saturating_sub(WASTED))
}
