//! The thread that answers the programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollway_conntrack::{Change, Conntrack};
use tollway_dataplane::router::Router;
use tollway_linux::kept_files::KeptFiles;
use tollway_linux::mailbox::WakeReceiver;
use tollway_linux::pace::{self, POLL};
use tollway_linux::sys::{self, why};
use tollway_xdp::State;
use tollway_xdp::connections::{Connection, ConnectionTable, Part, Queries, Query};

use super::Counts;
use super::answer::{Before, answer, tuple_of};
use super::handover::HandOver;
use super::settings::{SELDOM, Settings};

/// The most queries answered by the rules and the generation that were read before them.
const BATCH: usize = 64;
/// So many times, before the thread looks at anything else.
const BATCHES: usize = 16;
/// How often the thread looks for connections of TCP that have gone quiet, at best; in so many parts, and for no more than
/// one in so many of its time: among a million connections, a third may go quiet each second.
const SWEEP_PARTS: usize = 12;
const SWEEP_SHARE: u32 = 16;
/// After an error, nobody is asked for so long.
const PAUSE: Duration = Duration::from_millis(500);
/// While the table has no room, the thread rests so many times as long as it answers: a sixteenth of a processor is enough to
/// find that out.
const REST: u32 = 15;

pub(super) struct Thread {
    table: ConnectionTable,
    queries: Queries,
    counts: Arc<Counts>,
    conntrack: Conntrack,
    /// Its end means that the thread has to end.
    wakes: WakeReceiver,
    state: State,
    /// Connections are the kernel's while it counts their packets.
    exact_counters: bool,
    router: Arc<Router>,
    settings: Option<Settings>,
    settings_files: KeptFiles,
    read_at: Instant,
    sweep_at: Instant,
    is_failing: bool,
}

/// Answers since the thread has waited last, and those for which the table had no room.
#[derive(Clone, Copy, Debug, Default)]
struct Lately {
    answers: u32,
    without_room: u32,
}

impl Lately {
    /// Whether nearly nothing comes of answers: the table is full.
    const fn is_in_vain(self) -> bool {
        self.without_room > self.answers / 2
    }
}

impl Thread {
    pub(super) fn new(
        (table, queries, counts): (ConnectionTable, Queries, Arc<Counts>),
        (conntrack, wakes): (Conntrack, WakeReceiver),
        (state, exact_counters): (State, bool),
        router: Arc<Router>,
    ) -> Self {
        let now = Instant::now();
        Self {
            table,
            queries,
            counts,
            conntrack,
            wakes,
            state,
            exact_counters,
            router,
            settings: None,
            settings_files: KeptFiles::default(),
            read_at: now,
            sweep_at: now,
            is_failing: false,
        }
    }

