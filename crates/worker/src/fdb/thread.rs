//! The thread that follows the kernel's bridges.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::event::{EntryKey, Event};
use super::gate::Gate;
use super::socket::{Backlog, Listed, Netlink, Notification};
use super::state::{News, State, due_tick};
use super::{Counts, FdbSettings, Request};
use crate::sweep::Sweep;
use crate::update::soon;
use crate::waiter::Waiter;
use tollway_dataplane::clock::tick_of;
use tollway_linux::mailbox::MailboxReceiver;
use tollway_linux::priority::ThreadPriority;
use tollway_linux::sync::lock;
use tollway_linux::sys;
use tollway_xdp::State as Clock;

/// Notifications read before the database changes.
const BATCH: usize = 256;
/// The longest time between two heartbeats.
const BEAT: Duration = Duration::from_millis(500);
/// If the oldest notification that is not applied may be older than this, the database is paused.
const LATE: Duration = Duration::from_millis(5);
/// A list that takes longer is lost.
const LIST_PATIENCE: Duration = Duration::from_secs(5);
/// When to list again after a list that was not quiet: twice as long each time, up to the second one.
const REPEAT_FIRST: Duration = Duration::from_secs(1);
const REPEAT_LAST: Duration = Duration::from_secs(8);
/// When to list again after an error, or where the router has no port of a bridge.
const AGAIN: Duration = Duration::from_secs(1);
/// When to list after an entry has moved: two processors that learn an address at once may tell so in the wrong order.
const VERIFY_AFTER: Duration = Duration::from_millis(100);
/// How often the database may return to its small table.
const SHRINK_EVERY: Duration = Duration::from_secs(10);

/// The present tick of entries, which are of 2^26 ns by the clock of heartbeats.
pub(super) fn now_tick() -> u32 {
    tick_of(Clock::now_ns())
}

/// Why all entries are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Messages are missing.
    Loss,
    /// There were changes during the list before, or an entry has moved.
    Unquiet,
    /// To verify the entries.
    Audit,
}

/// The present list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The kernel lists since then.
    Listing(Instant),
    /// All of it is read, but perhaps not all notifications that were sent meanwhile.
    Listed,
}

/// Whether the state has all that the kernel has sent, but for what is unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    Whole,
    /// Messages are missing that no complete list has made up for.
    Broken,
}

/// The state of the thread.
pub(super) struct FollowerThread {
    netlink: Netlink,
    state: Arc<Mutex<State>>,
    gate: Arc<Gate>,
    settings: FdbSettings,
    counts: Arc<Counts>,
    requests: MailboxReceiver<Request>,
    /// Requesters that wait until the database has all notifications of the kernel.
    waiting: Vec<Waiter>,
    /// The last report of a pause.
    report: u64,
    /// Since when there are unread notifications, if there are any.
    unread_since: Option<Instant>,
    knowledge: Knowledge,
    phase: Phase,
    /// Why there is the present list.
    cause: Cause,
    /// When to list next, and why; during a list only if that will not do.
    next: Option<(Instant, Cause)>,
    repeat_after: Duration,
    sweep: Sweep<EntryKey>,
    /// Entries in which the present list differs from the state.
    differences: usize,
    shrink_at: Instant,
}

