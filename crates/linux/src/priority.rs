//! Scheduling of the threads that install changes.
//!
//! While these threads wait behind programs that compute, packets follow the old tables. So they
//! are real-time threads of the lowest priority as long as they work in short bursts. A thread that
//! works for long (many routes, new tables) becomes an ordinary one of nice -20 until it has slept
//! enough. On a single processor all of them are ordinary, so that the kernel's own threads
//! (ksoftirqd, RCU) get their turn. Programs that they start (nft) are ordinary.

use std::io;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::sys::{self, Schedule};

/// How often a thread's use of its processor is checked, at most.
const LOOK: Duration = Duration::from_millis(50);
/// A thread that runs for more than this share of the time, in percent, becomes ordinary ...
const BUSY_ABOVE: u32 = 50;
/// ... until it runs for less than this.
const IDLE_BELOW: u32 = 25;

/// The scheduling of the calling thread.
pub struct ThreadPriority {
    is_realtime: bool,
    /// Whether the system permits real-time scheduling.
    may_be: bool,
    looked_at: Instant,
    /// The thread's processor time at `looked_at`.
    used: Duration,
}

impl ThreadPriority {
    /// Raises the priority of the calling thread.
    pub fn begin() -> Self {
        // Even if real time is refused below, programs that this thread starts are ordinary.
        if let Err(error) = be_nice() {
            refused(&error);
        }
        let (looked_at, used) = (Instant::now(), sys::thread_time());
        let may_be = sys::processors() > 1;
        let mut this = Self { is_realtime: false, may_be, looked_at, used };
        if may_be {
            this.set(true);
        }
        this
    }

    /// Adapts the priority to the processor time that the thread has used. To be called once per turn.
    pub fn update(&mut self) {
        let elapsed = self.looked_at.elapsed();
        if elapsed < LOOK || !self.may_be {
            return;
        }
        let used = sys::thread_time();
        let busy = (used - self.used) * 100;
        match self.is_realtime {
            true if busy > elapsed * BUSY_ABOVE => self.set(false),
            false if busy < elapsed * IDLE_BELOW => self.set(true),
            _ => {}
        }
        (self.looked_at, self.used) = (Instant::now(), used);
    }

    /// Makes the thread an ordinary one for long work that is not urgent, since the kernel forwards meanwhile.
    pub fn lower(&mut self) {
        if self.is_realtime {
            self.set(false);
        }
    }

    fn set(&mut self, realtime: bool) {
        let schedule = if realtime { Schedule::Realtime } else { Schedule::Ordinary };
        match sys::set_schedule(schedule) {
            Ok(()) => self.is_realtime = realtime,
            Err(error) => {
                self.may_be = false;
                refused(&error);
            }
        }
    }
}

/// Makes the calling thread an ordinary one of nice -20, and the programs that it starts ordinary
/// ones of nice 0 (`SCHED_RESET_ON_FORK`).
///
/// # Errors
/// The system refuses the nice value.
pub fn be_nice() -> io::Result<()> {
    let done = sys::set_nice(-20);
    let _ = sys::set_schedule(Schedule::Ordinary);
    done
}

fn refused(error: &io::Error) {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        tracing::info!(
            "changes may take effect some 10 ms late while other programs compute ({error}); give CAP_SYS_NICE, or \
             limits for priorities (ulimit -r 1, ulimit -e 40)"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_is_ordinary_until_it_rests() {
        let mut priority = ThreadPriority::begin();
        if !priority.is_realtime {
            // A thread that may not be real-time is not.
            assert!(!priority.may_be);
            return;
        }
        let mut looked = |is_realtime: bool, mut meanwhile: Box<dyn FnMut()>| {
            let start = Instant::now();
            while priority.is_realtime != is_realtime {
                assert!(start.elapsed() < Duration::from_secs(20));
                meanwhile();
                priority.update();
            }
        };
        looked(false, Box::new(|| ()));
        looked(true, Box::new(|| std::thread::sleep(LOOK)));
        priority.lower();
        assert!(!priority.is_realtime);
    }
}
