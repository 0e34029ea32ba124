use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::epoch::Epochs;
use crate::id::NextHopId;
use crate::memory::zeroed;
use crate::sync::AtomicU32;

/// Shares that a group's flows are cut into.
pub const BUCKETS: usize = 256;

/// Groups at most.
pub const MOST_GROUPS: usize = 1 << 16;

/// A member of a group and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where its share of the flows goes.
    pub next: NextHopId,
    /// Its share, in proportion to the others'; 0 counts as 1.
    pub weight: u16,
}

impl Member {
    fn weight(self) -> i64 {
        i64::from(self.weight.max(1))
    }
}

/// Next-hop groups: flows are spread over a group's members by their hash.
///
/// A group is [`BUCKETS`] next hops; a flow's hash names one of them. Members come and go bucket by
/// bucket, each one store, while workers read; only as many buckets move as have to
/// (`net/ipv4/nexthop.c`, resilient groups).
pub struct Groups {
    buckets: Box<[AtomicU32]>,
    count: AtomicU32,
    epochs: Arc<Epochs>,
    /// Held for changes only.
    writer: Mutex<()>,
}

impl Groups {
    /// No group; its changes are counted among those of `epochs`.
    #[must_use]
    pub fn new(epochs: Arc<Epochs>) -> Self {
        let buckets = zeroed(MOST_GROUPS * BUCKETS);
        Self { buckets, count: AtomicU32::new(0), epochs, writer: Mutex::new(()) }
    }

    /// How many there are.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Acquire) as usize
    }

    /// Says if there is none.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a group of 1 to [`BUCKETS`] members; none for another number of them, or where numbers
    /// are used up.
    pub fn push(&self, members: &[Member]) -> Option<u32> {
        let _changing = self.lock();
        let number = self.count.load(Relaxed);
        self.fill(number, members, false)?;
        self.count.store(number + 1, Release);
        Some(number)
    }

    /// Gives a group other members. Flows of a member that leaves are spread over the others; of the
    /// other flows, only those move that a member needs which is new or weighs more.
    ///
    /// False for a group that is not there, or not 1 to [`BUCKETS`] members.
    pub fn set(&self, number: u32, members: &[Member]) -> bool {
        let _changing = self.lock();
        let done = number < self.count.load(Relaxed) && self.fill(number, members, true).is_some();
        if done {
            self.epochs.changes.note();
        }
        done
    }

    /// The member for a flow; no route for a group that is not there.
    #[inline(always)]
    #[must_use]
    pub fn select(&self, number: u32, hash: u32) -> NextHopId {
        let bucket = number as usize * BUCKETS + hash as usize % BUCKETS;
        NextHopId(self.buckets.get(bucket).map_or(NextHopId::NO_ROUTE.0, |next| next.load(Relaxed)))
    }

    /// The member of each share of a group; none of one that is not there.
    pub(crate) fn shares(&self, number: u32) -> impl Iterator<Item = NextHopId> {
        let first = (number as usize).saturating_mul(BUCKETS);
        let known = (number as usize) < self.len();
        let buckets = self.buckets.get(first..first + BUCKETS).filter(|_| known);
        buckets.unwrap_or_default().iter().map(|bucket| NextHopId(bucket.load(Relaxed)))
    }

    /// The members of a group as they share it now: each with its buckets of [`BUCKETS`] as its
    /// weight. None for a group that is not there.
    #[must_use]
    pub fn members(&self, number: u32) -> Vec<Member> {
        let _no_change = self.lock();
        let mut members: Vec<Member> = Vec::new();
        let first = number as usize * BUCKETS;
        let known = number < self.count.load(Relaxed);
        let buckets = self.buckets.get(first..first + BUCKETS).filter(|_| known);
        for bucket in buckets.unwrap_or_default() {
            let next = NextHopId(bucket.load(Relaxed));
            match members.iter_mut().find(|member| member.next == next) {
                Some(member) => member.weight += 1,
                None => members.push(Member { next, weight: 1 }),
            }
        }
        members.sort_unstable_by_key(|member| member.next);
        members
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // Every bucket is good at every moment.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, number: u32, members: &[Member], keep: bool) -> Option<()> {
        if members.is_empty() || members.len() > BUCKETS {
            return None;
        }
        let first = number as usize * BUCKETS;
        let buckets = self.buckets.get(first..first + BUCKETS)?;
        let old = |bucket: &AtomicU32| {
            let next = NextHopId(bucket.load(Relaxed));
            members.iter().position(|member| keep && member.next == next)
        };
        let shares = share_out(members, &std::array::from_fn(|index| old(&buckets[index])));
        for (bucket, member) in buckets.iter().zip(shares) {
            bucket.store(members[member].next.0, Release);
        }
        Some(())
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Groups").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Which member has each bucket: `old` ones keep theirs as far as the weights let them.
///
/// No member is ever more than one bucket above its share, so when another leaves, which makes all
/// shares larger, none has to give any.
fn share_out(members: &[Member], old: &[Option<usize>; BUCKETS]) -> [usize; BUCKETS] {
    let total: i64 = members.iter().map(|member| member.weight()).sum();
    let mut counts = vec![0_i64; members.len()];
    for member in old.iter().flatten() {
        counts[*member] += 1;
    }
    // By how much a member has too few buckets, in buckets times the total weight.
    let lack = |counts: &[i64], member: usize| match counts[member] {
        0 => i64::MAX,
        count => BUCKETS as i64 * members[member].weight() - count * total,
    };
    let all = 0..members.len();
    let neediest =
        |counts: &[i64]| all.clone().rev().max_by_key(|member| lack(counts, *member)).unwrap_or(0);
    let richest =
        |counts: &[i64]| all.clone().min_by_key(|member| lack(counts, *member)).unwrap_or(0);
    let mut shares = [0; BUCKETS];
    for (share, old) in shares.iter_mut().zip(old) {
        *share = old.unwrap_or_else(|| {
            let member = neediest(&counts);
            counts[member] += 1;
            member
        });
    }
    loop {
        let (from, to) = (richest(&counts), neediest(&counts));
        let owed = counts[to] == 0 || (lack(&counts, to) > 0 && lack(&counts, from) <= -total);
        let bucket = shares.iter().position(|member| *member == from);
        match bucket {
            Some(bucket) if owed && counts[from] > 1 => shares[bucket] = to,
            _ => return shares,
        }
        counts[from] -= 1;
        counts[to] += 1;
    }
}
