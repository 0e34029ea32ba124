//! Who beats for a worker that sleeps.
//!
//! An idle worker would wake up every 20 ms only to write its heartbeat, and each time take the processor from somebody. So
//! the heartbeat's thread, which wakes up anyway, writes it as long as nobody has anything for the
//! worker. The kernel knows that: a thread that waits is in state S of `proc_pid_stat(5)`, and in state R as soon as a
//! frame or a job has come, even if it gets no processor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The status of the thread that opens it.
const STATUS: &str = "/proc/thread-self/stat";
/// Enough for the id, the name (of at most 64 bytes) and the state.
const STATUS_BYTES: usize = 128;

/// Whether a worker waits.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    /// The worker's status; empty before its thread runs, or where the system does not show it.
    status: OnceLock<File>,
    /// Whether the worker is about to wait, waits, or has just waited.
    is_resting: AtomicBool,
    /// Whether it had files of ports to wait for when it last waited.
    has_ports: AtomicBool,
}

impl Sleep {
    /// To be called by the worker's own thread before it waits. Returns whether others can see that it waits; if not, it
    /// has to write its own heartbeats.
    pub(crate) fn show(&self) -> bool {
        let shown = File::open(STATUS).ok().filter(|status| state(status).is_some());
        shown.is_some_and(|status| self.status.set(status).is_ok())
    }

    /// The worker is about to wait, for files of ports too if it has some.
    pub(crate) fn begin(&self, has_ports: bool) {
        self.has_ports.store(has_ports, Ordering::Relaxed);
        self.is_resting.store(true, Ordering::Release);
    }

    /// The worker goes on.
    pub(crate) fn end(&self) {
        self.is_resting.store(false, Ordering::Release);
    }

    /// Whether the programs may have packets for the worker, and look at its heartbeat.
    pub(crate) fn has_ports(&self) -> bool {
        self.has_ports.load(Ordering::Relaxed)
    }

    /// Whether the worker waits, and nobody has woken it.
    pub(crate) fn lasts(&self) -> bool {
        let is_resting = self.is_resting.load(Ordering::Acquire);
        is_resting && self.status.get().is_some_and(|status| state(status) == Some(b'S'))
    }
}

/// The state of a thread, by its status.
fn state(status: &File) -> Option<u8> {
    let mut bytes = [0; STATUS_BYTES];
    let len = status.read_at(&mut bytes, 0).ok()?;
    let text = &bytes[..len];
    // The name, in parentheses, may itself have some.
    let name_end = text.windows(2).rposition(|two| two == b") ")?;
    text.get(name_end + 2).copied()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_worker_lasts_in_its_sleep_until_somebody_wakes_it() {
        /// As long as a busy machine may need.
        const PATIENCE: Duration = Duration::from_secs(20);
        let sleep = Arc::<Sleep>::default();
        let (own, (work, works)) = (Arc::clone(&sleep), channel());
        let (ready, is_ready): (Sender<()>, _) = channel();
        let thread = std::thread::Builder::new().name("a) S (b".to_owned());
        let thread = thread.spawn(move || {
            assert!(own.show());
            ready.send(()).unwrap();
            own.begin(true);
            while works.recv_timeout(PATIENCE).unwrap() {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(50) {}
            }
            own.end();
        });
        is_ready.recv().unwrap();
        let until = |lasts| {
            let start = Instant::now();
            while sleep.lasts() != lasts {
                assert!(start.elapsed() < PATIENCE, "it should be {lasts}");
            }
        };
        until(true);
        work.send(true).unwrap();
        until(false);
        until(true);
        work.send(false).unwrap();
        thread.unwrap().join().unwrap();
        assert!(!sleep.lasts(), "the thread has ended");
    }
}
