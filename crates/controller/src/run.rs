//! The controller's thread, which keeps the tables in line with the kernel's configuration.
//!
//! It first receives all pending notifications, then installs the changes by the smallest sufficient
//! means. It changes routes and checks of packets in tables that are in use, and replaces the
//! firewall's rules there. It rebuilds tables only if links or lookup chains differ. While the
//! active tables are known to be wrong, the kernel forwards.

mod apply;
mod attached;
mod bypass_log;
mod mode;
mod start;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use super::begin::Startup;
use super::event::Event;
use super::fib_sync::FibSync;
use super::handle::{ControllerMailbox, Request, Status, Synced};
use super::kernel_state::{KernelState, Rules};
use super::locals::Locals;
use super::netlink::{self, Source};
use super::offload::Live;
use super::plan::Plan;
use super::policies::Policies;
use tollway_linux::pace::POLL;
use tollway_linux::priority::ThreadPriority;
use tollway_linux::sync::lock;
use tollway_linux::sys::{self, why};
use tollway_rules as rules;
use tollway_worker::installer::{Installer, PATIENCE};
use tollway_worker::service::Beat;

use attached::AttachRequests;
use bypass_log::BypassLog;
use mode::{ModeEvent, ModeTracker};
pub use start::ControllerThread;

/// The longest time between two signs of life of the thread.
const BEAT: Duration = Duration::from_millis(500);
/// The time before the controller retries a failed installation.
const AGAIN: Duration = Duration::from_secs(1);
/// The controller reads notifications for at most this long before it installs them.
const SLICE: Duration = Duration::from_millis(2);
/// How often the controller queries whether the ports work: normally, and while one does not.
const PORTS_EVERY: Duration = POLL.saturating_mul(3);
const PORTS_AGAIN: Duration = Duration::from_millis(20);
/// How often the controller polls for the pending answer of the ports.
const PORTS_ANSWER: Duration = Duration::from_millis(20);
/// The kernel forwards once the oldest notification that is not active yet may be older than this.
const LATE: Duration = Duration::from_millis(5);
const PAUSED: &str = "Tollway was paused, and installs what has changed meanwhile";

/// The state of the controller's thread.
pub(super) struct Controller {
    source: Source,
    policies: Policies,
    settings: netlink::Settings,
    kernel_state: KernelState,
    /// The active plan.
    plan: Plan,
    locals: Locals,
    /// The active routes; none before the first tables.
    fib_sync: Option<FibSync>,
    installer: Installer,
    rules: rules::Follower,
    rule_events: Receiver<rules::Event>,
    mailbox: ControllerMailbox,
    mode: ModeTracker,
    /// The offload, published for others.
    live: Live,
    /// When to query whether the ports work.
    ports_at: Instant,
    /// The pending answer of the ports.
    ports_answer: Option<Receiver<apply::PortStates>>,
    /// Since when there are notifications that are not active, if there are any.
    unread_since: Option<Instant>,
    /// `None` before the first turn.
    priority: Option<ThreadPriority>,
    /// When this turn began.
    turned_at: Instant,
    /// Which ports should have their programs attached.
    attach_requests: AttachRequests,
    /// Whether the active filter's sets have other elements than the rules as read.
    elements_applied: bool,
    /// The last generation of rules that the kernel notified of.
    rules_generation: u32,
    /// Elements that sets got or lost, for the active rules or for new ones.
    elements: Vec<rules::ElementChange>,
    /// When to rebuild the tables, regardless of what has changed.
    again_at: Option<Instant>,
    /// The last request to list the sets of ipset that was answered.
    looked: u64,
    waiting: Vec<Requester>,
    /// Requesters that wait for a new evaluation of the offload.
    evaluations: Vec<SyncSender<()>>,
    status: Status,
    bypass_log: BypassLog,
    beat: Beat,
}

/// Waits until everything before its request is active.
struct Requester {
    /// The kernel's generation of rules.
    generation: u32,
    /// The number of a request to list the sets of ipset.
    look: u64,
    waiting: Waiting,
}

