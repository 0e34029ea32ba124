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

    /// How long an exception with a locked MTU holds to which packets of the host's own go, by a VRF device or
    /// none; none where there is no such.
    pub(in crate::mirror) fn locked(
        &mut self,
        src: Option<Ipv4Addr>,
        dst: Ipv4Addr,
        vrf: Option<Ifindex>,
    ) -> Option<Duration> {
        let sequence = self.0.next_sequence();
        self.0.send(&message::ask_route(src, dst, vrf, sequence)).ok()?;
        let mut left = None;
        // The kernel answers before `send` returns.
        let take = |message: crate::netlink::Message<'_>| {
            if message.sequence == sequence && message.kind != message::ERROR {
                left = route::locked(message.body).map(|(_, left)| left);
            }
        };
        self.0.receive(take).ok()?;
        left
    }
}
