//! The generator: a BPF program that writes frames, redirects them and keeps their rate.

use std::os::fd::AsFd;
use std::sync::Arc;

use aya::maps::{Array, Map, MapData};
use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader};

use super::host::Host;
use super::program;
use super::topology::{A0, R0};
use crate::bpf::runner::Runner;
use crate::{bpf, sys};

/// `bpf/generator.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/generator.o"));

/// The destination port of flows that are used in turn, `PORT` of `bpf/frame.h`.
pub(super) const PORT: u16 = 9;
/// Frames that the kernel sends before it yields the processor: half of what a veth has room for, or, where they have
/// times to keep, as many as a device's driver takes in a row.
const BATCH: u32 = 128;
const BATCH_PACED: u32 = 64;
/// Bytes of a frame, without tag and FCS.
pub(super) const FRAME_BYTES: usize = 60;
/// The same of TCP: headers of 54 bytes, and what the sink recognizes.
const FRAME_TCP_BYTES: usize = 70;
/// Of UDP over IPv6: headers of 62 bytes.
const FRAME6_BYTES: usize = 78;

/// The addresses and ports of the frames.
#[derive(Clone)]
pub(super) enum Flows {
    /// So many flows, used in turn; a power of two.
    InTurn(u32),
    /// The same of TCP: each flow sends the next segment of a stream that nobody acknowledges.
    TcpInTurn(u32),
    /// A flow to each of these destinations, used in turn.
    To(Arc<Destinations>),
    /// A new flow for every frame: a random source of 16.0.0.0/4, random ports, and a random destination of
    /// [`super::topology::DESTINATIONS`].
    Random,
    /// The same of TCP: a SYN for every frame.
    Syn,
    /// Frames from 256 hosts behind a bridge's port to so many hosts behind another, used in turn; a power of two.
    Bridged(u32),
}

/// Destinations of frames, as many as a power of two.
pub(super) struct Destinations {
    /// Whether they are of IPv6.
    pub(super) v6: bool,
    /// Addresses in network byte order; those of IPv4 are the first four bytes.
    pub(super) addresses: Vec<[u8; 16]>,
}

impl Flows {
    /// The generator's names for the kinds.
    fn kind(&self) -> u8 {
        match self {
            Self::InTurn(_) => 0,
            Self::To(destinations) if !destinations.v6 => 1,
            Self::To(_) => 2,
            Self::Random => 3,
            Self::TcpInTurn(_) => 4,
            Self::Syn => 5,
            Self::Bridged(_) => 6,
        }
    }

    /// The number of flows that take turns.
    pub(super) fn count(&self) -> u32 {
        let count = match self {
            Self::InTurn(count) | Self::TcpInTurn(count) | Self::Bridged(count) => *count,
            Self::To(destinations) => destinations.addresses.len() as u32,
            Self::Random | Self::Syn => 1,
        };
        count.next_power_of_two()
    }

    fn frame_bytes(&self) -> usize {
        match self {
            Self::To(destinations) if destinations.v6 => FRAME6_BYTES,
            Self::TcpInTurn(_) | Self::Syn => FRAME_TCP_BYTES,
            _ => FRAME_BYTES,
        }
    }
}

/// What to send.
#[derive(Clone)]
pub(super) struct Stream {
    /// The flows of the frames.
    pub(super) flows: Flows,
    /// The VLAN tag of the frames.
    pub(super) vid: Option<u16>,
    /// Frames per second; `None` for as fast as possible.
    pub(super) rate: Option<u32>,
}

/// Where a generator runs, and which of two streams it sends.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// The only one, on the generator's processor, before all other threads.
    Alone,
    /// One of two, numbered 0 and 1, on this processor, where it is an ordinary thread.
    OneOfTwo { stream: u32, processor: usize },
}

/// A running generator on a host. Dropping this stops it.
pub(super) struct Generator {
    progress: Array<MapData, [u64; 3]>,
    runner: Runner,
}

/// What a generator has sent.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    /// Number of frames.
    pub(super) frames: u64,
    /// Frames per second from the first to the last; NaN without a configured rate.
    pub(super) rate: f64,
}

impl Place {
    fn stream(self) -> u32 {
        match self {
            Self::Alone => 0,
            Self::OneOfTwo { stream, .. } => stream,
        }
    }

