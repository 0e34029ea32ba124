//! Sends with a BPF program that the kernel runs with live frames, and counts with one at a device:
//! no frame goes through user space.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use aya::maps::{Array, MapData, PerCpuArray};
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use aya::{Ebpf, EbpfLoader};
use hdrhistogram::Histogram;

use super::load::is_over;
use super::pace::ns_per_1024;
use super::plan::{HEAD, Plan};
use super::port::{Sent, Task};
use super::track::{Counts, LONGEST_NS, RUNS, Wanted, latencies, sample_mask};
use super::{Error, mark};
use crate::bpf::runner::Runner;
use crate::bpf::{leave_by, program_of, refused};
use crate::sys::{self, ifindex};

/// `bpf/traffic.c`.
static TRAFFIC: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/traffic.o"));
/// `bpf/collect.c`.
static COLLECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/collect.o"));
/// Number of buckets in the histogram of `bpf/collect.c`.
const BUCKETS: u32 = 2304;
/// Interval between checks whether the streams are done.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// `struct head`.
type Head = [u8; HEAD + 8];
/// `struct progress`.
type Progress = [u64; 7];

/// A stream, ready to start.
pub struct Stream {
    ebpf: Ebpf,
    progress: Array<MapData, Progress>,
    frame: Vec<u8>,
    task: Task,
}

/// A running stream. Dropping this stops it.
pub struct Sending {
    progress: Array<MapData, Progress>,
    runner: Runner,
    task: Task,
    start: Instant,
}

/// Checks for root first, so that missing privileges get a clear error.
pub(super) fn need_root() -> Result<(), Error> {
    if sys::is_root() {
        return Ok(());
    }
    Err(Error::failed("only root may load BPF programs", "Run it as root, or say --via af_packet"))
}

impl Stream {
    /// Loads a stream's program for a device in the calling thread's namespace. Frames of a plain
    /// stream have neither number nor time.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses the program.
    pub fn load(
        device: &str,
        plan: &Plan,
        (run, stream): (u8, u8),
        task: Task,
        plain: bool,
    ) -> Result<Self, Error> {
        need_root()?;
        let index =
            ifindex(device).map_err(|what| Error::usage(what, "`ip link` lists the devices"))?;
        let failed = |what: String| Error::failed(what, "Say --via af_packet");
        let kernel = |error: &dyn std::error::Error| failed(refused("traffic", error));
        let (sizes, flows) = (plan.lens.len() as u32, plan.flows() as u32);
        let (longest, mark_at) = (plan.longest() as u32, plan.mark_at as u32);
        let copy = (mark_at + 2).next_multiple_of(8);
        let (origin, count) = (mark::origin(run, stream), task.count.unwrap_or(0));
        let (rate, clock) = (ns_per_1024(task.pps), clock_mask(task.burst));
        let mut order = [0_u8; 256];
        for (slot, size) in order.iter_mut().zip(&plan.order) {
            *slot = *size;
        }
        let (order_len, checksum) = (plan.order.len().min(256) as u32, u8::from(plan.udp_checksum));
        let whole = plain.then(|| plan.without_marks());
        let plan = whole.as_ref().unwrap_or(plan);
        let plain = u8::from(plain);
        let mut loader = EbpfLoader::new();
        loader
            .map_max_entries("heads", plan.rows.len() as u32)
            .override_global("NS_PER_1024", &rate, true)
            .override_global("COUNT", &count, true)
            .override_global("CLOCK_MASK", &clock, true)
            .override_global("ORIGIN", &origin, true)
            .override_global("FLOWS", &flows, true)
            .override_global("SIZES", &sizes, true)
            .override_global("ORDER", &order, true)
            .override_global("ORDER_LEN", &order_len, true)
            .override_global("LONGEST", &longest, true)
            .override_global("COPY", &copy, true)
            .override_global("MARK_AT", &mark_at, true)
            .override_global("PLAIN", &plain, true)
            .override_global("CHECKSUM", &checksum, true);
        let mut ebpf = loader.load(TRAFFIC).map_err(|error| kernel(&error))?;
        fill(&mut ebpf, plan).map_err(failed)?;
        leave_by(&mut ebpf, index).map_err(failed)?;
        let program: &mut Xdp = program_of(&mut ebpf, "traffic").map_err(failed)?;
        program.load().map_err(|error| kernel(&error))?;
        let map = ebpf.take_map("progress");
        let map = map.ok_or_else(|| failed("traffic has no map `progress`".to_owned()))?;
        let progress = Array::try_from(map).map_err(|error| kernel(&error))?;
        let mut frame = vec![0; plan.longest()];
        for (byte, made) in frame.iter_mut().zip(plan.rows.first().unwrap_or(&[0; HEAD])) {
            *byte = *made;
        }
        Ok(Self { ebpf, progress, frame, task })
    }

