//! Where the events come from.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::drift::Findings;
use super::message::{self, List};
use super::pass::{Next, Pass};
use super::touched::Touched;
use super::untold::{shakes, untold};
use crate::mirror::event::{Change, Event, Place};
use crate::mirror::kernel::{Family, Hops, Ifindex, Kernel, Route, TableId};
use crate::mirror::take::Effect;
use crate::netlink::{Message, Received, Socket};

/// Datagrams of changes that are read before it is another's turn.
const BATCH: usize = 128;
/// Datagrams of changes that are read before a list is concluded, to hear all that it may have seen.
const DRAINED: usize = 8192;
/// How long a list is read before it is another's turn.
const SLICE: Duration = Duration::from_millis(2);
/// The same in an audit, which is to be noticed by nobody.
const AUDIT_SLICE: Duration = Duration::from_micros(500);
/// An audit takes one part in so many of a processor; one that somebody waits for takes more. A million routes
/// cost 1.5 s, 0.9 of them the kernel's.
const AUDIT_SHARE: u32 = 100;
const AWAITED_SHARE: u32 = 10;
/// A slice counts for no longer than this: whoever had no processor meanwhile took none.
const AUDIT_SLICE_MOST: Duration = Duration::from_millis(2);
/// A list of which nothing comes for so long has got lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// After a device has gone up or down, the kernel may still list what it is about to drop or mend.
const SHAKY: Duration = Duration::from_millis(500);
/// When lists are begun again that were given up: at first, and at last.
const RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// How the kernel is listened to.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of messages that may wait to be read, as the kernel counts: a changed route has about 1000.
    pub receive_buffer: usize,
    /// How often all that is known is compared with what the kernel has.
    pub audit_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { receive_buffer: 128 << 20, audit_every: Duration::from_secs(60) }
    }
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// How often everything was listed to the end, audits aside.
    pub resyncs: u64,
    /// How often the receive buffer was full and messages were lost.
    pub lost: u64,
    /// How often everything was compared.
    pub audits: u64,
    /// Things that were wrong then.
    pub drifts: u64,
}

/// Listens to the kernel.
///
/// Nothing here waits. Whoever owns it calls [`Source::read`] when [`Source::fd`] is readable or
/// [`Source::due`] has come.
pub struct Source {
    settings: Settings,
    changes: Socket,
    lists: Socket,
    /// What is small, as it was told.
    known: Kernel,
    pass: Option<Pass>,
    touched: Touched,
    findings: Findings,
    /// When everything is to be listed anew.
    resync_at: Option<Instant>,
    retry: Duration,
    /// When an audit is to begin, or to go on.
    audit_at: Instant,
    audit_began: Instant,
    /// Another audit is to follow what is being listed.
    audit_again: bool,
    /// Somebody waits for an audit.
    is_awaited: bool,
    /// When something of the list came last.
    heard: Instant,
    /// When the pass has begun, and when something changed that changes routes untold.
    began: Instant,
    shaken: Option<Instant>,
    /// When the last one was complete, audits aside, and how long that took.
    complete: Instant,
    took: Duration,
    /// Devices of which more is to be asked.
    ask: BTreeSet<Ifindex>,
    stats: Stats,
    is_drained: bool,
}

