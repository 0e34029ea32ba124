//! The sink: counts the generator's frames where they come out, and looks at what was done to them.

use aya::maps::{MapData, PerCpuArray};
use aya::programs::tc::TcAttachType;
use aya::programs::xdp::XdpMode;
use aya::programs::{SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};

use super::host::Host;
use super::topology::B0;

/// `bpf/sink.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sink.o"));

/// Sequence numbers that a sink which follows them has room for.
pub(super) const ROOM: u64 = 1 << 23;

/// What to expect, and how closely to look.
#[derive(Clone, Copy)]
pub(super) struct Expect {
    /// The tag that frames must carry.
    pub(super) vid: Option<u16>,
    /// Whether to follow sequence numbers and times; costs too much at full rate.
    pub(super) follow: bool,
    /// Where the sink stands.
    pub(super) place: Place,
}

/// Where on its device a sink stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the driver: cheapest for frames that a router sends by XDP. What comes as a packet of the
    /// kernel's is copied first, unless it has as much room in front as XDP wants.
    Xdp,
    /// Where the host takes packets in, for those of the kernel's: as at a receiver without XDP.
    Tc,
}

/// A sink on a host's b0. Dropped, it is gone.
pub(super) struct Sink {
    _ebpf: Ebpf,
    counts: PerCpuArray<MapData, [u64; 10]>,
}

/// What a sink has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Frames of the generator.
    pub(super) frames: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Of these, forwarded wrongly: not addressed to B, not tagged as expected, TTL not one less, a
    /// checksum that does not fit.
    pub(super) wrong: [u64; 4],
    /// Frames that came again.
    pub(super) duplicates: u64,
    /// Frames that came after later ones.
    pub(super) reordered: u64,
    /// The longest time without a frame.
    pub(super) gap_ns: u64,
    /// The longest that a frame took.
    pub(super) delay_ns: u64,
}

impl Seen {
    /// A sentence, where any frame was forwarded wrongly.
    pub(super) fn check(&self) -> Result<(), String> {
        let [mac, tag, ttl, checksum] = self.wrong;
        if self.wrong.iter().sum::<u64>() + self.duplicates == 0 {
            return Ok(());
        }
        Err(format!(
            "of {} frames that arrived {mac} had a wrong address, {tag} a wrong VLAN tag, {ttl} a wrong \
             TTL, {checksum} a wrong checksum, and {} came twice",
            self.frames, self.duplicates
        ))
    }
}

impl Sink {
    /// Puts one on the host's b0.
    pub(super) fn start(host: &Host, expect: Expect) -> Result<Self, String> {
        host.run(move || attach(expect))?
    }

    /// What it has seen so far.
    pub(super) fn seen(&self) -> Result<Seen, String> {
        let failed = |error| format!("the sink's count can not be read: {error}");
        let mut seen = Seen::default();
        for values in self.counts.get(&0, 0).map_err(failed)?.iter() {
            let [frames, bytes, mac, tag, ttl, checksum, duplicates, reordered, gap, delay] =
                *values;
            seen.frames += frames;
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
    let room = if expect.follow { ROOM } else { 0 };
    let words = u32::try_from(ROOM.div_ceil(64)).unwrap_or(1);
    let failed = |error: &dyn std::error::Error| super::refused("sink", error);
    let mut loader = EbpfLoader::new();
    loader
        .map_max_entries("seen", if expect.follow { words } else { 1 })
        .override_global("DESTINATION", &B0, true)
        .override_global("VID", &vid, true)
        .override_global("FOLLOW", &follow, true)
        .override_global("ROOM", &room, true);
    let mut ebpf = loader.load(OBJECT).map_err(|error| failed(&error))?;
    match expect.place {
        Place::Xdp => {
            let program: &mut Xdp = super::program_of(&mut ebpf, "sink")?;
            program.load().map_err(|error| failed(&error))?;
            program.attach("b0", XdpMode::Driver).map_err(|error| failed(&error))?;
        }
        Place::Tc => {
            let program: &mut SchedClassifier = super::program_of(&mut ebpf, "sink_tc")?;
            program.load().map_err(|error| failed(&error))?;
            program.attach("b0", TcAttachType::Ingress).map_err(|error| failed(&error))?;
        }
    }
    let counts = ebpf.take_map("counts").ok_or("the sink has no map `counts`")?;
    let counts =
        PerCpuArray::try_from(counts).map_err(|error| format!("the sink's map: {error}"))?;
    Ok(Sink { _ebpf: ebpf, counts })
}
