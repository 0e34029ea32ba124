//! The sink: counts the generator's frames at their destination, and checks how they were
//! forwarded.

use std::time::{Duration, Instant};

use aya::maps::{Array, MapData, PerCpuArray};
use aya::programs::tc::TcAttachType;
use aya::programs::xdp::XdpMode;
use aya::programs::{SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};

use super::host::Host;
use super::topology::B0;
use crate::bpf;

/// `bpf/sink.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sink.o"));

/// Number of sequence numbers that a tracking sink has room for.
pub(super) const ROOM: u64 = 1 << 23;

/// What to expect, and how closely to check.
#[derive(Clone, Copy)]
pub(super) struct Expect {
    /// The VLAN tag that frames must have.
    pub(super) vid: Option<u16>,
    /// Whether to track sequence numbers and times; too expensive at full rate.
    pub(super) follow: bool,
    /// Where the sink is attached.
    pub(super) hook: SinkHook,
    /// How many hosts a bridge forwards to, if the frames come by one.
    pub(super) bridged: Option<u32>,
}

/// The hook of its device that a sink uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SinkHook {
    /// XDP in the driver: cheapest for frames that a router sends by XDP. The driver first copies a
    /// kernel packet, unless it has the headroom that XDP requires.
    Xdp,
    /// The tc ingress hook, for the kernel's packets: as at a receiver without XDP.
    Tc,
}

/// A sink on a host's b0. Dropping this detaches it.
pub(super) struct Sink {
    _ebpf: Ebpf,
    counts: PerCpuArray<MapData, [u64; 11]>,
    latest: Array<MapData, [u64; 2]>,
}

/// The results of a sink.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SinkStats {
    /// Frames of the generator.
    pub(super) frames: u64,
    /// Those of the second stream among them.
    pub(super) second: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Wrongly forwarded frames among them: not addressed to B, not tagged as expected, TTL not
    /// decremented by one, wrong checksum.
    pub(super) wrong: [u64; 4],
    /// Frames that arrived more than once.
    pub(super) duplicates: u64,
    /// Frames that arrived after later ones.
    pub(super) reordered: u64,
    /// The longest time without a frame, ns.
    pub(super) gap_ns: u64,
    /// The highest latency of a frame, ns.
    pub(super) delay_ns: u64,
}

impl SinkStats {
    /// Fails with a message if any frame was forwarded wrongly.
    pub(super) fn check(&self) -> Result<(), String> {
        let [mac, tag, ttl, checksum] = self.wrong;
        if self.wrong.iter().sum::<u64>() + self.duplicates == 0 {
            return Ok(());
        }
        Err(format!(
            "of {} frames that arrived, {mac} had a wrong address, {tag} a wrong VLAN tag, {ttl} a wrong \
             TTL, {checksum} a wrong checksum, and {} arrived twice",
            self.frames, self.duplicates
        ))
    }
}

impl Sink {
    /// Attaches a sink to the host's b0.
    pub(super) fn start(host: &Host, expect: Expect) -> Result<Self, String> {
        host.run(move || attach(expect))?
    }

    /// Million frames per second that arrive, over `time`.
    pub(super) fn mpps(&self, time: Duration) -> Result<f64, String> {
        let (start, before) = (Instant::now(), self.seen()?);
        std::thread::sleep(time);
        let (taken, after) = (start.elapsed(), self.seen()?);
        after.check()?;
        Ok((after.frames - before.frames) as f64 / taken.as_secs_f64() / 1e6)
    }

    /// The time of the last frame by the monotonic clock, 0 if there is none; of a sink that follows.
    pub(super) fn latest_ns(&self) -> Result<u64, String> {
        let [ns, _] = self
            .latest
            .get(&0, 0)
            .map_err(|error| format!("cannot read the time of the sink's last frame: {error}"))?;
        Ok(ns)
    }

    /// The results so far.
    pub(super) fn seen(&self) -> Result<SinkStats, String> {
        let failed = |error| format!("cannot read the sink's counts: {error}");
        let mut seen = SinkStats::default();
        for values in self.counts.get(&0, 0).map_err(failed)?.iter() {
            let [frames, bytes, mac, tag, ttl, checksum, duplicates, reordered, gap, delay, second] =
                *values;
            seen.frames += frames;
            seen.second += second;
            seen.bytes += bytes;
            for (sum, value) in seen.wrong.iter_mut().zip([mac, tag, ttl, checksum]) {
                *sum += value;
            }
            seen.duplicates += duplicates;
            seen.reordered += reordered;
            seen.gap_ns = seen.gap_ns.max(gap);
            seen.delay_ns = seen.delay_ns.max(delay);
        }
        Ok(seen)
    }
}

fn attach(expect: Expect) -> Result<Sink, String> {
    let (vid, follow) = (expect.vid.unwrap_or(0), u8::from(expect.follow));
    let (bridged, mask) =
        (u8::from(expect.bridged.is_some()), expect.bridged.map_or(0, |hosts| hosts - 1));
    let room = if expect.follow { ROOM } else { 0 };
    let words = u32::try_from(ROOM.div_ceil(64)).unwrap_or(1);
    let failed = |error: &dyn std::error::Error| bpf::refused("sink", error);
    let mut loader = EbpfLoader::new();
    loader
        .map_max_entries("seen", if expect.follow { words } else { 1 })
        .override_global("DESTINATION", &B0, true)
        .override_global("VID", &vid, true)
        .override_global("BRIDGED", &bridged, true)
        .override_global("FLOW_MASK", &mask, true)
        .override_global("FOLLOW", &follow, true)
        .override_global("ROOM", &room, true);
    let mut ebpf = loader.load(OBJECT).map_err(|error| failed(&error))?;
    match expect.hook {
        SinkHook::Xdp => {
            let program: &mut Xdp = bpf::program_of(&mut ebpf, "sink")?;
            program.load().map_err(|error| failed(&error))?;
            program.attach("b0", XdpMode::Driver).map_err(|error| failed(&error))?;
        }
        SinkHook::Tc => {
            let program: &mut SchedClassifier = bpf::program_of(&mut ebpf, "sink_tc")?;
            program.load().map_err(|error| failed(&error))?;
            program.attach("b0", TcAttachType::Ingress).map_err(|error| failed(&error))?;
        }
    }
    let mut take =
        |name: &str| ebpf.take_map(name).ok_or_else(|| format!("the sink has no map `{name}`"));
    let counts = PerCpuArray::try_from(take("counts")?)
        .map_err(|error| format!("cannot open the sink's map `counts`: {error}"))?;
    let latest = Array::try_from(take("latest")?)
        .map_err(|error| format!("cannot open the sink's map `latest`: {error}"))?;
    Ok(Sink { _ebpf: ebpf, counts, latest })
}
