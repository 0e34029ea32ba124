//! The generator: frames that a BPF program writes and redirects, paced by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use aya::maps::{Array, MapData};
use aya::programs::Xdp;
use aya::{Ebpf, EbpfLoader};

use super::host::Host;
use super::topology::{A0, R0};
use super::{program, sys};

/// `bpf/generator.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/generator.o"));

/// Frames that the kernel makes before it lets go of the processor.
const BATCH: u32 = 64;
/// Bytes of a frame, without tag and FCS.
pub(super) const FRAME_BYTES: usize = 60;

/// What to send.
#[derive(Clone, Copy)]
pub(super) struct Stream {
    /// Flows, in turn; a power of two.
    pub(super) flows: u32,
    /// The tag that frames carry.
    pub(super) vid: Option<u16>,
    /// Frames a second; none for as fast as it can.
    pub(super) rate: Option<u32>,
}

/// A generator at work on a host. Dropped, it stops.
pub(super) struct Generator {
    progress: Array<MapData, [u64; 3]>,
    thread: i32,
    ended: Arc<AtomicBool>,
    work: Option<std::thread::JoinHandle<Result<(), String>>>,
}

/// What a generator has sent.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    /// Frames.
    pub(super) frames: u64,
    /// Frames a second from the first to the last; not a number where it went as fast as it could.
    pub(super) rate: f64,
}

impl Generator {
    /// Starts sending from the host's a0.
    pub(super) fn start(host: &Host, stream: Stream) -> Result<Self, String> {
        let (mut ebpf, progress) = host.run(move || load(stream))??;
        let ended = Arc::new(AtomicBool::new(false));
        let (ready, started) = channel();
        let end = Arc::clone(&ended);
        let length = FRAME_BYTES + if stream.vid.is_some() { 4 } else { 0 };
        let work = move || {
            let _ = ready.send(sys::thread_id());
            let done = send(&mut ebpf, length);
            end.store(true, Ordering::Release);
            done
        };
        // By the host, so that the thread lives there.
        let work = host.run(move || std::thread::Builder::new().spawn(work))?;
        let work = work.map_err(|error| format!("no thread can be started: {error}"))?;
        let gone = |_| "the generator's thread has ended".to_owned();
        let thread = started.recv().map_err(gone)?;
        Ok(Self { progress, thread, ended, work: Some(work) })
    }

    /// What it has sent so far.
    pub(super) fn sent(&self) -> Result<Sent, String> {
        let failed = |error| format!("the generator's count can not be read: {error}");
        let [frames, start_ns, last_ns] = self.progress.get(&0, 0).map_err(failed)?;
        let seconds = last_ns.saturating_sub(start_ns) as f64 / 1e9;
        Ok(Sent { frames, rate: frames.saturating_sub(1) as f64 / seconds })
    }

    /// Stops it; what it has sent.
    pub(super) fn stop(mut self) -> Result<Sent, String> {
        self.end()?;
        self.sent()
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(work) = self.work.take() else { return Ok(()) };
        while !self.ended.load(Ordering::Acquire) {
            // Again and again: the first may come before the call that it is to end.
            sys::wake(self.thread);
            std::thread::sleep(Duration::from_millis(1));
        }
        work.join().unwrap_or_else(|_| Err("the generator's thread has failed".to_owned()))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Loads the program for a stream, on the host.
fn load(stream: Stream) -> Result<(Ebpf, Array<MapData, [u64; 3]>), String> {
    let ifindex = super::ifindex("a0")?;
    let ns_per_1024 = stream.rate.map_or(0, |rate| 1_024_000_000_000 / u64::from(rate.max(1)));
    let (mask, vid) = (stream.flows.next_power_of_two() - 1, stream.vid.unwrap_or(0));
    let failed = |error: &dyn std::error::Error| super::refused("generator", error);
    let mut loader = EbpfLoader::new();
    loader
        .override_global("OUT_IFINDEX", &ifindex, true)
        .override_global("NS_PER_1024", &ns_per_1024, true)
        .override_global("FLOW_MASK", &mask, true)
        .override_global("VID", &vid, true)
        .override_global("SOURCE", &A0, true)
        .override_global("DESTINATION", &R0, true);
    let mut ebpf = loader.load(OBJECT).map_err(|error| failed(&error))?;
    let program: &mut Xdp = super::program_of(&mut ebpf, "generator")?;
    program.load().map_err(|error| failed(&error))?;
    let map = ebpf.take_map("progress").ok_or("the generator has no map `progress`")?;
    let map = Array::try_from(map).map_err(|error| format!("the generator's map: {error}"))?;
    Ok((ebpf, map))
}

/// Sends until it is woken, or for as long as one call can.
fn send(ebpf: &mut Ebpf, length: usize) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the generator can not run: {error}");
    program::lead().map_err(|error| failed(&error))?;
    let program: &mut Xdp = super::program_of(ebpf, "generator")?;
    let fd = program.fd().map_err(|error| failed(&error))?;
    let frame = vec![0; length];
    sys::run_live_frames(std::os::fd::AsFd::as_fd(fd), &frame, u32::MAX, BATCH)
        .map_err(|error| failed(&error))
}
