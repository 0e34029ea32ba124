//! The thread that follows the kernel's rules.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::{Duration, Instant};

use super::attempt::{Attempt, AttemptError, WholeReading, attempt, attempt_beside};
use super::elements::{ElementsEffect, SetUse, outcome};
use super::ipset::{Look, Watch};
use super::message::{Elements, Message, RulesMessage, Table};
use super::read::{lookups, reached_chains, uses};
use super::socket::{Listener, NetfilterSocket, RulesReceived};
use super::{Event, Report, Requests, is_reached};
use tollway_linux::mailbox::WakeReceiver;
use tollway_linux::priority::ThreadPriority;
use tollway_linux::sys::{self, why};

/// The thread reads the rules after this long without a change, since changes come in groups.
const QUIET: Duration = Duration::from_millis(5);
/// The thread reads the rules at the latest this long after the first change.
const MOST_DELAY: Duration = Duration::from_millis(50);
/// First and longest pause between attempts to read rules that changed during the last attempt.
const MOVED_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// First and longest pause between attempts to read rules after an error.
const FAILED_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// A change whose generation number does not arrive within this time is not part of a transaction.
const DOUBT_TIME: Duration = Duration::from_millis(50);
/// If the oldest unread message may be older than this, the kernel forwards.
const LATE: Duration = Duration::from_millis(5);
/// How often to check for tables that may disappear without a notification.
const AUDIT: Duration = Duration::from_secs(1);
/// After so many attempts in a row, an element that is listed twice is one: they take some seconds.
const MOST_DOUBLED: u32 = 10;
/// The most datagrams received before the thread does anything else.
const BATCH: usize = 256;
/// A change of more elements than this is not applied one by one.
const MOST_ELEMENTS: usize = 1 << 20;

/// The thread's state.
pub(super) struct FollowerThread {
    report: Report,
    /// A wake means that there are requests. The end of the channel means that the thread has to
    /// end.
    wakes: WakeReceiver,
    listener: Listener,
    query_socket: NetfilterSocket,
    /// The rules last reported, as long as the kernel still has them.
    active: Option<ActiveReading>,
    /// What was received of an unfinished change.
    change: Change,
    /// When a message arrived that does not look like a part of a change.
    doubt: Option<Instant>,
    /// When to read the rules, and when at the latest.
    due: Option<(Instant, Instant)>,
    /// How long to wait when that fails.
    pause: Duration,
    /// Sets of which only elements have changed.
    moving: HashSet<String>,
    /// How many attempts in a row have found elements of a set twice.
    doubled: u32,
    /// The reported reason why the rules could not be read.
    broken: Option<String>,
    audit_at: Instant,
    /// Since when there have been unread messages, if there are any.
    unread_since: Option<Instant>,
    /// Whether [`Event::Behind`] was last reported as `true`.
    is_behind: bool,
    requests: Arc<Requests>,
    /// A request to list the sets of ipset that is not answered: its number, and when it was seen.
    look_due: Option<(u64, Instant)>,
    /// The last request after that one.
    look_next: Option<(u64, Instant)>,
    /// The number of the last request answered.
    answered: u64,
}

/// Rules that were reported and that the kernel still has.
struct ActiveReading {
    generation: u32,
    uses: HashMap<String, SetUse>,
    /// Chains that forwarded packets reach.
    reached_chains: HashSet<String>,
    /// The kernel's tables, if some of them may disappear without a notification.
    tables: Option<Vec<Table>>,
    /// The sets of ipset that rules look up.
    ipsets: Option<Watch>,
}

/// A change that is being received.
#[derive(Default)]
struct Change {
    elements: Vec<Elements>,
    /// It contains rules that no forwarded packet reaches, or sets that nothing looks up yet.
    has_others: bool,
    has_more: bool,
}

