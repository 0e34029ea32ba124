//! Next hops by number, which workers read while they change.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::records::NO_ROUTE;
use super::{Action, HEADER_ROOM, NextHop};
use crate::epoch::Epochs;
use crate::id::{LinkId, NextHopId, PortId};
use crate::memory::{Aligned, Apart, zeroed};
use crate::retired::Retired;
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use crate::verdict::{DropReason, PuntReason};

/// Next hops at most: twenty times what a full Internet table has.
pub const MOST_NEXT_HOPS: usize = 1 << 20;

/// Records that may stand for changed next hops while readers are on their way.
const SPARE_RECORDS: usize = 1 << 12;

/// Next hops by number.
///
/// A number stands for a record, which never changes while a reader may look at it. So whatever
/// changes about a next hop that many routes share is one store, and a packet gets the old one or the
/// new one whole.
///
/// A number's own record has the same number. When a next hop changes, another record stands for it
/// until every reader has passed; then its own is written and stands for it again. So but for these
/// moments readers need not ask which record is in force.
pub struct NextHops {
    /// The record in force, by number.
    current: Box<[AtomicU32]>,
    /// Numbers whose record in force is not their own.
    displaced: AtomicU32,
    records: Aligned<Record>,
    epochs: Arc<Epochs>,
    writer: Apart<Mutex<Writer>>,
}

/// A next hop as the path reads it: one cache line.
///
/// Written while no reader looks at it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Record {
    /// The Ethernet header at the end of its room.
    header: [AtomicU64; HEADER_ROOM / 8],
    mtu: AtomicU16,
    port: AtomicU16,
    header_len: AtomicU8,
    action: AtomicU8,
    reason: AtomicU8,
    link: AtomicU16,
}

impl Record {
    /// Largest packet, bytes; 0 unless the action is to forward.
    #[inline(always)]
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu.load(Relaxed)
    }

    /// The egress port.
    #[inline(always)]
    #[must_use]
    pub fn port(&self) -> PortId {
        PortId(self.port.load(Relaxed))
    }

    /// The egress link.
    #[inline(always)]
    #[must_use]
    pub fn link(&self) -> LinkId {
        LinkId(self.link.load(Relaxed))
    }

    /// Bytes of the Ethernet header.
    #[inline(always)]
    #[must_use]
    pub fn header_len(&self) -> u8 {
        self.header_len.load(Relaxed)
    }

    /// The Ethernet header at the end of its room.
    #[inline(always)]
    #[must_use]
    pub fn header(&self) -> [u64; HEADER_ROOM / 8] {
        [&self.header[0], &self.header[1], &self.header[2]].map(|word| word.load(Relaxed))
    }

    fn fill(&self, next: &NextHop) {
        for (word, bytes) in self.header.iter().zip(next.header.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        self.mtu.store(next.mtu, Relaxed);
        self.port.store(next.port.0, Relaxed);
        self.header_len.store(next.header_len, Relaxed);
        let (action, reason) = code(next.action);
        self.action.store(action, Relaxed);
        self.reason.store(reason, Relaxed);
        self.link.store(next.link.0, Relaxed);
    }

    /// What happens to a packet.
    #[must_use]
    pub fn action(&self) -> Action {
        action(self.action.load(Relaxed), self.reason.load(Relaxed))
    }

    fn next_hop(&self, neigh: Option<IpAddr>) -> NextHop {
        let mut header = [0; HEADER_ROOM];
        for (bytes, word) in header.as_chunks_mut().0.iter_mut().zip(self.header()) {
            *bytes = word.to_ne_bytes();
        }
        NextHop {
            header,
            mtu: self.mtu(),
            port: self.port(),
            header_len: self.header_len(),
            action: self.action(),
            link: self.link(),
            neigh,
        }
    }
}

/// An action as two bytes.
const fn code(action: Action) -> (u8, u8) {
    match action {
        Action::Forward => (0, 0),
        Action::Resolve => (1, 0),
        Action::Glean => (2, 0),
        Action::Local => (3, 0),
        Action::Drop(reason) => (4, reason as u8),
        Action::Punt(reason) => (5, reason as u8),
    }
}

fn action(action: u8, reason: u8) -> Action {
    let reason = usize::from(reason);
    match action {
        0 => Action::Forward,
        1 => Action::Resolve,
        2 => Action::Glean,
        3 => Action::Local,
        4 => DropReason::ALL.get(reason).map_or(NO_ROUTE.action, |reason| Action::Drop(*reason)),
        _ => PuntReason::ALL.get(reason).map_or(NO_ROUTE.action, |reason| Action::Punt(*reason)),
    }
}

