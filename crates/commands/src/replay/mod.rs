//! Runs the path between capture files, in virtual time. The frames' own timestamps drive the
//! clock, so timeouts and rate limits act as on the wire.
//!
//! Frames are processed one by one, in the order of their timestamps over all files. Each sent
//! frame gets the timestamp of the frame or tick that caused it.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tollway_dataplane::counters::Counters;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::host::HostCounters;
use tollway_dataplane::id::PortId;
use tollway_dataplane::stages::bridge::LearningCounts;
use tollway_dataplane::worker::Worker;

use tollway_capture::{CaptureError, CaptureReader, Captured};
use tollway_firewall::log::{Journal, Logger};
use tollway_model::Model;
use tollway_model::compile::{CompileError, compile, rule_links};
use tollway_worker::ports::capture::CapturePort;
use tollway_worker::ports::{Device, chunk_bytes};

/// The interval of the router's tick in virtual time.
const TICK_NS: u64 = 100_000_000;
/// The most ticks within a gap between two frames; then the clock jumps to the end of the gap.
const TICKS_IN_A_GAP: u32 = 100;
/// How long the clock runs on after the last frame, for packets that wait for a neighbour.
const RUN_ON_NS: u64 = 5_000_000_000;
/// The least room for a frame: captures have frames that no MTU of the configuration allows.
const CHUNK_BYTES: u32 = 16_384;
const CHUNKS: u32 = 8192;

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A capture file cannot be used.
    #[error("{0}")]
    Capture(#[from] CaptureError),
    /// The configuration does not compile.
    #[error("{0}")]
    Compile(#[from] CompileError),
    /// Memory is short, or frames were not returned.
    #[error("the memory for frames is used up")]
    Memory,
}

impl ReplayError {
    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Capture(error) => error.remedy(),
            Self::Compile(error) => error.remedy().to_owned(),
            Self::Memory => "Free some memory, or replay fewer packets at once".to_owned(),
        }
    }
}

/// The files of a replay, by the position of their port.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Port and file to read. A port may have several files.
    pub inputs: Vec<(usize, PathBuf)>,
    /// Port and file to write.
    pub outputs: Vec<(usize, PathBuf)>,
}

/// A replay that is ready to run.
pub struct Replay {
    worker: Worker,
    ports: Vec<CapturePort>,
    inputs: Vec<Input>,
    errors: Vec<CaptureError>,
    clock_ns: u64,
    next_tick_ns: u64,
    journal: Journal,
}

/// An input file and its next frame.
struct Input {
    port: usize,
    reader: CaptureReader,
    next: Option<Captured>,
}

/// The result of a replay.
#[derive(Debug)]
pub struct ReplayOutcome {
    /// What became of every packet.
    pub counters: Counters,
    /// What the router did as a host.
    pub host: HostCounters,
    /// What the model's bridges have learned, in their order.
    pub bridges: Vec<LearningCounts>,
    /// Whether all packets and chunks of memory are accounted for; otherwise a sentence that says
    /// what is missing.
    pub adds_up: Result<(), String>,
    /// Errors of the files. Frames before an error were used.
    pub errors: Vec<CaptureError>,
}

impl Replay {
    /// Opens the files and builds the router.
    ///
    /// # Errors
    /// A file cannot be opened or is not a capture of Ethernet frames, or the model does not compile.
    pub fn new(model: &Model, files: &Files) -> Result<Self, ReplayError> {
        let compiled = compile(model)?;
        let mut inputs = Vec::new();
        for (port, path) in &files.inputs {
            let reader = CaptureReader::open(path)?;
            inputs.push(Input { port: *port, reader, next: None });
        }
        let output = |port: usize| files.outputs.iter().find(|(of, _)| *of == port);
        let mut ports = Vec::new();
        for port in 0..model.ports.len() {
            let output = output(port).map(|(_, path)| path.as_path());
            ports.push(CapturePort::open(None, output)?);
        }
        let chunk_bytes = chunk_bytes(model).max(CHUNK_BYTES);
        let umem = Umem::new(CHUNKS, chunk_bytes).ok_or(ReplayError::Memory)?;
        let worker = Worker::alone(compiled.tables, umem, compiled.host);
        let errors = Vec::new();
        let log = model.filter_log.as_deref();
        let journal = Journal::new(Logger::of(model.filter.as_deref(), &rule_links(model), log)?);
        Ok(Self { worker, ports, inputs, errors, clock_ns: 0, next_tick_ns: 0, journal })
    }

