//! Follows the kernel's firewall: reads its nftables ruleset in the form that the compiler takes.
//!
//! The kernel notifies of each change by netlink (`NFNLGRP_NFTABLES`, nfnetlink(7)). Then the follower reads:
//!
//! ```text
//! generation before -> nft -j -t list ruleset     everything but the elements of sets
//!                      elements of each set       contents.rs
//!                      sets of ipset in use       ipset/
//!                      chains and rules           kernel/: the kernel's own lists, to verify nft's listing
//! generation after  -> the same number? one moment in time; else try again, more slowly each time
//! ```
//!
//! From the notification until the new rules are read, the active rules are older than the kernel's, so the
//! kernel forwards.
//!
//! Changes of elements alone (blocklists) need neither a reading nor the kernel path. If rules look up
//! addresses in the set, the controller applies the changes to the live sets of the active filter ([`apply`]).
//! A set whose elements change becomes a live set with the next reading. The same holds for the sets of ipset
//! that rules of iptables look up, but the kernel does not notify of their changes: `ipset/mod.rs` lists them
//! again and again.
//!
//! The kernel does not forward either while the follower reads rules of chains of hooks input or output that
//! only test packets.
//!
//! [`tollway_firewall::ir::Step::Unsupported`] marks in the ruleset what Tollway cannot decide. These are
//! the unsupported steps of any file of rules, and also: rules that log, apply a rate limit, test a set
//! whose elements expire, or write a DSCP that other rules test; and a few packets that kernels classify
//! differently (`guard.rs`). [`Needs`] lists the rules that also affect packets that never meet them.
//!
//! Limits:
//!
//! - The kernel's rule counters do not count what Tollway forwards.
//! - For base chains of one hook and priority in several tables, the listing does not say which was
//!   registered first. Tollway assumes that tables came with their chains.
//! - A table that ends with the process that owns it disappears without a notification. If there is such a
//!   table, the follower checks for it once a second.

// These macros panic on a closed pipe. Only `tollway-commands` prints, by functions that do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attempt;
mod contents;
mod elements;
pub mod files;
mod follow;
mod guard;
mod ipset;
mod kernel;
mod kernel_steps;
mod loaded;
mod message;
mod program;
mod reach;
mod read;
mod socket;
#[cfg(test)]
mod tests;
mod tracking;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollway_dataplane::stages::filter::{Element, Filter, LiveSet, LiveSetError};

use follow::FollowerThread;
pub use guard::LATER_FRAGMENTS;
use socket::NetfilterSocket;
use tollway_firewall::ir::{Family, Hook, Policy, Ruleset};
use tollway_firewall::mistake::quoted;
use tollway_linux::mailbox::Waker;

/// A notification of a [`Follower`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The active rules are older than the kernel's: the kernel forwards from now on.
    Changed,
    /// `true`: the kernel sends more notifications than the follower reads within milliseconds; `false`: the
    /// follower has caught up. In between, reported rules may be out of date, and the kernel forwards.
    Behind(bool),
    /// The kernel's complete rules.
    Read(Arc<Reading>),
    /// Elements were added or removed since the last reading, and nothing else has changed.
    Elements {
        /// The number of the kernel's generation.
        generation: u32,
        /// The changes in sets that rules look up, for [`apply`].
        changes: Vec<ElementChange>,
    },
    /// The sets of ipset that rules look up were listed after this request of [`Follower::look`]; changes were
    /// reported before.
    Looked(u64),
    /// The rules cannot be read, and why, in a sentence. The kernel forwards until the next reading; the
    /// follower retries now and then.
    Unreadable(String),
}

/// The kernel's rules at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The rules, with packets for the kernel path marked. Their counters are 0.
    pub rules: Arc<Ruleset>,
    /// The same rules for flows of known connections ([`Ruleset::for_connections`]), whose counters have the same
    /// numbers. The same as `rules` if these are for all packets.
    pub connections: Arc<Ruleset>,
    /// Needs that concern all packets.
    pub needs: Needs,
    /// The number of the kernel's generation.
    pub generation: u32,
    /// Whether rules refer to devices by number (`iif`, `oif`, chains of devices), although nft lists names.
    pub knows_numbers: bool,
    /// Whether rules look up sets of ipset, which may have changed since they were listed. The kernel forwards
    /// until `Event::Behind(false)`.
    pub watches_ipsets: bool,
}

