//! All that the kernel is configured with, told to its end.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::Source;
use crate::mirror::event::Event;
use crate::ports::sys;

/// What is due is looked for so often at least, ms.
const MOST_WAIT: u128 = 100;

impl Source {
    /// Reads until the kernel has told everything ([`Event::Complete`]); false where it has not within some
    /// time. Waits.
    ///
    /// # Errors
    /// The kernel can not be asked, or not be waited for.
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
                let wait = self.due().saturating_duration_since(Instant::now()).as_millis();
                let fd = self.fd().as_raw_fd();
                let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
                sys::wait(&mut fds, wait.clamp(1, MOST_WAIT) as i32)?;
            }
        }
        Ok(is_whole)
    }
}
