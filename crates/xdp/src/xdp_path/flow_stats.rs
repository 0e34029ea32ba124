//! The flows seen recently: a table of fingerprints. It lets a flow enter the XDP path with its
//! second packet, and only once.
//!
//! A bucket is one cache line of eight slots. A flow's hash selects the bucket and gives a
//! fingerprint of 35 bits, so the table confuses two flows once in billions of times. That is
//! harmless: a flow then enters with its first packet, or a moment later. A full bucket evicts the
//! note of a single packet, and evicts an entered flow only if it has no such note. So a flood of
//! single packets evicts little but itself.

use std::hash::{BuildHasher, RandomState};

use tollway_dataplane::cpu::prefetch;

use super::entry::FlowWords;

/// Slots of a bucket.
const WAYS: usize = 8;

/// A slot: fingerprint (36 bits, the lowest one always set), mark (12), time (16). All zeros mean
/// empty.
const FINGERPRINT_SHIFT: u32 = 28;
const MARK_SHIFT: u32 = 16;
const MARKS: u32 = (1 << (FINGERPRINT_SHIFT - MARK_SHIFT)) - 1;

/// Nanoseconds per unit of time, as a power of two: 4.2 ms. Times wrap around after 275 s.
const TIME_SHIFT: u32 = 22;

/// How long a single packet is remembered: 30 s, Linux's conntrack timeout for unanswered UDP.
const NOTE_LIFE: u16 = (30_000_000_000_u64 >> TIME_SHIFT) as u16;

/// How long packets may still arrive that were under way when their flow entered: 8.4 to 12.6 ms. A
/// later packet shows that the flow is not in the XDP path (any more).
const UNDER_WAY: u16 = 3;

/// The flows seen recently.
pub(super) struct FlowStats {
    slots: Vec<u64>,
    /// Where the first cache line begins.
    start: usize,
    /// The number of buckets, a power of two, minus one.
    mask: usize,
    /// Secret, so that an attacker cannot choose flows that share a bucket.
    seeds: [u64; 6],
}

/// The hash of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowHash(u64);

impl FlowHash {
    /// Bits of the hash that [`FlowStats`] does not use to select a bucket.
    #[inline(always)]
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// The mark of an entry in the XDP path: its generation, shortened, and never 0.
///
/// Two generations 4,095 apart have the same mark. That does no harm: [`UNDER_WAY`] has long passed
/// by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    pub(super) const fn of(generation: u32) -> Self {
        Self((generation % MARKS + 1) as u64)
    }
}

/// A time in units of 4.2 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment(u16);

impl Moment {
    pub(super) const fn at(now_ns: u64) -> Self {
        Self((now_ns >> TIME_SHIFT) as u16)
    }

    const fn since(self, slot: u64) -> u16 {
        self.0.wrapping_sub(slot as u16)
    }
}

const fn mark_of(slot: u64) -> u64 {
    slot >> MARK_SHIFT & MARKS as u64
}

impl FlowStats {
    /// Creates a table with room for twice that many flows, 8 bytes each, so that few buckets are
    /// ever full. The system allocates memory as it is used.
    pub(super) fn new(flows: usize) -> Self {
        let buckets = (flows.max(WAYS) * 2).next_power_of_two() / WAYS;
        let slots = vec![0; (buckets + 1) * WAYS];
        let start = slots.as_ptr().align_offset(64).min(WAYS);
        let random = RandomState::new();
        let seeds = std::array::from_fn(|index| random.hash_one(index) | 1);
        Self { slots, start, mask: buckets - 1, seeds }
    }

    /// The most memory, in bytes.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// The hash of a flow.
    #[inline(always)]
    pub(super) fn hash(&self, flow: FlowWords) -> FlowHash {
        let [a, b, c, d, e, f] = self.seeds;
        let hash = match flow {
            FlowWords::V4(addresses, rest) => mix(addresses ^ a, rest ^ b),
            FlowWords::V6([s, t, u, v], rest) => {
                mix(mix(s ^ a, t ^ c) ^ mix(u ^ d, v ^ e), rest ^ b)
            }
        };
        FlowHash(mix(hash ^ e, f))
    }

    fn bucket_start(&self, hash: FlowHash) -> usize {
        self.start + ((hash.0 >> 36) as usize & self.mask) * WAYS
    }

    /// Prefetches the bucket for [`FlowStats::is_due`].
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: FlowHash) {
        prefetch(self.slots.as_ptr().wrapping_add(self.bucket_start(hash)));
    }

    /// Notes a packet; returns whether its flow is to enter the XDP path now. If so, the flow
    /// counts as entered under this mark.
    #[inline(always)]
    pub(super) fn is_due(&mut self, hash: FlowHash, mark: Mark, now: Moment) -> bool {
        let start = self.bucket_start(hash);
        let slots = self.slots.get_mut(start..).and_then(<[u64]>::first_chunk_mut::<WAYS>);
        let Some(slots) = slots else { return false };
        let fingerprint = hash.0 << FINGERPRINT_SHIFT | 1 << FINGERPRINT_SHIFT;
        // Branchless, since a branch would be mispredicted.
        let mut found = 0_u32;
        for (way, slot) in slots.iter().enumerate() {
            found |= u32::from((slot ^ fingerprint) >> FINGERPRINT_SHIFT == 0) << way;
        }
        let Some(slot) = slots.get_mut(found.trailing_zeros() as usize) else {
            slots[to_give_up(slots, hash)] = fingerprint | u64::from(now.0);
            return false;
        };
        let age = now.since(*slot);
        let due = match mark_of(*slot) {
            0 => age <= NOTE_LIFE,
            entered => entered != mark.0 || age >= UNDER_WAY,
        };
        if due {
            *slot = fingerprint | mark.0 << MARK_SHIFT | u64::from(now.0);
        } else if mark_of(*slot) == 0 {
            *slot = fingerprint | u64::from(now.0);
        }
        due
    }
}

