//! Translated connections: which one an answer belongs to, and with which flow a new one leaves.
//!
//! The table of connections has each by the flow of its first packet. Answers to translated packets have another flow, for
//! which a second table says that of the first packet. It is a hint: what it says of connections that are gone does not count.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::binding::{BindingRange, Manip, Tuples, choose};
use super::super::flows::{Entry, FlowId, Part, Side, Table};
use super::connection::TrackedConnection;
use super::table::{Confirmed, NewConnection, SIZE, Tracker};
use crate::sync::{AtomicU64, MutexGuard};

/// How often another worker may take the chosen flow before the packet is lost.
const MOST_CHOICES: usize = 4;

/// The answers to translated connections, and what random ports come from.
#[derive(Debug)]
pub(super) struct Translated {
    answers: Table<Answers>,
    random: RandomState,
    drawn: AtomicU64,
    /// How many entries there have been.
    numbers: AtomicU64,
}

/// The flow of answers to a connection, and the flow of its first packet.
#[derive(Clone, Copy, Debug)]
struct Answers {
    reply: FlowId,
    original: FlowId,
    /// Which connection it is of: a later one may have the same flows, before this one is removed.
    number: u64,
}

impl Entry for Answers {
    type Wanted = ();

    fn flow(&self) -> &FlowId {
        &self.reply
    }

    fn side_of(&self, flow: &FlowId) -> Option<Side> {
        (self.reply == *flow).then_some(Side::Reverse)
    }

    fn is(&self, (): ()) -> bool {
        true
    }
}

impl Translated {
    pub(super) fn new(now_ns: u64) -> Self {
        let (answers, random) = (Table::new(SIZE, now_ns), RandomState::new());
        Self { answers, random, drawn: AtomicU64::new(0), numbers: AtomicU64::new(0) }
    }

    fn known(&self, reply: &FlowId) -> Option<Answers> {
        let (part, list) = self.answers.place(reply);
        let (at, _) = part.find(list, reply, (), 0)?;
        part.get(at).copied()
    }

    /// Says whether nobody has the flow of answers already.
    fn add(&self, answers: Answers) -> bool {
        let (mut part, list) = self.answers.place(&answers.reply);
        if part.find(list, &answers.reply, (), 0).is_some() || !self.answers.take_room() {
            return false;
        }
        let is_added = part.add(list, answers, u64::MAX).is_some();
        if !is_added {
            self.answers.give_room();
        }
        is_added
    }

    fn remove(&self, reply: &FlowId, number: u64) {
        let (mut part, list) = self.answers.place(reply);
        let found = part.find(list, reply, (), 0).map(|(at, _)| at);
        let is_one = |at: &usize| part.get(*at).is_some_and(|one| one.number == number);
        if let Some(at) = found.filter(is_one) {
            self.answers.remove(&mut part, at);
        }
    }
}

impl Tracker {
    fn translated(&self, now_ns: u64) -> &Translated {
        self.translated.get_or_init(|| Arc::new(Translated::new(now_ns)))
    }

    /// Forgets the answers to a connection that is no longer in the table.
    pub(super) fn forget(&self, removed: &TrackedConnection) {
        if let (Some(translated), Some(reply)) = (self.translated.get(), removed.translated_reply())
        {
            translated.remove(&reply, removed.answers());
        }
    }

    /// Notes where answers to a connection belong; says whether they are answers to it alone.
    pub(super) fn note_answers(&self, connection: &mut TrackedConnection, now_ns: u64) -> bool {
        let Some(reply) = connection.translated_reply() else { return true };
        let translated = self.translated(now_ns);
        let number = translated.numbers.fetch_add(1, Relaxed);
        connection.set_answers(number);
        translated.add(Answers { reply, original: *connection.flow(), number })
    }

    /// Where the translated connection is that a packet of this flow answers.
    pub(super) fn find_answered<'a>(
        &self,
        table: &'a Table<TrackedConnection>,
        flow: &FlowId,
        now_ns: u64,
    ) -> Option<(MutexGuard<'a, Part<TrackedConnection>>, usize)> {
        let Answers { original, .. } = self.translated.get()?.known(flow)?;
        let (part, list) = table.place(&original);
        let (at, _) = part.find(list, &original, (), now_ns)?;
        let is_one = part.get(at).and_then(TrackedConnection::translated_reply) == Some(*flow);
        is_one.then_some((part, at))
    }

    /// Chooses how the packets of a new connection leave.
    pub(super) fn bind(
        &self,
        connection: &mut TrackedConnection,
        range: &BindingRange,
        manip: Manip,
        now_ns: u64,
    ) {
        let leaves = choose(connection.leaves(), range, manip, &Known { tracker: self, now_ns });
        connection.bind(leaves, manip);
    }

    /// Chooses the source with which the packets of a new connection leave, and puts it into the table.
    pub(super) fn confirm_bound(
        &self,
        new: &NewConnection,
        range: &BindingRange,
        packet: (u8, &[u8]),
        now_ns: u64,
    ) -> Confirmed {
        for _ in 0..MOST_CHOICES {
            let mut bound = new.clone();
            self.bind(&mut bound.connection, range, Manip::Source, now_ns);
            let confirmed = self.confirm(bound, packet, now_ns);
            if !matches!(confirmed, Confirmed::Clash) {
                return confirmed;
            }
        }
        Confirmed::Clash
    }
}

/// The connections of a tracker, as a choice sees them.
struct Known<'a> {
    tracker: &'a Tracker,
    now_ns: u64,
}

impl Tuples for Known<'_> {
    fn is_taken(&self, leaves: &FlowId) -> bool {
        let Self { tracker, now_ns } = *self;
        let (reply, table) = (leaves.reversed(), tracker.table(now_ns));
        let noted = tracker.translated.get().and_then(|translated| translated.known(&reply));
        let (part, list) = table.place(&reply);
        let is_known = part.find(list, &reply, (), now_ns).is_some();
        drop(part);
        if is_known || tracker.find_answered(table, &reply, now_ns).is_some() {
            return true;
        }
        if let (Some(translated), Some(noted)) = (tracker.translated.get(), noted) {
            // Of a connection that is gone.
            translated.remove(&reply, noted.number);
        }
        false
    }

    fn random(&self) -> u16 {
        let translated = self.tracker.translated(self.now_ns);
        translated.random.hash_one(translated.drawn.fetch_add(1, Relaxed)) as u16
    }
}
