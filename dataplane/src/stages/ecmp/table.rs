use crate::id::NextHopId;

/// Shares that a group's flows are cut into.
pub const BUCKETS: usize = 256;

/// A member of a group and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where its share of the flows goes.
    pub next: NextHopId,
    /// Its share, in proportion to the others'; 0 counts as 1.
    pub weight: u16,
}

/// A next-hop group: flows are spread over its members by their hash.
#[derive(Clone, Debug)]
pub struct Group {
    buckets: Box<[NextHopId; BUCKETS]>,
}

impl Group {
    /// A group of 1 to [`BUCKETS`] members, or none for another number.
    #[must_use]
    pub fn new(members: &[Member]) -> Option<Self> {
        if members.is_empty() || members.len() > BUCKETS {
            return None;
        }
        let weight = |member: &Member| u64::from(member.weight.max(1));
        let total: u64 = members.iter().map(weight).sum();
        let mut buckets = Box::new([NextHopId::NO_ROUTE; BUCKETS]);
        let (mut start, mut before) = (0, 0);
        for (position, member) in members.iter().enumerate() {
            before += weight(member);
            // Every member has a bucket, however small its weight, and leaves one for the rest.
            let rest = members.len() - position - 1;
            let share = (before * BUCKETS as u64).div_ceil(total) as usize;
            let end = share.clamp(start + 1, BUCKETS - rest);
            buckets[start..end].fill(member.next);
            start = end;
        }
        Some(Self { buckets })
    }

    /// The member for a flow.
    #[inline(always)]
    #[must_use]
    pub fn select(&self, hash: u32) -> NextHopId {
        self.buckets[hash as usize % BUCKETS]
    }
}
