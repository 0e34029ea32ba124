//! Confirms to the programs that the router keeps their tables.
//!
//! What the programs decide needs no worker. It needs threads that make the kernel's changes in the tables. On
//! busy processors all threads of the router may be late, and the router is healthy nevertheless. So a thread
//! that computes nothing, and therefore may be a real-time thread, confirms the tables. The kernel forwards
//!
//! - when the thread is late itself: the process was stopped or killed, or the machine was;
//! - when a part of the router that makes changes has not worked for a second.
//!
//! Afterwards it forwards until all changes are made ([`OnPause`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::priority::Priority;
use crate::service::Beat;
use crate::sleep::Sleep;
use tollway_linux::sys::{self, Schedule};
use tollway_linux::{pace, priority};
use tollway_xdp::State;

/// The time between two confirmations of a real-time thread; more of them would cost an idle router too much of its
/// processor.
const EVERY: Duration = Duration::from_millis(40);
/// The same of another thread, which may be late, and while it beats for workers, at whose heartbeats the programs look.
const OFTEN: Duration = Duration::from_millis(20);
/// After a gap of this length, the programs may have left everything to the kernel: they do so after
/// `UNCONFIRMED_NS` of xdp/bpf/maps.h, and their clock advances by up to 10 ms at once.
const PAUSE_NS: u64 = 70_000_000;
/// A part that has not worked for so long may have left changes undone: twice the time between the heartbeats
/// of an idle one.
const SILENT: Duration = Duration::from_secs(1);

/// Lets the kernel forward until all of its changes so far are in the tables.
pub type OnPause = Arc<dyn Fn(&State) + Send + Sync>;

/// The thread, until this is dropped.
pub(crate) struct Heartbeat {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts to confirm the tables, which `parts` of the router change, and to beat for workers that sleep.
    pub(crate) fn start(
        state: State,
        (priority, longest_pause_ns): (Priority, Arc<AtomicU64>),
        on_pause: Option<OnPause>,
        (sleeps, parts): (Arc<[Sleep]>, Vec<Beat>),
    ) -> io::Result<Self> {
        let ends = Arc::<AtomicBool>::default();
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        let has_ended = Arc::clone(&ends);
        let mut watch = Watch::begin(State::now_ns());
        let thread = thread.spawn(move || {
            let is_realtime = be_first(priority);
            while !has_ended.load(Ordering::Acquire) {
                let now_ns = State::now_ns();
                let silence = parts.iter().map(Beat::silence).max().unwrap_or_default();
                let cause = watch.look(now_ns, silence);
                if let Some(Cause::Paused { ns }) = cause {
                    longest_pause_ns.fetch_max(ns, Ordering::Relaxed);
                }
                if let Some(on_pause) = on_pause.as_ref().filter(|_| cause.is_some()) {
                    on_pause(&state);
                }
                state.confirm_at(now_ns);
                for (worker, sleep) in sleeps.iter().enumerate() {
                    beat_for(worker, sleep, &state);
                }
                let beats = sleeps.iter().any(Sleep::has_ports);
                let every = if is_realtime && !beats { EVERY } else { OFTEN };
                std::thread::sleep(pace::until_next(every));
            }
        })?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes the heartbeat of a worker that sleeps, unless the worker has written a newer one meanwhile.
fn beat_for(worker: usize, sleep: &Sleep, state: &State) {
    let now_ns = State::now_ns();
    if sleep.lasts() && state.heartbeat_ns(worker) < now_ns {
        state.beat_at(worker, now_ns);
    }
}

/// Makes the calling thread a real-time thread, on a single processor too, for it delays nobody; or at least one of
/// nice -20. Returns whether it is a real-time thread. The worker says what it means if the system refuses both.
fn be_first(priority: Priority) -> bool {
    if priority == Priority::Normal {
        return false;
    }
    let is_realtime = priority != Priority::High && sys::set_schedule(Schedule::Realtime).is_ok();
    if !is_realtime {
        let _ = priority::be_nice();
    }
    is_realtime
}

/// Whether changes may be undone.
struct Watch {
    last_ns: u64,
    parts: Parts,
}

/// Whether all parts of the router have worked of late.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    Work,
    Silent,
}

/// Why changes may be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The thread itself had no processor for so long.
    Paused { ns: u64 },
    /// A part of the router has not worked.
    PartSilent,
}

impl Watch {
    const fn begin(now_ns: u64) -> Self {
        Self { last_ns: now_ns, parts: Parts::Work }
    }

    /// Why changes may be undone since the last look, if they may; a silence of a part is one reason.
    fn look(&mut self, now_ns: u64, silence: Duration) -> Option<Cause> {
        let ns = now_ns.saturating_sub(self.last_ns);
        let parts = if silence > SILENT { Parts::Silent } else { Parts::Work };
        let falls_silent = (self.parts, parts) == (Parts::Work, Parts::Silent);
        (self.last_ns, self.parts) = (now_ns, parts);
        if ns > PAUSE_NS {
            return Some(Cause::Paused { ns });
        }
        falls_silent.then_some(Cause::PartSilent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_and_a_silent_part_are_late_once() {
        let mut watch = Watch::begin(0);
        let looks = [(30, 0), (100, 0), (171, 0), (200, 1000), (230, 1001), (260, 1009), (290, 3)];
        let late: Vec<_> = looks
            .into_iter()
            .filter_map(|(now_ms, silence_ms)| {
                watch.look(now_ms * 1_000_000, Duration::from_millis(silence_ms))
            })
            .collect();
        assert_eq!(late, [Cause::Paused { ns: 71_000_000 }, Cause::PartSilent]);
    }
}
