//! Next hops by number, which workers read while they change.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Action, HEADER_ROOM, NO_ROUTE, NextHop};
use crate::epoch::Epochs;
use crate::id::{LinkId, NextHopId, PortId};
use crate::memory::{Aligned, zeroed};
use crate::retired::Retired;
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use crate::verdict::{DropReason, PuntReason};

/// Next hops at most: twenty times what a full Internet table has.
pub const MOST_NEXT_HOPS: usize = 1 << 20;

/// Records that may wait for readers beside those in force.
const SPARE_RECORDS: usize = 1 << 12;

/// Next hops by number.
///
/// A number stands for a record, which never changes once it is in force. So whatever changes about
/// a next hop that many routes share is one store, and a packet gets the old one or the new one
/// whole.
pub struct NextHops {
    /// The record in force, by number.
    current: Box<[AtomicU32]>,
    records: Aligned<Record>,
    writer: Mutex<Writer>,
}

/// A next hop as the path reads it: one cache line.
///
/// Written while no reader can reach it, then read only.
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
            link: LinkId(self.link.load(Relaxed)),
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
    free: Vec<u32>,
    next: u32,
    retired: Retired<u32>,
}

impl NextHops {
    /// The one that has number 0: no route.
    #[must_use]
    pub fn new(epochs: Arc<Epochs>) -> Self {
        let writer =
            Writer { neighs: Vec::new(), free: Vec::new(), next: 0, retired: Retired::new(epochs) };
        let next_hops = Self {
            current: zeroed(MOST_NEXT_HOPS),
            records: Aligned::new(MOST_NEXT_HOPS + SPARE_RECORDS),
            writer: Mutex::new(writer),
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

    /// Adds one; none where numbers or records are used up.
    pub fn push(&self, next: &NextHop) -> Option<NextHopId> {
        let mut writer = self.lock();
        let number = writer.neighs.len();
        let current = self.current.get(number)?;
        let record = self.record(&mut writer, next)?;
        writer.neighs.push(next.neigh);
        current.store(record, Release);
        Some(NextHopId(number as u32))
    }

    /// Changes one, for every route that shares it at once; false where records are used up, or it
    /// is not there.
    pub fn set(&self, id: NextHopId, next: &NextHop) -> bool {
        let mut writer = self.lock();
        let number = id.0 as usize;
        if number >= writer.neighs.len() {
            return false;
        }
        let Some(record) = self.record(&mut writer, next) else { return false };
        writer.neighs[number] = next.neigh;
        let old = self.current[number].swap(record, std::sync::atomic::Ordering::AcqRel);
        writer.retired.push(old);
        true
    }

    /// The next hop of a number; no route for one that is not there.
    #[must_use]
    pub fn get(&self, id: NextHopId) -> NextHop {
        let writer = self.lock();
        let Some(neigh) = writer.neighs.get(id.0 as usize) else { return NO_ROUTE };
        let view = self.view();
        view.record(view.in_force(id)).map_or(NO_ROUTE, |record| record.next_hop(*neigh))
    }

    /// What a packet's way needs.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View { current: &self.current, records: self.records.get() }
    }

    /// A record with this in it, which no reader can reach yet.
    fn record(&self, writer: &mut Writer, next: &NextHop) -> Option<u32> {
        let Writer { free, retired, .. } = writer;
        retired.reclaim(|record| free.push(record));
        let number = free.pop().unwrap_or(writer.next);
        self.records.get().get(number as usize)?.fill(next);
        writer.next = writer.next.max(number + 1);
        Some(number)
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
    current: &'a [AtomicU32],
    records: &'a [Record],
}

impl<'a> View<'a> {
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
        // From now on two records do: the one in force, and the one that is next.
        reader.pass();
        assert!(next_hops.set(id, &leading_to(1)));
        let records = next_hops.lock().next;
        for last in 2..200 {
            reader.pass();
            assert!(next_hops.set(id, &leading_to(last)));
        }
        assert_eq!(next_hops.lock().next, records);
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
