//! Follows changes of IPsec policies. The kernel notifies of them by a netlink family of their own
//! (`XFRMNLGRP_POLICY`: `xfrm_send_policy_notify`, `xfrm_notify_userpolicy` in `net/xfrm/xfrm_user.c`).
//!
//! The content of the messages does not matter: after each change the controller queries the
//! policies again.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_XFRM;

use tollway_linux::netlink::{Received, Socket};
use tollway_linux::sys::why;

/// `XFRMNLGRP_POLICY`: policies, and the default for packets without one.
const POLICY: u32 = 4;
/// The receive buffer in bytes: small, since it only matters whether there were messages.
const ROOM: usize = 1 << 18;
/// Datagrams read in one turn.
const BATCH: usize = 1024;
/// The time between two attempts to open the socket.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The follower of IPsec policies.
pub(super) struct Policies {
    /// `None` if the kernel has no IPsec, or refuses a socket.
    socket: Option<Socket>,
    retry_at: Instant,
}

impl Policies {
    /// Starts to follow. Without a socket, changes take effect at the next query.
    pub(super) fn open() -> Self {
        let socket = match listen() {
            Ok(socket) => Some(socket),
            Err(error) => {
                if error.raw_os_error() != Some(libc::EPROTONOSUPPORT) {
                    let why = why(&error);
                    tracing::warn!(
                        "the kernel does not notify of IPsec policies ({why}); Tollway queries them"
                    );
                }
                None
            }
        };
        Self { socket, retry_at: Instant::now() + RETRY_AFTER }
    }

    /// The descriptor to wait for; -1, which poll(2) ignores, if there is none.
    pub(super) fn fd(&self) -> i32 {
        self.socket.as_ref().map_or(-1, |socket| socket.fd().as_raw_fd())
    }

    /// Reads notifications; returns whether there were any, or may have been. Never waits.
    pub(super) fn have_changed(&mut self) -> bool {
        let Some(socket) = &mut self.socket else { return self.retry() };
        for number in 0..BATCH {
            match socket.receive(|_| ()) {
                Ok(Received::Nothing) => return number > 0,
                // The query covers lost notifications as well.
                Ok(_) => {}
                Err(_) => {
                    self.socket = None;
                    return true;
                }
            }
        }
        true
    }

    /// Opens the socket again: the kernel's IPsec may be a module that has been loaded since.
    fn retry(&mut self) -> bool {
        let now = Instant::now();
        if self.retry_at > now {
            return false;
        }
        self.retry_at = now + RETRY_AFTER;
        self.socket = listen().ok();
        self.socket.is_some()
    }
}

fn listen() -> io::Result<Socket> {
    Socket::of(NETLINK_XFRM, &[POLICY], ROOM)
}