/// Who waits.
enum Waiting {
    Sync(SyncSender<Synced>),
    /// The programs, after the router was paused.
    Pause(u64, tollway_xdp::State),
}

/// Why the kernel forwards, if it does.
fn forwards_because<'a>(mode: &'a ModeTracker, waiting: &[Requester]) -> Option<&'a str> {
    let is_pause = |requester: &Requester| matches!(requester.waiting, Waiting::Pause(..));
    mode.why().or_else(|| waiting.iter().any(is_pause).then_some(PAUSED))
}

impl Controller {
    pub(super) fn new(startup: Startup, installer: Installer, live: Live, beat: Beat) -> Self {
        let attach_requests = AttachRequests::new(startup.idle());
        let Startup { source, settings, kernel_state, plan, locals, fib_sync, .. } = startup;
        let Startup { policies, rules, rule_events, mailbox, .. } = startup;
        let rules_generation = match kernel_state.rules() {
            Rules::Read(reading, _) => reading.generation,
            Rules::Unread(_) => 0,
        };
        let mut mode = ModeTracker::new();
        if matches!(kernel_state.rules(), Rules::Read(reading, _) if reading.watches_ipsets) {
            mode.on(ModeEvent::RulesBehind);
        }
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
            rule_events,
            mailbox,
            mode,
            live,
            ports_at: Instant::now(),
            ports_answer: None,
            unread_since: None,
            priority: None,
            turned_at: Instant::now(),
            attach_requests,
            elements_applied: false,
            rules_generation,
            elements: Vec::new(),
            again_at: None,
            looked: 0,
            waiting: Vec::new(),
            evaluations: Vec::new(),
            status: Status::default(),
            bypass_log: BypassLog::default(),
            beat,
        }
    }

    /// Runs until it receives a request to stop.
    pub(super) fn run(mut self, ready: impl FnOnce()) {
        let (mut more, mut ready) = (true, Some(ready));
        loop {
            match self.turn(more) {
                Ok(Some(next)) => {
                    more = next;
                    if let Some(ready) = ready.take_if(|_| !self.mode.is_starting()) {
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

    /// Waits unless there is more to do, then does one turn of work. Returns whether there is more; none if
    /// the thread should end.
    fn turn(&mut self, more: bool) -> io::Result<Option<bool>> {
        let mut fds = entries(&self.source, &self.mailbox, &self.policies, &self.kernel_state);
        sys::wait_for(&mut fds, if more { Duration::ZERO } else { self.patience() })?;
        self.turned_at = Instant::now();
        self.priority.get_or_insert_with(ThreadPriority::begin).update();
        self.beat.beat();
        if !self.receive_requests() {
            return Ok(None);
        }
        let more = self.read()?;
        self.notice_late();
        // In this order: rules that were read before devices changed count as read before.
        self.receive_rules();
        self.doubt_rules();
        self.check_policies();
        self.kernel_state.update_path_mtus();
        let is_answered = self.kernel_state.query();
        self.on(if is_answered { ModeEvent::Queried } else { ModeEvent::QueryFailed });
        self.apply();
        if self.source.is_drained() {
            self.unread_since = None;
            self.on(ModeEvent::BacklogRead);
        }
        self.on(ModeEvent::TurnEnded { more });
        if !more {
            self.answer();
        }
        for requester in self.evaluations.drain(..) {
            // The requester may have gone.
            let _ = requester.try_send(());
        }
        self.report();
        Ok(Some(more))
    }

    /// The time until there is something to do.
    fn patience(&self) -> Duration {
        let due = self.source.due().min(self.kernel_state.due()).min(self.ports_at);
        let due = self.again_at.map_or(due, |at| at.min(due));
        let due = self.attach_requests.due().map_or(due, |at| at.min(due));
        due.saturating_duration_since(Instant::now()).min(BEAT)
    }

    /// Handles requests; false if the thread should end.
    fn receive_requests(&mut self) -> bool {
        let requests: Vec<_> = self.mailbox.requests.drain().messages.collect();
        for request in requests {
            match request {
                Request::Sync(answer) => {
                    self.wait(Waiting::Sync(answer));
                    self.kernel_state.query_again();
                }
                Request::Pause(pauses, state) => self.wait(Waiting::Pause(pauses, state)),
                Request::Evaluate(answer) => {
                    self.kernel_state.tally();
                    self.evaluations.push(answer);
                }
                Request::Audit => {
                    self.source.audit();
                    self.rules.read_again();
                    self.kernel_state.query_again();
                }
                Request::Stop => return false,
            }
        }
        true
    }

    /// Registers a waiter for the present generation of rules and all notifications so far.
    fn wait(&mut self, waiting: Waiting) {
        // Without a generation, the kernel has no rules.
        let generation = rules::generation().unwrap_or(self.rules_generation);
        self.waiting.push(Requester { generation, look: self.rules.look(), waiting });
    }

    /// Lets the kernel forward if more notifications arrive than can be installed at once: the active
    /// tables are then older than the kernel's configuration.
    fn notice_late(&mut self) {
        if self.source.is_drained() {
            return;
        }
        let since = *self.unread_since.get_or_insert(self.turned_at);
        if since.elapsed() >= LATE {
            self.on(ModeEvent::BacklogLate);
        }
    }

    /// Reads the kernel's notifications; returns whether there are more.
    fn read(&mut self) -> io::Result<bool> {
        let start = Instant::now();
        let Self { source, kernel_state, mode, installer, .. } = self;
        loop {
            let more = source.read(&mut |event| {
                match event {
                    Event::Lost => mode.on(ModeEvent::MessagesLost),
                    Event::Complete => mode.on(ModeEvent::ListComplete),
                    // Reading all sysctls takes a millisecond; this turn does it.
                    Event::Sysctl(_, device) if kernel_state.reads_sysctls_of(device) => {
                        mode.on(ModeEvent::Changing);
                    }
                    _ => {}
                }
                kernel_state.receive(event);
            })?;
            installer.bypass(!mode.is_forwarding());
            if !more || start.elapsed() > SLICE {
                return Ok(more);
            }
        }
    }

    /// Starts a new reading of rules that may refer to devices by number, after a number or name has changed.
    fn doubt_rules(&mut self) {
        let by_number =
            matches!(self.kernel_state.rules(), Rules::Read(reading, _) if reading.knows_numbers);
        if self.kernel_state.take_renamed() && by_number {
            self.on(ModeEvent::RulesChanged);
            self.rules.read_again();
        }
    }

    /// Changes the mode, and begins or ends the bypass accordingly.
    fn on(&mut self, event: ModeEvent) {
        self.mode.on(event);
        self.installer.bypass(!self.mode.is_forwarding());
        self.log_bypass();
    }

    fn log_bypass(&mut self) {
        if let Some(line) =
            self.bypass_log.next(forwards_because(&self.mode, &self.waiting), Instant::now())
        {
            tracing::warn!("{line}");
        }
    }

    /// After a change of IPsec policies, lets the kernel forward until the consequences are active. They
    /// are active within this turn, unless a query of the kernel fails.
    fn check_policies(&mut self) {
        if self.policies.have_changed() {
            self.on(ModeEvent::Changing);
            self.kernel_state.query_again();
        }
    }

    /// Receives events of the firewall's rules.
    fn receive_rules(&mut self) {
        loop {
            let event = match self.rule_events.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Empty) => return,
                // The thread that follows the rules has ended.
                Err(TryRecvError::Disconnected) => return self.on(ModeEvent::RulesChanged),
            };
            match event {
                rules::Event::Changed => self.on(ModeEvent::RulesChanged),
                rules::Event::Behind(true) => self.on(ModeEvent::RulesBehind),
                rules::Event::Behind(false) => self.on(ModeEvent::RulesCaughtUp),
                rules::Event::Read(reading) => {
                    self.rules_generation = reading.generation;
                    self.elements.clear();
                    self.take_rules(reading);
                }
                rules::Event::Unreadable(why) => {
                    tracing::error!(
                        "{why}; until then the kernel forwards packets that the rules concern"
                    );
                    self.kernel_state.set_rules(Rules::Unread(why));
                    self.elements_applied = false;
                    self.on(ModeEvent::RulesUnreadable);
                }
                rules::Event::Looked(number) => self.looked = number,
                rules::Event::Elements { generation, changes } => {
                    self.rules_generation = generation;
                    self.elements.extend(changes);
                }
            }
        }
    }

    fn take_rules(&mut self, reading: Arc<rules::Reading>) {
        let is_confirmed = match self.kernel_state.rules() {
            Rules::Read(last, _) => {
                let has_own_elements = !self.elements_applied || self.mode.has_new_rules();
                has_own_elements
                    && reading.rules == last.rules
                    && reading.connections == last.connections
                    && reading.needs == last.needs
            }
            Rules::Unread(_) => false,
        };
        if is_confirmed {
            return self.on(ModeEvent::RulesConfirmed);
        }
        self.kernel_state.set_rules(Rules::Read(reading, None));
        self.elements_applied = false;
        self.on(ModeEvent::RulesRead);
    }

    /// Answers waiting requesters for whom everything is active.
    fn answer(&mut self) {
        if !self.mode.is_current() {
            return;
        }
        let is_due = |one: &Requester| match self.kernel_state.rules() {
            Rules::Read(..) => {
                rules::is_reached(one.generation, self.rules_generation) && one.look <= self.looked
            }
            Rules::Unread(_) => true,
        };
        let (due, waiting): (Vec<_>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(is_due);
        self.waiting = waiting;
        if due.is_empty() {
            return;
        }
        if let Some(follower) = self.installer.follower() {
            let _ = follower.catch_up(PATIENCE);
        }
        // Routes that change without the lock become active with a worker's next burst.
        self.installer.updater().synchronize();
        let bypassed = self.mode.why().map(str::to_owned);
        let synced = Synced { changes: self.kernel_state.changes, bypassed };
        for requester in due {
            match requester.waiting {
                // The requester may have gone.
                Waiting::Sync(answer) => drop(answer.try_send(synced.clone())),
                Waiting::Pause(pauses, state) => self.mailbox.go_on(pauses, &state),
            }
        }
    }

    fn report(&mut self) {
        self.log_bypass();
        let KernelState { kernel, rib, changes, .. } = &self.kernel_state;
        let stats = self.source.stats();
        self.status = Status {
            devices: kernel.netdevs.len(),
            addresses: kernel.addresses.len(),
            rules: kernel.rules.len(),
            routes: rib.len(),
            nexthops: kernel.nexthops.len(),
            changes: *changes,
            installed: if self.mode.is_broken() { self.status.installed } else { *changes },
            bypassed: forwards_because(&self.mode, &self.waiting).map(str::to_owned),
            rebuilds: self.status.rebuilds,
            lost: stats.lost,
            audits: stats.audits,
            drift: stats.drifts,
        };
        lock(&self.mailbox.status).clone_from(&self.status);
    }

    /// Opens the source of notifications again.
    fn recover(&mut self, error: &io::Error) {
        tracing::warn!("the kernel does not answer: {}; beginning again", why(error));
        self.on(ModeEvent::MessagesLost);
        std::thread::sleep(BEAT / 10);
        match Source::open(self.settings) {
            Ok(source) => self.source = source,
            Err(_) => std::thread::sleep(BEAT),
        }
    }
}

/// The descriptors that are readable when there is something to do.
fn entries(
    source: &Source,
    mailbox: &ControllerMailbox,
    policies: &Policies,
    kernel_state: &KernelState,
) -> [libc::pollfd; 4] {
    let (source, mailbox) = (source.fd().as_raw_fd(), mailbox.requests.as_fd().as_raw_fd());
    [
        sys::readable(source),
        sys::readable(mailbox),
        sys::readable(policies.fd()),
        sys::readable(kernel_state.exceptions.fd()),
    ]
}

impl Drop for Controller {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.installer.bypass(true);
            tracing::error!(
                "this is a defect of Tollway; the kernel forwards until tollway is restarted"
            );
        }
    }
}
