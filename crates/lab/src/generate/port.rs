//! Sending and receiving through a port: AF_XDP, a packet socket, memory.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::{Descriptor, FrameAddr, Umem};
use tollway_dataplane::port::{MemoryPort, Port};

use super::Error;
use super::fill::Filler;
use super::load::{MAX_BURST, is_over};
use super::pace::SendRate;
use super::track::Tracker;
use crate::sys::monotonic_ns;

/// Time for frames in flight after the last frame.
pub const DRAIN: Duration = Duration::from_millis(100);
/// A sender gives a port up if the port accepts no frame for this long.
const REFUSED_NS: u64 = 1_000_000_000;
/// The most that one attempt adds to that time: while a sender has no processor, the port does not
/// refuse its frames.
const TURN_NS: u64 = 10_000_000;

/// The source of a stream's frames.
#[derive(Clone, Debug)]
pub enum Writer {
    /// The generator's own frames.
    Generated(Box<Filler>),
    /// A capture's frames, repeated.
    Replay {
        /// The capture's frames.
        frames: Vec<Vec<u8>>,
        /// Index of the next frame.
        at: usize,
    },
}

impl Writer {
    fn fill(&mut self, umem: &mut Umem, frames: &mut [Descriptor], now_ns: u64) -> usize {
        match self {
            Self::Generated(filler) => filler.fill(umem, frames, now_ns),
            Self::Replay { frames: captured, at } => {
                let mut written = 0;
                for frame in frames {
                    let Some(bytes) = captured.get(*at) else { break };
                    let Some(stored) = umem.store(bytes) else { break };
                    *frame = stored;
                    *at = if *at + 1 == captured.len() { 0 } else { *at + 1 };
                    written += 1;
                }
                written
            }
        }
    }
}

/// When one thread stops, and how fast it sends.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Frames per second; `None` for as fast as possible.
    pub pps: Option<f64>,
    /// Number of frames; `None` for no limit.
    pub count: Option<u64>,
    /// Time; `None` for no limit.
    pub time: Option<Duration>,
    /// Frames per transmit call.
    pub burst: usize,
}

/// What a thread has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of frames.
    pub frames: u64,
    /// Their bytes, without check sequence.
    pub bytes: u64,
    /// Duration in ns.
    pub ns: u64,
    /// The part of it in which the sender lost its processor for too long to catch up.
    pub off_cpu_ns: u64,
}

impl Sent {
    /// Subtracts the last frames, which were never sent; their bytes by the average of all.
    fn take_back(&mut self, frames: u64) {
        let frames = frames.min(self.frames);
        let bytes = u128::from(self.bytes) * u128::from(frames) / u128::from(self.frames.max(1));
        self.frames -= frames;
        self.bytes -= bytes as u64;
    }

    /// Million frames per second.
    #[must_use]
    pub fn mpps(&self) -> f64 {
        if self.ns == 0 { 0.0 } else { self.frames as f64 * 1e3 / self.ns as f64 }
    }

    /// Frames per second while it was sending.
    #[must_use]
    pub fn offered_pps(&self) -> f64 {
        match self.ns.saturating_sub(self.off_cpu_ns) {
            0 => 0.0,
            ns => self.frames as f64 * 1e9 / ns as f64,
        }
    }

    /// The share of the time in which it was not sending.
    #[must_use]
    pub fn off_cpu(&self) -> f64 {
        self.off_cpu_ns as f64 / self.ns.max(1) as f64
    }
}

