//! The XDP path's frames that devices refused (`bpf/refused.c`; `bpf/refused_event.c` if the kernel
//! has no BTF, or refuses the first).
//!
//! The kernel collects redirected frames and hands them to a device in bulks of at most 16. A
//! device that accepts only some is busy; the rest is dropped and counted. A device refuses if it
//! returns an error, or accepts nothing of four bulks in a row and for 20 ms. Then the program
//! empties the XDP path, and no flow that leaves by that port enters it. This lasts until
//! [`Refusals::forgive`] and then [`Refusals::probe`], which sends a frame of the router's own to the
//! device, so that no packet is lost by trying.
//!
//! Frames that were received by zero copy have no headroom when they are redirected
//! (`xdp_convert_zc_to_xdp_frame`). A driver that writes a header there, as virtio-net does, drops
//! them all (`__virtnet_xdp_xmit_one`). So where there are such frames, each device is probed with
//! one before it gets a packet.
//!
//! Where probes are impossible (Linux before 5.18), the first bulk decides.
//!
//! Limits: with generic XDP, the kernel does not report what a device refused. Without BTF, devices
//! of another network namespace with the ifindexes of two ports are mistaken for those ports.

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use aya::programs::{BtfTracePoint, TracePoint};
use aya::{Btf, Ebpf, EbpfLoader, include_bytes_aligned};
use tollway_dataplane::id::PortId;

use super::error::XdpError;
use super::object::program;
use super::pin::{self, Names};
use super::prober::{ProbeTarget, Prober};
use super::shared::Shared;
use super::{MOST_PORTS, XdpPort, sys};

static REFUSED: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/refused.o"));
static REFUSED_EVENT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/refused_event.o"));

const EVENT: &str = "xdp_devmap_xmit";
/// The program's constant with the number of the network namespace.
const NAMESPACE: &str = "NAMESPACE";
/// Mount points of the tracing file system.
const TRACING: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Fields of the tracepoint's record, and their offsets in `bpf/refused_event.c`.
const FIELDS: [(&str, usize); 5] =
    [("from_ifindex", 8), ("to_ifindex", 16), ("drops", 20), ("sent", 24), ("err", 28)];

/// The program's maps; `state` belongs to the XDP programs.
const MAPS: [&str; 3] = ["state", "refusals", "port_of"];

/// Words of `struct refusals` in bpf/refused.h, and their positions in it.
const WORDS: usize = 4;
const PACKETS: usize = 0;
const SINCE_NS: usize = 1;
const CAUSE: usize = 3;
/// In place of a time: the device has yet to accept a frame.
const UNPROVEN: u64 = 1;
/// In place of a cause: the device has yet to be probed.
const UNPROBED: u64 = u64::MAX;

/// The program's records by port; cheap to clone, all clones share the memory.
#[derive(Clone)]
pub struct Refusals {
    words: Arc<Shared<AtomicU64>>,
    probing: Option<Arc<Probing>>,
}

/// The state of probing.
struct Probing {
    prober: Prober,
    /// Whether frames without headroom are expected.
    bare: AtomicBool,
    /// Ports with devices, one bit each.
    entered: AtomicU64,
}
const _: () = assert!(MOST_PORTS as u32 == u64::BITS, "a bit for each port");

impl std::fmt::Debug for Refusals {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Refusals").finish_non_exhaustive()
    }
}

impl Refusals {
    fn map(map: BorrowedFd<'_>, prober: Option<Prober>) -> io::Result<Self> {
        let words = Arc::new(Shared::map(map, (MOST_PORTS + 1) * WORDS)?);
        let probing = |prober| Probing { prober, bare: false.into(), entered: 0.into() };
        Ok(Self { words, probing: prober.map(probing).map(Arc::new) })
    }

    fn word(&self, port: usize, word: usize) -> Option<&AtomicU64> {
        self.words.get(port * WORDS + word).filter(|_| port <= MOST_PORTS)
    }

    /// Frames that a port's device has refused in all.
    #[must_use]
    pub fn packets(&self, port: PortId) -> u64 {
        let own = usize::from(port.0);
        self.word(own, PACKETS).filter(|_| own < MOST_PORTS).map_or(0, |word| word.load(Acquire))
    }

    /// Why a port's device gets no frames; `None` if it gets them.
    #[must_use]
    pub fn cause(&self, port: PortId) -> Option<Cause> {
        let cause = self.word(port.0.into(), CAUSE)?.load(Acquire);
        match cause {
            0 => None,
            1 => Some(Cause::Silent),
            UNPROBED => Some(Cause::Unprobed),
            more => Some(Cause::Error((more - 1) as i32)),
        }
    }

