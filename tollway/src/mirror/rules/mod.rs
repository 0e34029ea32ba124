//! The kernel's firewall followed: its nftables ruleset, as the compiler takes it.
//!
//! The kernel says by netlink that something has changed (`NFNLGRP_NFTABLES`, nfnetlink(7)); then
//! `nft -j -t list ruleset` gives the whole without what sets have, which is asked for of each
//! (`contents.rs`). What nft lists is held against the kernel's own lists of chains and rules (`kernel/`). The number of the kernel's generation, asked for before and after, says if all of it is of
//! one moment; it is tried again where not, more slowly the longer that lasts. From the message until then
//! the rules in force are older than the kernel's, so that traffic is the kernel's to forward.
//!
//! Elements that come or go alone (blocklists) need neither: they are changes of the live sets of the
//! filter in force ([`apply`]), where rules look the set up as one of addresses. A set whose elements change
//! is a live one from the next reading on.
//!
//! Nor does the kernel forward while rules are read that are for chains of hooks input or output alone, where
//! they only look at packets.
//!
//! What is not the router's to decide is said in the ruleset ([`crate::filter::ir::Step::Unsupported`]): on top
//! of what is so in any file of rules, what logs, holds a rate, looks at a set whose elements go by
//! themselves, or writes a DSCP that rules look at; and few packets that kernels take for different ones
//! (`guard.rs`). [`Needs`] has what concerns packets that meet no such
//! rule.
//!
//! Limits:
//!
//! - Rules do not count in the kernel what the router forwards.
//! - Of base chains of one hook and priority in several tables the listing does not say which was hung
//!   up first; tables are taken to have come with their chains.
//! - A table that ends with the process that owns it goes without a word; where there is one, it is looked
//!   for once a second.

mod contents;
mod elements;
pub(crate) mod file;
mod follow;
mod guard;
mod kernel;
mod leave;
mod message;
mod program;
mod reach;
mod read;
mod socket;
#[cfg(test)]
mod tests;
mod tracking;

use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollway_dataplane::stages::filter::{Element, Filter, LiveSetError};

use crate::filter::ir::{Family, Hook, Policy, Ruleset};
use crate::mistake::quoted;
use follow::Follow;
use socket::Asker;

/// What a [`Follower`] has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The rules in force are older than the kernel's: from now on the kernel forwards.
    Changed,
    /// More is told than is read within milliseconds, or that is over: in between what was reported may be older
    /// than the kernel's, and the kernel forwards.
    Behind(bool),
    /// The kernel's rules, whole.
    Read(Arc<Reading>),
    /// Elements came or went since the last reading, and nothing else has changed.
    Elements {
        /// The number of the kernel's generation.
        generation: u32,
        /// What came and went in sets that rules look up, for [`apply`].
        changes: Vec<ElementChange>,
    },
    /// The rules cannot be read, and why, in a sentence: the kernel forwards until the next reading. It is
    /// tried again now and then.
    Unreadable(String),
}

/// The kernel's rules at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The rules, in which is said what packets are the kernel's; it counts nothing yet.
    pub rules: Arc<Ruleset>,
    /// What concerns all packets.
    pub needs: Needs,
    /// The number of the kernel's generation.
    pub generation: u32,
    /// Devices are known by number (`iif`, `oif`, chains of devices), whatever the names are that were read.
    pub knows_numbers: bool,
}

impl Reading {
    /// Says if packets that are forwarded meet rules at all.
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

/// What the rules need of the kernel beside their verdicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Rules and objects for which the kernel has to see all packets: connection tracking, which packets of
    /// the fast road would bypass, and fragments that are put together.
    pub tracking: Vec<Need>,
}

impl Needs {
    /// Why all packets of a version of IP (IPv4, if `v4`) are the kernel's, if so.
    #[must_use]
    pub fn tracking(&self, v4: bool) -> Option<&Need> {
        self.of(v4).find(|need| !need.host)
    }

    /// Why their fragments are, where no rule that forwarded packets meet needs any of it, nor
    /// one that the errors meet which they cause.
    #[must_use]
    pub fn fragments(&self, v4: bool) -> Option<&Need> {
        self.of(v4).next()
    }

    fn of(&self, v4: bool) -> impl Iterator<Item = &Need> {
        self.tracking.iter().filter(move |need| if v4 { need.v4 } else { need.v6 })
    }
}

