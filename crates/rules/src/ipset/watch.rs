//! The thread that lists the sets again and again.
//!
//! It is a thread of its own because the kernel may make it wait: other programs hold the lock of ipset while
//! they add many elements (`nfnl_lock`). Meanwhile the follower still receives notifications of rules.

use std::collections::HashMap;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use tollway_dataplane::stages::filter::Element;

use super::{Budget, Contents, IpSet, IpSetFault, list};
use crate::ElementChange;
use crate::elements::SetUse;
use crate::socket::NetfilterSocket;
use tollway_linux::mailbox::{Mailbox, MailboxReceiver, WakeReceiver, Waker};
use tollway_linux::priority::ThreadPriority;
use tollway_linux::sys;

/// How often the sets are listed.
const PERIOD: Duration = Duration::from_millis(60);
/// The kernel forwards when the last list is older. So a change takes effect within 100 ms.
const LATE: Duration = Duration::from_millis(90);

/// The result of a look at all sets.
#[derive(Debug)]
pub(in super::super) enum Look {
    /// Elements came and went; none if nothing has changed.
    Elements(Vec<ElementChange>),
    /// The rules have to be read again.
    Reread,
}

/// The sets that rules of the fast path look up. Dropping it ends its thread.
pub(in super::super) struct Watch {
    results: MailboxReceiver<TimedLook>,
    /// A wake starts a look at once; dropping it ends the thread.
    waker: Waker,
    /// When the last look began, after the sets were listed with the rules.
    looked_at: Option<Instant>,
    /// Results that have not been taken.
    pending: Vec<Look>,
}

/// A look, and when it began.
struct TimedLook {
    began: Instant,
    look: Look,
}

impl Watch {
    /// Starts to watch the sets that are in use; `None` if there are none. `lookups` are the names of sets
    /// that rules of the fast path look up.
    ///
    /// # Errors
    /// The system refuses a socket or a thread.
    pub(in super::super) fn start(
        sets: Vec<IpSet>,
        lookups: &HashSet<String>,
        uses: &HashMap<String, SetUse>,
    ) -> io::Result<Option<Self>> {
        let sets: Vec<_> =
            sets.into_iter().filter_map(|set| WatchedSet::new(set, lookups, uses)).collect();
        if sets.is_empty() {
            return Ok(None);
        }
        let (waker, wakes) = Waker::pair()?;
        let (mailbox, results) = Mailbox::pair()?;
        let thread = WatchThread { sets, socket: NetfilterSocket::open()?, mailbox, wakes };
        // Nothing waits for the end of the thread, because it may be in the kernel at that time.
        std::thread::Builder::new().name("ipset".to_owned()).spawn(move || thread.run())?;
        Ok(Some(Self { results, waker, looked_at: None, pending: Vec::new() }))
    }

    /// The descriptor to poll for results.
    pub(in super::super) fn fd(&self) -> BorrowedFd<'_> {
        self.results.as_fd()
    }

    /// When the last look began.
    pub(in super::super) const fn looked_at(&self) -> Option<Instant> {
        self.looked_at
    }

    /// When the last look is too old.
    pub(in super::super) fn late_at(&self) -> Option<Instant> {
        self.looked_at.map(|at| at + LATE)
    }

    /// Says whether the last look is too old.
    pub(in super::super) fn is_late(&self) -> bool {
        self.late_at().is_none_or(|at| at <= Instant::now())
    }

    /// Starts a look at once.
    pub(in super::super) fn look(&self) {
        self.waker.wake();
    }

    /// Receives results. Says whether something has changed that was not taken yet.
    pub(in super::super) fn receive(&mut self) -> bool {
        let results = self.results.drain();
        let has_failed = !results.has_senders;
        for TimedLook { began, look } in results.messages {
            self.looked_at = Some(began);
            if !matches!(&look, Look::Elements(changes) if changes.is_empty()) {
                self.pending.push(look);
            }
        }
        if has_failed && !matches!(self.pending.last(), Some(Look::Reread)) {
            self.pending.push(Look::Reread);
        }
        !self.pending.is_empty()
    }

    /// Takes the results received.
    pub(in super::super) fn take(&mut self) -> Vec<Look> {
        std::mem::take(&mut self.pending)
    }
}

/// The state of the thread.
struct WatchThread {
    sets: Vec<WatchedSet>,
    socket: NetfilterSocket,
    mailbox: Mailbox<TimedLook>,
    wakes: WakeReceiver,
}

impl WatchThread {
    fn run(mut self) {
        let mut priority = ThreadPriority::begin();
        loop {
            priority.update();
            let began = Instant::now();
            // The next reading of the rules reports an error of the kernel.
            let look = self.look().unwrap_or(Look::Reread);
            let is_last = matches!(look, Look::Reread);
            if !self.mailbox.post(TimedLook { began, look }) {
                return;
            }
            let left = PERIOD.saturating_sub(began.elapsed());
            let mut fds = [sys::readable(self.wakes.as_fd().as_raw_fd())];
            let patience = if is_last { -1 } else { sys::timeout_ms(left) };
            if sys::wait(&mut fds, patience).is_err() || is_last && fds[0].revents != 0 {
                return;
            }
            if fds[0].revents != 0 && !self.wakes.drain() {
                return;
            }
        }
    }

    /// Lists the sets.
    fn look(&mut self) -> io::Result<Look> {
        let (mut changes, mut budget) = (Vec::new(), Budget::new());
        for watched in &mut self.sets {
            let new = list(&watched.set.name, &mut budget, &mut self.socket)?;
            match watched.replace(new) {
                Some(more) => changes.extend(more),
                None => return Ok(Look::Reread),
            }
        }
        Ok(Look::Elements(changes))
    }
}

/// A set, as last listed.
pub(super) struct WatchedSet {
    set: IpSet,
    /// The names of the live sets with its elements; `None` if it is a part of the rules somewhere.
    live: Option<Vec<String>>,
}

impl WatchedSet {
    /// `None` if no rule of the fast path looks up the set.
    pub(super) fn new(
        set: IpSet,
        lookups: &HashSet<String>,
        uses: &HashMap<String, SetUse>,
    ) -> Option<Self> {
        let names = set.tables.iter().map(|table| format!("{table} {}", set.name_in_rules()));
        let names: Vec<_> = names.filter(|name| uses.contains_key(name)).collect();
        if !names.iter().any(|name| lookups.contains(name)) {
            return None;
        }
        let is_live = |name: &String| matches!(uses.get(name), Some(SetUse::Live { .. }));
        let live = names.iter().all(is_live).then_some(names);
        Some(Self { set, live })
    }

    /// Takes a newer list and returns the changes of live sets; `None` if the rules have to be read again.
    pub(super) fn replace(
        &mut self,
        new: Result<Contents, IpSetFault>,
    ) -> Option<Vec<ElementChange>> {
        let (Ok(old), Ok(now)) = (&self.set.contents, new) else { return None };
        if now == *old {
            return Some(Vec::new());
        }
        let live = self.live.as_ref().filter(|_| old.version == now.version)?;
        let [add, remove] = [(&now, old), (old, &now)].map(|(these, those)| these.without(those));
        let change = |set: &String| ElementChange {
            set: set.clone(),
            add: add.clone(),
            remove: remove.clone(),
        };
        let changes = live.iter().map(change).collect();
        self.set.contents = Ok(now);
        Some(changes)
    }
}

impl Contents {
    /// The elements that the other does not have.
    fn without(&self, other: &Self) -> Vec<Element> {
        let is_new = |element: &&Element| other.elements.binary_search(element).is_err();
        self.elements.iter().filter(is_new).copied().collect()
    }
}