    /// The size of all input files in bytes, and a counter of the bytes read from each.
    #[must_use]
    pub fn progress(&self) -> (u64, Vec<Arc<AtomicU64>>) {
        let files = self.inputs.iter().map(|input| input.reader.progress());
        let (sizes, counts): (Vec<_>, Vec<_>) = files.unzip();
        (sizes.iter().sum(), counts)
    }

    /// Replays everything. Calls `watch` after each frame.
    ///
    /// # Errors
    /// [`ReplayError::Memory`]. Errors of the files are in the outcome.
    pub fn run(mut self, mut watch: impl FnMut()) -> Result<ReplayOutcome, ReplayError> {
        for index in 0..self.inputs.len() {
            self.refill(index);
        }
        let first = self.inputs.iter().filter_map(|input| Some(input.next.as_ref()?.time_ns)).min();
        self.clock_ns = first.unwrap_or(0);
        self.next_tick_ns = self.clock_ns.saturating_add(TICK_NS);
        while let Some((port, frame)) = self.next_frame() {
            self.advance(frame.time_ns);
            self.forward(port, frame)?;
            watch();
        }
        self.advance(self.clock_ns.saturating_add(RUN_ON_NS));
        self.journal.finish([&mut self.worker.filter]);
        for port in &mut self.ports {
            self.errors.extend(port.finish().err());
        }
        let host = self.worker.lock().host.counters().clone();
        let bridges = self.worker.state().bridges.iter();
        let bridges = bridges.flat_map(|bridges| bridges.counts()).collect();
        let adds_up = self.worker.counters.check();
        let adds_up = adds_up.and_then(|()| self.worker.check_memory(&self.ports));
        Ok(ReplayOutcome {
            adds_up,
            counters: self.worker.counters.clone(),
            host,
            bridges,
            errors: self.errors,
        })
    }

    fn forward(&mut self, port: usize, frame: Captured) -> Result<(), ReplayError> {
        for out in &mut self.ports {
            out.set_now(frame.time_ns);
        }
        self.ports[port].stage(frame);
        self.worker.turn(PortId(port as u16), &mut self.ports, self.clock_ns);
        self.journal.drain_at_own_time(&mut self.worker.filter);
        if self.ports[port].is_staged() { Err(ReplayError::Memory) } else { Ok(()) }
    }

    /// The earliest frame of all files; at equal times, the one of the first file.
    fn next_frame(&mut self) -> Option<(usize, Captured)> {
        let waiting = self.inputs.iter().enumerate();
        let waiting = waiting.filter_map(|(index, input)| Some((input.next.as_ref()?, index)));
        let (_, index) = waiting.min_by_key(|(frame, index)| (frame.time_ns, *index))?;
        let frame = self.inputs[index].next.take()?;
        self.refill(index);
        Some((self.inputs[index].port, frame))
    }

    fn refill(&mut self, index: usize) {
        match self.inputs[index].reader.next_frame() {
            Ok(next) => self.inputs[index].next = next,
            Err(error) => self.errors.push(error),
        }
    }

    /// Advances the clock, which never goes back, with the ticks that are due.
    fn advance(&mut self, to_ns: u64) {
        for _ in 0..TICKS_IN_A_GAP {
            if self.next_tick_ns > to_ns {
                break;
            }
            self.tick(self.next_tick_ns);
            self.next_tick_ns = self.next_tick_ns.saturating_add(TICK_NS);
        }
        if self.next_tick_ns <= to_ns {
            self.tick(to_ns);
            self.next_tick_ns = to_ns.saturating_add(TICK_NS);
        }
        self.clock_ns = self.clock_ns.max(to_ns);
    }

    fn tick(&mut self, now_ns: u64) {
        for port in &mut self.ports {
            port.set_now(now_ns);
        }
        self.worker.tick(&mut self.ports, now_ns);
    }
}
