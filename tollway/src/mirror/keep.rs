//! The thread that keeps tables as the kernel is configured.
//!
//! Whatever has changed is first taken in as far as it has been told, then put in force by the smallest
//! means that does: routes and what is asked of packets in tables that are in use, the firewall's rules
//! beside them, and new tables only where links or views are others. While what is in force is known to
//! be wrong, the kernel forwards.

mod apply;
mod attached;
mod holds;

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use super::begin::{self, Mirror};
use super::coverage::Live;
use super::event::Event;
use super::fill::Fill;
use super::handle::{Door, Request, Status, Synced};
use super::known::{Known, Rules};
use super::locals::Locals;
use super::netlink::{self, Source};
use super::policies::Policies;
use super::rules;
use super::shape::Shape;
use crate::force::{Force, PATIENCE};
use crate::ports::{sys, why};
use crate::priority::Hurry;
use crate::service::Beat;
use crate::steer;
use crate::sync::lock;
use attached::Wishes;
use holds::Holds;

/// The thread shows that it lives so often at least.
const BEAT: Duration = Duration::from_millis(500);
/// After something could not be put in force, it is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Messages are taken in for so long before what they say is put in force.
const SLICE: Duration = Duration::from_millis(2);
/// Ports are asked so often whether they work, and those that do not, so often.
const PORTS_EVERY: Duration = Duration::from_millis(250);
const PORTS_AGAIN: Duration = Duration::from_millis(20);
/// An answer that nobody waits for is looked for after so long.
const PORTS_ANSWER: Duration = Duration::from_millis(5);
/// Where the oldest message that is not in force yet may be older than this, the kernel forwards.
const LATE: Duration = Duration::from_millis(5);

/// The thread's own.
pub(super) struct Keeper {
    source: Source,
    policies: Policies,
    settings: netlink::Settings,
    known: Known,
    /// What is in force.
    shape: Shape,
    locals: Locals,
    /// The routes in force; none before the first tables.
    fill: Option<Fill>,
    force: Force,
    rules: rules::Follower,
    told: Receiver<rules::Event>,
    door: Door,
    holds: Holds,
    /// Where others find which traffic takes which road.
    live: Live,
    /// When the ports are asked whether they work.
    ports_at: Instant,
    /// They have been asked.
    asked_ports: Option<Receiver<apply::Looked>>,
    /// Since when there have been messages that are not in force, if there are.
    unread_since: Option<Instant>,
    /// None before the first turn.
    hurry: Option<Hurry>,
    /// When this turn began.
    turned_at: Instant,
    /// Which ports are to carry their programs.
    wishes: Wishes,
    /// Rules were read that are not in force yet.
    rules_are_new: bool,
    /// The kernel's rules are others than those that were read.
    rules_are_old: bool,
    /// Elements came or went in the filter in force, of which the rules that were read know nothing.
    elements_applied: bool,
    /// The generation of rules that was heard of last.
    rules_generation: u32,
    /// Elements of sets that came and went, for the rules in force or those that are new.
    elements: Vec<rules::ElementChange>,
    /// Tables are to be made anew whatever has changed.
    again_at: Option<Instant>,
    /// Who waits for rules of such a generation and all that was told before.
    waiting: Vec<(u32, Waiting)>,
    /// Who waits for what is said of roads.
    judging: Vec<SyncSender<()>>,
    status: Status,
    beat: Beat,
}

/// Who waits until all is in force.
enum Waiting {
    Asks(SyncSender<Synced>),
    /// The steering programs, after the worker was away.
    Steers(u64, steer::State),
}

impl Keeper {
    pub(super) fn new(mirror: Mirror, force: Force, live: Live, beat: Beat) -> Self {
        let wishes = Wishes::new(mirror.idle());
        let Mirror { source, settings, known, shape, locals, fill, .. } = mirror;
        let Mirror { policies, rules, told, door, .. } = mirror;
        let rules_generation = match known.rules() {
            Rules::Read(reading, _) => reading.generation,
            Rules::Unread(_) => 0,
        };
        let holds = Holds { starting: true, ..Holds::default() };
        Self {
            source,
            policies,
            settings,
            known,
            shape,
            locals,
            fill,
            force,
            rules,
            told,
            door,
            holds,
            live,
            ports_at: Instant::now(),
            asked_ports: None,
            unread_since: None,
            hurry: None,
            turned_at: Instant::now(),
            wishes,
            rules_are_new: false,
            rules_are_old: false,
            elements_applied: false,
            rules_generation,
            elements: Vec::new(),
            again_at: None,
            waiting: Vec::new(),
            judging: Vec::new(),
            status: Status::default(),
            beat,
        }
    }