impl Reading {
    /// Says whether forwarded packets meet any rules.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.rules.chains.iter().any(|chain| {
            chain.family != Family::Bridge
                && chain.base.as_ref().is_some_and(|base| {
                    !matches!(base.hook, Hook::Input | Hook::Output)
                        && (!chain.rules.is_empty() || base.policy == Policy::Drop)
                })
        })
    }
}

/// What the rules need from the kernel beside their verdicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Rules and objects that need all packets in the kernel: for connection tracking, which the fast path
    /// bypasses, or for reassembly of fragments.
    pub tracking: Vec<Need>,
}

impl Needs {
    /// Why all packets of a version of IP (IPv4 if `v4`) take the kernel path, if they do.
    #[must_use]
    pub fn tracking(&self, v4: bool) -> Option<&Need> {
        self.of(v4).find(|need| !need.host)
    }

    /// Why even packets of established connections take the kernel path, if they do: of all needs for packets of a
    /// version of IP, one that does not spare them.
    #[must_use]
    pub fn every_packet(&self, v4: bool) -> Option<&Need> {
        self.of(v4).find(|need| !need.host && !need.spares_established)
    }

    /// Why the fragments of a version of IP take the kernel path. The reason may be a rule that neither
    /// forwarded packets nor their ICMP errors meet.
    #[must_use]
    pub fn fragments(&self, v4: bool) -> Option<&Need> {
        self.of(v4).next()
    }

    fn of(&self, v4: bool) -> impl Iterator<Item = &Need> {
        self.tracking.iter().filter(move |need| if v4 { need.v4 } else { need.v6 })
    }
}

/// A rule or an object that needs all packets in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its chain after its table's name; for an object, the table.
    pub chain: String,
    /// nft's handle.
    pub handle: Option<u64>,
    /// The rule in nft's syntax, or the object's kind and name.
    pub text: String,
    /// What the rule or object makes the kernel do.
    pub why: &'static str,
    /// Whether it applies to IPv4.
    pub v4: bool,
    /// Whether it applies to IPv6.
    pub v6: bool,
    /// Whether it concerns only packets for the host itself (hook input). In that case the kernel only
    /// reassembles the fragments among forwarded packets.
    pub host: bool,
    /// Whether the kernel may miss packets of connections that it knows to be established.
    pub spares_established: bool,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}: {}", quoted(&self.text), self.chain, self.why)
    }
}

/// Waits for the first rules that a [`Follower`] reports, or for the reason why it cannot read them.
///
/// # Errors
/// The follower has reported neither rules nor a reason within `patience`, or has ended.
pub fn first(
    events: &Receiver<Event>,
    patience: Duration,
) -> Result<Result<Arc<Reading>, String>, RecvTimeoutError> {
    let until = Instant::now() + patience;
    loop {
        match events.recv_timeout(until.saturating_duration_since(Instant::now()))? {
            Event::Read(reading) => return Ok(Ok(reading)),
            Event::Unreadable(why) => return Ok(Err(why)),
            Event::Changed | Event::Behind(_) | Event::Elements { .. } | Event::Looked(_) => {}
        }
    }
}

/// Elements added to and removed from a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementChange {
    /// The set's name after its table's (`inet filter bad`), as in [`Filter::live_sets`].
    pub set: String,
    /// The elements to add.
    pub add: Vec<Element>,
    /// The elements to remove, after those of `add` are added.
    pub remove: Vec<Element>,
}

/// Why changes of elements were not applied. The rules must be read again ([`Follower::read_again`]), and until
/// then the kernel forwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElementsError {
    /// The active filter lacks the set.
    #[error("the active filter has no live set {}", quoted(.0))]
    NoSet(String),
    /// The set has no room left.
    #[error("the set {} is full", quoted(.0))]
    Full(String),
    /// The set's elements differ from those of the kernel's set.
    #[error("the set {} is another than the kernel's", quoted(.0))]
    Other(String),
}