    /// Answers until the other end of the wakes is closed.
    pub(super) fn run(mut self) {
        loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    if !self.is_failing {
                        tracing::error!(
                            "the kernel forwards all connections: it does not answer: {}",
                            why(&error)
                        );
                    }
                    self.is_failing = true;
                    if !self.pause(PAUSE) {
                        break;
                    }
                }
            }
        }
        self.state.set_udp_timeout_ms(0);
        self.state.set_tcp(None);
    }

    /// Waits, then answers. Returns whether the thread is to go on.
    fn turn(&mut self) -> io::Result<bool> {
        self.follow_settings();
        self.sweep()?;
        let mut fds = [
            sys::readable(self.wakes.as_fd().as_raw_fd()),
            sys::readable(self.queries.as_raw_fd()),
        ];
        let sweeps = self.settings.is_some_and(|settings| settings.tcp.is_some());
        let next = if sweeps { self.read_at.min(self.sweep_at) } else { self.read_at };
        let patience = next.saturating_duration_since(Instant::now());
        sys::wait_for(&mut fds, patience)?;
        if fds[0].revents != 0 && !self.wakes.drain() {
            return Ok(false);
        }
        let began = Instant::now();
        let mut lately = Lately::default();
        for _ in 0..BATCHES {
            if !self.answer_some(&mut lately)? {
                break;
            }
        }
        let rest = began.elapsed() * REST;
        Ok(!lately.is_in_vain() || self.pause(rest.min(PAUSE)))
    }

    /// Waits for a time. Returns whether the thread is to go on.
    fn pause(&self, time: Duration) -> bool {
        let mut fds = [sys::readable(self.wakes.as_fd().as_raw_fd())];
        let waited = sys::wait(&mut fds, sys::timeout_ms(time));
        waited.is_ok() && (fds[0].revents == 0 || self.wakes.drain())
    }

    /// Tells the programs what the kernel's tracking is set to now.
    fn follow_settings(&mut self) {
        let now = Instant::now();
        if now < self.read_at {
            return;
        }
        let settings = Settings::read(&mut self.settings_files, self.exact_counters);
        self.read_at = pace::next(if settings.is_some() { POLL } else { SELDOM });
        if settings != self.settings {
            self.state.set_verifies_sums(settings.is_none_or(|settings| settings.verifies_sums));
            self.state.set_udp_timeout_ms(settings.map_or(0, |settings| settings.udp_timeout_ms));
            self.state.set_tcp(settings.and_then(|settings| settings.tcp));
            self.settings = settings;
        }
    }

    /// Answers some queries, and counts them. Returns whether there may be more.
    fn answer_some(&mut self, lately: &mut Lately) -> io::Result<bool> {
        // In this order: what changes after the generation was read voids the answer.
        let generation = self.state.connections_generation();
        let filter = self.router.state().filter.clone();
        for _ in 0..BATCH {
            let Some(query) = self.queries.take() else { return Ok(false) };
            let found = self.conntrack.get(&tuple_of(&query.key), 0)?;
            self.is_failing = false;
            let before = self.before(&query, generation);
            let answer = answer(&query, found.as_ref(), filter.as_deref(), before);
            let connection = Connection {
                generation,
                treatment: answer.treatment,
                translation: answer.translation,
                mark: answer.mark,
                track: None,
            };
            let is_tracked = !answer.treatment.is_untracked();
            let (forwards, forwards_other) =
                if let Some(found) = found.filter(|found| found.tcp.is_some() && is_tracked) {
                    let (table, conntrack) = (&mut self.table, &mut self.conntrack);
                    let filter = filter.as_deref();
                    HandOver { table, conntrack, filter }.enter(&query.key, &found, connection)?
                } else {
                    // Without room, the connection stays on the kernel path.
                    let is_entered = self.table.insert(&query.key, &connection, generation);
                    (is_entered && connection.treatment.forwards(), false)
                };
            let entered = u64::from(forwards && !before.forwards()) + u64::from(forwards_other);
            self.counts.entered.fetch_add(entered, Ordering::Relaxed);
            self.counts.answers.fetch_add(1, Ordering::Relaxed);
            let is_left_out = u32::from(connection.treatment.forwards() && !forwards);
            self.counts.without_room.fetch_add(is_left_out.into(), Ordering::Relaxed);
            lately.answers += 1;
            lately.without_room += is_left_out;
        }
        Ok(true)
    }

    /// Tells the kernel how long it would keep connections of TCP that have gone quiet, where that is not as long as the
    /// programs have told it.
    fn sweep(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let Some(settings) = self.settings.filter(|settings| settings.tcp.is_some()) else {
            return Ok(());
        };
        if now < self.sweep_at {
            return Ok(());
        }
        self.sweep_at = pace::next(POLL);
        let part = Part { of: SWEEP_PARTS, until: now + POLL / SWEEP_SHARE };
        let Self { table, conntrack, state: programs, .. } = self;
        table.sweep(part, |key, idle_ms, state| {
            // The kernel may have seen the last packet. Then it knows better.
            let is_over = state.is_closed || state.may_have_missed(programs.unserved_tick());
            let shorter_ms = settings.shorter_ms(&state).filter(|_| !is_over);
            let Some(timeout_ms) = shorter_ms else { return Ok(()) };
            let left_s = (timeout_ms.saturating_sub(idle_ms) / 1000).max(1);
            conntrack.change(&tuple_of(key), 0, Change::Timeout(left_s)).map(drop)
        })
    }

    fn before(&self, query: &Query, generation: u32) -> Before {
        match self.table.connections().get(&query.key) {
            None => Before::Nothing,
            Some((known, _)) if known.generation != generation => Before::Voided,
            Some((known, _)) => Before::Active(known.treatment),
        }
    }
}
