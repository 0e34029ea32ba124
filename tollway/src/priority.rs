//! How soon threads get a processor that put in force what has changed.
//!
//! While they wait behind programs that compute, packets go by what was in force before. So they are real-time
//! threads of the lowest priority for as long as they work for moments; one that works on and on (many routes, new
//! tables) is an ordinary one of nice -20 until it has had rest, and on the only processor they all are: the kernel's
//! own threads (ksoftirqd, RCU) have to have their turn. What they start (nft) is ordinary.

use std::io;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::ports::sys::{self, Schedule};

/// A thread is looked at so often at most.
const LOOK: Duration = Duration::from_millis(50);
/// One that has had a processor for more than this part of the time, in percent, is ordinary ...
const BUSY_ABOVE: u32 = 50;
/// ... until it has had one for less than this.
const IDLE_BELOW: u32 = 25;

/// The calling thread's hurry.
pub(crate) struct Hurry {
    is_realtime: bool,
    /// The system lets it be.
    may_be: bool,
    looked_at: Instant,
    /// How long it had had a processor then.
    used: Duration,
}

impl Hurry {
    /// The calling thread hurries from now on.
    pub(crate) fn begin() -> Self {
        if let Err(error) = sys::set_nice(-20) {
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

    /// To be called in each turn.
    pub(crate) fn look(&mut self) {
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

    /// Says that there is work for long, and no hurry: the kernel forwards meanwhile.
    pub(crate) fn rest(&mut self) {
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

fn refused(error: &io::Error) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::info!(
            "changes may be in force some 10 ms late while other programs compute ({error}); give CAP_SYS_NICE, or \
             limits for priorities (ulimit -r 1, ulimit -e 40)"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_computes_hurries_no_more_until_it_rests() {
        let mut hurry = Hurry::begin();
        if !hurry.is_realtime {
            // Whoever may not be is not.
            assert!(!hurry.may_be);
            return;
        }
        let mut looked = |is_realtime: bool, mut meanwhile: Box<dyn FnMut()>| {
            let start = Instant::now();
            while hurry.is_realtime != is_realtime {
                assert!(start.elapsed() < Duration::from_secs(20));
                meanwhile();
                hurry.look();
            }
        };
        looked(false, Box::new(|| ()));
        looked(true, Box::new(|| std::thread::sleep(LOOK)));
        hurry.rest();
        assert!(!hurry.is_realtime);
    }
}