/// Applies changes of elements to the live sets of a filter, which must come from the last reading.
///
/// # Errors
/// A set is full or differs from the kernel's.
pub fn apply(filter: &Filter, changes: &[ElementChange]) -> Result<(), ElementsError> {
    let of_connections = filter.connections().map_or(&[][..], |rules| rules.live_sets());
    for change in changes {
        let is_it = |set: &&Arc<LiveSet>| set.name() == change.set;
        let name = || change.set.clone();
        let own = filter.live_sets().iter().find(is_it);
        own.ok_or_else(|| ElementsError::NoSet(name()))?;
        // Rules for connections may lack the set.
        for set in own.into_iter().chain(of_connections.iter().find(is_it)) {
            let done = set.add(&change.add).and_then(|_| set.remove(&change.remove));
            done.map_err(|error| match error {
                LiveSetError::Full(_) => ElementsError::Full(name()),
                LiveSetError::Missing(_) | LiveSetError::NotARange(_) => {
                    ElementsError::Other(name())
                }
            })?;
        }
    }
    Ok(())
}

/// The kernel's current generation number, 0 if it has no nf_tables; see [`is_reached`].
///
/// # Errors
/// The kernel does not answer, or refuses for lack of `CAP_NET_ADMIN`.
pub fn generation() -> io::Result<u32> {
    Ok(NetfilterSocket::open()?.generation()?.unwrap_or(0))
}

/// Says whether `known` is `generation` or a later one.
#[must_use]
pub const fn is_reached(generation: u32, known: u32) -> bool {
    known.wrapping_sub(generation).cast_signed() >= 0
}

/// Receives the events in order, on the follower's thread.
pub type Report = Box<dyn FnMut(Event) + Send>;

/// Follows the rules of the kernel in the network namespace where it is started, on a thread of its own,
/// until it is dropped.
#[derive(Debug)]
pub struct Follower {
    thread: Option<JoinHandle<()>>,
    /// A wake makes the thread handle the requests; dropping it ends the thread.
    waker: Option<Waker>,
    requests: Arc<Requests>,
}

impl Follower {
    /// Starts to follow. The rules are unknown at first, so the kernel forwards until the first
    /// [`Event::Read`].
    ///
    /// Needs `CAP_NET_ADMIN`, for itself and for the program nft.
    ///
    /// # Errors
    /// The system refuses a netlink socket or a thread.
    pub fn start(report: Report) -> io::Result<Self> {
        let (waker, wakes) = Waker::pair()?;
        let requests = Arc::default();
        let follow = FollowerThread::new(report, wakes, Arc::clone(&requests))?;
        let thread = std::thread::Builder::new().name("rules".to_owned());
        let thread = Some(thread.spawn(move || follow.run())?);
        Ok(Self { thread, waker: Some(waker), requests })
    }

    /// Makes the follower read the rules again. Call it when devices came, went or were renamed, because rules
    /// may refer to them by number. Also call it when a live set differs from the kernel's.
    pub fn read_again(&self) {
        self.requests.read.store(true, Release);
        self.wake();
    }

    /// Makes the follower list the sets of ipset that rules look up. Returns the number of the request, which
    /// [`Event::Looked`] answers; 0 if there is nothing to list.
    pub fn look(&self) -> u64 {
        if !self.requests.has_watch.load(Acquire) {
            return 0;
        }
        let number = self.requests.look.fetch_add(1, AcqRel) + 1;
        self.wake();
        number
    }

    fn wake(&self) {
        self.waker.iter().for_each(Waker::wake);
    }
}

/// What the thread is to do.
#[derive(Debug, Default)]
struct Requests {
    /// To read the rules again.
    read: AtomicBool,
    /// The number of the last request to list the sets of ipset.
    look: AtomicU64,
    /// Whether the rules last reported look up sets of ipset.
    has_watch: AtomicBool,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.waker = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
