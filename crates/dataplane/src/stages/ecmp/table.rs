use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::epoch::Epochs;
use crate::id::NextHopId;
pub use crate::memory::MOST_GROUPS;
use crate::memory::{Aligned, Memory, Part};
use crate::sync::{AtomicU32, AtomicU64};

/// The maximum number of members of a group.
pub const MOST_MEMBERS: usize = 256;

/// The largest hash: hashes have 31 bits.
pub const MOST_HASH: u32 = (1 << 31) - 1;

/// The number of members whose bounds are compared at once: those of a cache line.
const AT_ONCE: usize = 8;

/// A member of a group and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The next hop for its share of the flows.
    pub next: NextHopId,
    /// Its share in proportion to the others'; 0 counts as 1.
    pub weight: u16,
}

impl Member {
    fn weight(self) -> u64 {
        u64::from(self.weight.max(1))
    }
}

/// Next-hop groups: flows are spread over a group's members by their hash.
///
/// Each member has the hashes up to its bound that no earlier member has (`fib_rebalance`,
/// `nexthop_select_path_hthr`), so the order of members matters. A writer changes members one by one,
/// each with one store, while workers read. A concurrent reader gets a member from before or after the
/// change.
pub struct Groups {
    /// The members of each group: the bound above the next hop. The last member is repeated up to the
    /// end of the cache line.
    members: Aligned<AtomicU64>,
    capacity: usize,
    count: AtomicU32,
    epochs: Arc<Epochs>,
    /// Locked for changes only.
    writer: Mutex<()>,
}

impl Groups {
    /// Creates a table without groups; its changes are counted among those of `epochs`.
    #[must_use]
    pub fn new(epochs: Arc<Epochs>) -> Self {
        Self::with_memory(epochs, &Memory::default())
    }

    /// As [`Groups::new`], with this memory.
    pub(crate) fn with_memory(epochs: Arc<Epochs>, memory: &Memory) -> Self {
        let capacity = memory.capacities().groups.min(MOST_GROUPS);
        let members = Aligned::new(memory, Part::Groups, capacity * MOST_MEMBERS);
        Self { members, capacity, count: AtomicU32::new(0), epochs, writer: Mutex::new(()) }
    }

    /// The number of groups.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Acquire) as usize
    }

    /// Says whether there is no group.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a group of 1 to [`MOST_MEMBERS`] members; none for other sizes, or if all numbers are used.
    pub fn push(&self, members: &[Member]) -> Option<u32> {
        let _changing = self.lock();
        let number = self.count.load(Relaxed);
        self.fill(number, members)?;
        self.count.store(number + 1, Release);
        Some(number)
    }

    /// Replaces the members of a group like the kernel: if the bounds between members move, some
    /// flows change to another member although their old member stays in the group.
    ///
    /// False if the group does not exist, or for other than 1 to [`MOST_MEMBERS`] members.
    pub fn set(&self, number: u32, members: &[Member]) -> bool {
        let _changing = self.lock();
        let done = number < self.count.load(Relaxed) && self.fill(number, members).is_some();
        if done {
            self.epochs.changes.note_next_hop();
        }
        done
    }

    /// The member for a flow, whose hash is at most [`MOST_HASH`]; "no route" if the group does not
    /// exist.
    #[inline(always)]
    #[must_use]
    pub fn select(&self, number: u32, hash: u32) -> NextHopId {
        let (lines, _) = self.of(number).as_chunks::<AT_ONCE>();
        for line in lines {
            let passed = line.iter().map(|member| usize::from(bound(member.load(Acquire)) < hash));
            if let Some(member) = line.get(passed.sum::<usize>()) {
                return next(member.load(Relaxed));
            }
        }
        NextHopId::NO_ROUTE
    }

    /// The members of a group in their order; empty if the group does not exist.
    pub(crate) fn nexts(&self, number: u32) -> impl Iterator<Item = NextHopId> {
        self.bounds(number).map(|(_, next)| next)
    }

    /// The members of a group. Each weight is the member's share of the flows in [`MOST_MEMBERS`]
    /// parts, at least one. Empty if the group does not exist.
    #[must_use]
    pub fn members(&self, number: u32) -> Vec<Member> {
        let _no_change = self.lock();
        let mut shares: Vec<(NextHopId, u64)> = Vec::new();
        let mut before = 0;
        for (bound, next) in self.bounds(number) {
            let end = u64::from(bound) + 1;
            match shares.iter_mut().find(|(member, _)| *member == next) {
                Some((_, share)) => *share += end - before,
                None => shares.push((next, end - before)),
            }
            before = end;
        }
        shares.sort_unstable_by_key(|(next, _)| *next);
        let part = (u64::from(MOST_HASH) + 1) / MOST_MEMBERS as u64;
        let weight = |share: u64| ((share + part / 2) / part).max(1) as u16;
        shares.into_iter().map(|(next, share)| Member { next, weight: weight(share) }).collect()
    }

    /// The bounds of an existing group, up to the last.
    fn bounds(&self, number: u32) -> impl Iterator<Item = (u32, NextHopId)> {
        let members = if (number as usize) < self.len() { self.of(number) } else { &[] };
        let mut ended = false;
        members.iter().map(|member| member.load(Acquire)).map_while(move |member| {
            let goes_on = !ended;
            ended |= bound(member) >= MOST_HASH;
            goes_on.then(|| (bound(member), next(member)))
        })
    }

    #[inline(always)]
    fn of(&self, number: u32) -> &[AtomicU64] {
        let first = number as usize * MOST_MEMBERS;
        self.members.get().get(first..first + MOST_MEMBERS).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // Every member is valid at every moment.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, number: u32, members: &[Member]) -> Option<()> {
        if members.is_empty() || members.len() > MOST_MEMBERS || number as usize >= self.capacity {
            return None;
        }
        let total: u64 = members.iter().map(|member| member.weight()).sum();
        let mut weight = 0;
        let mut packed = Vec::with_capacity(members.len().next_multiple_of(AT_ONCE));
        for member in members {
            weight += member.weight();
            // `DIV_ROUND_CLOSEST_ULL`.
            let end = ((weight << 31) + total / 2) / total;
            // All weights are at most 2^24, so each member has some of the hashes.
            packed.push((end - 1) << 32 | u64::from(member.next.0));
        }
        let last = *packed.last()?;
        packed.resize(packed.len().next_multiple_of(AT_ONCE), last);
        // From the end, so that a concurrent reader always finds a last member.
        for (member, packed) in self.of(number).iter().zip(packed).rev() {
            member.store(packed, Release);
        }
        Some(())
    }
}

#[inline(always)]
const fn bound(member: u64) -> u32 {
    (member >> 32) as u32
}

#[inline(always)]
const fn next(member: u64) -> NextHopId {
    NextHopId(member as u32)
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Groups").field("len", &self.len()).finish_non_exhaustive()
    }
}
