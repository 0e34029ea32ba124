//! The source of events.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::drift::Findings;
use super::implicit_deletes::{implicit_deletes, invalidates_routes};
use super::message::{self, List};
use super::pass::{Next, Pass};
use super::settings::Settings;
use super::touched::Touched;
use crate::effect::Effect;
use crate::event::{Change, Event, Place};
use crate::kernel::{Family, Hops, Ifindex, Kernel, Route, TableId};
use tollway_linux::netlink::{Message, Received, Socket};

/// Datagrams of changes read in one turn.
const BATCH: usize = 128;
/// Datagrams of changes read before a list is concluded: the list may contain these changes.
const DRAINED: usize = 8192;
/// How long a list is read in one turn.
const SLICE: Duration = Duration::from_millis(2);
/// The same in an audit, which must not delay other work.
const AUDIT_SLICE: Duration = Duration::from_micros(500);
/// An audit takes `1 / AUDIT_SHARE` of a processor's time; an audit that someone waits for takes more. A
/// million routes cost 1.5 s, of which the kernel takes 0.9 s.
const AUDIT_SHARE: u32 = 100;
const AWAITED_SHARE: u32 = 10;
/// The most time that a slice counts for: if it took longer, the thread had no processor for a part of it.
const AUDIT_SLICE_MOST: Duration = Duration::from_millis(2);
/// A list without a message for this long is lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// For this long after a device has gone up or down, lists may contain objects that the kernel is about to
/// drop or correct.
const SHAKY: Duration = Duration::from_millis(500);
/// The time before an abandoned list begins again: at first, and at most.
const RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// Counters of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// How often everything was listed to the end, audits aside.
    pub resyncs: u64,
    /// How often the receive buffer was full and messages were lost.
    pub lost: u64,
    /// How many audits have been completed.
    pub audits: u64,
    /// The number of differences that they found.
    pub drifts: u64,
}

/// Follows the kernel's configuration.
///
/// Nothing here waits. The owner calls [`Source::read`] when [`Source::fd`] is readable, and at the
/// time [`Source::due`].
pub struct Source {
    settings: Settings,
    changes: Socket,
    lists: Socket,
    /// The configuration apart from routes, as reported by events.
    known: Kernel,
    pass: Option<Pass>,
    touched: Touched,
    findings: Findings,
    /// When to list everything again, if that is due.
    resync_at: Option<Instant>,
    retry: Duration,
    /// When an audit has to begin or continue.
    audit_at: Instant,
    audit_began: Instant,
    /// Whether another audit has to follow the present lists.
    audit_again: bool,
    /// Whether someone waits for an audit.
    is_awaited: bool,
    /// When a part of the list was received last.
    received_at: Instant,
    /// When the pass began, and when a change last affected routes without notification.
    began: Instant,
    shaken: Option<Instant>,
    /// When the last pass was complete, audits aside, and how long it took.
    complete: Instant,
    took: Duration,
    /// Devices to query.
    devices_to_query: BTreeSet<Ifindex>,
    stats: Stats,
    is_drained: bool,
}