    /// Mirrors until told to stop.
    pub(super) fn run(mut self, ready: impl FnOnce()) {
        let (mut more, mut ready) = (true, Some(ready));
        loop {
            match self.turn(more) {
                Ok(Some(next)) => {
                    more = next;
                    if let Some(ready) = ready.take_if(|_| !self.holds.starting) {
                        ready();
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.recover(&error);
                    more = true;
                }
            }
        }
    }

    /// Waits unless there is more to do, and does what there is; says if there is more, none if the
    /// thread is to end.
    fn turn(&mut self, more: bool) -> io::Result<Option<bool>> {
        let mut fds = begin::entries(&self.source, &self.door, &self.policies, &self.known);
        sys::wait(&mut fds, if more { 0 } else { self.patience() })?;
        self.turned_at = Instant::now();
        self.hurry.get_or_insert_with(Hurry::begin).look();
        self.beat.beat();
        if !self.hear() {
            return Ok(None);
        }
        let more = self.read()?;
        self.notice_late();
        self.doubt_rules();
        self.hear_rules();
        self.hear_policies();
        self.known.hear_path_mtus();
        self.holds.unasked = !self.known.ask();
        self.apply();
        if self.source.is_drained() {
            self.unread_since = None;
            self.holds.late = false;
        }
        self.hold();
        if !more {
            self.holds.starting = false;
            self.hold();
            self.answer();
        }
        for judging in self.judging.drain(..) {
            // Whoever asked may have gone.
            let _ = judging.try_send(());
        }
        self.report();
        Ok(Some(more))
    }

    /// How long there is nothing to do, ms.
    fn patience(&self) -> i32 {
        let due = self.source.due().min(self.known.due()).min(self.ports_at);
        let due = self.again_at.map_or(due, |at| at.min(due));
        let due = self.wishes.due().map_or(due, |at| at.min(due));
        let left = due.saturating_duration_since(Instant::now()).min(BEAT);
        left.as_micros().div_ceil(1000) as i32
    }

    /// Takes requests; false where it is to end.
    fn hear(&mut self) -> bool {
        let mut bytes = [0; 64];
        while matches!(self.door.woken.read(&mut bytes), Ok(1..)) {}
        while let Ok(request) = self.door.requests.try_recv() {
            match request {
                Request::Sync(answer) => {
                    self.wait(Waiting::Asks(answer));
                    self.known.ask_again();
                }
                Request::Gap(gaps, state) => self.wait(Waiting::Steers(gaps, state)),
                Request::Judge(answer) => {
                    self.known.tally();
                    self.judging.push(answer);
                }
                Request::Audit => {
                    self.source.audit();
                    self.rules.read_again();
                    self.known.ask_again();
                }
                Request::Stop => return false,
            }
        }
        true
    }

    /// Has somebody wait for the rules that there are now, and for all that was told.
    fn wait(&mut self, waiting: Waiting) {
        // Where there is no generation, there are no rules.
        let generation = rules::generation().unwrap_or(self.rules_generation);
        self.waiting.push((generation, waiting));
    }

    /// Has the kernel forward where more is told than can be put in force at once: what is in force is older
    /// than what the kernel forwards by.
    fn notice_late(&mut self) {
        if self.source.is_drained() {
            return;
        }
        let since = *self.unread_since.get_or_insert(self.turned_at);
        if since.elapsed() >= LATE {
            self.holds.late = true;
            self.force.hold(true);
        }
    }

    /// Takes what the kernel has told; says if there is more.
    fn read(&mut self) -> io::Result<bool> {
        let start = Instant::now();
        let Self { source, known, holds, .. } = self;
        loop {
            let more = source.read(&mut |event| {
                match event {
                    Event::Lost => holds.lost = true,
                    Event::Complete => holds.lost = false,
                    _ => {}
                }
                known.take(event);
            })?;
            if holds.lost {
                self.force.hold(true);
            }
            if !more || start.elapsed() > SLICE {
                return Ok(more);
            }
        }
    }

    /// Has the rules read again that may know devices by number, where numbers or names are others now.
    fn doubt_rules(&mut self) {
        let by_number =
            matches!(self.known.rules(), Rules::Read(reading, _) if reading.knows_numbers);
        if self.known.take_renamed() && by_number {
            self.outdate_rules();
            self.rules.read_again();
        }
    }

    /// The kernel forwards until its rules have been read.
    fn outdate_rules(&mut self) {
        (self.rules_are_old, self.holds.rules) = (true, true);
        self.force.hold(true);
    }

    /// Where IPsec policies have changed, the kernel forwards until what follows is in force: that is in
    /// this turn, unless the kernel can not be asked.
    fn hear_policies(&mut self) {
        if self.policies.have_changed() {
            self.force.hold(true);
            self.known.ask_again();
        }
    }

    /// Takes what is told of the firewall's rules.
    fn hear_rules(&mut self) {
        loop {
            let event = match self.told.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Empty) => return,
                // Nobody follows them any more.
                Err(TryRecvError::Disconnected) => return self.outdate_rules(),
            };
            match event {
                rules::Event::Changed => self.outdate_rules(),
                rules::Event::Behind(is_behind) => {
                    self.holds.rules_late = is_behind;
                    if is_behind {
                        self.force.hold(true);
                    }
                }
                rules::Event::Read(reading) => {
                    self.rules_generation = reading.generation;
                    self.elements.clear();
                    self.rules_are_old = false;
                    self.take_rules(Rules::Read(reading, None));
                }
                rules::Event::Unreadable(why) => {
                    tracing::error!("{why}; until then the kernel forwards what rules are about");
                    // Not even for the moment in which there are none, and not all is the kernel's yet.
                    self.force.hold(true);
                    self.holds.rules = true;
                    self.rules_are_old = false;
                    self.take_rules(Rules::Unread(why));
                }
                rules::Event::Elements { generation, changes } => {
                    self.rules_generation = generation;
                    self.elements.extend(changes);
                }
            }
        }
    }

    fn take_rules(&mut self, rules: Rules) {
        let same = match (&rules, self.known.rules()) {
            (Rules::Read(new, _), Rules::Read(old, _)) => {
                let is_in_force = !self.elements_applied || self.rules_are_new;
                is_in_force && new.rules == old.rules && new.needs == old.needs
            }
            _ => false,
        };
        if same {
            self.holds.rules = self.rules_are_new;
        } else {
            self.known.set_rules(rules);
            self.elements_applied = false;
            self.rules_are_new = true;
        }
    }

    /// Has the kernel forward where it is to, and no more where it is not.
    fn hold(&mut self) {
        self.force.hold(self.holds.why().is_some());
    }

    /// Answers those who wait until all is in force, if it is.
    fn answer(&mut self) {
        let Holds { starting, lost, rules, .. } = self.holds;
        let is_read = |generation| match self.known.rules() {
            Rules::Read(..) => rules::is_reached(generation, self.rules_generation),
            Rules::Unread(_) => true,
        };
        let due = self.waiting.iter().all(|(generation, _)| is_read(*generation));
        if self.waiting.is_empty() || !due || starting || lost || rules {
            return;
        }
        if let Some(follower) = self.force.follower() {
            let _ = follower.catch_up(PATIENCE);
        }
        // Whatever was left for the worker before is done when it answers.
        let _ = self.force.post().ask(PATIENCE, |_, _| ());
        // It may not have taken a turn since.
        if let Some(fill) = &self.fill {
            self.force.void(fill.epochs());
        }
        let synced = Synced { changes: self.known.changes, held: self.holds.why() };
        for (_, waiting) in self.waiting.drain(..) {
            match waiting {
                // Whoever asked may have gone.
                Waiting::Asks(answer) => drop(answer.try_send(synced.clone())),
                Waiting::Steers(gaps, state) => self.door.go_on(gaps, &state),
            }
        }
    }

    fn report(&mut self) {
        let Known { kernel, rib, changes, .. } = &self.known;
        let stats = self.source.stats();
        self.status = Status {
            devices: kernel.netdevs.len(),
            addresses: kernel.addresses.len(),
            rules: kernel.rules.len(),
            routes: rib.len(),
            nexthops: kernel.nexthops.len(),
            changes: *changes,
            in_force: if self.holds.broken.is_none() { *changes } else { self.status.in_force },
            held: self.holds.why(),
            rebuilds: self.status.rebuilds,
            lost: stats.lost,
            audits: stats.audits,
            drift: stats.drifts,
        };
        lock(&self.door.status).clone_from(&self.status);
    }

    /// Listens anew.
    fn recover(&mut self, error: &io::Error) {
        tracing::warn!("the kernel can not be listened to: {}; beginning anew", why(error));
        self.holds.lost = true;
        self.force.hold(true);
        std::thread::sleep(BEAT / 10);
        match Source::open(self.settings) {
            Ok(source) => self.source = source,
            Err(_) => std::thread::sleep(BEAT),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.force.hold(true);
            tracing::error!(
                "this is a defect of Tollway; the kernel forwards until it is restarted"
            );
        }
    }
}