    /// Starts the stream on a processor.
    ///
    /// # Errors
    /// No thread can start.
    pub fn start(self, cpu: usize) -> Result<Sending, Error> {
        let Self { ebpf, progress, frame, task } = self;
        let start = Instant::now();
        let is_urgent = task.pps.is_some() && sys::processors().len() > 1;
        let prepare = move || {
            sys::pin(&[cpu])?;
            if is_urgent {
                // Only a thread that is not preempted keeps its rate. Real-time scheduling would
                // preempt it for 50 ms of each second.
                let _ = sys::set_highest_nice();
            }
            Ok(())
        };
        let runner = Runner::start(ebpf, "traffic", frame, task.burst as u32, prepare)
            .map_err(|what| Error::failed(what, "Try again with fewer threads"))?;
        Ok(Sending { progress, runner, task, start })
    }
}

/// The mask for reading the clock once per burst; the sink samples the same frames.
pub(super) fn clock_mask(burst: usize) -> u64 {
    burst.next_power_of_two() as u64 - 1
}

fn fill(ebpf: &mut Ebpf, plan: &Plan) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the generator's frames: {error}");
    let map = ebpf.map_mut("heads").ok_or("traffic has no map `heads`")?;
    let mut heads = Array::<_, Head>::try_from(map).map_err(|error| failed(&error))?;
    for (index, row) in plan.rows.iter().enumerate() {
        let len = plan.lens.get(index % plan.lens.len().max(1)).copied().unwrap_or(0) as u32;
        let mut head = [0; HEAD + 8];
        head[..HEAD].copy_from_slice(row);
        head[HEAD..HEAD + 4].copy_from_slice(&len.to_ne_bytes());
        heads.set(index as u32, head, 0).map_err(|error| failed(&error))?;
    }
    Ok(())
}

impl Sending {
    /// What has been sent so far.
    ///
    /// # Errors
    /// The count cannot be read.
    pub fn sent(&self) -> Result<Sent, Error> {
        let failed = |error| Error::failed(format!("the generator's count: {error}"), "Try again");
        let [frames, start_ns, first_ns, last_ns, bytes, ..] =
            self.progress.get(&0, 0).map_err(failed)?;
        let off_cpu_ns = start_ns.saturating_sub(first_ns);
        Ok(Sent { frames, bytes, ns: last_ns.saturating_sub(first_ns), off_cpu_ns })
    }

    /// Whether the stream has finished its task.
    ///
    /// # Errors
    /// As for [`Self::sent`].
    pub fn is_done(&self) -> Result<bool, Error> {
        let timely = self.task.time.is_none_or(|time| self.start.elapsed() < time);
        Ok(self.runner.has_ended()
            || !timely
            || self
                .task
                .count
                .is_some_and(|count| self.sent().is_ok_and(|sent| sent.frames >= count)))
    }

    /// Stops the stream. Returns what it has sent.
    ///
    /// # Errors
    /// The stream has failed.
    pub fn stop(mut self) -> Result<Sent, Error> {
        self.runner.end().map_err(|what| {
            Error::failed(what, "Say --via af_packet, or another processor by -f")
        })?;
        self.sent()
    }
}

/// Sends all streams until they are done or `stop` is set. Returns what each has sent.
///
/// # Errors
/// As for [`Stream::load`] and [`Stream::start`].
pub fn send_all(
    streams: Vec<Stream>,
    first_cpu: usize,
    stop: &AtomicBool,
) -> Result<Vec<Sent>, Error> {
    let processors = sys::processors();
    let cpu = |thread: usize| processors[(first_cpu + thread) % processors.len()];
    let started = streams.into_iter().enumerate().map(|(thread, stream)| stream.start(cpu(thread)));
    let sending = started.collect::<Result<Vec<_>, _>>()?;
    let mut is_done = false;
    while !is_done && !is_over(stop) {
        std::thread::sleep(POLL_INTERVAL);
        is_done = true;
        for stream in &sending {
            is_done &= stream.is_done()?;
        }
    }
    sending.into_iter().map(Sending::stop).collect()
}

/// A sink at a device. Dropping this detaches it.
pub struct Sink {
    _ebpf: Ebpf,
    wanted: Array<MapData, u64>,
    counts: PerCpuArray<MapData, [u64; 7]>,
    latency: PerCpuArray<MapData, u64>,
}