impl Source {
    /// Starts to follow the kernel, and begins with lists of everything.
    ///
    /// # Errors
    /// The system refuses a socket.
    pub fn open(settings: Settings) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            changes: Socket::open(&message::GROUPS, settings.receive_buffer)?,
            lists: lists()?,
            known: Kernel::default(),
            pass: None,
            touched: Touched::default(),
            findings: Findings::default(),
            resync_at: Some(now),
            retry: RETRY,
            audit_at: now + settings.audit_every,
            audit_began: now,
            audit_again: false,
            is_awaited: false,
            received_at: now,
            began: now,
            shaken: None,
            complete: now,
            took: Duration::ZERO,
            devices_to_query: BTreeSet::new(),
            stats: Stats::default(),
            is_drained: false,
            settings,
        })
    }

    /// The descriptor to wait for.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.changes.fd()
    }

    /// When [`Source::read`] has work even though the descriptor is not readable.
    #[must_use]
    pub fn due(&self) -> Instant {
        let next = match &self.pass {
            Some(pass) if pass.audit => self.audit_at,
            Some(_) => Instant::now(),
            None => self.findings.due().unwrap_or(self.audit_at),
        };
        self.resync_at.map_or(next, |at| at.min(next))
    }

    /// Says whether the last read left no notification of a change unread.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// The counters.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Lists everything again, in case of doubt; known data stays in use meanwhile. The lists begin at once,
    /// unless others were just made: lists take a fifth of the time at most.
    pub fn resync(&mut self) {
        let rest = self.complete + self.took * 4;
        self.resync_at.get_or_insert_with(|| rest.max(Instant::now()));
    }

    /// Starts an audit now, somewhat faster than a periodic one. If one is running already, another follows.
    pub fn audit(&mut self) {
        self.is_awaited = true;
        self.audit_again |= self.pass.is_some();
        self.audit_at = Instant::now();
    }

    /// Notes that a list [for an audit](Event::Listing) has changed, added or removed routes to a destination
    /// of a table. That is logged as an error, unless a notification soon explains it.
    pub fn drifted(&mut self, table: TableId, dst: IpNet) {
        self.findings.suspect_routes(table, dst);
    }

    /// Reads what is available, for a few milliseconds at most; returns whether there is more. Never waits.
    ///
    /// # Errors
    /// A socket is unusable. Another source may replace this one; known data stays in use until the new source
    /// has listed everything.
    pub fn read(&mut self, sink: &mut dyn FnMut(Event)) -> io::Result<bool> {
        let drained = self.read_changes(BATCH, sink)?;
        self.is_drained = drained;
        let now = Instant::now();
        self.begin(now, drained, sink)?;
        let busy = self.read_list(now, sink)?;
        for index in std::mem::take(&mut self.devices_to_query) {
            let sequence = self.changes.next_sequence();
            self.changes.send(&message::link_request(index, sequence))?;
        }
        if self.findings.due().is_some_and(|due| due <= now) && drained {
            self.stats.drifts += self.findings.log(&self.known) as u64;
        }
        Ok(busy || !drained)
    }

    /// Reads at most `most` datagrams of changes; returns whether there were no more.
    fn read_changes(&mut self, most: usize, sink: &mut dyn FnMut(Event)) -> io::Result<bool> {
        let mut events = Vec::new();
        for _ in 0..most {
            let mut overrun = false;
            let received = self.changes.receive(|message| match message.kind {
                message::OVERRUN => overrun = true,
                // The query was about a device that has gone since.
                message::ERROR | message::DONE => {}
                _ => events.extend(message::read(&message, false)),
            })?;
            for event in events.drain(..) {
                self.receive(event, sink);
            }
            match received {
                Received::Nothing => return Ok(true),
                Received::Lost | Received::Broken => self.lose(sink)?,
                Received::Datagram if overrun => self.lose(sink)?,
                Received::Datagram => {}
            }
        }
        Ok(false)
    }

    /// Handles a change.
    fn receive(&mut self, event: Event, sink: &mut dyn FnMut(Event)) {
        if let Some(pass) = &mut self.pass {
            pass.receive(&event, &mut self.touched);
        }
        self.findings.receive(&event);
        if invalidates_routes(&self.known, &event) {
            self.shaken = Some(Instant::now());
        }
        match &event {
            Event::Route(key, route, Change::Del | Change::Add(Place::Instead))
                if route.unsupported && key.family() == Family::V6 =>
            {
                // Another route may look the same and apply to another source (`RTA_SRC`).
                self.resync_at.get_or_insert_with(|| Instant::now() + LAST_RETRY);
                sink(event);
            }
            Event::Route(..) | Event::Sysctl(..) => sink(event),
            Event::Tc(index) => {
                // The kernel does not notify of the queueing discipline in the device's own message.
                self.devices_to_query.extend(index);
                sink(event);
            }
            _ => {
                for implicit_delete in implicit_deletes(&self.known, &event) {
                    self.emit(implicit_delete, sink);
                }
                self.emit(event, sink);
            }
        }
    }

    /// Passes an event on, if it changes the known configuration.
    fn emit(&mut self, event: Event, sink: &mut dyn FnMut(Event)) {
        if self.known.apply(&event) == Effect::Nothing {
            return;
        }
        if let Event::BridgePort(index, Some(_)) = event {
            // A timer's message of a new state may overtake another message, which has the old one.
            self.devices_to_query.insert(index);
        }
        sink(event);
    }

    /// Messages were lost: everything has to be listed again.
    fn lose(&mut self, sink: &mut dyn FnMut(Event)) -> io::Result<()> {
        self.stats.lost += 1;
        tracing::info!("messages of the kernel were lost; everything is listed again");
        sink(Event::Lost);
        self.give_up()
    }

    /// Abandons the pass, to begin again a little later.
    fn give_up(&mut self) -> io::Result<()> {
        self.abandon()?;
        self.resync_at = Some(Instant::now() + self.retry);
        self.retry = LAST_RETRY.min(self.retry * 2);
        Ok(())
    }

    /// Drops the running pass.
    fn abandon(&mut self) -> io::Result<()> {
        if self.pass.take().is_some() {
            // On the old socket, the kernel would continue its list and begin no other.
            self.lists = lists()?;
        }
        self.findings.forget();
        self.touched.clear();
        Ok(())
    }

    /// Begins a pass if one is due and all earlier notifications have been read. As long as unread
    /// notifications remain after a loss, more may be lost without an error.
    fn begin(
        &mut self,
        now: Instant,
        drained: bool,
        sink: &mut dyn FnMut(Event),
    ) -> io::Result<()> {
        let doubtful = self.resync_at.is_some_and(|at| at <= now);
        let begins = match &self.pass {
            Some(pass) => doubtful && pass.audit,
            None => doubtful || (self.audit_at <= now && self.findings.due().is_none()),
        };
        let lost = self.stats.lost;
        let drained = drained || (begins && doubtful && self.read_changes(DRAINED, sink)?);
        if !begins || !drained || self.stats.lost > lost {
            return Ok(());
        }
        if doubtful {
            self.abandon()?;
            self.resync_at = None;
            self.audit_again |= self.is_awaited;
        } else {
            self.audit_began = now;
            self.findings.open();
        }
        self.began = now;
        self.pass = Some(Pass::new(!doubtful));
        self.request_list(List::Links, sink)
    }

    fn request_list(&mut self, list: List, sink: &mut dyn FnMut(Event)) -> io::Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        self.touched.clear();
        if let List::Routes(family) = list {
            sink(Event::Listing { family, audit: pass.audit });
        }
        let sequence = self.lists.next_sequence();
        pass.begin_list(list, sequence);
        self.received_at = Instant::now();
        self.lists.send(&list.request(sequence))
    }

    /// Reads a slice of the list; returns whether more of it has to be read at once.
    fn read_list(&mut self, now: Instant, sink: &mut dyn FnMut(Event)) -> io::Result<bool> {
        let audit = match &self.pass {
            None => return Ok(false),
            Some(pass) if pass.audit && self.audit_at > now => return Ok(false),
            Some(pass) => pass.audit,
        };
        let (mut spent, slice) = (Duration::ZERO, if audit { AUDIT_SLICE } else { SLICE });
        while spent < slice && self.pass.is_some() {
            let has_read = self.read_part(sink)?;
            spent = now.elapsed();
            if has_read {
                self.received_at = now + spent;
            } else {
                if self.received_at.elapsed() > PATIENCE {
                    tracing::warn!("a list of the kernel does not end; requesting it again");
                    self.give_up()?;
                }
                break;
            }
        }
        if self.touched.is_full() || self.findings.is_full() {
            self.overwhelmed(audit)?;
        }
        if audit && self.pass.is_some() {
            let share = if self.is_awaited { AWAITED_SHARE } else { AUDIT_SHARE };
            self.audit_at = now + spent.min(AUDIT_SLICE_MOST) * share;
        }
        Ok(!audit && self.pass.is_some())
    }

    /// Handles too many changes during a list.
    fn overwhelmed(&mut self, audit: bool) -> io::Result<()> {
        if !audit {
            return self.give_up();
        }
        let rest = if self.is_awaited { LAST_RETRY } else { self.settings.audit_every };
        self.audit_at = Instant::now() + rest;
        self.abandon()
    }

    /// Reads a datagram of the list; returns whether there was one.
    fn read_part(&mut self, sink: &mut dyn FnMut(Event)) -> io::Result<bool> {
        let Self { pass: Some(pass), touched, known, .. } = self else { return Ok(false) };
        touched.begin_datagram();
        let mut end = None;
        let received = self.lists.receive(|message| {
            if message.sequence != pass.sequence {
                return;
            }
            if message.flags & message::INTERRUPTED != 0 {
                pass.interrupt();
            }
            match message.kind {
                message::DONE | message::ERROR => end = Some(message.error()),
                _ => take_listed(&message, pass, touched, known, sink),
            }
        })?;
        match (received, end) {
            (Received::Nothing, _) => return Ok(false),
            (Received::Lost | Received::Broken, _) => self.give_up()?,
            (Received::Datagram, None) => {}
            (Received::Datagram, Some(None)) => self.go_on(sink)?,
            (Received::Datagram, Some(Some(error))) => self.refused(&error, sink)?,
        }
        Ok(true)
    }

    /// Handles the kernel's refusal of a list.
    fn refused(&mut self, error: &io::Error, sink: &mut dyn FnMut(Event)) -> io::Result<()> {
        match error.raw_os_error() {
            // The kernel lacks the protocol, such as IPv6.
            Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => self.go_on(sink),
            _ => {
                tracing::warn!(
                    "the kernel does not list its configuration: {error}; requesting it again"
                );
                self.give_up()
            }
        }
    }

    /// Handles the end of a list.
    fn go_on(&mut self, sink: &mut dyn FnMut(Event)) -> io::Result<()> {
        // The list may contain changes whose notifications are unread: read these first.
        self.read_changes(DRAINED, sink)?;
        let Some(pass) = &mut self.pass else { return Ok(()) };
        match pass.next(&self.touched) {
            Next::List(list) => self.request_list(list, sink),
            Next::Whole(fresh) => {
                if pass.audit {
                    self.findings.compare(&self.known, &fresh);
                }
                self.known.clone_from(&fresh);
                sink(Event::Whole(fresh));
                self.request_list(List::Routes(Family::V4), sink)
            }
            Next::Listed(family, lists) => {
                sink(Event::Listed { family, lists });
                match family {
                    Family::V4 => self.request_list(List::Routes(Family::V6), sink),
                    Family::V6 => {
                        self.complete(sink);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Concludes a pass.
    fn complete(&mut self, sink: &mut dyn FnMut(Event)) {
        let now = Instant::now();
        let shaky = self.shaken.is_some_and(|at| at + SHAKY > self.began);
        if shaky {
            // Apart from this the lists are right, so the next pass may wait. It need not take all the time.
            let rest = LAST_RETRY.max((now - self.began) * 10);
            self.resync_at.get_or_insert(now + rest);
        }
        if self.pass.take().is_some_and(|pass| pass.audit) {
            self.stats.audits += 1;
            self.is_awaited = self.audit_again;
            self.audit_at = now.max(self.audit_began + self.settings.audit_every);
            if shaky { self.findings.forget() } else { self.findings.close(now) }
        } else {
            self.stats.resyncs += 1;
            self.retry = RETRY;
            (self.complete, self.took) = (now, now - self.began);
            self.audit_at = now + self.settings.audit_every;
            sink(Event::Complete);
        }
        if std::mem::take(&mut self.audit_again) {
            self.audit_at = now;
        }
    }
}

/// The socket for lists.
fn lists() -> io::Result<Socket> {
    const ROOM: usize = 1 << 20;
    let socket = Socket::open(&[], ROOM)?;
    socket.set_strict_check();
    Ok(socket)
}

fn take_listed(
    message: &Message<'_>,
    pass: &mut Pass,
    touched: &mut Touched,
    known: &Kernel,
    sink: &mut dyn FnMut(Event),
) {
    for event in message::read(message, true) {
        // The route has gone with its next-hop object, or is about to.
        if let Event::Route(_, Route { hops: Hops::Object(id), .. }, _) = &event
            && !known.nexthops.contains_key(id)
        {
            touched.doubt();
        } else if let Some(event) = pass.listed(event, touched) {
            sink(event);
        }
    }
}
