//! A TAP device: the router at one end, an interface of this machine's kernel at the other.
//!
//! The two ends are two stations, so the router has an Ethernet address of its own (the one in the
//! model), and the kernel's interface has another.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::port::Port;

use super::{Device, PortError, State, push_copy, send_each};
use tollway_linux::sys;
use tollway_linux::sys::netdevice::{self, Call};
use tollway_linux::sys::tap::{TUN, attach, set_mtu};

/// The interval between attempts to rebuild a lost device.
const RETRY_NS: u64 = 1_000_000_000;
/// Room for the end of a frame that fits in no chunk: as large as a frame can be.
const SPILL: usize = 1 << 16;

/// A port on a TAP device.
pub struct Tap {
    port: String,
    device: String,
    mtu: u16,
    state: State,
    file: Option<File>,
    failed: bool,
    spill: Box<[u8]>,
    oversized: Traffic,
    next_look_ns: u64,
}

impl Tap {
    /// Creates a TAP device or attaches to it, sets its MTU and brings it up.
    ///
    /// # Errors
    /// No privilege, no TAP driver, the name is taken.
    pub fn open(port: &str, device: &str, mtu: u16) -> Result<Self, PortError> {
        let file = attach(device, mtu).map_err(|(action, error)| {
            let (port, device) = (port.to_owned(), device.to_owned());
            match error.kind() {
                _ if action == TUN => PortError::NoTun { port, error },
                io::ErrorKind::PermissionDenied => PortError::NoAdmin { port, device },
                _ => PortError::System { port, device, action, error },
            }
        })?;
        Ok(Self {
            port: port.to_owned(),
            device: device.to_owned(),
            mtu,
            state: State::Up,
            file: Some(file),
            failed: false,
            spill: vec![0; SPILL].into_boxed_slice(),
            oversized: Traffic::default(),
            next_look_ns: 0,
        })
    }
}

/// Whether this error means that the TAP device no longer exists.
fn is_lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADFD)
}

impl Port for Tap {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        let Some(mut file) = self.file.as_ref() else { return };
        let room = umem.room();
        while burst.count < BURST {
            let Some(addr) = umem.alloc() else { return };
            let chunk = IoSliceMut::new(umem.frame_mut(addr, room));
            let spill = IoSliceMut::new(&mut self.spill);
            match file.read_vectored(&mut [chunk, spill]) {
                Ok(len) if len <= room && len > 0 => {
                    // There is room: the loop's condition.
                    let pushed = burst.push(addr, len as u16);
                    debug_assert!(pushed);
                }
                Ok(len) if len <= umem.limit() && len > 0 => {
                    let head = umem.frame(addr, room);
                    let whole = [head, &self.spill[..len - room]].concat();
                    umem.free(addr);
                    if !push_copy(umem, burst, &whole) {
                        // There would be no chunks for the next frame either.
                        self.oversized.add(1, len as u64);
                        return;
                    }
                }
                Ok(len) => {
                    umem.free(addr);
                    self.oversized.add(1, len as u64);
                    return;
                }
                Err(error) => {
                    umem.free(addr);
                    self.failed |= is_lost(&error);
                    return;
                }
            }
        }
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        let Some(mut file) = self.file.as_ref() else { return 0 };
        let mut lost = false;
        let taken = send_each(umem, frames, |frame| match file.write(frame) {
            Ok(_) => true,
            Err(error) => {
                lost = is_lost(&error);
                false
            }
        });
        self.failed |= lost;
        taken
    }

    fn oversized(&mut self) -> Traffic {
        std::mem::take(&mut self.oversized)
    }
}

impl Device for Tap {
    fn how(&self) -> String {
        "a read or write for each frame".to_owned()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(File::as_fd)
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn set_mtu(&mut self, mtu: u16) {
        if mtu == self.mtu {
            return;
        }
        self.mtu = mtu;
        let socket = UnixDatagram::unbound().map_err(|error| ("socket", error));
        let done = socket.and_then(|socket| set_mtu(socket.as_fd(), &self.device, mtu));
        if let Err((action, error)) = done {
            let (port, device) = (&self.port, &self.device);
            tracing::error!("port {port}: {device} keeps its MTU: {action}: {error}");
        }
    }

    fn maintain(&mut self, now_ns: u64) {
        let (port, device) = (&self.port, &self.device);
        if let Some(file) = &self.file {
            if !self.failed && now_ns < self.next_look_ns {
                return;
            }
            self.next_look_ns = now_ns + RETRY_NS;
            let request = sys::request(device);
            let queried = request.and_then(|mut request| {
                netdevice::interface_call(file.as_fd(), Call::TapName, &mut request)
            });
            self.failed = false;
            if queried.is_ok() {
                return;
            }
            tracing::error!(
                "port {port}: the TAP device {device} is gone; making it again every second"
            );
            self.file = None;
            self.state = State::Gone("the TAP device is gone".to_owned());
        } else if now_ns >= self.next_look_ns {
            self.next_look_ns = now_ns + RETRY_NS;
            match attach(device, self.mtu) {
                Ok(file) => {
                    tracing::info!("port {port}: {device} is back");
                    (self.file, self.failed, self.state) = (Some(file), false, State::Up);
                }
                Err((action, error)) => tracing::debug!("port {port}: {action}: {error}"),
            }
        }
    }
}
