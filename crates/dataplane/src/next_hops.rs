//! Next hops by number, which workers read while they change.

mod next_hop;

use std::net::IpAddr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::epoch::{Epochs, Retired};
use crate::id::{LinkId, NextHopId, PortId, RecordId};
pub use crate::memory::MOST_NEXT_HOPS;
use crate::memory::{Aligned, Apart, Memory, Part};
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use crate::verdict::{DropReason, PuntReason};
use next_hop::NO_ROUTE;
pub use next_hop::{Action, HEADER_ROOM, NextHop};

/// Spare records that may stand in for changed next hops while readers still use the old ones. BPF programs may use
/// them for half a second.
pub const SPARE_RECORDS: usize = 1 << 14;

/// Next hops by number.
///
/// A number maps to a record, which never changes while a reader may look at it. So any change of a
/// next hop that many routes share is one store, and a packet gets either the old one or the new one as
/// a whole.
///
/// A number's own record has the same number. When a next hop changes, another record stands in for it
/// until every reader has passed. Then the own record is written and becomes active again. So except
/// for these moments, readers need not look up which record is active.
pub struct NextHops {
    /// The active record by number.
    current: Aligned<AtomicU32>,
    /// The number of next hops whose active record is not their own.
    displaced: AtomicU32,
    records: Aligned<Record>,
    epochs: Arc<Epochs>,
    writer: Apart<Mutex<Writer>>,
}

/// A next hop as the path reads it: one cache line.
///
/// It is written only while no reader looks at it.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C, align(64))]
pub struct Record {
    /// The Ethernet header, right-aligned in the array.
    header: [AtomicU64; HEADER_ROOM / 8],
    mtu: AtomicU16,
    port: AtomicU16,
    header_len: AtomicU8,
    action: AtomicU8,
    reason: AtomicU8,
    link: AtomicU16,
    /// Largest packet in bytes, if only BPF programs forward ([`Action::Bridge`]).
    bridged_mtu: AtomicU16,
}

impl Record {
    /// Largest packet in bytes; 0 unless the action is [`Action::Forward`].
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

    /// The Ethernet header, right-aligned in the array.
    #[inline(always)]
    #[must_use]
    pub fn header(&self) -> [u64; HEADER_ROOM / 8] {
        [&self.header[0], &self.header[1], &self.header[2]].map(|word| word.load(Relaxed))
    }

    fn fill(&self, next: &NextHop) {
        for (word, bytes) in self.header.iter().zip(next.header.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        let is_bridged = next.action == Action::Bridge;
        self.mtu.store(if is_bridged { 0 } else { next.mtu }, Relaxed);
        self.bridged_mtu.store(if is_bridged { next.mtu } else { 0 }, Relaxed);
        self.port.store(next.port.0, Relaxed);
        self.header_len.store(next.header_len, Relaxed);
        let (action, reason) = code(next.action);
        self.action.store(action, Relaxed);
        self.reason.store(reason, Relaxed);
        self.link.store(next.link.0, Relaxed);
    }

    /// Says whether it leads to another host: [`Action::Forward`], [`Action::Bridge`], [`Action::Resolve`],
    /// [`Action::Glean`], or by a link by which the kernel sends ([`PuntReason::KernelExit`]).
    #[inline(always)]
    #[must_use]
    pub fn is_unicast(&self) -> bool {
        self.action.load(Relaxed) <= LAST_UNICAST
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
            mtu: self.mtu() | self.bridged_mtu.load(Relaxed),
            port: self.port(),
            header_len: self.header_len(),
            action: self.action(),
            link: self.link(),
            neigh,
        }
    }
}

/// The code of the last action of a unicast route.
const LAST_UNICAST: u8 = code(Action::Bridge).0;

/// Encodes an action as two bytes.
const fn code(action: Action) -> (u8, u8) {
    match action {
        Action::Forward => (0, 0),
        Action::Resolve => (1, 0),
        Action::Glean => (2, 0),
        // The route is a unicast one, as a check of sources has to know.
        Action::Punt(reason @ PuntReason::KernelExit) => (3, reason as u8),
        Action::Bridge => (4, 0),
        Action::Local => (5, 0),
        Action::Drop(reason) => (6, reason as u8),
        Action::Punt(reason) => (7, reason as u8),
    }
}