/// What writers have, behind one lock.
#[derive(Debug)]
struct Writer {
    /// Whom each next hop leads to.
    neighs: Vec<Option<IpAddr>>,
    /// Records that stand for nobody.
    spare: Vec<u32>,
    /// Records that readers may still look at.
    retired: Retired<u32>,
    /// Numbers whose own record readers may still look at.
    displaced: Retired<NextHopId>,
}

impl NextHops {
    /// The one that has number 0: no route.
    #[must_use]
    pub fn new(epochs: Arc<Epochs>) -> Self {
        let most = MOST_NEXT_HOPS as u32;
        let writer = Writer {
            neighs: Vec::new(),
            spare: (most..most + SPARE_RECORDS as u32).rev().collect(),
            retired: Retired::new(Arc::clone(&epochs)),
            displaced: Retired::new(Arc::clone(&epochs)),
        };
        let next_hops = Self {
            current: zeroed(MOST_NEXT_HOPS),
            displaced: AtomicU32::new(0),
            records: Aligned::new(MOST_NEXT_HOPS + SPARE_RECORDS),
            epochs,
            writer: Apart(Mutex::new(writer)),
        };
        let first = next_hops.push(&NO_ROUTE);
        debug_assert_eq!(first, Some(NextHopId::NO_ROUTE));
        next_hops
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().neighs.len()
    }

    /// Says if there is none, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds one; none where numbers are used up.
    pub fn push(&self, next: &NextHop) -> Option<NextHopId> {
        let mut writer = self.lock();
        let number = writer.neighs.len();
        // Nobody has the number yet.
        let current = self.current.get(number)?;
        self.records.get().get(number)?.fill(next);
        writer.neighs.push(next.neigh);
        current.store(number as u32, Release);
        Some(NextHopId(number as u32))
    }

    /// Changes one, for every route that shares it at once; false where it is not there, or too many
    /// changes wait for readers.
    pub fn set(&self, id: NextHopId, next: &NextHop) -> bool {
        let mut writer = self.lock();
        self.settle_some(&mut writer);
        let number = id.0 as usize;
        if number >= writer.neighs.len() {
            return false;
        }
        let Some(record) = writer.spare.pop() else { return false };
        self.records.get()[record as usize].fill(next);
        writer.neighs[number] = next.neigh;
        let old = self.current[number].swap(record, AcqRel);
        if old == id.0 {
            // Before the epoch that `mark` begins: who has passed it asks for the record in force.
            self.displaced.fetch_add(1, SeqCst);
            writer.displaced.push(id);
            writer.displaced.mark();
        } else {
            writer.retired.push(old);
            writer.retired.mark();
        }
        // One that did not forward has decided nothing that anyone could have kept: neighbours that
        // come change nothing for flows that are on their way already.
        if self.records.get()[old as usize].action() == Action::Forward {
            self.epochs.changes.note();
        }
        true
    }

    /// Lets next hops that changed stand for themselves again, where no reader is in the way; to be
    /// called now and then.
    pub fn settle(&self) {
        if self.displaced.load(Relaxed) > 0 {
            self.settle_some(&mut self.lock());
        }
    }

    fn settle_some(&self, writer: &mut Writer) {
        let Writer { neighs, spare, retired, displaced } = writer;
        let records = self.records.get();
        displaced.reclaim(|id| {
            let number = id.0 as usize;
            let record = self.current[number].load(Relaxed);
            records[number].fill(&records[record as usize].next_hop(neighs[number]));
            self.current[number].store(id.0, Release);
            self.displaced.fetch_sub(1, SeqCst);
            retired.push(record);
        });
        retired.reclaim(|record| spare.push(record));
    }

    /// The next hop of a number; no route for one that is not there.
    #[must_use]
    pub fn get(&self, id: NextHopId) -> NextHop {
        let writer = self.lock();
        let Some(neigh) = writer.neighs.get(id.0 as usize) else { return NO_ROUTE };
        let view = self.view();
        view.record(view.in_force(id)).map_or(NO_ROUTE, |record| record.next_hop(*neigh))
    }

    /// What a packet's way needs; good until the next burst boundary.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View {
            settled: self.displaced.load(Acquire) == 0,
            current: &self.current,
            records: self.records.get(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // Whatever panicked left numbers and records as they were or as they should be.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for NextHops {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("NextHops").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// [`NextHops`] as a packet's way reads them.
#[derive(Clone, Copy)]
pub struct View<'a> {
    settled: bool,
    current: &'a [AtomicU32],
    records: &'a [Record],
}

impl<'a> View<'a> {
    /// Says if every number's own record is in force: then its number is the record's.
    #[inline(always)]
    #[must_use]
    pub const fn is_settled(self) -> bool {
        self.settled
    }

    /// The record in force for a number; of a group the number itself, for [`crate::stages::ecmp`].
    #[inline(always)]
    #[must_use]
    pub fn in_force(self, id: NextHopId) -> RecordId {
        let record = self.current.get(id.0 as usize);
        RecordId(record.map_or(id.0, |record| record.load(Acquire)))
    }

