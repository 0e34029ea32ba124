//! Listens for changes of IPsec policies, which the kernel tells by another netlink than of routes
//! (`XFRMNLGRP_POLICY`: `xfrm_send_policy_notify`, `xfrm_notify_userpolicy` in `net/xfrm/xfrm_user.c`).
//!
//! What has changed is not taken from the messages: the policies are asked for anew, as ever.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_XFRM;

use crate::netlink::{Received, Socket};
use crate::ports::why;

/// `XFRMNLGRP_POLICY`: policies, and the default for packets without one.
const POLICY: u32 = 4;
/// Bytes of unread messages: whether there were more is all that is to be known.
const ROOM: usize = 1 << 18;
/// Datagrams that are read before it is another's turn.
const BATCH: usize = 1024;
/// Where the kernel can not be listened to, that is tried again so often.
const AGAIN: Duration = Duration::from_secs(1);

/// The listener.
pub(super) struct Policies {
    /// None where the kernel has no IPsec, or gives no socket.
    socket: Option<Socket>,
    again_at: Instant,
}

impl Policies {
    /// Listens from now on. Where that can not be, policies count when they are asked for next.
    pub(super) fn open() -> Self {
        let socket = match listen() {
            Ok(socket) => Some(socket),
            Err(error) => {
                if error.raw_os_error() != Some(libc::EPROTONOSUPPORT) {
                    let why = why(&error);
                    tracing::warn!("changes of IPsec policies are not told ({why}), but asked for");
                }
                None
            }
        };
        Self { socket, again_at: Instant::now() + AGAIN }
    }

    /// What to wait for; poll(2) passes over the negative number of none.
    pub(super) fn fd(&self) -> i32 {
        self.socket.as_ref().map_or(-1, |socket| socket.fd().as_raw_fd())
    }

    /// Takes what was told; says if anything was, or may have been. Never waits.
    pub(super) fn have_changed(&mut self) -> bool {
        let Some(socket) = &mut self.socket else { return self.try_again() };
        for number in 0..BATCH {
            match socket.receive(|_| ()) {
                Ok(Received::Nothing) => return number > 0,
                // What was lost is asked for as well.
                Ok(_) => {}
                Err(_) => {
                    self.socket = None;
                    return true;
                }
            }
        }
        true
    }

    /// The kernel's IPsec may be a module that has come since.
    fn try_again(&mut self) -> bool {
        let now = Instant::now();
        if self.again_at > now {
            return false;
        }
        self.again_at = now + AGAIN;
        self.socket = listen().ok();
        self.socket.is_some()
    }
}

fn listen() -> io::Result<Socket> {
    Socket::of(NETLINK_XFRM, &[POLICY], ROOM)
}