fn action(action: u8, reason: u8) -> Action {
    let reason = usize::from(reason);
    match action {
        0 => Action::Forward,
        1 => Action::Resolve,
        2 => Action::Glean,
        3 => Action::Punt(PuntReason::KernelExit),
        4 => Action::Bridge,
        5 => Action::Local,
        6 => DropReason::ALL.get(reason).map_or(NO_ROUTE.action, |reason| Action::Drop(*reason)),
        _ => PuntReason::ALL.get(reason).map_or(NO_ROUTE.action, |reason| Action::Punt(*reason)),
    }
}

/// Whether a cache may keep what a next hop has decided, and `next` decides otherwise: it forwarded, dropped, or was the
/// route back to a valid source by its link. So new neighbours do not void existing flows.
fn has_decided(before: &Record, next: &NextHop) -> bool {
    let stays_valid = before.link() == next.link && code(next.action).0 <= LAST_UNICAST;
    matches!(before.action(), Action::Forward | Action::Drop(_))
        || before.is_unicast() && !stays_valid
}

/// The writers' state, behind one lock.
#[derive(Debug)]
struct Writer {
    /// The neighbour of each next hop.
    neighs: Vec<Option<IpAddr>>,
    /// Records that no number uses.
    spare: Vec<u32>,
    /// Records that readers may still look at.
    retired: Retired<u32>,
    /// Numbers whose own record readers may still look at.
    displaced: Retired<NextHopId>,
}

impl NextHops {
    /// Creates the table with the one entry of number 0: no route.
    #[must_use]
    pub fn new(epochs: Arc<Epochs>) -> Self {
        Self::with_memory(epochs, &Memory::default())
    }

    /// As [`NextHops::new`], with this memory.
    pub(crate) fn with_memory(epochs: Arc<Epochs>, memory: &Memory) -> Self {
        let capacity = memory.capacities().next_hops.min(MOST_NEXT_HOPS);
        let most = capacity as u32;
        let writer = Writer {
            neighs: Vec::new(),
            spare: (most..most + SPARE_RECORDS as u32).rev().collect(),
            retired: Retired::new(Arc::clone(&epochs)),
            displaced: Retired::new(Arc::clone(&epochs)),
        };
        let next_hops = Self {
            current: Aligned::new(memory, Part::NextHops, capacity),
            displaced: AtomicU32::new(0),
            records: Aligned::new(memory, Part::Records, capacity + SPARE_RECORDS),
            epochs,
            writer: Apart(Mutex::new(writer)),
        };
        let first = next_hops.push(&NO_ROUTE);
        debug_assert_eq!(first, Some(NextHopId::NO_ROUTE));
        next_hops
    }