/// The slot to evict: an empty one, else one of a single packet, else any.
#[inline(always)]
fn to_give_up(slots: &[u64; WAYS], hash: FlowHash) -> usize {
    // Buckets fill from the first slot.
    if slots[WAYS - 1] == 0 {
        return slots.iter().position(|slot| *slot == 0).unwrap_or(0);
    }
    let any = (hash.0 >> 32) as usize;
    let notes = (any..any + WAYS).find(|way| mark_of(slots[way % WAYS]) == 0);
    notes.unwrap_or(any) % WAYS
}

/// Multiplies and folds, so that every bit of both factors matters.
#[inline(always)]
const fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MARK: Mark = Mark::of(7);

    /// A distinct hash for each number.
    fn flow(number: u64) -> FlowHash {
        FlowHash(mix(number ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93))
    }

    #[test]
    fn the_second_packet_enters_and_the_next_do_not() {
        let mut flow_stats = FlowStats::new(1000);
        let now = Moment::at(77 * MS);
        assert!(!flow_stats.is_due(flow(1), MARK, now));
        assert!(!flow_stats.is_due(flow(2), MARK, now));
        assert!(flow_stats.is_due(flow(1), MARK, now));
        for ms in 77..85 {
            assert!(!flow_stats.is_due(flow(1), MARK, Moment::at(ms * MS)), "under way");
        }
        // A packet reached user space, so the flow is not in the XDP path, which was full.
        assert!(flow_stats.is_due(flow(1), MARK, Moment::at((77 + 13) * MS)));
        assert!(!flow_stats.is_due(flow(1), MARK, Moment::at((77 + 13) * MS)));
    }

    #[test]
    fn another_generation_enters_with_its_next_packet() {
        let mut flow_stats = FlowStats::new(1000);
        let now = Moment::at(0);
        flow_stats.is_due(flow(1), MARK, now);
        for generation in 8..20_000 {
            assert!(flow_stats.is_due(flow(1), Mark::of(generation), now), "{generation}");
            assert!(!flow_stats.is_due(flow(1), Mark::of(generation), now));
        }
        // So does a packet minutes later: the flow's packets took the XDP path meanwhile.
        assert!(flow_stats.is_due(flow(1), MARK, Moment::at(200_000 * MS)));
    }

    #[test]
    fn a_packet_is_forgotten_after_half_a_minute() {
        let mut flow_stats = FlowStats::new(1000);
        assert!(!flow_stats.is_due(flow(1), MARK, Moment::at(0)));
        assert!(!flow_stats.is_due(flow(1), MARK, Moment::at(31_000 * MS)));
        assert!(flow_stats.is_due(flow(1), MARK, Moment::at(60_000 * MS)));
    }

    #[test]
    fn a_flood_of_single_packets_enters_nothing_and_pushes_out_little() {
        let flows = 1 << 14;
        let mut flow_stats = FlowStats::new(flows);
        let memory = flow_stats.memory_bytes();
        let now = Moment::at(5000 * MS);
        for number in 0..flows as u64 {
            flow_stats.is_due(flow(number), MARK, now);
            flow_stats.is_due(flow(number), MARK, now);
        }
        // A hundred times more flows than there is room for.
        let flood = 1 << 40..(1_u64 << 40) + 200 * flows as u64;
        assert_eq!(flood.filter(|number| flow_stats.is_due(flow(*number), MARK, now)).count(), 0);
        assert_eq!(flow_stats.memory_bytes(), memory);
        assert!(memory <= flows * 2 * 8 + 1024);
        // Entered flows are still known: in the next generation, their next packet enters.
        let next = Mark::of(8);
        let kept =
            (0..flows as u64).filter(|number| flow_stats.is_due(flow(*number), next, now)).count();
        assert!(kept * 100 >= flows * 95, "{kept} of {flows}");
    }

    #[test]
    fn flows_that_come_are_found_among_those_that_have_ended() {
        let mut flow_stats = FlowStats::new(1 << 10);
        for round in 0..50 {
            let now = Moment::at(round * 100 * MS);
            for number in 0..1000 {
                let hash = flow(round << 20 | number);
                assert!(!flow_stats.is_due(hash, MARK, now));
                assert!(flow_stats.is_due(hash, MARK, now), "round {round}");
            }
        }
    }

    #[test]
    fn buckets_are_cache_lines() {
        for flows in [0, 1, 1000, 1 << 20] {
            let flow_stats = FlowStats::new(flows);
            for number in 0..100 {
                let start = flow_stats.bucket_start(flow(number));
                assert!(start + WAYS <= flow_stats.slots.len());
                assert_eq!(flow_stats.slots[start..].as_ptr() as usize % 64, 0);
            }
        }
    }
}
