//! The thread that keeps tables as the kernel is configured.
//!
//! Whatever has changed is first taken in as far as it has been told, then installed by the smallest
//! means that does: routes and what is asked of packets in tables that are in use, the firewall's rules
//! beside them, and new tables only where links or views are others. While what is active is known to
//! be wrong, the kernel forwards.

mod apply;
mod attached;
mod bypass_reasons;

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use super::begin::{self, Startup};
use super::event::Event;
use super::fib_sync::FibSync;
use super::handle::{ControllerMailbox, Request, Status, Synced};
use super::kernel_state::{KernelState, Rules};
use super::locals::Locals;
use super::netlink::{self, Source};
use super::offload::Live;
use super::plan::Plan;
use super::policies::Policies;
use super::rules;
use crate::installer::{Installer, PATIENCE};
use crate::ports::{sys, why};
use crate::priority::Hurry;
use crate::service::Beat;
use crate::sync::lock;
use crate::xdp;
use attached::AttachRequests;
use bypass_reasons::BypassReasons;

/// The thread shows that it lives so often at least.
const BEAT: Duration = Duration::from_millis(500);
/// After something could not be installed, it is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Messages are taken in for so long before what they say is installed.
const SLICE: Duration = Duration::from_millis(2);
/// Ports are asked so often whether they work, and those that do not, so often.
const PORTS_EVERY: Duration = Duration::from_millis(250);
const PORTS_AGAIN: Duration = Duration::from_millis(20);
/// An answer that nobody waits for is looked for after so long.
const PORTS_ANSWER: Duration = Duration::from_millis(5);
/// Where the oldest message that is not active yet may be older than this, the kernel forwards.
const LATE: Duration = Duration::from_millis(5);

/// The thread's own.
pub(super) struct Controller {
    source: Source,
    policies: Policies,
    settings: netlink::Settings,
    kernel_state: KernelState,
    /// What is active.
    plan: Plan,
    locals: Locals,
    /// The routes active; none before the first tables.
    fib_sync: Option<FibSync>,
    installer: Installer,
    rules: rules::Follower,
    told: Receiver<rules::Event>,
    mailbox: ControllerMailbox,
    bypass_reasons: BypassReasons,
    /// Where others find which traffic takes which path.
    live: Live,
    /// When the ports are asked whether they work.
    ports_at: Instant,
    /// They have been asked.
    asked_ports: Option<Receiver<apply::Looked>>,
    /// Since when there have been messages that are not active, if there are.
    unread_since: Option<Instant>,
    /// None before the first turn.
    hurry: Option<Hurry>,
    /// When this turn began.
    turned_at: Instant,
    /// Which ports are to carry their programs.
    attach_requests: AttachRequests,
    /// Rules were read that are not active yet.
    rules_are_new: bool,
    /// The kernel's rules are others than those that were read.
    rules_are_old: bool,
    /// Elements came or went in the filter active, of which the rules that were read know nothing.
    elements_applied: bool,
    /// The generation of rules that was heard of last.
    rules_generation: u32,
    /// Elements of sets that came and went, for the rules active or those that are new.
    elements: Vec<rules::ElementChange>,
    /// Tables are to be rebuilt whatever has changed.
    again_at: Option<Instant>,
    /// Who waits for rules of such a generation and all that was told before.
    waiting: Vec<(u32, Waiting)>,
    /// Who waits for what is said of paths.
    judging: Vec<SyncSender<()>>,
    status: Status,
    beat: Beat,
}

/// Who waits until all is active.
enum Waiting {
    Asks(SyncSender<Synced>),
    /// The XDP programs, after the worker was away.
    Steers(u64, xdp::State),
}

