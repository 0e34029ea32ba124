//! Translated connections: which one an answer belongs to, and with which flow a new one leaves.

use std::sync::Arc;

use super::super::binding::{BindingRange, Manip, Tuples, choose};
use super::super::flows::{Entry as _, FlowId, Part, Table};
use super::answers::{Answers, Translated};
use super::connection::TrackedConnection;
use super::table::{Confirmed, NewConnection, SIZE, Tracker};
use crate::sync::MutexGuard;

/// How often another worker may take the chosen flow before the packet is lost.
const MOST_CHOICES: usize = 4;

impl Tracker {
    fn translated(&self, now_ns: u64) -> &Translated {
        self.translated.get_or_init(|| Arc::new(Translated::new(SIZE, now_ns)))
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
        let number = self.translated(now_ns).note(reply, *connection.flow());
        connection.set_answers(number.unwrap_or_default());
        number.is_some()
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
        self.tracker.translated(self.now_ns).random()
    }
}