/// A rule or an object for which the kernel has to see all packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its chain with its table's name, or of an object the table.
    pub chain: String,
    /// nft's handle.
    pub handle: Option<u64>,
    /// The rule as nft writes it, or what and who the object is.
    pub text: String,
    /// What it makes the kernel do.
    pub why: &'static str,
    /// Whether it does so with IPv4.
    pub v4: bool,
    /// Whether it does so with IPv6.
    pub v6: bool,
    /// It is only about packets for the host itself (hook input): to those that are forwarded the kernel
    /// then does no more than to put fragments together.
    pub host: bool,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}: {}", quoted(&self.text), self.chain, self.why)
    }
}

/// Waits for the first rules that a [`Follower`] reports, or for why they can not be read.
///
/// # Errors
/// It has reported neither within some time, or has ended.
pub fn first(
    told: &Receiver<Event>,
    patience: Duration,
) -> Result<Result<Arc<Reading>, String>, RecvTimeoutError> {
    let until = Instant::now() + patience;
    loop {
        match told.recv_timeout(until.saturating_duration_since(Instant::now()))? {
            Event::Read(reading) => return Ok(Ok(reading)),
            Event::Unreadable(why) => return Ok(Err(why)),
            Event::Changed | Event::Behind(_) | Event::Elements { .. } => {}
        }
    }
}

/// Elements of a set that came and went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementChange {
    /// The set's name with its table's (`inet filter bad`), as [`Filter::live_sets`] have it.
    pub set: String,
    /// Those that came.
    pub add: Vec<Element>,
    /// Those that went; what comes is to be in before they are out.
    pub remove: Vec<Element>,
}

/// Makes changes of elements in the live sets of a filter, the one that the last reading has become.
///
/// # Errors
/// A set is full, or not as the kernel's was, in a sentence: the rules are to be read again
/// ([`Follower::read_again`]), and until then the kernel forwards.
pub fn apply(filter: &Filter, changes: &[ElementChange]) -> Result<(), String> {
    for change in changes {
        let found = filter.live_sets().iter().find(|set| set.name() == change.set);
        let name = quoted(&change.set);
        let set = found.ok_or_else(|| format!("the filter in force has no live set {name}"))?;
        let done = set.add(&change.add).and_then(|_| set.remove(&change.remove));
        done.map_err(|error| match error {
            LiveSetError::Full(_) => format!("the set {name} is full"),
            LiveSetError::Missing(_) | LiveSetError::Astray(_) => {
                format!("the set {name} is another than the kernel's")
            }
        })?;
    }
    Ok(())
}

/// The number of the kernel's generation at this moment, 0 where it has no nf_tables; see [`is_reached`].
///
/// # Errors
/// The kernel does not answer, or not without `CAP_NET_ADMIN`.
pub fn generation() -> io::Result<u32> {
    Ok(Asker::open()?.generation()?.unwrap_or(0))
}

/// Says if what is known is of a generation or a later one.
#[must_use]
pub const fn is_reached(generation: u32, known: u32) -> bool {
    known.wrapping_sub(generation).cast_signed() >= 0
}

/// Is told what happens, in order, on the follower's thread.
pub type Report = Box<dyn FnMut(Event) + Send>;

/// Follows the kernel's rules, those of the network namespace that it is started in, on a thread of its own,
/// until it is dropped.
#[derive(Debug)]
pub struct Follower {
    thread: Option<JoinHandle<()>>,
    /// A byte has the rules read again; closed, it ends the thread.
    wake: Option<UnixStream>,
}

impl Follower {
    /// Begins to follow; nothing is known at first, so the kernel forwards until the first
    /// [`Event::Read`].
    ///
    /// Wants `CAP_NET_ADMIN`, for itself and for the program nft.
    ///
    /// # Errors
    /// The system gives no netlink socket or no thread.
    pub fn start(report: Report) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let follow = Follow::new(report, woken)?;
        let thread = std::thread::Builder::new().name("rules".to_owned());
        let thread = Some(thread.spawn(move || follow.run())?);
        Ok(Self { thread, wake: Some(wake) })
    }

    /// Has the rules read again: devices have come, gone or other names, which rules may know by number,
    /// or a live set is not as the kernel's.
    pub fn read_again(&self) {
        if let Some(mut wake) = self.wake.as_ref() {
            // Full, it wakes as well.
            let _ = wake.write(&[0]);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