/// Sends through a port until a limit of the task or `stop` ends it.
///
/// # Errors
/// The port accepts no frame for a second.
pub fn send<P: Port + ?Sized>(
    port: &mut P,
    umem: &mut Umem,
    writer: &mut Writer,
    task: Task,
    stop: &AtomicBool,
) -> Result<Sent, Error> {
    let mut burst = Burst::new();
    // The first receive makes a port ready. Chunks that the port then keeps are not expected back.
    discard(port, umem, &mut burst);
    let (own, start) = (umem.available(), monotonic_ns());
    let end = task.time.map_or(u64::MAX, |time| start.saturating_add(time.as_nanos() as u64));
    let mut pace = SendRate::new(task.pps, start);
    let mut frames = [Descriptor::default(); MAX_BURST];
    // Frames that the port has not accepted, from `first` on.
    let (mut first, mut last) = (0, 0);
    let mut sent = Sent::default();
    let mut refused_ns = 0;
    // The time ends at the last frame: a sender that is preempted after it is not slower.
    let (mut now, mut last_ns) = (start, start);
    while now < end && !is_over(stop) {
        if first == last {
            let left = task.count.map_or(u64::MAX, |count| count - sent.frames);
            if left == 0 {
                break;
            }
            let most = task.burst.min(MAX_BURST).min(usize::try_from(left).unwrap_or(MAX_BURST));
            let due = pace.due(now, most);
            (first, last) = (0, writer.fill(umem, &mut frames[..due], now));
            if due == 0 {
                refused_ns = 0;
            }
        }
        let accepted = port.transmit(umem, &frames[first..last]);
        if accepted > 0 {
            sent.frames += accepted as u64;
            sent.bytes +=
                frames[first..first + accepted].iter().map(|f| u64::from(f.len)).sum::<u64>();
            pace.note(accepted);
            first += accepted;
        } else {
            // With nothing to send, let the port reclaim what it has sent.
            discard(port, umem, &mut burst);
        }
        let before = std::mem::replace(&mut now, monotonic_ns());
        if accepted > 0 {
            (last_ns, refused_ns) = (now, 0);
        } else {
            refused_ns += (now - before).min(TURN_NS);
        }
        if refused_ns > REFUSED_NS {
            umem.free_all(frames[first..last].iter().map(|frame| frame.addr));
            return Err(refused(sent.frames));
        }
    }
    umem.free_all(frames[first..last].iter().map(|frame| frame.addr));
    (sent.ns, sent.off_cpu_ns) = (last_ns - start, pace.off_cpu_ns());
    sent.take_back(drain(port, umem, own));
    Ok(sent)
}

fn refused(sent: u64) -> Error {
    Error::failed(
        format!("the device takes no frames: none for a second, after {sent}"),
        "Check that it is up and that its peer exists (`ip -details link`)",
    )
}

/// Makes a port finish sending, within [`DRAIN`]. Returns the number of frames it still has. `own`
/// is the number of free chunks when it has none.
fn drain<P: Port + ?Sized>(port: &mut P, umem: &mut Umem, own: usize) -> u64 {
    let (mut now, mut waited_ns, mut burst) = (monotonic_ns(), 0, Burst::new());
    while umem.available() < own && waited_ns < DRAIN.as_nanos() as u64 {
        discard(port, umem, &mut burst);
        let before = std::mem::replace(&mut now, monotonic_ns());
        waited_ns += (now - before).min(TURN_NS);
    }
    own.saturating_sub(umem.available()) as u64
}

/// Makes a port reclaim what it has sent, and drops what it has received.
fn discard<P: Port + ?Sized>(port: &mut P, umem: &mut Umem, burst: &mut Burst) {
    burst.reset(burst.port);
    port.receive(umem, burst);
    umem.free_all(burst.addr[..burst.count].iter().copied());
}

/// Takes what a port has received. Returns the number of frames.
pub fn take<P: Port + ?Sized>(
    port: &mut P,
    umem: &mut Umem,
    burst: &mut Burst,
    tracker: &mut Tracker,
) -> usize {
    burst.reset(burst.port);
    port.receive(umem, burst);
    let now = monotonic_ns();
    for lane in 0..burst.count {
        let len = usize::from(burst.len[lane]);
        tracker.look(umem.frame(burst.addr[lane], len), now);
    }
    umem.free_all(burst.addr[..burst.count].iter().copied());
    burst.count
}

