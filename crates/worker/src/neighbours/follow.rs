//! The thread that follows the kernel's neighbours.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::event::{Event, Ifindex, Key};
use super::socket::{Netlink, Received};
use super::state::{self, Failed, State};
use super::{Counts, OnDevice, Request, Settings};
use crate::sweep::Sweep;
use crate::update::soon;
use crate::waiter::Waiter;
use crate::{Overdue, Updater};
use tollway_dataplane::id::LinkId;
use tollway_linux::mailbox::MailboxReceiver;
use tollway_linux::priority::ThreadPriority;
use tollway_linux::sync::lock;
use tollway_linux::sys;

/// Datagrams read before the tables change.
const BATCH: usize = 64;
/// Changes made before a worker that handles packets for the router itself can have the lock.
const CHANGES_PER_LOCK: usize = 32;
/// Stale neighbours per second that the kernel gets a request to confirm.
const CONFIRMED_PER_SECOND: usize = 64;
const SECOND: Duration = Duration::from_secs(1);
/// The longest time between two heartbeats.
const BEAT: Duration = Duration::from_millis(500);
/// If the oldest message that is not applied may be older than this, the kernel forwards.
const LATE: Duration = Duration::from_millis(5);
/// When changes are tried again that must wait for BPF programs: these take as long.
const AGAIN: Duration = Duration::from_millis(10);
/// A list that takes longer is lost.
const LIST_PATIENCE: Duration = Duration::from_secs(5);

/// The present list, with the sequence number of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Links(u32),
    Neighs(u32),
}

/// The state of the thread.
pub(super) struct FollowerThread {
    netlink: Netlink,
    state: Arc<Mutex<State>>,
    updater: Updater,
    settings: Settings,
    on_device: OnDevice,
    counts: Arc<Counts>,
    requests: MailboxReceiver<Request>,
    /// Requesters that wait until the tables have all notifications of the kernel.
    waiting: Vec<Waiter>,
    /// Since when there are unread messages, if there are any.
    unread_since: Option<Instant>,
    /// The kernel forwards meanwhile: the tables lag far behind, or messages were lost.
    behind: Option<Overdue>,
    phase: Phase,
    since: Instant,
    /// When to list everything (again).
    list_at: Option<Instant>,
    links: Sweep<Ifindex>,
    neighs: Sweep<Key>,
    /// Neighbours that the kernel has to confirm, and when to send the requests.
    confirm: Vec<Key>,
    confirm_at: Instant,
    look_at: Instant,
    has_warned_unprivileged: bool,
    /// The time to try changes again that the tables could not take.
    again_at: Option<Instant>,
    /// Packets may go to an address that a neighbour no longer has.
    is_wrong: bool,
}