    /// Moves the calling thread to the place.
    fn take(self) -> std::io::Result<()> {
        match self {
            Self::Alone => program::run_on_generator_processor(),
            Self::OneOfTwo { processor, .. } => sys::pin(&[processor]),
        }
    }
}

impl Generator {
    /// Starts sending from the host's a0.
    pub(super) fn start(host: &Host, stream: Stream) -> Result<Self, String> {
        Self::start_at(host, stream, Place::Alone)
    }

    /// Starts sending from the host's a0, at a place.
    pub(super) fn start_at(host: &Host, stream: Stream, place: Place) -> Result<Self, String> {
        let frame = vec![0; stream.flows.frame_bytes() + if stream.vid.is_some() { 4 } else { 0 }];
        let batch = if stream.rate.is_some() { BATCH_PACED } else { BATCH };
        let (ebpf, progress) = host.run(move || load(&stream, place))??;
        // The host starts the thread, so that it is in the host's namespaces.
        let start = move || Runner::start(ebpf, "generator", frame, batch, move || place.take());
        Ok(Self { progress, runner: host.run(start)?? })
    }

    /// What it has sent so far.
    pub(super) fn sent(&self) -> Result<Sent, String> {
        let failed = |error| format!("cannot read the generator's counts: {error}");
        let [frames, start_ns, last_ns] = self.progress.get(&0, 0).map_err(failed)?;
        let seconds = last_ns.saturating_sub(start_ns) as f64 / 1e9;
        Ok(Sent { frames, rate: frames.saturating_sub(1) as f64 / seconds })
    }

    /// Stops the generator. Returns what it has sent.
    pub(super) fn stop(mut self) -> Result<Sent, String> {
        self.runner.end()?;
        self.sent()
    }
}

/// Loads the program for a stream, on the host.
fn load(stream: &Stream, place: Place) -> Result<(Ebpf, Array<MapData, [u64; 3]>), String> {
    let ifindex = sys::ifindex("a0")?;
    let ns_per_1024 = stream.rate.map_or(0, |rate| 1_024_000_000_000 / u64::from(rate.max(1)));
    let mut ethernet = [0; 12];
    ethernet[..6].copy_from_slice(&R0);
    ethernet[6..].copy_from_slice(&A0);
    let (kind, count, vid) = (stream.flows.kind(), stream.flows.count(), stream.vid.unwrap_or(0));
    let (number, now) = (place.stream(), sys::monotonic_ns());
    // A flow sends less than a byte each microsecond, so a stream begins after what the one before has sent.
    let (seed, first_seq) = (now << 24, (now / 1000) as u32);
    let (mask, bits) = (count - 1, count.trailing_zeros());
    let failed = |error: &dyn std::error::Error| bpf::refused("generator", error);
    let mut loader = EbpfLoader::new();
    loader
        .override_global("NS_PER_1024", &ns_per_1024, true)
        .override_global("ADDRESSES", &kind, true)
        .override_global("FLOW_MASK", &mask, true)
        .override_global("FLOW_BITS", &bits, true)
        .override_global("SEED", &seed, true)
        .override_global("FIRST_SEQ", &first_seq, true)
        .override_global("VID", &vid, true)
        .override_global("STREAM", &number, true)
        .override_global("ETHERNET", &ethernet, true);
    if matches!(stream.flows, Flows::To(_)) {
        loader.map_max_entries("destinations", count);
    }
    let mut ebpf = loader.load(OBJECT).map_err(|error| failed(&error))?;
    if let Flows::To(destinations) = &stream.flows {
        fill(&ebpf, &destinations.addresses)?;
    }
    bpf::leave_by(&mut ebpf, ifindex)?;
    let program: &mut Xdp = bpf::program_of(&mut ebpf, "generator")?;
    program.load().map_err(|error| failed(&error))?;
    let map = ebpf.take_map("progress").ok_or("the generator has no map `progress`")?;
    let map = Array::try_from(map).map_err(|error| format!("the generator's map: {error}"))?;
    Ok((ebpf, map))
}

/// Writes the destinations into the generator's map.
fn fill(ebpf: &Ebpf, addresses: &[[u8; 16]]) -> Result<(), String> {
    let Some(Map::Array(map)) = ebpf.map("destinations") else {
        return Err("the generator has no map `destinations`".to_owned());
    };
    sys::fill_array(map.fd().as_fd(), addresses)
        .map_err(|error| format!("the kernel does not take the destinations: {error}"))
}