/// A memory port whose other end drops all frames, and may track them first.
#[derive(Debug)]
pub struct Memory {
    port: MemoryPort,
    tracker: Option<Tracker>,
}

impl Memory {
    /// Makes a port; the tracker, if any, evaluates its frames.
    #[must_use]
    pub fn new(tracker: Option<Tracker>) -> Self {
        Self { port: MemoryPort::new(MAX_BURST), tracker }
    }

    /// The tracker with its results.
    #[must_use]
    pub const fn tracker(&self) -> Option<&Tracker> {
        self.tracker.as_ref()
    }
}

impl Port for Memory {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        self.port.receive(umem, burst);
    }

    #[inline]
    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        let accepted = self.port.transmit(umem, frames);
        if let Some(tracker) = &mut self.tracker {
            let now = monotonic_ns();
            for frame in self.port.sent() {
                tracker.look(umem.frame(frame.addr, frame.len as usize), now);
            }
        }
        umem.free_all(self.port.sent().iter().map(|frame| -> FrameAddr { frame.addr }));
        self.port.clear();
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Plan, Spec, tests::spec};
    use super::*;

    fn writer(spec: &Spec) -> Writer {
        Writer::Generated(Box::new(Filler::new(Plan::new(spec).unwrap(), 9, 0)))
    }

    fn task() -> Task {
        Task { pps: None, count: None, time: None, burst: 32 }
    }

    /// A port that accepts fewer frames than offered, and loses and duplicates some.
    struct Bad(Memory, u64);

    impl Port for Bad {
        fn receive(&mut self, _: &mut Umem, _: &mut Burst) {}

        fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
            let mut accepted = 0;
            for frame in frames.iter().take(5) {
                self.1 += 1;
                match self.1 % 10 {
                    3 => umem.free(frame.addr),
                    7 => {
                        let bytes = umem.frame(frame.addr, frame.len as usize).to_vec();
                        let again = umem.store(&bytes);
                        self.0.transmit(umem, &[*frame, again.unwrap()]);
                    }
                    _ => {
                        self.0.transmit(umem, &[*frame]);
                    }
                }
                accepted += 1;
            }
            accepted
        }
    }

    #[test]
    fn every_frame_arrives_in_memory() {
        let mut umem = Umem::new(256, 2048).unwrap();
        let mut port = Memory::new(Some(Tracker::default()));
        let stop = AtomicBool::new(false);
        let task = Task { count: Some(100_001), ..task() };
        let sent = send(&mut port, &mut umem, &mut writer(&spec()), task, &stop).unwrap();
        let counts = port.tracker().unwrap().counts();
        assert_eq!((sent.frames, sent.bytes), (100_001, 6_000_060));
        assert_eq!((counts.frames, counts.bytes, counts.expected), (100_001, 6_000_060, 100_001));
        assert_eq!((counts.lost(None), counts.duplicates, counts.reordered), (0, 0, 0));
        assert_eq!(umem.available(), 256);
    }

    #[test]
    fn lost_and_duplicate_frames_are_seen() {
        let mut umem = Umem::new(256, 2048).unwrap();
        let mut port = Bad(Memory::new(Some(Tracker::default())), 0);
        let stop = AtomicBool::new(false);
        let task = Task { count: Some(1000), ..task() };
        send(&mut port, &mut umem, &mut writer(&spec()), task, &stop).unwrap();
        let counts = port.0.tracker().unwrap().counts();
        assert_eq!((counts.lost(Some(1000)), counts.duplicates, counts.frames), (100, 100, 1000));
        assert_eq!(umem.available(), 256);
    }

    #[test]
    fn rate_and_time_are_kept() {
        let mut umem = Umem::new(256, 2048).unwrap();
        let stop = AtomicBool::new(false);
        let time = Some(Duration::from_millis(300));
        let task = Task { pps: Some(50_000.0), time, ..task() };
        let mut send =
            || send(&mut Memory::new(None), &mut umem, &mut writer(&spec()), task, &stop);
        // A machine that withdraws the processor for long reduces the number, and never increases
        // it.
        let is_sent = (0..10).any(|_| {
            let sent = send().unwrap();
            assert!(sent.frames <= 15_001, "{}", sent.frames);
            assert!(sent.offered_pps() < 55_000.0, "{sent:?}");
            sent.frames >= 1000
        });
        assert!(is_sent);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let sent = send().unwrap();
        assert_eq!(sent.frames, 0);
    }

    #[test]
    fn a_capture_is_sent_again_and_again() {
        let mut umem = Umem::new(64, 2048).unwrap();
        let frames = vec![vec![1; 60], vec![2; 1514], vec![3; 100]];
        let mut writer = Writer::Replay { frames, at: 0 };
        let task = Task { count: Some(7), ..task() };
        let sent = send(
            &mut Memory::new(Some(Tracker::default())),
            &mut umem,
            &mut writer,
            task,
            &AtomicBool::new(false),
        );
        let sent = sent.unwrap();
        assert_eq!((sent.frames, sent.bytes), (7, 2 * (60 + 1514 + 100) + 60));
    }
    /// A port that accepts `room` frames, sends one at each receive, and keeps the last ones for
    /// ever.
    struct Ring {
        accepted: Vec<Descriptor>,
        room: usize,
        keeps: usize,
    }

    impl Port for Ring {
        fn receive(&mut self, umem: &mut Umem, _: &mut Burst) {
            if self.accepted.len() > self.keeps {
                umem.free(self.accepted.remove(0).addr);
            }
        }

        fn transmit(&mut self, _: &mut Umem, frames: &[Descriptor]) -> usize {
            let accepted = frames.len().min(self.room - self.accepted.len());
            self.accepted.extend_from_slice(&frames[..accepted]);
            accepted
        }
    }

    #[test]
    fn a_port_that_takes_nothing_is_an_error() {
        let mut umem = Umem::new(64, 2048).unwrap();
        let mut port = Ring { accepted: Vec::new(), room: 8, keeps: 8 };
        let stop = AtomicBool::new(false);
        let error = send(&mut port, &mut umem, &mut writer(&spec()), task(), &stop).unwrap_err();
        assert!(!error.usage && error.what.contains("after 8"), "{error}");
        assert_eq!(umem.available(), 56);
        // The same for a port that never returns its frames.
        let mut umem = Umem::new(8, 2048).unwrap();
        let mut port = Ring { accepted: Vec::new(), room: 64, keeps: 64 };
        assert!(send(&mut port, &mut umem, &mut writer(&spec()), task(), &stop).is_err());
    }

    #[test]
    fn a_rate_of_less_than_one_frame_a_second_is_no_refusal() {
        let mut umem = Umem::new(64, 2048).unwrap();
        let time = Some(Duration::from_millis(1500));
        let task = Task { pps: Some(0.1), time, ..task() };
        let stop = AtomicBool::new(false);
        let sent = send(&mut Memory::new(None), &mut umem, &mut writer(&spec()), task, &stop);
        assert_eq!(sent.unwrap().frames, 1);
    }

    #[test]
    fn unsent_frames_are_waited_for_and_then_not_counted() {
        let stop = AtomicBool::new(false);
        let task = Task { count: Some(40), ..task() };
        for (keeps, expected) in [(0, 40), (5, 35)] {
            let mut umem = Umem::new(64, 2048).unwrap();
            let mut port = Ring { accepted: Vec::new(), room: 64, keeps };
            let sent = send(&mut port, &mut umem, &mut writer(&spec()), task, &stop).unwrap();
            assert_eq!((sent.frames, sent.bytes), (expected, expected * 60));
            assert_eq!(umem.available(), 64 - keeps);
        }
    }
}