impl FollowerThread {
    pub(super) fn new(
        (state, gate): (Arc<Mutex<State>>, Arc<Gate>),
        settings: FdbSettings,
        counts: Arc<Counts>,
        requests: MailboxReceiver<Request>,
    ) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            netlink: Netlink::open(settings.receive_buffer)?,
            state,
            gate,
            settings,
            counts,
            requests,
            waiting: Vec::new(),
            report: 0,
            unread_since: None,
            knowledge: Knowledge::Broken,
            phase: Phase::Idle,
            cause: Cause::Loss,
            next: Some((now, Cause::Loss)),
            repeat_after: REPEAT_FIRST,
            sweep: Sweep::default(),
            differences: 0,
            shrink_at: now + SHRINK_EVERY,
        })
    }

    /// Runs until it receives a request to stop.
    pub(super) fn run(mut self) {
        let mut priority = ThreadPriority::begin();
        loop {
            priority.update();
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => self.recover(&error),
            }
        }
    }

    /// Waits, then does one turn of work; returns whether the thread should continue.
    fn turn(&mut self) -> io::Result<bool> {
        let has_requests = self.wait()?;
        self.counts.beat.beat();
        if has_requests && !self.receive_requests() {
            return Ok(false);
        }
        if self.read()? == Backlog::None {
            self.has_read_all()?;
        }
        self.read_list()?;
        self.shrink();
        Ok(true)
    }

    /// Waits until there is something to do; returns whether there are requests.
    fn wait(&self) -> io::Result<bool> {
        let [notifications, lists] = self.netlink.fds();
        let fds = [self.requests.as_fd(), notifications, lists];
        let mut fds = fds.map(|fd| sys::readable(fd.as_raw_fd()));
        let until = match (self.phase, self.next) {
            (Phase::Listed, _) => Duration::ZERO,
            (Phase::Idle, Some((at, _))) => at.saturating_duration_since(Instant::now()),
            (Phase::Idle, None) | (Phase::Listing(_), _) => BEAT,
        };
        sys::wait(&mut fds, sys::timeout_ms(until.min(BEAT)))?;
        Ok(fds[0].revents != 0)
    }

    /// Receives requests; false if the thread has to end.
    fn receive_requests(&mut self) -> bool {
        for request in self.requests.drain().messages {
            match request {
                Request::CatchUp(waiter) => self.waiting.push(waiter),
                Request::Paused(report) => self.report = report,
                Request::Stop => return false,
            }
        }
        true
    }

    /// Locks the state. Somebody who swaps the tables may have it for long; then the database is paused.
    fn lock<'a>(&self, state: &'a Mutex<State>) -> MutexGuard<'a, State> {
        if let Some(locked) = soon(|| state.try_lock().ok()) {
            return locked;
        }
        self.gate.pause();
        lock(state)
    }

    /// Reads the kernel's notifications and changes the database; returns whether there may be more.
    fn read(&mut self) -> io::Result<Backlog> {
        let began = Instant::now();
        let (mut received, mut backlog) = (Vec::new(), Backlog::Some);
        for _ in 0..BATCH {
            backlog = self.netlink.receive(|notification| received.push(notification))?;
            if backlog == Backlog::None {
                break;
            }
        }
        match backlog {
            Backlog::None => self.unread_since = None,
            Backlog::Some if self.unread_since.get_or_insert(began).elapsed() >= LATE => {
                self.gate.pause();
            }
            Backlog::Some => {}
        }
        let mut events = Vec::new();
        for notification in received {
            match notification {
                Notification::Change(event) => events.push(event),
                Notification::Lost => self.lose(),
            }
        }
        if !events.is_empty() {
            self.apply(&events);
        }
        Ok(backlog)
    }

    /// Changes the database as notifications say.
    fn apply(&mut self, events: &[Event]) {
        if self.phase != Phase::Idle {
            events.iter().for_each(|event| self.sweep.changed(event.key));
        }
        let (shared, tick) = (Arc::clone(&self.state), now_tick());
        let mut state = self.lock(&shared);
        let news = events.iter().map(|event| state.apply(*event, tick));
        let have_moved = news.filter(|news| *news == News::Moved).count() > 0;
        self.install(&mut state);
        drop(state);
        if have_moved {
            self.verify();
        }
    }

    /// Lists soon, unless the entries move all the time.
    fn verify(&mut self) {
        let at = Instant::now() + VERIFY_AFTER;
        let is_later = self.next.is_some_and(|(next, cause)| next > at && cause == Cause::Audit);
        if is_later && self.repeat_after == REPEAT_FIRST {
            self.next = Some((at, Cause::Unquiet));
        }
    }

    fn install(&self, state: &mut State) {
        let changes = state.install();
        self.counts.changes.fetch_add(changes as u64, Ordering::Relaxed);
        self.counts.left_out.store(state.left_out() as u64, Ordering::Relaxed);
    }

    /// Notes that messages are missing.
    fn lose(&mut self) {
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
        self.distrust();
    }

    /// Pauses the database until a list has made up for what is missing.
    fn distrust(&mut self) {
        self.gate.pause();
        self.knowledge = Knowledge::Broken;
        self.next = Some((Instant::now(), Cause::Loss));
    }

    /// Goes on when no notification is left to read.
    fn has_read_all(&mut self) -> io::Result<()> {
        match self.phase {
            Phase::Listed => self.conclude(),
            Phase::Listing(since) if since.elapsed() > LIST_PATIENCE => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Phase::Listing(_) => {}
            Phase::Idle => self.begin_list()?,
        }
        if self.knowledge == Knowledge::Whole && !matches!(self.phase, Phase::Listing(_)) {
            self.gate.resume(self.report);
            self.waiting.drain(..).for_each(|waiter| waiter());
        }
        Ok(())
    }

    /// Begins to list all entries, if that is due. All notifications are read: the kernel sends none of those since a
    /// loss, and the list would win over one from before it. The database is paused until the end: the kernel lists
    /// under the lock of its configuration, for which this thread may wait for long.
    fn begin_list(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if let Some((at, cause)) = self.next
            && at <= now
        {
            self.gate.pause();
            if lock(&self.state).watches_nothing() {
                // Nobody asks for what nobody looks up.
                self.knowledge = Knowledge::Broken;
                self.next = Some((now + AGAIN, Cause::Loss));
                return Ok(());
            }
            (self.next, self.cause) = (None, cause);
            (self.sweep, self.differences) = (Sweep::default(), 0);
            self.netlink.list()?;
            self.phase = Phase::Listing(now);
        }
        Ok(())
    }

    /// Reads a part of the list, so that notifications do not wait for the rest of it.
    fn read_list(&mut self) -> io::Result<()> {
        let mut listed = Vec::new();
        self.netlink.receive_list(|message| listed.push(message))?;
        if listed.is_empty() || !matches!(self.phase, Phase::Listing(_)) {
            return Ok(());
        }
        let (shared, tick) = (Arc::clone(&self.state), due_tick(now_tick()));
        let mut state = self.lock(&shared);
        for message in listed {
            match message {
                Listed::Entry(event) => {
                    if self.sweep.listed(event.key) {
                        self.differ(state.apply(event, tick));
                    }
                }
                Listed::End => self.phase = Phase::Listed,
                Listed::Refused(error) => self.refused(&error),
            }
        }
        self.install(&mut state);
        Ok(())
    }

    fn differ(&mut self, news: News) {
        self.differences += usize::from(news != News::Nothing);
    }

    fn refused(&mut self, error: &io::Error) {
        tracing::warn!(
            "the kernel does not list the addresses behind its bridges: {error}; requesting the list again"
        );
        self.phase = Phase::Idle;
        self.next.get_or_insert((Instant::now() + AGAIN, self.cause));
    }

    /// Removes what a complete list does not have.
    fn conclude(&mut self) {
        self.phase = Phase::Idle;
        // Messages were lost meanwhile, so another list follows.
        if self.next.is_some() {
            return;
        }
        let (shared, tick) = (Arc::clone(&self.state), now_tick());
        let mut state = self.lock(&shared);
        for key in self.sweep.gone(state.keys()) {
            self.differ(state.apply(Event { key, entry: None }, tick));
        }
        self.install(&mut state);
        state.retry(tick);
        self.counts.left_out.store(state.left_out() as u64, Ordering::Relaxed);
        drop(state);
        self.knowledge = Knowledge::Whole;
        self.counts.lists.fetch_add(1, Ordering::Relaxed);
        self.plan_list();
    }

    /// Says when the next list is due, after a complete one.
    fn plan_list(&mut self) {
        let now = Instant::now();
        if !self.sweep.is_quiet() {
            self.next = Some((now + self.repeat_after, Cause::Unquiet));
            self.repeat_after = (self.repeat_after * 2).min(REPEAT_LAST);
            return;
        }
        if self.cause == Cause::Audit && self.differences > 0 {
            tracing::warn!(
                "{} entries of bridges were not as the kernel has them; they are now",
                self.differences
            );
        }
        self.repeat_after = REPEAT_FIRST;
        self.next = Some((now + self.settings.audit_every, Cause::Audit));
    }

    /// Lets the database return to its small table.
    fn shrink(&mut self) {
        let now = Instant::now();
        if now >= self.shrink_at {
            self.shrink_at = now + SHRINK_EVERY;
            let state = self.lock(&self.state);
            state.fdb().lock().shrink(Clock::now_ns());
        }
    }

    /// Starts over with other sockets, after an error.
    fn recover(&mut self, error: &io::Error) {
        tracing::warn!("the kernel's bridges cannot be followed: {error}; trying again");
        self.phase = Phase::Idle;
        self.distrust();
        std::thread::sleep(AGAIN / 10);
        match Netlink::open(self.settings.receive_buffer) {
            Ok(netlink) => self.netlink = netlink,
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}