    /// Lets a port's device be tried again, after a probe.
    pub fn forgive(&self, port: PortId) {
        self.begin(port, UNPROBED);
    }

    /// Probes a port's device. Packets may go there if it accepts the probe, or cannot be probed;
    /// otherwise returns the cause.
    pub fn probe(&self, target: &ProbeTarget) -> Option<Cause> {
        let send = |probing: &Arc<Probing>| probing.prober.send(target, probing.bare.load(Acquire));
        let sent = self.probing.as_ref().map(send);
        if let Some(Err(error)) = &sent {
            tracing::debug!("cannot probe port {}: {error}", target.port.0);
        }
        if let Some(cause) = self.word(target.port.0.into(), CAUSE) {
            // If the device refused the probe, the program has already replaced the cause.
            let _ = cause.compare_exchange(UNPROBED, 0, SeqCst, SeqCst);
        }
        self.cause(target.port)
    }

    /// Requires a probe of every device before it gets more frames: frames without headroom are
    /// about to come.
    pub fn expect_bare(&self) {
        let Some(probing) =
            self.probing.as_ref().filter(|probing| !probing.bare.swap(true, SeqCst))
        else {
            return;
        };
        let entered = probing.entered.load(SeqCst);
        let entered = (0..u64::BITS as u16).filter(|port| entered >> port & 1 != 0);
        entered.for_each(|port| self.forgive(PortId(port)));
    }

    /// Lets a newly entered port's device be tried.
    fn enter(&self, port: PortId) {
        let is_bare = self.probing.as_ref().is_some_and(|probing| {
            probing.entered.fetch_or(1 << port.0, SeqCst);
            probing.bare.load(SeqCst)
        });
        self.begin(port, if is_bare { UNPROBED } else { 0 });
    }

    fn leave(&self, port: PortId) {
        if let Some(probing) = &self.probing {
            probing.entered.fetch_and(!(1 << port.0), SeqCst);
        }
    }

    /// Starts over with a port's device. A `cause` keeps packets away; without one (0), the first
    /// bulk decides.
    fn begin(&self, port: PortId, cause: u64) {
        let own = usize::from(port.0);
        let words = [
            (own, SINCE_NS, UNPROVEN),
            (own, CAUSE, cause),
            (MOST_PORTS, PACKETS, 1),
            // The program has noted a device that accepts frames, maybe this one.
            (MOST_PORTS, SINCE_NS, 0),
        ];
        for (word, value) in
            words.into_iter().filter_map(|(at, word, value)| Some((self.word(at, word)?, value)))
        {
            word.store(value, SeqCst);
        }
    }

    /// Whether a port's device accepted its last frames, as far as the program has checked.
    #[must_use]
    pub fn takes(&self, port: PortId) -> bool {
        self.word(port.0.into(), SINCE_NS).is_some_and(|since| since.load(Acquire) == 0)
    }

    /// Assumes that a port's device accepts frames, although it got none yet.
    pub fn believe(&self, port: PortId) {
        if let Some(since) = self.word(port.0.into(), SINCE_NS) {
            // The device may have got some just now, so change only the initial value.
            let _ = since.compare_exchange(UNPROVEN, 0, SeqCst, SeqCst);
        }
    }

    /// Stops the program's check of sent frames if no port needs it any more; to be called
    /// regularly.
    pub fn end_idle_check(&self) {
        let waits = |port| self.word(port, SINCE_NS).is_some_and(|since| since.load(SeqCst) != 0);
        let any_waits = || (0..MOST_PORTS).any(waits);
        if !any_waits()
            && let Some(any) = self.word(MOST_PORTS, PACKETS)
        {
            any.store(0, SeqCst);
            // The program may have started a check in between.
            if any_waits() {
                any.store(1, SeqCst);
            }
        }
    }
}

/// Why a device gets no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The device was not probed since it was entered or forgiven.
    Unprobed,
    /// The device reported no error, but has accepted no frame for a while.
    Silent,
    /// The device's error (`errno`).
    Error(i32),
}

impl std::fmt::Display for Cause {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unprobed => out.write_str("it has not been probed yet"),
            Self::Silent => out.write_str("it takes none of them"),
            Self::Error(error) => {
                tollway_linux::sys::why(&io::Error::from_raw_os_error(*error)).fmt(out)
            }
        }
    }
}

const WHAT: &str = "what devices refuse";

fn failed<E: std::error::Error + 'static>(error: E) -> XdpError {
    XdpError::load(WHAT, &error)
}