    /// The number of next hops.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().neighs.len()
    }

    /// Says whether there is no next hop, which is never the case.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a next hop; none if all numbers are used.
    pub fn push(&self, next: &NextHop) -> Option<NextHopId> {
        let mut writer = self.lock();
        let number = writer.neighs.len();
        // No reader has the number yet.
        let current = self.current.get().get(number)?;
        self.records.get().get(number)?.fill(next);
        writer.neighs.push(next.neigh);
        current.store(number as u32, Release);
        Some(NextHopId(number as u32))
    }

    /// Changes a next hop for all routes that share it at once. False if it does not exist, or if too
    /// many changes wait for readers.
    pub fn set(&self, id: NextHopId, next: &NextHop) -> bool {
        let mut writer = self.lock();
        self.restore_some(&mut writer);
        let number = id.0 as usize;
        if number >= writer.neighs.len() {
            return false;
        }
        let Some(record) = writer.spare.pop() else { return false };
        self.records.get()[record as usize].fill(next);
        writer.neighs[number] = next.neigh;
        let old = self.current.get()[number].swap(record, AcqRel);
        if old == id.0 {
            // Before the epoch that `mark` begins: readers that have passed it look up the active
            // record.
            self.displaced.fetch_add(1, SeqCst);
            writer.displaced.push(id);
            writer.displaced.mark();
        } else {
            writer.retired.push(old);
            writer.retired.mark();
        }
        if has_decided(&self.records.get()[old as usize], next) {
            self.epochs.changes.note_next_hop();
        }
        true
    }

    /// Restores the own records of changed next hops, if no reader may still look at them. Call it
    /// now and then.
    pub fn restore_displaced(&self) {
        if self.displaced.load(Relaxed) > 0 {
            self.restore_some(&mut self.lock());
        }
    }

    fn restore_some(&self, writer: &mut Writer) {
        let Writer { neighs, spare, retired, displaced } = writer;
        let records = self.records.get();
        displaced.reclaim(|id| {
            let number = id.0 as usize;
            let record = self.current.get()[number].load(Relaxed);
            records[number].fill(&records[record as usize].next_hop(neighs[number]));
            self.current.get()[number].store(id.0, Release);
            self.displaced.fetch_sub(1, SeqCst);
            retired.push(record);
        });
        retired.reclaim(|record| spare.push(record));
    }

    /// The next hop with this number; "no route" if there is none.
    #[must_use]
    pub fn get(&self, id: NextHopId) -> NextHop {
        let writer = self.lock();
        let Some(neigh) = writer.neighs.get(id.0 as usize) else { return NO_ROUTE };
        let view = self.view();
        view.record(view.installed(id)).map_or(NO_ROUTE, |record| record.next_hop(*neigh))
    }

    /// The view that the path reads; valid until the next burst boundary.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> NextHopsView<'_> {
        NextHopsView {
            is_identity: self.displaced.load(Acquire) == 0,
            current: self.current.get(),
            records: self.records.get(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // A panic leaves numbers and records either unchanged or complete.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for NextHops {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("NextHops").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// [`NextHops`] as the path reads them.
#[derive(Clone, Copy)]
pub struct NextHopsView<'a> {
    is_identity: bool,
    current: &'a [AtomicU32],
    records: &'a [Record],
}

impl<'a> NextHopsView<'a> {
    /// Says whether each next hop's number is also the number of its active record.
    #[inline(always)]
    #[must_use]
    pub const fn is_identity(self) -> bool {
        self.is_identity
    }

    /// The active record for a number; for a group the number itself, for [`crate::stages::ecmp`].
    #[inline(always)]
    #[must_use]
    pub fn installed(self, id: NextHopId) -> RecordId {
        let record = self.current.get(id.0 as usize);
        RecordId(record.map_or(id.0, |record| record.load(Acquire)))
    }

    /// The record with this number.
    #[inline(always)]
    #[must_use]
    pub fn record(self, id: RecordId) -> Option<&'a Record> {
        self.records.get(id.0 as usize)
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
    fn records_are_read_as_written() {
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
        let found = next_hops.view().installed(id);
        for last in 2..200 {
            assert!(next_hops.set(id, &leading_to(last)));
            let record = next_hops.view().record(found).unwrap();
            assert_eq!(record.next_hop(leading_to(1).neigh), leading_to(1));
        }
        assert_eq!(next_hops.get(id), leading_to(199));
        assert!(!next_hops.view().is_identity());
        // From now on few records are free: the others are active, or a reader may still look at them.
        for last in 2..200 {
            reader.pass();
            assert!(next_hops.set(id, &leading_to(last)));
            assert!(next_hops.lock().spare.len() >= SPARE_RECORDS - 3);
            let view = next_hops.view();
            let record = view.record(view.installed(id)).unwrap();
            assert_eq!(record.next_hop(leading_to(last).neigh), leading_to(last));
        }
        for _ in 0..2 {
            reader.pass();
            next_hops.restore_displaced();
        }
        assert!(next_hops.view().is_identity());
        assert_eq!(next_hops.view().installed(id), RecordId(id.0));
        assert_eq!(next_hops.get(id), leading_to(199));
    }

    #[test]
    fn what_a_cache_may_keep_is_a_change() {
        let epochs = Epochs::new();
        let next_hops = NextHops::new(Arc::clone(&epochs));
        let by = |action, link| NextHop { action, link: LinkId(link), ..leading_to(1) };
        let none = Action::Punt(PuntReason::NoRoute);
        for (before, after, is_change) in [
            (by(Action::Forward, 1), by(Action::Resolve, 1), true),
            (by(Action::Drop(DropReason::Blackhole), 1), by(Action::Forward, 1), true),
            // A neighbour gets known.
            (by(Action::Resolve, 1), by(Action::Forward, 1), false),
            // The route back to a source.
            (by(Action::Resolve, 1), by(Action::Resolve, 2), true),
            (by(Action::Glean, 1), by(none, 1), true),
            (by(none, 1), by(Action::Forward, 2), false),
        ] {
            let id = next_hops.push(&before).unwrap();
            let version = epochs.changes.version();
            assert!(next_hops.set(id, &after));
            assert_eq!(epochs.changes.version() != version, is_change, "{before:?}, {after:?}");
        }
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
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
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
