//! The flows of answers to translated connections.
//!
//! The table of connections has each by the flow of its first packet. Answers to translated packets have another flow, for
//! which a second table says that of the first packet. It is a hint: what it says of connections that are gone does not count.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::Ordering::Relaxed;

use super::super::flows::{Entry, FlowId, Side, Size, Table};
use crate::sync::AtomicU64;

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
pub(super) struct Answers {
    reply: FlowId,
    /// The flow of the first packet.
    pub(super) original: FlowId,
    /// Which connection it is of: a later one may have the same flows, before this one is removed.
    pub(super) number: u64,
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
    pub(super) fn new(size: Size, now_ns: u64) -> Self {
        let (answers, random) = (Table::new(size, now_ns), RandomState::new());
        Self { answers, random, drawn: AtomicU64::new(0), numbers: AtomicU64::new(0) }
    }

    /// What is noted of the flow of answers.
    pub(super) fn known(&self, reply: &FlowId) -> Option<Answers> {
        let (part, list) = self.answers.place(reply);
        let (at, _) = part.find(list, reply, (), 0)?;
        part.get(at).copied()
    }

    /// The number of a new entry; none if somebody has the flow of answers already, or there is no room.
    pub(super) fn note(&self, reply: FlowId, original: FlowId) -> Option<u64> {
        let number = self.numbers.fetch_add(1, Relaxed);
        self.add(Answers { reply, original, number }).then_some(number)
    }

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

    /// Removes the entry with this number, if it is there.
    pub(super) fn remove(&self, reply: &FlowId, number: u64) {
        let (mut part, list) = self.answers.place(reply);
        let found = part.find(list, reply, (), 0).map(|(at, _)| at);
        let is_one = |at: &usize| part.get(*at).is_some_and(|one| one.number == number);
        if let Some(at) = found.filter(is_one) {
            self.answers.remove(&mut part, at);
        }
    }

    /// Any number.
    pub(super) fn random(&self) -> u16 {
        self.random.hash_one(self.drawn.fetch_add(1, Relaxed)) as u16
    }
}