/// The program that identifies devices by namespace, attached. `namespace` receives the number that
/// the program compares.
fn by_btf<'a>(loader: &mut EbpfLoader<'a>, namespace: &'a OnceCell<u32>) -> Result<Ebpf, XdpError> {
    let number = pin::namespace().map_err(XdpError::system(WHAT, "its namespace"))?;
    let namespace = namespace.get_or_init(|| number as u32);
    let btf = Btf::from_sys_fs().map_err(failed)?;
    loader.override_global(NAMESPACE, namespace, true);
    let object = loader.load(REFUSED).map_err(failed);
    // Other objects of this loader have no such constant.
    loader.override_global(NAMESPACE, namespace, false);
    let mut object = object?;
    let program: &mut BtfTracePoint = program(&mut object, "refused").map_err(failed)?;
    program.load(EVENT, &btf).map_err(failed)?;
    program.attach().map_err(failed)?;
    Ok(object)
}

/// The program that reads the tracepoint's record, attached.
fn by_event(loader: &mut EbpfLoader<'_>) -> Result<Ebpf, XdpError> {
    check_layout().map_err(XdpError::system(WHAT, "the tracepoint's record"))?;
    let mut object = loader.load(REFUSED_EVENT).map_err(failed)?;
    let program: &mut TracePoint = program(&mut object, "refused").map_err(failed)?;
    program.load().map_err(failed)?;
    program.attach("xdp", EVENT).map_err(failed)?;
    Ok(object)
}

/// Verifies that the tracepoint's record has the layout that the program reads.
fn check_layout() -> io::Result<()> {
    let read = |root: &str| {
        let path = Path::new(root).join("events/xdp").join(EVENT).join("format");
        std::fs::read_to_string(path)
    };
    let format = TRACING.iter().find_map(|root| read(root).ok()).ok_or_else(|| {
        io::Error::other(format!("there is none: mount -t tracefs tracefs {}", TRACING[0]))
    })?;
    match has_fields(&format) {
        true => Ok(()),
        false => Err(io::Error::other("its fields are not at the known offsets")),
    }
}

/// Whether a record has the fields at these offsets.
fn has_fields(format: &str) -> bool {
    FIELDS.iter().all(|(name, offset)| {
        let field = format!("field:int {name};\toffset:{offset};\tsize:4;");
        format.contains(&field)
    })
}

/// The program, which runs as long as this lives.
pub(super) struct Program {
    refusals: Refusals,
    port_of: OwnedFd,
    _object: Ebpf,
}

impl Program {
    /// Loads the program with the maps that have names. `namespace` has room for a number that the loader
    /// borrows.
    ///
    /// # Errors
    /// The kernel has no BTF and no other access to its tracepoints, or it refuses.
    pub(super) fn load<'a>(
        loader: &mut EbpfLoader<'a>,
        namespace: &'a OnceCell<u32>,
        names: &Names,
    ) -> Result<Self, XdpError> {
        MAPS.iter().for_each(|name| _ = loader.map_pin_path(name, names.path(name)));
        let object = match by_btf(loader, namespace) {
            Ok(object) => object,
            Err(error) => {
                tracing::info!(
                    "what devices refuse is counted by the tracepoint's record: {error}"
                );
                by_event(loader)?
            }
        };
        let map = |name| sys::pinned(&names.path(name));
        let map = |name| map(name).map_err(XdpError::system(name, "opening the map"));
        let prober = Prober::load(loader).inspect_err(|error| {
            tracing::debug!("cannot probe devices: {error}");
        });
        let refusals = Refusals::map(map("refusals")?.as_fd(), prober.ok());
        let refusals = refusals.map_err(XdpError::system("refusals", "mapping"))?;
        Ok(Self { refusals, port_of: map("port_of")?, _object: object })
    }

    /// The program's records.
    pub(super) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Enters a port's device, and lets it be tried.
    pub(super) fn enter(&self, port: &XdpPort) -> io::Result<()> {
        self.refusals.enter(port.port);
        sys::update(self.port_of.as_fd(), &port.ifindex, &u32::from(port.port.0))
    }

    /// Removes a port's device.
    pub(super) fn forget(&self, port: &XdpPort) {
        self.refusals.leave(port.port);
        let _ = sys::delete(self.port_of.as_fd(), &port.ifindex);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: xdp_devmap_xmit\nformat:\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:int from_ifindex;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:u32 act;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:int to_ifindex;\toffset:16;\tsize:4;\tsigned:1;\n\
        \tfield:int drops;\toffset:20;\tsize:4;\tsigned:1;\n\
        \tfield:int sent;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:int err;\toffset:28;\tsize:4;\tsigned:1;\n";

    #[test]
    fn another_record_is_not_read() {
        assert!(has_fields(FORMAT));
        for (from, to) in [("offset:20", "offset:24"), ("drops", "lost"), ("int err", "long err")] {
            assert!(!has_fields(&FORMAT.replace(from, to)), "{to}");
        }
    }
}