impl FollowerThread {
    pub(super) fn new(
        report: Report,
        wakes: WakeReceiver,
        requests: Arc<Requests>,
    ) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            report,
            wakes,
            listener: Listener::open()?,
            query_socket: NetfilterSocket::open()?,
            active: None,
            change: Change::default(),
            doubt: None,
            due: Some((now, now)),
            pause: MOVED_PAUSES[0],
            moving: HashSet::new(),
            doubled: 0,
            broken: None,
            audit_at: now,
            unread_since: None,
            is_behind: false,
            requests,
            look_due: None,
            look_next: None,
            answered: 0,
        })
    }

    /// Follows until the other end is closed.
    pub(super) fn run(mut self) {
        let mut priority = ThreadPriority::begin();
        loop {
            priority.update();
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    self.fail(format!("the kernel does not answer: {}", why(&error)));
                    std::thread::sleep(FAILED_PAUSES[0]);
                }
            }
        }
    }

    /// Waits, then does what is due. Returns whether the thread is to go on.
    fn turn(&mut self) -> io::Result<bool> {
        let mut fds = [
            sys::readable(self.wakes.as_fd().as_raw_fd()),
            sys::readable(self.listener.fd().as_raw_fd()),
            sys::readable(self.ipsets().map_or(-1, |ipsets| ipsets.fd().as_raw_fd())),
        ];
        sys::wait(&mut fds, self.patience())?;
        if fds[0].revents != 0 && !self.receive_requests() {
            return Ok(false);
        }
        let began = Instant::now();
        let more = self.receive(began)?;
        self.take_looks();
        self.notice_late(more, began);
        self.answer_look();
        if more {
            return Ok(true);
        }
        let now = Instant::now();
        if self.doubt.is_some_and(|at| at <= now) {
            self.changed();
        }
        if self.audit_at <= now {
            self.audit_at = now + AUDIT;
            self.audit()?;
        }
        if self.due.is_some_and(|(at, latest)| at.min(latest) <= now) {
            return self.read();
        }
        Ok(true)
    }

    /// The time until there is something to do, in ms.
    fn patience(&self) -> i32 {
        if self.unread_since.is_some() {
            return 0;
        }
        let audit =
            self.active.as_ref().and_then(|active| active.tables.as_ref()).map(|_| self.audit_at);
        let due = self.due.map(|(at, latest)| at.min(latest));
        // Only a look ends a delay of looks.
        let late = self.ipsets().filter(|_| !self.is_behind).and_then(Watch::late_at);
        let next = [audit, due, self.doubt, late].into_iter().flatten().min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        left.map_or(-1, sys::timeout_ms)
    }

    /// Receives requests. Returns `false` if the thread is to end.
    fn receive_requests(&mut self) -> bool {
        let has_requester = self.wakes.drain();
        if has_requester {
            self.take_requests();
        }
        has_requester
    }

    fn take_requests(&mut self) {
        let number = self.requests.look.load(Acquire);
        let known = self.look_next.or(self.look_due).map_or(self.answered, |(number, _)| number);
        if number > known {
            let request = Some((number, Instant::now()));
            // A later request must not delay the answer to an earlier one.
            *(if self.look_due.is_none() { &mut self.look_due } else { &mut self.look_next }) =
                request;
            self.ipsets().into_iter().for_each(Watch::look);
        }
        if self.requests.read.swap(false, AcqRel) {
            self.changed();
        }
    }

    /// Answers a request to list the sets of ipset. While the rules are to be read, there is nothing to list.
    fn answer_look(&mut self) {
        let Some((number, since)) = self.look_due else { return };
        if self.ipsets().is_none_or(|ipsets| ipsets.looked_at().is_some_and(|at| at >= since)) {
            (self.look_due, self.answered) = (self.look_next.take(), number);
            (self.report)(Event::Looked(number));
        }
    }

    /// Reports when the thread falls behind: more messages arrive than it reads in time, or the sets of ipset
    /// are not listed in time. Also reports when it catches up.
    fn notice_late(&mut self, more: bool, began: Instant) {
        let since = self.unread_since.filter(|_| more).unwrap_or(began);
        self.unread_since = more.then_some(since);
        let is_behind = more && (self.is_behind || since.elapsed() >= LATE)
            || self.ipsets().is_some_and(Watch::is_late);
        self.set_behind(is_behind);
    }

    fn set_behind(&mut self, is_behind: bool) {
        if is_behind != self.is_behind {
            self.is_behind = is_behind;
            (self.report)(Event::Behind(is_behind));
        }
    }

    /// Receives the kernel's messages for a limited time. Returns whether there may be more.
    fn receive(&mut self, began: Instant) -> io::Result<bool> {
        for _ in 0..BATCH {
            match self.listener.receive()? {
                RulesReceived::Nothing => return Ok(false),
                RulesReceived::Lost => {
                    self.change = Change::default();
                    self.changed();
                }
                RulesReceived::RulesMessage(messages) => {
                    for message in messages {
                        self.handle(message);
                    }
                }
            }
            if began.elapsed() >= LATE {
                break;
            }
        }
        Ok(true)
    }

    /// Handles one message.
    fn handle(&mut self, received: RulesMessage) {
        let Some(active) = &self.active else {
            // The rules are to be read in any case.
            self.changed();
            return;
        };
        match received.message {
            Message::Generation(number) => {
                let change = std::mem::take(&mut self.change);
                self.doubt = None;
                if is_reached(number, active.generation) {
                    // A late message: the reading includes the change.
                } else if number == following(active.generation) && !change.has_more {
                    self.elements(number, &change.elements);
                    if change.has_others {
                        self.read_soon();
                    }
                } else {
                    self.changed();
                }
            }
            Message::Elements(elements) => {
                let room = MOST_ELEMENTS.saturating_sub(self.change.elements.len());
                if room > 0 {
                    self.change.elements.push(elements);
                } else {
                    self.change.has_more = true;
                }
            }
            Message::Rule(rule)
                if rule.is_plain && !active.reached_chains.contains(&rule.chain) =>
            {
                self.change.has_others = true;
            }
            // If rules use the set, they change with it.
            Message::Set(set) if !active.uses.contains_key(&set) => self.change.has_others = true,
            // For example a used-up quota. Changes do not include what an object holds.
            Message::Object if received.generation == active.generation as u16 => {}
            Message::Done | Message::Refused(_) => {}
            _ => {
                self.change.has_more = true;
                let is_new =
                    received.generation.wrapping_sub(active.generation as u16).cast_signed() > 0;
                if is_new {
                    self.changed();
                } else {
                    // A late message, or one outside of a change (`nf_tables_netdev_event`).
                    self.doubt.get_or_insert_with(|| Instant::now() + DOUBT_TIME);
                }
            }
        }
    }

    /// Handles a change of nothing but elements.
    fn elements(&mut self, number: u32, change: &[Elements]) {
        let Some(active) = &mut self.active else { return };
        match outcome(change, &active.uses) {
            ElementsEffect::Applies(changes) => {
                active.generation = number;
                (self.report)(Event::Elements { generation: number, changes });
            }
            ElementsEffect::Reread(fixed) => {
                self.moving.extend(fixed);
                self.changed();
            }
        }
    }

    /// The kernel no longer has the rules that were reported; the thread reads them soon.
    fn changed(&mut self) {
        self.doubt = None;
        if self.active.take().is_some() {
            self.change = Change::default();
            self.pause = MOVED_PAUSES[0];
            self.requests.has_watch.store(false, Release);
            (self.report)(Event::Changed);
        }
        self.read_soon();
    }

    fn read_soon(&mut self) {
        let now = Instant::now();
        let latest = match self.due {
            // A pause because of changes ends first.
            Some((at, latest)) if at > now + QUIET => {
                self.due = Some((at, latest));
                return;
            }
            Some((_, latest)) => latest,
            None => now + MOST_DELAY,
        };
        self.due = Some((now + QUIET, latest));
    }

    fn read(&mut self) -> io::Result<bool> {
        self.due = None;
        let began = Instant::now();
        let attempt = match self.active {
            Some(_) => self.attempt_beside(),
            None => {
                let takes_doubles = self.takes_doubles();
                attempt(&self.wakes, &mut self.query_socket, &self.moving, takes_doubles)
            }
        };
        match attempt {
            Ok(Attempt::Stopped) => return Ok(false),
            Ok(Attempt::Read(whole)) => {
                self.doubled = 0;
                self.reported(*whole);
            }
            Ok(moved @ (Attempt::Moved | Attempt::Doubled)) => {
                self.doubled = if matches!(moved, Attempt::Doubled) { self.doubled + 1 } else { 0 };
                // Reading takes at most a third of the time.
                let pause = self
                    .pause
                    .max(began.elapsed() * 2)
                    .min(MOVED_PAUSES[1].max(began.elapsed() * 2));
                self.pause = (self.pause * 2).min(MOVED_PAUSES[1]);
                self.wait(pause);
            }
            Err(error) => self.fail(error.to_string()),
        }
        Ok(true)
    }

    /// Whether lists with an element twice are taken: a table that grows is done by now.
    const fn takes_doubles(&self) -> bool {
        self.doubled >= MOST_DOUBLED
    }

    fn wait(&mut self, pause: Duration) {
        let at = Instant::now() + pause;
        self.due = Some((at, at));
    }

    fn reported(&mut self, whole: WholeReading) {
        let WholeReading { read, tables, ipsets } = whole;
        let uses = uses(&read);
        let reached_chains = reached_chains(&read.reading.rules);
        let lookups = lookups(&read.reading.rules, &reached_chains);
        let ipsets = match Watch::start(ipsets, &lookups, &uses) {
            Ok(ipsets) => ipsets,
            Err(error) => {
                return self.fail(format!("cannot watch the sets of ipset: {}", why(&error)));
            }
        };
        let active = ActiveReading {
            ipsets,
            generation: read.reading.generation,
            uses,
            reached_chains,
            tables: tables.iter().any(Table::is_owned).then_some(tables),
        };
        if self.requests.read.load(Acquire) {
            // This reading may have begun before the change that was requested to be read.
            self.read_soon();
            return;
        }
        self.active = Some(active);
        self.change = Change::default();
        self.pause = MOVED_PAUSES[0];
        self.broken = None;
        self.audit_at = Instant::now() + AUDIT;
        let mut reading = read.reading;
        reading.watches_ipsets = self.ipsets().is_some();
        self.requests.has_watch.store(reading.watches_ipsets, Release);
        if reading.watches_ipsets {
            // The sets may have changed since they were listed.
            self.set_behind(true);
        }
        (self.report)(Event::Read(Arc::new(reading)));
    }

    /// Reports that the rules cannot be read.
    fn fail(&mut self, reason: String) {
        if self.broken.is_none() {
            self.pause = FAILED_PAUSES[0];
        }
        let pause = self.pause;
        self.pause = (pause * 2).clamp(FAILED_PAUSES[0], FAILED_PAUSES[1]);
        self.wait(pause);
        self.active = None;
        self.requests.has_watch.store(false, Release);
        if self.broken.as_ref() != Some(&reason) {
            self.broken = Some(reason.clone());
            (self.report)(Event::Unreadable(reason));
        }
    }

    /// Reads the rules while those reported last are still active. If these may be outdated meanwhile, this
    /// reports [`Event::Behind`].
    fn attempt_beside(&mut self) -> Result<Attempt, AttemptError> {
        let takes_doubles = self.takes_doubles();
        let Self { wakes, query_socket, moving, listener, report, active, is_behind, .. } = self;
        let ipsets = active.as_mut().and_then(|active| active.ipsets.as_mut());
        let mut report_behind = || {
            if !std::mem::replace(is_behind, true) {
                report(Event::Behind(true));
            }
        };
        let attempt = || attempt(wakes, query_socket, moving, takes_doubles);
        let outcome = attempt_beside(attempt, listener, ipsets, &mut report_behind);
        if self.is_behind {
            // The next turn finds out whether everything has been read.
            self.unread_since = Some(Instant::now());
        }
        outcome
    }

    /// The sets of ipset that rules of the fast path look up.
    fn ipsets(&self) -> Option<&Watch> {
        self.active.as_ref()?.ipsets.as_ref()
    }

    /// Reports changes of the sets of ipset.
    fn take_looks(&mut self) {
        let Some(ActiveReading { ipsets: Some(ipsets), generation, .. }) = &mut self.active else {
            return;
        };
        ipsets.receive();
        let generation = *generation;
        for look in ipsets.take() {
            match look {
                Look::Elements(changes) => (self.report)(Event::Elements { generation, changes }),
                Look::Reread => {
                    return self.changed();
                }
            }
        }
    }

    /// Checks for tables that have disappeared without a notification.
    fn audit(&mut self) -> io::Result<()> {
        let Some(tables) = self.active.as_ref().and_then(|active| active.tables.as_ref()) else {
            return Ok(());
        };
        if self.query_socket.tables()? != *tables {
            self.changed();
        }
        Ok(())
    }
}

/// The generation number after another (`nf_tables_commit`): it is never 0.
const fn following(generation: u32) -> u32 {
    match generation.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}