impl Source {
    /// Listens from now on, and begins with a list of everything.
    ///
    /// # Errors
    /// The system gives no socket.
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
            heard: now,
            began: now,
            shaken: None,
            complete: now,
            took: Duration::ZERO,
            ask: BTreeSet::new(),
            stats: Stats::default(),
            is_drained: false,
            settings,
        })
    }

    /// What to wait for messages on.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.changes.fd()
    }

    /// When there is something to read even if nothing is readable.
    #[must_use]
    pub fn due(&self) -> Instant {
        let next = match &self.pass {
            Some(pass) if pass.audit => self.audit_at,
            Some(_) => Instant::now(),
            None => self.findings.due().unwrap_or(self.audit_at),
        };
        self.resync_at.map_or(next, |at| at.min(next))
    }

    /// Says if nothing of what had been told of changes was left when that was read last.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// What was done so far.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Has everything listed anew, because of some doubt. What is known stays in use meanwhile. That is at
    /// once, unless there was doubt just before: lists take a fifth of the time at most.
    pub fn resync(&mut self) {
        let rest = self.complete + self.took * 4;
        self.resync_at.get_or_insert_with(|| rest.max(Instant::now()));
    }

    /// Has everything compared now, somewhat faster than by itself; where that is being done already,
    /// again as soon as it is done.
    pub fn audit(&mut self) {
        self.is_awaited = true;
        self.audit_again |= self.pass.is_some();
        self.audit_at = Instant::now();
    }

    /// Says what an audit had to mend: a list [for an audit](Event::Listing) has changed routes to a
    /// destination of a table, or had them not. That is an error, unless they changed just now, which
    /// is found out here.
    pub fn drifted(&mut self, table: TableId, dst: IpNet) {
        self.findings.suspect_routes(table, dst);
    }

    /// Reads what there is, for a few milliseconds at most; says if there is more. Never waits.
    ///
    /// # Errors
    /// A socket is of no more use. Another source may be opened in this one's place, and what is known
    /// stays in use until that has listed everything.
    pub fn read(&mut self, sink: &mut dyn FnMut(Event)) -> io::Result<bool> {
        let drained = self.read_changes(BATCH, sink)?;
        self.is_drained = drained;
        let now = Instant::now();
        self.begin(now, drained, sink)?;
        let busy = self.read_list(now, sink)?;
        for index in std::mem::take(&mut self.ask) {
            let sequence = self.changes.next_sequence();
            self.changes.send(&message::ask_link(index, sequence))?;
        }
        if self.findings.due().is_some_and(|due| due <= now) && drained {
            self.stats.drifts += self.findings.tell(&self.known) as u64;
        }
        Ok(busy || !drained)
    }

    /// Reads up to so many datagrams of changes; says if there were no more.
    fn read_changes(&mut self, most: usize, sink: &mut dyn FnMut(Event)) -> io::Result<bool> {
        let mut events = Vec::new();
        for _ in 0..most {
            let mut overrun = false;
            let received = self.changes.receive(|message| match message.kind {
                message::OVERRUN => overrun = true,
                // Of a device that is gone since.
                message::ERROR | message::DONE => {}
                _ => events.extend(message::read(&message, false)),
            })?;
            for event in events.drain(..) {
                self.hear(event, sink);
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

    /// Takes a change.
    fn hear(&mut self, event: Event, sink: &mut dyn FnMut(Event)) {
        if let Some(pass) = &mut self.pass {
            pass.hear(&event, &mut self.touched);
        }
        self.findings.hear(&event);
        if shakes(&self.known, &event) {
            self.shaken = Some(Instant::now());
        }
        match &event {
            Event::Route(key, route, Change::Del | Change::Add(Place::Instead))
                if route.odd && key.family() == Family::V6 =>
            {
                // Another may look the same, for another source (`RTA_SRC`).
                self.resync_at.get_or_insert_with(|| Instant::now() + LAST_RETRY);
                sink(event);
            }
            Event::Route(..) | Event::Sysctl(..) => sink(event),
            Event::Tc(index) => {
                // What the device says of its queueing discipline is not told by itself.
                self.ask.extend(index);
                sink(event);
            }
            _ => {
                for untold in untold(&self.known, &event) {
                    self.tell(untold, sink);
                }
                self.tell(event, sink);
            }
        }
    }

    /// Tells something small if it is new.
    fn tell(&mut self, event: Event, sink: &mut dyn FnMut(Event)) {
        if self.known.take(&event) != Effect::Nothing {
            sink(event);
        }
    }

    /// Messages were lost: all is to be listed anew.
    fn lose(&mut self, sink: &mut dyn FnMut(Event)) -> io::Result<()> {
        self.stats.lost += 1;
        tracing::info!("messages of the kernel were lost; everything is listed anew");
        sink(Event::Lost);
        self.give_up()
    }

    /// Begins again, a little later.
    fn give_up(&mut self) -> io::Result<()> {
        self.abandon()?;
        self.resync_at = Some(Instant::now() + self.retry);
        self.retry = LAST_RETRY.min(self.retry * 2);
        Ok(())
    }

    /// Forgets the pass that is going on.
    fn abandon(&mut self) -> io::Result<()> {
        if self.pass.take().is_some() {
            // The kernel would go on with its list, and begin no other on this socket.
            self.lists = lists()?;
        }
        self.findings.forget();
        self.touched.clear();
        Ok(())
    }

    /// Begins a pass, if one is due and all was heard that may have gone before: as long as something
    /// waits there after a loss, more may get lost of which nothing is said.
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
        self.ask_for(List::Links, sink)
    }

    fn ask_for(&mut self, list: List, sink: &mut dyn FnMut(Event)) -> io::Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        self.touched.clear();
        if let List::Routes(family) = list {
            sink(Event::Listing { family, audit: pass.audit });
        }
        let sequence = self.lists.next_sequence();
        pass.ask(list, sequence);
        self.heard = Instant::now();
        self.lists.send(&list.question(sequence))
    }

    /// Reads a slice of the list; says if more of it is to be read at once.
    fn read_list(&mut self, now: Instant, sink: &mut dyn FnMut(Event)) -> io::Result<bool> {
        let audit = match &self.pass {
            None => return Ok(false),
            Some(pass) if pass.audit && self.audit_at > now => return Ok(false),
            Some(pass) => pass.audit,
        };
        let (mut spent, slice) = (Duration::ZERO, if audit { AUDIT_SLICE } else { SLICE });
        while spent < slice && self.pass.is_some() {
            let told = self.read_part(sink)?;
            spent = now.elapsed();
            if told {
                self.heard = now + spent;
            } else {
                if self.heard.elapsed() > PATIENCE {
                    tracing::warn!("a list of the kernel's does not come to its end; asking again");
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

    /// Too much has changed during a list.
    fn overwhelmed(&mut self, audit: bool) -> io::Result<()> {
        if !audit {
            return self.give_up();
        }
        let rest = if self.is_awaited { LAST_RETRY } else { self.settings.audit_every };
        self.audit_at = Instant::now() + rest;
        self.abandon()
    }

    /// Reads a datagram of the list; says if there was one.
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

    /// The kernel does not list something.
    fn refused(&mut self, error: &io::Error, sink: &mut dyn FnMut(Event)) -> io::Result<()> {
        match error.raw_os_error() {
            // Something that it does not have, such as IPv6.
            Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => self.go_on(sink),
            _ => {
                tracing::warn!("the kernel does not list its configuration: {error}; asking again");
                self.give_up()
            }
        }
    }

    /// The list has come to its end.
    fn go_on(&mut self, sink: &mut dyn FnMut(Event)) -> io::Result<()> {
        // What it may have seen already is to be heard before it is concluded from.
        self.read_changes(DRAINED, sink)?;
        let Some(pass) = &mut self.pass else { return Ok(()) };
        match pass.next(&self.touched) {
            Next::List(list) => self.ask_for(list, sink),
            Next::Whole(fresh) => {
                if pass.audit {
                    self.findings.compare(&self.known, &fresh);
                }
                self.known.clone_from(&fresh);
                sink(Event::Whole(fresh));
                self.ask_for(List::Routes(Family::V4), sink)
            }
            Next::Listed(family, lists) => {
                sink(Event::Listed { family, lists });
                match family {
                    Family::V4 => self.ask_for(List::Routes(Family::V6), sink),
                    Family::V6 => {
                        self.complete(sink);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Everything is told.
    fn complete(&mut self, sink: &mut dyn FnMut(Event)) {
        let now = Instant::now();
        let shaky = self.shaken.is_some_and(|at| at + SHAKY > self.began);
        if shaky {
            // What was listed is right but for this, so it need not be soon, nor take all the time.
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

/// The socket on which lists are told.
fn lists() -> io::Result<Socket> {
    const ROOM: usize = 1 << 20;
    let socket = Socket::open(&[], ROOM)?;
    socket.ask_strictly();
    Ok(socket)
}

fn take_listed(
    message: &Message<'_>,
    pass: &mut Pass,
    touched: &mut Touched,
    known: &Kernel,
    sink: &mut dyn FnMut(Event),
) {
    let Some(event) = message::read(message, true) else { return };
    // With its next-hop object the route has gone, or is about to.
    if let Event::Route(_, Route { hops: Hops::Object(id), .. }, _) = &event
        && !known.nexthops.contains_key(id)
    {
        touched.doubt();
    } else if let Some(event) = pass.listed(event, touched) {
        sink(event);
    }
}