impl FollowerThread {
    pub(super) fn new(
        state: Arc<Mutex<State>>,
        (updater, on_device): (Updater, OnDevice),
        settings: Settings,
        counts: Arc<Counts>,
        requests: MailboxReceiver<Request>,
    ) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            netlink: Netlink::open(settings.receive_buffer)?,
            state,
            updater,
            on_device,
            counts,
            requests,
            waiting: Vec::new(),
            unread_since: None,
            behind: None,
            phase: Phase::Idle,
            since: now,
            list_at: Some(now),
            links: Sweep::default(),
            neighs: Sweep::default(),
            confirm: Vec::new(),
            confirm_at: now,
            look_at: now + settings.confirm_every,
            has_warned_unprivileged: false,
            again_at: None,
            is_wrong: false,
            settings,
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
        let mut fds = [
            sys::readable(self.requests.as_fd().as_raw_fd()),
            sys::readable(self.netlink.fd().as_raw_fd()),
        ];
        let due = [self.list_at, self.again_at, Some(self.look_at), self.confirm_due()]
            .into_iter()
            .flatten();
        let until = due.min().map_or(BEAT, |at| at.saturating_duration_since(Instant::now()));
        sys::wait(&mut fds, sys::timeout_ms(until.min(BEAT)))?;
        self.counts.beat.beat();
        if fds[0].revents != 0 && !self.receive_requests()? {
            return Ok(false);
        }
        let more = self.read()?;
        self.list()?;
        let is_behind = more || self.list_at.is_some() || self.is_wrong;
        if !is_behind && self.phase == Phase::Idle {
            self.caught_up();
        }
        self.confirm()?;
        // Of changed neighbours, when the grace period of the programs is over.
        let router = self.updater.router();
        router.state().routes.next_hops.restore_displaced();
        if router.place_waiting_rules() {
            let again = Instant::now() + AGAIN;
            self.again_at = Some(self.again_at.map_or(again, |at| at.min(again)));
        }
        Ok(true)
    }

    /// Receives requests; false if the thread has to end.
    fn receive_requests(&mut self) -> io::Result<bool> {
        let requests: Vec<_> = self.requests.drain().messages.collect();
        for request in requests {
            match request {
                Request::CatchUp(waiter) => self.waiting.push(waiter),
                Request::Resolve(neighs) => self.resolve(&neighs)?,
                Request::Stop => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Has the kernel resolve neighbours, as if it had a packet for them.
    fn resolve(&mut self, neighs: &[(LinkId, IpAddr)]) -> io::Result<()> {
        let state = Arc::clone(&self.state);
        let keys = self.lock(&state).keys(neighs);
        keys.into_iter().try_for_each(|key| self.netlink.resolve_neigh(key))
    }

    /// Records that the tables have all notifications of the kernel.
    fn caught_up(&mut self) {
        (self.unread_since, self.behind) = (None, None);
        self.waiting.drain(..).for_each(|waiter| waiter());
    }

    /// Lets the kernel forward until the tables have all notifications.
    fn fall_behind(&mut self) {
        self.behind.get_or_insert_with(|| self.updater.mailbox().bypass());
    }

    /// Locks the state. Somebody who swaps the tables may have it for long; then the kernel forwards.
    fn lock<'a>(&mut self, state: &'a Mutex<State>) -> MutexGuard<'a, State> {
        if let Some(locked) = soon(|| state.try_lock().ok()) {
            return locked;
        }
        self.fall_behind();
        lock(state)
    }

    /// Reads the kernel's notifications and changes the tables; returns whether there may be more.
    fn read(&mut self) -> io::Result<bool> {
        let began = Instant::now();
        let (mut received, mut more) = (Vec::new(), true);
        for _ in 0..BATCH {
            more = self.netlink.receive(|message| received.push(message))?;
            if !more {
                break;
            }
        }
        if more && self.unread_since.get_or_insert(began).elapsed() >= LATE {
            self.fall_behind();
        }
        let state = Arc::clone(&self.state);
        // With the state locked, no other thread makes changes or swaps the tables.
        let mut state = self.lock(&state);
        for message in received {
            self.handle(&mut state, message)?;
        }
        let changes = std::mem::take(&mut state.changes);
        self.counts.changes.fetch_add(changes.len() as u64, Ordering::Relaxed);
        let changes = state::latest(changes);
        let mut failed = Failed::default();
        let mut are_awaited = false;
        for changes in changes.chunks(CHANGES_PER_LOCK) {
            are_awaited |= self.updater.change_one(|locked| {
                state::apply(locked, changes, &mut failed);
                changes.iter().any(|one| locked.host.waits_for(one.link, one.address))
            });
        }
        if are_awaited {
            // A worker that has ended sends nothing more.
            let _ = self.updater.mailbox().post(|worker, devices| worker.release_waiting(devices));
        }
        self.retry(&mut state, failed);
        let moved = std::mem::take(&mut state.moved);
        let aged = std::mem::take(&mut state.aged);
        drop(state);
        if !changes.is_empty() {
            self.updater.synchronize();
        }
        let known: HashSet<Key> = self.confirm.iter().copied().collect();
        self.confirm.extend(aged.into_iter().filter(|key| !known.contains(key)));
        for (port, facts) in moved {
            (self.on_device)(port, facts);
        }
        Ok(more)
    }

    /// Tries changes again soon: memory for them waits for BPF programs that may read it, or there is none.
    fn retry(&mut self, state: &mut State, failed: Failed) {
        (self.again_at, self.is_wrong) = (None, failed.is_wrong);
        if self.is_wrong {
            self.fall_behind();
        }
        if !failed.changes.is_empty() {
            self.again_at = Some(Instant::now() + if self.is_wrong { AGAIN } else { SECOND / 10 });
            // Later changes of these neighbours come behind them.
            state.changes = failed.changes;
        }
    }

    fn handle(&mut self, state: &mut State, received: Received) -> io::Result<()> {
        match received {
            Received::Change(event) => {
                if self.phase != Phase::Idle {
                    match &event {
                        Event::Link(index, _) => self.links.changed(*index),
                        Event::Neigh(key, _) => self.neighs.changed(*key),
                    }
                }
                state.apply(event);
            }
            Received::Listed(number, event) if self.is_current(number) => {
                let believed = match &event {
                    Event::Link(index, _) => self.links.listed(*index),
                    Event::Neigh(key, _) => self.neighs.listed(*key),
                };
                if believed {
                    state.apply(event);
                }
            }
            Received::Done(number, whole) if self.is_current(number) => {
                if !whole {
                    self.list_at = Some(Instant::now());
                }
                self.sweep(state, whole && self.list_at.is_none())?;
            }
            Received::Refused(number, error) => self.refused(number, &error),
            Received::Lost => {
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
                self.fall_behind();
                self.list_at = Some(Instant::now());
            }
            Received::Listed(..) | Received::Done(..) => {}
        }
        Ok(())
    }

    fn is_current(&self, number: u32) -> bool {
        matches!(self.phase, Phase::Links(own) | Phase::Neighs(own) if own == number)
    }

    /// Removes what a complete list does not have; continues with the next list.
    fn sweep(&mut self, state: &mut State, whole: bool) -> io::Result<()> {
        let of_links = matches!(self.phase, Phase::Links(_));
        let gone: Vec<Event> = match (whole, of_links) {
            (false, _) => Vec::new(),
            (true, true) => {
                let gone = self.links.gone(state.netdevs());
                gone.into_iter().map(|index| Event::Link(index, None)).collect()
            }
            (true, false) => {
                let gone = self.neighs.gone(state.neighs());
                gone.into_iter().map(|key| Event::Neigh(key, None)).collect()
            }
        };
        gone.into_iter().for_each(|event| state.apply(event));
        self.phase = if of_links {
            Phase::Neighs(self.netlink.list_neighs()?)
        } else {
            if whole {
                self.counts.lists.fetch_add(1, Ordering::Relaxed);
            }
            Phase::Idle
        };
        Ok(())
    }

    /// Begins to list everything, if that is due and not under way.
    fn list(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.phase != Phase::Idle {
            return match now.duration_since(self.since) > LIST_PATIENCE {
                true => Err(io::ErrorKind::TimedOut.into()),
                false => Ok(()),
            };
        }
        if self.list_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        (self.list_at, self.since) = (None, now);
        (self.links, self.neighs) = (Sweep::default(), Sweep::default());
        self.phase = Phase::Links(self.netlink.list_links()?);
        Ok(())
    }

    fn refused(&mut self, number: u32, error: &io::Error) {
        if self.is_current(number) {
            tracing::warn!(
                "the kernel does not list its neighbours: {error}; requesting the list again"
            );
            self.phase = Phase::Idle;
            self.list_at = Some(Instant::now() + SECOND);
        } else if error.kind() == io::ErrorKind::PermissionDenied && !self.has_warned_unprivileged {
            self.has_warned_unprivileged = true;
            tracing::warn!(
                "neighbours are not kept fresh without CAP_NET_ADMIN; run as root, or grant it with \
                 `setcap cap_net_raw,cap_net_admin+ep`"
            );
        }
    }

    /// Starts over with another socket, after an error.
    fn recover(&mut self, error: &io::Error) {
        tracing::warn!("the kernel's neighbours cannot be followed: {error}; trying again");
        self.fall_behind();
        std::thread::sleep(SECOND / 10);
        (self.phase, self.list_at) = (Phase::Idle, Some(Instant::now()));
        match Netlink::open(self.settings.receive_buffer) {
            Ok(netlink) => self.netlink = netlink,
            Err(_) => std::thread::sleep(SECOND),
        }
    }

    fn confirm_due(&self) -> Option<Instant> {
        (!self.confirm.is_empty()).then_some(self.confirm_at)
    }

    /// Makes the kernel confirm stale neighbours. It sees no traffic to them, so on its own it would neither
    /// notice that one has moved nor keep it.
    fn confirm(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if now >= self.look_at {
            self.confirm = lock(&self.state).stale();
            self.look_at = now + self.settings.confirm_every;
        }
        if self.confirm_due().is_none_or(|at| at > now) {
            return Ok(());
        }
        self.confirm_at = now + SECOND;
        let rest = self.confirm.len().saturating_sub(CONFIRMED_PER_SECOND);
        for key in self.confirm.split_off(rest) {
            self.netlink.use_neigh(key)?;
            self.counts.confirmed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
