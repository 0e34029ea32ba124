//! The path alone: a burst goes in, one outcome for each packet comes out.

use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::cpu::Level;
use tollway_dataplane::dispatch::Path;
use tollway_dataplane::frame::{FrameAddr, Umem};
use tollway_dataplane::id::{LinkId, PortId};
use tollway_dataplane::stages::filter::State;
use tollway_dataplane::stages::transmit::Egress;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::tolls::Tolls;
use tollway_dataplane::verdict::{DropReason, PuntReason, Verdict};

use super::wires::TABLES;

/// The outcome for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Sent by a port.
    Sent(u16, Vec<u8>),
    /// Dropped.
    Drop(DropReason),
    /// To the slow path, with the link and the bytes before layer 3.
    Punt(PuntReason, LinkId, u8),
    /// For the router itself, with the same values.
    Local(LinkId, u8),
}

impl Outcome {
    /// The reason of a punt.
    pub fn punted(&self) -> Option<PuntReason> {
        match self {
            Self::Punt(reason, ..) => Some(*reason),
            _ => None,
        }
    }
}

/// The paths that this machine runs, one for each instruction set.
pub fn paths() -> Vec<Path> {
    [Level::Baseline, Level::V3, Level::V4].into_iter().filter_map(Path::at).collect()
}

/// The path with memory, queues and state.
pub struct PathBench<'a> {
    tables: &'a Tables,
    path: Path,
    umem: Umem,
    burst: Box<Burst>,
    egress: Egress,
    tolls: Tolls,
    /// Counters of the filter.
    pub filter: State,
    /// The bytes after the frames: a path that reads too far finds them.
    stale: Vec<u8>,
}

impl PathBench<'static> {
    /// The widest path of the machine over the test network.
    pub fn new() -> Self {
        Self::over(&TABLES, Path::detect(), 16_384)
    }
}

impl<'a> PathBench<'a> {
    /// A path over the given tables, with chunks of `chunk` bytes.
    pub fn over(tables: &'a Tables, path: Path, chunk: u32) -> Self {
        Self {
            tables,
            path,
            umem: Umem::new(BURST as u32, chunk).expect("memory"),
            burst: Box::new(Burst::new()),
            egress: Egress::new(tables.ports.len()),
            tolls: Tolls::new(),
            filter: State::new(),
            stale: Vec::new(),
        }
    }

    /// Fills memory with the bytes of a frame before each burst.
    pub fn with_stale(mut self, frame: &[u8]) -> Self {
        self.stale = frame.to_vec();
        self
    }

    /// Sends one frame.
    pub fn send(&mut self, port: u8, frame: &[u8]) -> Outcome {
        self.burst(port, &[frame]).remove(0)
    }

    /// Sends up to 64 frames at once and asserts what must hold for any burst. Each packet is either
    /// sent, in order, or has exited with a verdict; then it is unchanged except for padding.
    pub fn burst(&mut self, port: u8, frames: &[impl AsRef<[u8]>]) -> Vec<Outcome> {
        assert!(frames.len() <= BURST);
        self.burst.reset(PortId(port.into()));
        let start = frames.iter().map(|frame| self.store(frame.as_ref())).collect::<Vec<_>>();
        for (addr, frame) in start.iter().zip(frames) {
            assert!(self.burst.push(*addr, frame.as_ref().len() as u16));
        }
        let Self { burst, umem, tables, tolls, egress, filter, .. } = self;
        self.path.forward(burst, umem, tables, tolls, egress, filter);
        let sent = self.drain();
        let mut queued = vec![0; self.tables.ports.len()];
        let outcomes = (0..frames.len()).map(|lane| {
            let (addr, len) = (self.burst.addr[lane], self.burst.len[lane]);
            let bytes = self.umem.frame(addr, len.into());
            if self.burst.exited.has(lane) {
                assert_eq!(addr, start[lane], "packet {lane} exited and has moved");
                let frame = frames[lane].as_ref();
                assert!(frame.starts_with(bytes), "packet {lane} exited and has changed");
                return self.exited(lane);
            }
            let egress = self.burst.egress[lane];
            let place = &mut queued[usize::from(egress.0)];
            assert_eq!(
                sent[usize::from(egress.0)].get(*place),
                Some(&(addr, u32::from(len))),
                "packet {lane} is not in the queue where it belongs"
            );
            *place += 1;
            Outcome::Sent(egress.0, bytes.to_vec())
        });
        let outcomes = outcomes.collect();
        let lengths = sent.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(queued, lengths, "a queue has more than its packets");
        for addr in start {
            self.umem.free(addr);
        }
        assert_eq!(self.umem.available(), BURST);
        outcomes
    }

    fn store(&mut self, frame: &[u8]) -> FrameAddr {
        let addr = self.umem.alloc().expect("a chunk");
        let room = self.umem.room().min(2048);
        if !self.stale.is_empty() {
            let memory = self.umem.frame_mut(addr, room);
            for piece in memory.chunks_mut(self.stale.len()) {
                piece.copy_from_slice(&self.stale[..piece.len()]);
            }
        }
        self.umem.frame_mut(addr, frame.len()).copy_from_slice(frame);
        addr
    }

    fn drain(&mut self) -> Vec<Vec<(FrameAddr, u32)>> {
        let mut sent = vec![Vec::new(); self.tables.ports.len()];
        self.egress.drain(|port, frames| {
            sent[usize::from(port.0)] =
                frames.iter().map(|frame| (frame.addr, frame.len)).collect();
        });
        sent
    }

    fn exited(&self, lane: usize) -> Outcome {
        let (link, l3) = (self.burst.link[lane], self.burst.l3[lane]);
        match self.burst.verdict[lane] {
            Verdict::Drop(reason) => Outcome::Drop(reason),
            Verdict::Punt(reason) => Outcome::Punt(reason, link, l3),
            Verdict::Local => Outcome::Local(link, l3),
        }
    }
}
