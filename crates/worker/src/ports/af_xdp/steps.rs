//! The modes in which a device is tried: zero-copy, then copy mode, then generic XDP.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_dataplane::frame::FrameAddr;

use super::DEVICE_STOPS;
use super::socket::{self, QueueShare, Socket};
use super::umem::{Binding, SharedUmem};
use tollway_linux::sys::why;
use tollway_model::AfXdpMode;
use tollway_net::Mac;

/// The pause before a busy queue is tried again.
const AGAIN: Duration = Duration::from_millis(5);

/// Why an XDP program was not attached, or a socket not bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// What failed and why: a clause such as `native XDP: operation not supported`.
    pub what: String,
    /// The remedy for the user.
    pub remedy: String,
    /// Whether no other mode is tried, because another program has the device.
    pub is_final: bool,
}

/// The device that a program is attached to.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its current name.
    pub device: &'a str,
    /// Its ifindex.
    pub ifindex: u32,
    /// The number of its receive queues.
    pub queues: u32,
    /// Slots of the RX ring of each.
    pub slots: u32,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its MTU.
    pub mtu: u16,
}

/// A port's XDP program, which directs frames to the port's sockets.
pub trait Program: Send {
    /// Attaches the program to a device, in the driver or behind it (`generic`); it leaves any
    /// other device.
    ///
    /// # Errors
    /// The kernel or the driver refuses, or the device carries another program.
    fn attach(&mut self, target: Target<'_>, generic: bool) -> Result<(), Refusal>;

    /// Directs a queue's frames to a socket.
    ///
    /// # Errors
    /// The kernel refuses.
    fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Refusal>;

    /// Called when all sockets are bound: whether they are zero-copy, and whether frames may have several
    /// chunks.
    fn bound(&mut self, zero_copy: bool, multi_buffer: bool) {
        let _ = (zero_copy, multi_buffer);
    }

    /// Detaches the program from its device.
    fn detach(&mut self);

    /// Hands frames to the kernel as if the program's device had just received them; `None` if that is not
    /// possible.
    fn punter(&self) -> Option<Punter> {
        None
    }
}

/// Hands frames to the kernel; cheap to clone, for each worker.
#[derive(Clone)]
pub struct Punter(Arc<File>);

impl Punter {
    /// Creates a punter that writes to a TAP device.
    pub(super) fn new(tap: &Arc<File>) -> Self {
        Self(Arc::clone(tap))
    }