impl Controller {
    pub(super) fn new(mirror: Startup, installer: Installer, live: Live, beat: Beat) -> Self {
        let attach_requests = AttachRequests::new(mirror.idle());
        let Startup { source, settings, kernel_state, plan, locals, fib_sync, .. } = mirror;
        let Startup { policies, rules, told, mailbox, .. } = mirror;
        let rules_generation = match kernel_state.rules() {
            Rules::Read(reading, _) => reading.generation,
            Rules::Unread(_) => 0,
        };
        let bypass_reasons = BypassReasons { starting: true, ..BypassReasons::default() };
        Self {
            source,
            policies,
            settings,
            kernel_state,
            plan,
            locals,
            fib_sync,
            installer,
            rules,
            told,
            mailbox,
            bypass_reasons,
            live,
            ports_at: Instant::now(),
            asked_ports: None,
            unread_since: None,
            hurry: None,
            turned_at: Instant::now(),
            attach_requests,
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
                    if let Some(ready) = ready.take_if(|_| !self.bypass_reasons.starting) {
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
        let mut fds =
            begin::entries(&self.source, &self.mailbox, &self.policies, &self.kernel_state);
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
        self.kernel_state.hear_path_mtus();
        self.bypass_reasons.unasked = !self.kernel_state.ask();
        self.apply();
        if self.source.is_drained() {
            self.unread_since = None;
            self.bypass_reasons.late = false;
        }
        self.bypass();
        if !more {
            self.bypass_reasons.starting = false;
            self.bypass();
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
        let due = self.source.due().min(self.kernel_state.due()).min(self.ports_at);
        let due = self.again_at.map_or(due, |at| at.min(due));
        let due = self.attach_requests.due().map_or(due, |at| at.min(due));
        let left = due.saturating_duration_since(Instant::now()).min(BEAT);
        left.as_micros().div_ceil(1000) as i32
    }

    /// Takes requests; false where it is to end.
    fn hear(&mut self) -> bool {
        let mut bytes = [0; 64];
        while matches!(self.mailbox.woken.read(&mut bytes), Ok(1..)) {}
        while let Ok(request) = self.mailbox.requests.try_recv() {
            match request {
                Request::Sync(answer) => {
                    self.wait(Waiting::Asks(answer));
                    self.kernel_state.ask_again();
                }
                Request::Gap(gaps, state) => self.wait(Waiting::Steers(gaps, state)),
                Request::Judge(answer) => {
                    self.kernel_state.tally();
                    self.judging.push(answer);
                }
                Request::Audit => {
                    self.source.audit();
                    self.rules.read_again();
                    self.kernel_state.ask_again();
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

    /// Has the kernel forward where more is told than can be installed at once: what is active is older
    /// than what the kernel forwards by.
    fn notice_late(&mut self) {
        if self.source.is_drained() {
            return;
        }
        let since = *self.unread_since.get_or_insert(self.turned_at);
        if since.elapsed() >= LATE {
            self.bypass_reasons.late = true;
            self.installer.bypass(true);
        }
    }

    /// Takes what the kernel has told; says if there is more.
    fn read(&mut self) -> io::Result<bool> {
        let start = Instant::now();
        let Self { source, kernel_state, bypass_reasons, .. } = self;
        loop {
            let more = source.read(&mut |event| {
                match event {
                    Event::Lost => bypass_reasons.lost = true,
                    Event::Complete => bypass_reasons.lost = false,
                    _ => {}
                }
                kernel_state.take(event);
            })?;
            if bypass_reasons.lost {
                self.installer.bypass(true);
            }
            if !more || start.elapsed() > SLICE {
                return Ok(more);
            }
        }
    }

    /// Has the rules read again that may know devices by number, where numbers or names are others now.
    fn doubt_rules(&mut self) {
        let by_number =
            matches!(self.kernel_state.rules(), Rules::Read(reading, _) if reading.knows_numbers);
        if self.kernel_state.take_renamed() && by_number {
            self.outdate_rules();
            self.rules.read_again();
        }
    }

    /// The kernel forwards until its rules have been read.
    fn outdate_rules(&mut self) {
        (self.rules_are_old, self.bypass_reasons.rules) = (true, true);
        self.installer.bypass(true);
    }

    /// Where IPsec policies have changed, the kernel forwards until what follows is active: that is in
    /// this turn, unless the kernel cannot be asked.
    fn hear_policies(&mut self) {
        if self.policies.have_changed() {
            self.installer.bypass(true);
            self.kernel_state.ask_again();
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
                    self.bypass_reasons.rules_late = is_behind;
                    if is_behind {
                        self.installer.bypass(true);
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
                    self.installer.bypass(true);
                    self.bypass_reasons.rules = true;
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
        let same = match (&rules, self.kernel_state.rules()) {
            (Rules::Read(new, _), Rules::Read(old, _)) => {
                let is_in_force = !self.elements_applied || self.rules_are_new;
                is_in_force && new.rules == old.rules && new.needs == old.needs
            }
            _ => false,
        };
        if same {
            self.bypass_reasons.rules = self.rules_are_new;
        } else {
            self.kernel_state.set_rules(rules);
            self.elements_applied = false;
            self.rules_are_new = true;
        }
    }

    /// Has the kernel forward where it is to, and no more where it is not.
    fn bypass(&mut self) {
        self.installer.bypass(self.bypass_reasons.why().is_some());
    }

    /// Answers those who wait until all is active, if it is.
    fn answer(&mut self) {
        let BypassReasons { starting, lost, rules, .. } = self.bypass_reasons;
        let is_read = |generation| match self.kernel_state.rules() {
            Rules::Read(..) => rules::is_reached(generation, self.rules_generation),
            Rules::Unread(_) => true,
        };
        let due = self.waiting.iter().all(|(generation, _)| is_read(*generation));
        if self.waiting.is_empty() || !due || starting || lost || rules {
            return;
        }
        if let Some(follower) = self.installer.follower() {
            let _ = follower.catch_up(PATIENCE);
        }
        // Whatever was left for the worker before is done when it answers.
        let _ = self.installer.mailbox().ask(PATIENCE, |_, _| ());
        // It may not have taken a turn since.
        if let Some(fib_sync) = &self.fib_sync {
            self.installer.void(fib_sync.epochs());
        }
        let synced =
            Synced { changes: self.kernel_state.changes, bypassed: self.bypass_reasons.why() };
        for (_, waiting) in self.waiting.drain(..) {
            match waiting {
                // Whoever asked may have gone.
                Waiting::Asks(answer) => drop(answer.try_send(synced.clone())),
                Waiting::Steers(gaps, state) => self.mailbox.go_on(gaps, &state),
            }
        }
    }

    fn report(&mut self) {
        let KernelState { kernel, rib, changes, .. } = &self.kernel_state;
        let stats = self.source.stats();
        self.status = Status {
            devices: kernel.netdevs.len(),
            addresses: kernel.addresses.len(),
            rules: kernel.rules.len(),
            routes: rib.len(),
            nexthops: kernel.nexthops.len(),
            changes: *changes,
            installed: if self.bypass_reasons.broken.is_none() {
                *changes
            } else {
                self.status.installed
            },
            bypassed: self.bypass_reasons.why(),
            rebuilds: self.status.rebuilds,
            lost: stats.lost,
            audits: stats.audits,
            drift: stats.drifts,
        };
        lock(&self.mailbox.status).clone_from(&self.status);
    }

    /// Listens anew.
    fn recover(&mut self, error: &io::Error) {
        tracing::warn!("the kernel cannot be listened to: {}; beginning anew", why(error));
        self.bypass_reasons.lost = true;
        self.installer.bypass(true);
        std::thread::sleep(BEAT / 10);
        match Source::open(self.settings) {
            Ok(source) => self.source = source,
            Err(_) => std::thread::sleep(BEAT),
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.installer.bypass(true);
            tracing::error!(
                "this is a defect of Tollway; the kernel forwards until it is restarted"
            );
        }
    }
}
