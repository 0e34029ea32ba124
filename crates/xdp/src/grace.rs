//! Grace periods: when memory that the XDP programs may read can be used again.
//!
//! A program runs under RCU. To change an element of a map of maps, the kernel waits until every program that runs
//! at this moment has ended (`maybe_wait_bpf_programs` in `kernel/bpf/syscall.c`). This is the sound way to wait for
//! programs; a sleep comes back too early. It takes from 10 ms on an idle machine to half a second on a busy one. So
//! a thread of its own waits, and what has been taken out of the tables meanwhile waits for the next period.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

use tollway_dataplane::epoch::{Epochs, Reader};
use tollway_linux::pace::{self, POLL};

use super::sys;

/// How often the thread looks whether something has been taken out of the tables. A grace period takes longer.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often it looks while the tables do not change.
const LOOK_SELDOM: Duration = POLL;

/// Reports to the tables that the XDP programs have passed, on a thread of its own, until dropped.
///
/// After that, the thread waits once more for programs that may still run, and ends.
pub struct Grace {
    ends: Arc<AtomicBool>,
    thread: Thread,
}

impl Grace {
    /// Starts the thread for the programs that read the tables of these epochs. Call it before a program reads them.
    ///
    /// # Errors
    /// The system cannot create the maps or start the thread.
    pub fn start(epochs: &Arc<Epochs>) -> io::Result<Self> {
        let period = Period::new()?;
        let reader = epochs.join_programs();
        let ends = Arc::new(AtomicBool::new(false));
        let is_ended = Arc::clone(&ends);
        let thread = std::thread::Builder::new().name("grace".to_owned());
        let thread = thread.spawn(move || follow(&reader, &period, &is_ended))?;
        Ok(Self { ends, thread: thread.thread().clone() })
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

fn follow(reader: &Reader, period: &Period, is_ended: &AtomicBool) {
    let mut pause = LOOK_EVERY;
    while !is_ended.load(Ordering::Acquire) {
        match reader.due() {
            // After an error, the memory is not used again: it waits for the next period.
            Some(epoch) => match period.wait() {
                Ok(()) => {
                    reader.pass_epoch(epoch);
                    pause = LOOK_EVERY;
                }
                Err(error) => {
                    tracing::error!("memory of routes cannot be used again: {error}");
                    std::thread::park_timeout(100 * LOOK_EVERY);
                }
            },
            None => {
                std::thread::park_timeout(pace::until_next(pause));
                pause = LOOK_SELDOM.min(2 * pause);
            }
        }
    }
    // If this fails, memory is free a little early: no program is attached that reads it.
    let _ = period.wait();
}

/// A map of maps that no program reads, to wait by.
struct Period {
    outer: OwnedFd,
    inner: OwnedFd,
}

impl Period {
    fn new() -> io::Result<Self> {
        let inner = sys::create_array("grace_inner", 8, 1)?;
        let outer = sys::create_array_of_maps("grace", inner.as_fd())?;
        Ok(Self { outer, inner })
    }

    /// Waits until all programs that run now have ended.
    fn wait(&self) -> io::Result<()> {
        sys::set_at(self.outer.as_fd(), 0, self.inner.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// The kernel waits for milliseconds; to set the map takes it microseconds.
    #[test]
    fn a_period_is_one_of_the_kernel() {
        let period = match Period::new() {
            Ok(period) => period,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "{error}");
                eprintln!("left out: only root may make BPF maps: {error}");
                return;
            }
        };
        let start = Instant::now();
        (0..10).for_each(|_| period.wait().unwrap());
        assert!(start.elapsed() > Duration::from_millis(10), "{:?}", start.elapsed());
    }
}