impl Sink {
    /// Attaches a sink to a device in the calling thread's namespace, in its driver if possible.
    /// Measures the latency of one frame in `sample`, a power of two.
    ///
    /// # Errors
    /// There is no such device, it already has an XDP program, or the kernel refuses.
    pub fn attach(device: &str, wanted: Wanted, sample: u64) -> Result<Self, Error> {
        need_root()?;
        ifindex(device).map_err(|what| Error::usage(what, "`ip link` lists the devices"))?;
        let failed = |error: &dyn std::error::Error| {
            Error::failed(refused("collect", error), "Say --sink-via af_packet")
        };
        let lacks =
            |map: &str| Error::failed(format!("collect has no {map}"), "Report this as a defect");
        // Only a sink for all marked frames has to track several runs at once.
        let runs = if wanted == Wanted::Marked { RUNS as u32 } else { 1 };
        let mask = sample_mask(sample);
        let mut loader = EbpfLoader::new();
        loader
            .map_max_entries("streams", runs * mark::STREAMS as u32)
            .override_global("RUNS", &runs, true)
            .override_global("LATENCY_MASK", &mask, true);
        let mut ebpf = loader.load(COLLECT).map_err(|error| failed(&error))?;
        let map = ebpf.take_map("wanted").ok_or_else(|| lacks("wanted"))?;
        let mut which = Array::try_from(map).map_err(|error| failed(&error))?;
        which.set(0, number(wanted), 0).map_err(|error| failed(&error))?;
        let program: &mut Xdp = program_of(&mut ebpf, "collect").map_err(|what| lacks(&what))?;
        program.load().map_err(|error| failed(&error))?;
        let driver = program.attach(device, XdpMode::Driver);
        if driver.is_err() {
            program.attach(device, XdpMode::Skb).map_err(|error| {
                let what = format!("{device} takes no sink: {}", refused("collect", &error));
                Error::failed(what, "Detach its XDP program, or say --sink-via af_packet")
            })?;
        }
        let counts = ebpf.take_map("counts").ok_or_else(|| lacks("counts"))?;
        let latency = ebpf.take_map("latency").ok_or_else(|| lacks("latency"))?;
        let counts = PerCpuArray::try_from(counts).map_err(|error| failed(&error))?;
        let latency = PerCpuArray::try_from(latency).map_err(|error| failed(&error))?;
        Ok(Self { _ebpf: ebpf, wanted: which, counts, latency })
    }

    /// From now on counts the frames of that run, and drops all others.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn want(&mut self, run: u8) -> Result<(), Error> {
        let failed = |error| Error::failed(format!("the sink's run: {error}"), "Try again");
        self.wanted.set(0, number(Wanted::Run(run)), 0).map_err(failed)
    }

    /// The counts so far.
    ///
    /// # Errors
    /// The counts cannot be read.
    pub fn counts(&self) -> Result<Counts, Error> {
        let values = self.counts.get(&0, 0).map_err(unread)?;
        let mut sum = Counts::default();
        for [frames, bytes, duplicates, reordered, late, expected, unfollowed] in
            values.iter().copied()
        {
            sum.add(&Counts { frames, bytes, duplicates, reordered, late, expected, unfollowed });
        }
        Ok(sum)
    }

    /// Latency of the frames, ns.
    ///
    /// # Errors
    /// As for [`Self::counts`].
    pub fn latency(&self) -> Result<Histogram<u64>, Error> {
        let mut histogram = latencies();
        for bucket in 0..BUCKETS {
            let count: u64 = self.latency.get(&bucket, 0).map_err(unread)?.iter().sum();
            if count > 0 {
                histogram.saturating_record_n(middle(bucket).clamp(1, LONGEST_NS), count);
            }
        }
        Ok(histogram)
    }
}

/// The number that `bpf/collect.c` uses.
fn number(wanted: Wanted) -> u64 {
    match wanted {
        Wanted::Marked => 0,
        Wanted::Run(run) => u64::from(run) + 1,
        Wanted::All => 257,
    }
}

fn unread(error: aya::maps::MapError) -> Error {
    Error::failed(format!("cannot read the sink's counts: {error}"), "Try again")
}

/// The middle of a bucket, ns.
fn middle(bucket: u32) -> u64 {
    let (row, column) = (bucket / 64, u64::from(bucket % 64));
    if row == 0 {
        return column;
    }
    let low = (64 + column) << (row - 1);
    low + (1_u64 << (row - 1)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `note_latency`.
    fn bucket(ns: u64) -> u32 {
        if ns < 64 {
            return ns as u32;
        }
        let log = ns.ilog2();
        (log - 5) * 64 + ((ns >> (log - 6)) & 63) as u32
    }

    #[test]
    fn a_bucket_is_no_wider_than_its_values_allow() {
        for ns in (0..100).chain([1000, 4095, 4096, 123_456, 1_000_000_007, 60_000_000_000]) {
            let off = middle(bucket(ns)).abs_diff(ns) as f64;
            assert!(off <= ns as f64 * 0.008 + 0.5, "{ns}: {}", middle(bucket(ns)));
        }
        assert!(bucket(60_000_000_000) < BUCKETS);
    }
}
