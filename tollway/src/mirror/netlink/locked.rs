//! IPv4 exceptions whose MTU is locked: the kernel's list (`fib_dump_info_fnhe` in `net/ipv4/route.c`), and
//! what it says of one destination (`inet_rtm_getroute`).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::{message, route};
use crate::mirror::kernel::Ifindex;
use crate::netlink::{Received, Socket};
use crate::ports::sys;

/// A list that the kernel does not end is given up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of answers that may wait.
const ROOM: usize = 1 << 20;

/// Destinations, and how long the exception holds.
pub(in crate::mirror) type Locked = Vec<(Ipv4Addr, Duration)>;

/// Has the kernel list its exceptions; those whose MTU is locked. Waits for it: 100 ms with a million routes.
///
/// # Errors
/// The kernel can not be asked, or does not answer.
pub(in crate::mirror) fn list_locked() -> io::Result<Locked> {
    let mut socket = Socket::open(&[], ROOM)?;
    // Else it would list the routes as well.
    socket.ask_strictly();
    let sequence = socket.next_sequence();
    socket.send(&message::ask_exceptions(sequence))?;
    let (mut locked, mut end) = (Locked::new(), None);
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let fd = socket.fd().as_raw_fd();
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        sys::wait(&mut fds, PATIENCE.as_millis() as i32)?;
        let received = socket.receive(|message| match message.kind {
            message::DONE | message::ERROR => end = Some(message.error()),
            _ => {
                if let Some((IpAddr::V4(to), left)) = route::locked(message.body) {
                    locked.push((to, left));
                }
            }
        })?;
        match (end.take(), received) {
            (Some(None), _) => return Ok(locked),
            (Some(Some(error)), _) => return Err(error),
            (None, Received::Lost | Received::Broken) => break,
            (None, Received::Datagram | Received::Nothing) => {}
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// A packet of the host's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mirror) struct Flow {
    pub(in crate::mirror) src: Option<Ipv4Addr>,
    pub(in crate::mirror) dst: Ipv4Addr,
    /// Its type of service.
    pub(in crate::mirror) tos: u8,
}

/// Asks the kernel of one destination at a time.
pub(in crate::mirror) struct Asker(Socket);

impl Asker {
    /// One that has asked nothing yet.
    ///
    /// # Errors
    /// The system gives no socket.
    pub(in crate::mirror) fn open() -> io::Result<Self> {
        Ok(Self(Socket::open(&[], ROOM)?))
    }

    /// How long an exception with a locked MTU holds for a packet of the host's own, which leaves by a VRF device
    /// or by none; none where there is no such.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub(in crate::mirror) fn locked(
        &mut self,
        flow: Flow,
        vrf: Option<Ifindex>,
    ) -> io::Result<Option<Duration>> {
        let sequence = self.0.next_sequence();
        self.0.send(&message::ask_route(flow, vrf, sequence))?;
        let mut answer = None;
        // The kernel answers before `send` returns; what others may have sent comes before.
        while answer.is_none() {
            let received = self.0.receive(|message| {
                if message.sequence == sequence {
                    let is_error = message.kind == message::ERROR;
                    let left = if is_error { None } else { route::locked(message.body) };
                    answer = Some(left.map(|(_, left)| left));
                }
            })?;
            if received == Received::Nothing {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(answer.flatten())
    }
}
