//! Reads the whole configuration of the kernel.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::Source;
use crate::event::Event;
use tollway_linux::sys;

/// The longest wait before the next check for due work, in milliseconds.
const MOST_WAIT: i32 = 100;

impl Source {
    /// Reads until the configuration is complete ([`Event::Complete`]); false if that takes longer than the
    /// limit. Waits.
    ///
    /// # Errors
    /// The kernel cannot be queried, or waiting failed.
    pub fn read_all(
        &mut self,
        patience: Duration,
        sink: &mut dyn FnMut(Event),
    ) -> io::Result<bool> {
        let (until, mut is_whole) = (Instant::now() + patience, false);
        while !is_whole {
            let more = self.read(&mut |event| {
                is_whole |= event == Event::Complete;
                sink(event);
            })?;
            if Instant::now() >= until {
                break;
            }
            if !more && !is_whole {
                let left = self.due().saturating_duration_since(Instant::now());
                let fd = self.fd().as_raw_fd();
                let mut fds = [sys::readable(fd)];
                sys::wait(&mut fds, sys::timeout_ms(left).clamp(1, MOST_WAIT))?;
            }
        }
        Ok(is_whole)
    }
}