    /// Hands a frame over; returns false if that failed.
    pub(super) fn punt(&self, frame: &[u8]) -> bool {
        (&*self.0).write(frame).is_ok()
    }
}

/// A device's sockets: by queue, each with the chunks that it was lent.
pub(super) struct Serving {
    pub(super) bound: Vec<(Socket, Vec<FrameAddr>)>,
    pub(super) binding: Binding,
}

/// Attaches the program and binds the sockets, in the best mode that `mode` allows and the device
/// supports.
///
/// Returns the mode in words. The sockets share the `lent` chunks evenly. If another socket has a
/// queue, this waits for up to `patience`.
pub(super) fn open_best(
    umem: &SharedUmem,
    program: &mut dyn Program,
    target: Target<'_>,
    mode: AfXdpMode,
    (lent, patience): (&[FrameAddr], Duration),
) -> Result<(Serving, String), Vec<Refusal>> {
    let mut causes: Vec<Refusal> = Vec::new();
    for generic in [false, true] {
        let bindings = bindings(umem, mode, generic);
        if bindings.is_empty() {
            continue;
        }
        if let Err(refusal) = program.attach(target, generic) {
            let is_final = refusal.is_final;
            causes.push(refusal);
            if is_final {
                return Err(causes);
            }
            continue;
        }
        for binding in bindings {
            match bind_all(umem, target, binding, (lent, patience)) {
                Ok(open) => {
                    program.bound(binding.zero_copy, binding.multi_buffer);
                    return Ok((open, words(binding, generic, &causes)));
                }
                Err(refusal) => {
                    let is_final = refusal.is_final;
                    causes.push(refusal);
                    if is_final {
                        program.detach();
                        return Err(causes);
                    }
                }
            }
        }
        program.detach();
    }
    Err(causes)
}

/// The bindings to try, in this order.
fn bindings(umem: &SharedUmem, mode: AfXdpMode, generic: bool) -> Vec<Binding> {
    let multi_buffer = umem.multi_buffer();
    let (zero_copy, copy) = match (mode, generic) {
        (AfXdpMode::Auto | AfXdpMode::Best, false) => (true, true),
        (AfXdpMode::ZeroCopy, false) => (true, false),
        (AfXdpMode::Copy, false)
        | (AfXdpMode::Auto | AfXdpMode::Best | AfXdpMode::Generic, true) => (false, true),
        _ => (false, false),
    };
    let mut bindings = Vec::new();
    if zero_copy {
        bindings.push(Binding { zero_copy: true, multi_buffer });
    }
    if copy {
        bindings.push(Binding { zero_copy: false, multi_buffer });
    }
    if copy && multi_buffer {
        bindings.push(Binding { zero_copy: false, multi_buffer: false });
    }
    bindings
}

fn bind_all(
    umem: &SharedUmem,
    target: Target<'_>,
    binding: Binding,
    (lent, patience): (&[FrameAddr], Duration),
) -> Result<Serving, Refusal> {
    let name = match binding {
        Binding { zero_copy: true, .. } => "zero-copy",
        Binding { multi_buffer: true, .. } => "copies of frames with several chunks",
        _ => "copy mode",
    };
    let slots = target.slots;
    let mut shares = lent.chunks(socket::receive_chunks(slots) as usize);
    let mut bound = Vec::new();
    for queue in 0..target.queues {
        let share = shares.next().unwrap_or_default();
        let of_queue = QueueShare { ifindex: target.ifindex, queue, slots, chunks: share };
        match bind(umem, binding, of_queue, patience) {
            Ok(socket) => bound.push((socket, share.to_vec())),
            Err((action, error)) => {
                if binding.zero_copy && !bound.is_empty() {
                    // The sockets tried next get the same chunks.
                    drop(bound);
                    std::thread::sleep(DEVICE_STOPS);
                }
                return Err(refusal(name, target, action, &error));
            }
        }
    }
    Ok(Serving { bound, binding })
}

/// Binds a socket. A queue is free only some time after its last socket was closed, because the
/// kernel frees it in a separate work item (`xp_put_pool` in `net/xdp/xsk_buff_pool.c`).
fn bind(
    umem: &SharedUmem,
    binding: Binding,
    share: QueueShare<'_>,
    patience: Duration,
) -> Result<Socket, (&'static str, io::Error)> {
    let start = Instant::now();
    loop {
        match Socket::open(umem, binding, share) {
            Err((_, error)) if is_busy(&error) && start.elapsed() < patience => {
                std::thread::sleep(AGAIN);
            }
            done => return done,
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

fn refusal(name: &str, target: Target<'_>, action: &'static str, error: &io::Error) -> Refusal {
    let device = target.device;
    if is_busy(error) {
        return Refusal {
            what: format!("{device} already has AF_XDP sockets of another program"),
            remedy: "End the other program; `ss --xdp -p` names it".to_owned(),
            is_final: true,
        };
    }
    let place = if action == "bind" { String::new() } else { format!("{action}: ") };
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "Run as root, or grant it with `setcap cap_net_raw,cap_net_admin,cap_bpf+ep`"
        }
        _ => "Set mode = \"auto\", which takes what the device offers",
    };
    let what = format!("{name}: {place}{}", why(error));
    Refusal { what, remedy: remedy.to_owned(), is_final: false }
}

/// The mode in words, and why it is no better one.
fn words(binding: Binding, generic: bool, causes: &[Refusal]) -> String {
    let copies = if binding.zero_copy { "AF_XDP zero-copy" } else { "AF_XDP copy mode" };
    let place = if generic { "generic XDP" } else { "native XDP" };
    match causes {
        [] => format!("{copies}, {place}"),
        causes => format!("{copies}, {place} ({})", list(causes)),
    }
}

/// Several refusals in one line.
pub(super) fn list(causes: &[Refusal]) -> String {
    causes.iter().map(|cause| cause.what.as_str()).collect::<Vec<_>>().join("; ")
}