    /// The record of a number.
    #[inline(always)]
    #[must_use]
    pub fn record(self, id: RecordId) -> Option<&'a Record> {
        self.records.get(id.0 as usize)
    }
}

/// The number of a [`Record`], or (with [`NextHopId::GROUP`]) of a group.
///
/// Good until the next burst boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordId(pub u32);

impl RecordId {
    /// The group that this is.
    #[inline(always)]
    #[must_use]
    pub const fn group(self) -> Option<NextHopId> {
        if self.0 & NextHopId::GROUP != 0 { Some(NextHopId(self.0)) } else { None }
    }
}

const _: () = assert!(MOST_NEXT_HOPS + SPARE_RECORDS <= NextHopId::GROUP as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn leading_to(last: u8) -> NextHop {
        NextHop {
            header: std::array::from_fn(|index| last.wrapping_add(index as u8)),
            mtu: 1500 + u16::from(last),
            port: PortId(u16::from(last)),
            header_len: 14,
            action: Action::Forward,
            link: LinkId(7),
            neigh: Some(IpAddr::from([192, 0, 2, last])),
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        let next_hops = NextHops::new(Epochs::new());
        let drops = DropReason::ALL.iter().map(|reason| Action::Drop(*reason));
        let punts = PuntReason::ALL.iter().map(|reason| Action::Punt(*reason));
        let others = [Action::Forward, Action::Resolve, Action::Glean, Action::Local];
        for (last, action) in drops.chain(punts).chain(others).enumerate() {
            let next = NextHop { action, ..leading_to(last as u8) };
            let id = next_hops.push(&next).unwrap();
            assert_eq!(next_hops.get(id), next);
        }
        assert_eq!(next_hops.get(NextHopId(u32::MAX)), NO_ROUTE);
        assert_eq!(next_hops.get(NextHopId::NO_ROUTE), NO_ROUTE);
    }

    #[test]
    fn a_reader_keeps_the_record_that_it_found() {
        let epochs = Epochs::new();
        let next_hops = NextHops::new(Arc::clone(&epochs));
        let reader = epochs.join();
        let id = next_hops.push(&leading_to(1)).unwrap();
        let found = next_hops.view().in_force(id);
        for last in 2..200 {
            assert!(next_hops.set(id, &leading_to(last)));
            let record = next_hops.view().record(found).unwrap();
            assert_eq!(record.next_hop(leading_to(1).neigh), leading_to(1));
        }
        assert_eq!(next_hops.get(id), leading_to(199));
        assert!(!next_hops.view().is_settled());
        // From now on few records do: those in force, and those that a reader may still look at.
        for last in 2..200 {
            reader.pass();
            assert!(next_hops.set(id, &leading_to(last)));
            assert!(next_hops.lock().spare.len() >= SPARE_RECORDS - 3);
            let view = next_hops.view();
            let record = view.record(view.in_force(id)).unwrap();
            assert_eq!(record.next_hop(leading_to(last).neigh), leading_to(last));
        }
        for _ in 0..2 {
            reader.pass();
            next_hops.settle();
        }
        assert!(next_hops.view().is_settled());
        assert_eq!(next_hops.view().in_force(id), RecordId(id.0));
        assert_eq!(next_hops.get(id), leading_to(199));
    }

    #[test]
    fn changes_that_wait_for_a_reader_run_out() {
        let epochs = Epochs::new();
        let next_hops = NextHops::new(Arc::clone(&epochs));
        let reader = epochs.join();
        let id = next_hops.push(&leading_to(1)).unwrap();
        let done = (0..).take_while(|_| next_hops.set(id, &leading_to(2))).count();
        assert_eq!(done, SPARE_RECORDS);
        assert!(!next_hops.set(id, &leading_to(3)));
        assert_eq!(next_hops.get(id), leading_to(2));
        reader.park();
        assert!(next_hops.set(id, &leading_to(3)));
        assert_eq!(next_hops.get(id), leading_to(3));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes there")]
    fn numbers_run_out_and_nothing_else_happens() {
        let next_hops = NextHops::new(Epochs::new());
        let last = std::iter::from_fn(|| next_hops.push(&leading_to(3))).last().unwrap();
        assert_eq!(last.0 as usize, MOST_NEXT_HOPS - 1);
        assert_eq!(next_hops.push(&leading_to(4)), None);
        assert!(!next_hops.set(NextHopId(last.0 + 1), &leading_to(4)));
        assert_eq!(next_hops.get(last), leading_to(3));
        assert!(next_hops.set(last, &leading_to(5)));
        assert_eq!(next_hops.get(last), leading_to(5));
    }
}
