use std::collections::BTreeMap;
use std::sync::Arc;

use tollway_dataplane::clock;
use tollway_dataplane::dispatch::Path;
use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::frame::Descriptor;
use tollway_dataplane::host::Host;
use tollway_dataplane::id::PortId;
use tollway_dataplane::path::Features;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::router::Router;
use tollway_dataplane::stages::filter::Filter;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::tolls::Stage;
use tollway_dataplane::verdict::DropReason;
use tollway_dataplane::wire::{checksum, word32};

use super::Scenario;
use crate::frames::{FRAME_LEN, Source};
use crate::{memory, stats};

/// Frames that are on their way at once.
pub const IN_FLIGHT: usize = 1024;

/// Share of the passes that is left out at each end: those that something else interrupted. It is
/// small enough to leave the sampled bursts in, which are in one pass of four.
const TRIM: f64 = 0.05;

/// Memory for a frame, bytes: as a port of 4 KB pages has it.
const CHUNK: u32 = 4096;

/// A router between two memory ports, and the frames that it forwards over and over.
pub struct Bench<F: Features> {
    router: Router<F>,
    ports: Vec<MemoryPort>,
    frames: Vec<Descriptor>,
    source: Source,
    /// The frame of the source that the next frame is made from, in passes that only restore and in those
    /// that forward.
    position: [usize; 2],
    floor: bool,
    /// Whether every packet is to be dropped, instead of sent.
    dropped: bool,
    /// Clocks that are wasted after every pass that forwards.
    delay: u64,
}

impl<F: Features> Bench<F> {
    /// Sets the scene of a row; tolls are taken meanwhile, as the program does.
    ///
    /// # Errors
    /// A sentence where memory is short.
    pub fn new(scenario: &Scenario) -> Result<Self, String> {
        let stage = scenario.stage()?;
        let mut bench = Self::over(stage.tables, stage.source, scenario.burst)?;
        bench.floor = scenario.is_floor();
        if let Some(filter) = stage.filter {
            bench.filter(filter, false);
        }
        Ok(bench)
    }

    /// A router with these tables, to which these frames come in turn.
    ///
    /// # Errors
    /// A sentence where memory is short.
    pub fn over(tables: Tables, source: Source, burst: usize) -> Result<Self, String> {
        let umem = memory::umem(IN_FLIGHT as u32, CHUNK).ok_or("no memory for the frames")?;
        let mut router = Router::with_path(Path::detect(), tables, umem, Host::new());
        let umem = &mut router.umem;
        let frames = std::iter::from_fn(|| umem.alloc());
        let frames = frames.map(|addr| Descriptor { addr, len: FRAME_LEN as u32 }).collect();
        let port = || MemoryPort::new(burst);
        // Half of them apart, so that neither finds in the caches what the other has just read.
        let position = [0, source.len() / 2];
        Ok(Self {
            router,
            ports: vec![port(), port()],
            frames,
            source,
            position,
            floor: false,
            dropped: false,
            delay: 0,
        })
    }

    /// Puts rules in force; `dropped` says that they drop every packet.
    pub fn filter(&mut self, filter: Arc<Filter>, dropped: bool) {
        self.router.set_filter(Some(filter), &[]);
        self.dropped = dropped;
    }

    /// Has every packet cost so many TSC clocks more, which are wasted pass by pass: a difference that
    /// is known, to test what finds differences.
    pub fn inject(&mut self, clocks_per_packet: f64) {
        let clocks = (clocks_per_packet * IN_FLIGHT as f64) as u64;
        self.delay = clocks.saturating_sub(if clocks > 0 { overshoot() } else { 0 });
    }

    /// The epochs of the router's tables, for rules with sets that change.
    #[must_use]
    pub fn epochs(&self) -> Arc<Epochs> {
        Arc::clone(&self.router.tables.epochs)
    }

    /// Turns the taking of tolls on or off.
    pub fn sample(&mut self, on: bool) {
        self.router.tolls.switch(on);
    }

    /// TSC clocks that forwarding costs a packet, over so many passes of each sort in turn.
    ///
    /// # Panics
    /// Where a packet was not forwarded: the figure would be of something else.
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
            assert_eq!(self.router.counters.check(), Ok(()));
        }
        (stats::trimmed_mean(both, TRIM) - stats::trimmed_mean(restoring, TRIM)) / IN_FLIGHT as f64
    }

    /// Packets of which became what was to become.
    fn done(&self) -> u64 {
        let counters = &self.router.counters;
        match self.dropped {
            true => counters.drops[DropReason::NetfilterDrop as usize],
            false => counters.sent,
        }
    }

    /// Clocks a packet in each stage, as sampled so far.
    pub fn stages(&self) -> BTreeMap<&'static str, f64> {
        let tolls = &self.router.tolls;
        let toll = |stage: &Stage| Some((stage.name(), tolls.per_packet(*stage)?));
        Stage::ALL.iter().filter_map(toll).collect()
    }

    /// Clocks that a pass takes.
    fn time(&mut self, forward: bool) -> f64 {
        let start = clock::now();
        self.restore(forward);
        if forward {
            self.work();
        } else {
            self.ports[0].clear();
        }
        let clocks = clock::now() - start;
        if forward && self.dropped {
            self.take_back();
        }
        clocks as f64
    }

    /// Forwards so many passes without measuring them; `gate` is told when each begins and ends.
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

    /// What a pass does with its frames.
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

    /// Takes the frames back that were dropped, in the order in which they went.
    fn take_back(&mut self) {
        let umem = &mut self.router.umem;
        while umem.alloc().is_some() {}
    }

    /// Writes every frame's header anew and puts it where the first port finds it.
    #[inline(never)]
    fn restore(&mut self, forward: bool) {
        let position = &mut self.position[usize::from(forward)];
        for frame in &self.frames {
            self.source.write(*position, self.router.umem.bytes_mut(frame.addr, 0));
            *position += 1;
            if *position == self.source.len() {
                *position = 0;
            }
        }
        self.ports[0].inject_all(&self.frames);
    }

    #[inline(never)]
    fn forward(&mut self) {
        while self.router.turn(PortId(0), &mut self.ports, 0) > 0 {}
        self.ports[1].clear();
    }

    /// What no router can leave out.
    #[inline(never)]
    fn touch(&mut self) {
        for frame in &self.frames {
            let header: &mut [u8; FRAME_LEN] = self.router.umem.bytes_mut(frame.addr, 0);
            header[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0x22, 2, 0, 0, 0, 0, 2, 8, 0]);
            let word = checksum::after_ttl_decrement(word32(header, 22));
            header[22..26].copy_from_slice(&word.to_le_bytes());
        }
        self.ports[0].clear();
    }
}

#[inline(never)]
fn waste(clocks: u64) {
    let end = clock::now() + clocks;
    while clock::now() < end {
        std::hint::spin_loop();
    }
}

/// Clocks that [`waste`] takes more than it is told to, the least of eight times 64.
fn overshoot() -> u64 {
    const TOLD: u64 = 2000;
    let batch = || {
        let start = clock::now();
        (0..64).for_each(|_| waste(TOLD));
        (clock::now() - start) / 64
    };
    (0..8).map(|_| batch()).min().map_or(0, |taken| taken.saturating_sub(TOLD))
}
