//! Which flows were seen lately: a table of fingerprints, so that a flow enters the lane from its
//! second packet on, and only once.
//!
//! A bucket is one cache line of eight slots; a flow's hash names the bucket and gives a fingerprint
//! of 35 bits, so one flow is taken for another once in billions of times. What happens then is
//! harmless: a flow enters with its first packet, or waits a moment. A full bucket gives up the note
//! of a single packet, and only where it has none a flow that entered: so a flood of single packets
//! pushes out little but itself.

use std::hash::{BuildHasher, RandomState};

use tollway_dataplane::cpu::prefetch;

use super::entry::Words;

/// Slots of a bucket.
const WAYS: usize = 8;

/// A slot: fingerprint (36 bits, of which the lowest is always set), mark (12), time (16). All zero
/// is an empty one.
const FINGERPRINT_SHIFT: u32 = 28;
const MARK_SHIFT: u32 = 16;
const MARKS: u32 = (1 << (FINGERPRINT_SHIFT - MARK_SHIFT)) - 1;

/// Nanoseconds that a unit of time has: 4.2 ms. Times wrap around after 275 s.
const TIME_SHIFT: u32 = 22;

/// How long one packet is remembered: 30 s, Linux's conntrack timeout for UDP that is not answered.
const NOTE_LIFE: u16 = (30_000_000_000_u64 >> TIME_SHIFT) as u16;

/// How long packets may still come up that were under way when their flow entered: 8.4 to 12.6 ms. A
/// packet that comes later shows that the flow is not in the lane (any more).
const UNDER_WAY: u16 = 3;

/// The flows seen lately.
pub(super) struct Seen {
    slots: Vec<u64>,
    /// Where the first cache line begins.
    start: usize,
    /// Buckets less one, a power of two.
    mask: usize,
    /// Nobody outside can choose flows that share a bucket.
    seeds: [u64; 6],
}

/// The hash of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowHash(u64);

impl FlowHash {
    /// Bits of it that are not [`Seen`]'s own to find a bucket by.
    #[inline(always)]
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// What the lane's entries are told apart by: their generation, shortened, and never 0.
///
/// That one generation is taken for another 4,095 later does no harm: [`UNDER_WAY`] has long passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    pub(super) const fn of(generation: u32) -> Self {
        Self((generation % MARKS + 1) as u64)
    }
}

/// A moment, in units of 4.2 ms.
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

impl Seen {
    /// Room for twice that many flows, 8 bytes each, so that few buckets are ever full. Memory is
    /// taken as it is used.
    pub(super) fn new(flows: usize) -> Self {
        let buckets = (flows.max(WAYS) * 2).next_power_of_two() / WAYS;
        let slots = vec![0; (buckets + 1) * WAYS];
        let start = slots.as_ptr().align_offset(64).min(WAYS);
        let random = RandomState::new();
        let seeds = std::array::from_fn(|index| random.hash_one(index) | 1);
        Self { slots, start, mask: buckets - 1, seeds }
    }

    /// Bytes of memory at most.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// The hash of a flow.
    #[inline(always)]
    pub(super) fn hash(&self, flow: Words) -> FlowHash {
        let [a, b, c, d, e, f] = self.seeds;
        let hash = match flow {
            Words::V4(addresses, rest) => mix(addresses ^ a, rest ^ b),
            Words::V6([s, t, u, v], rest) => mix(mix(s ^ a, t ^ c) ^ mix(u ^ d, v ^ e), rest ^ b),
        };
        FlowHash(mix(hash ^ e, f))
    }

    fn bucket_start(&self, hash: FlowHash) -> usize {
        self.start + ((hash.0 >> 36) as usize & self.mask) * WAYS
    }

    /// Asks for what [`Seen::is_due`] will look at.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: FlowHash) {
        prefetch(self.slots.as_ptr().wrapping_add(self.bucket_start(hash)));
    }

    /// Takes note of a packet; says if its flow is to enter the lane now, and counts it as entered
    /// under this mark from then on.
    #[inline(always)]
    pub(super) fn is_due(&mut self, hash: FlowHash, mark: Mark, now: Moment) -> bool {
        let start = self.bucket_start(hash);
        let slots = self.slots.get_mut(start..).and_then(<[u64]>::first_chunk_mut::<WAYS>);
        let Some(slots) = slots else { return false };
        let fingerprint = hash.0 << FINGERPRINT_SHIFT | 1 << FINGERPRINT_SHIFT;
        // Without a branch, which would be guessed wrong.
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

/// The slot to give up: an empty one, else that of any single packet, else any.
#[inline(always)]
fn to_give_up(slots: &[u64; WAYS], hash: FlowHash) -> usize {
    // Buckets fill up from the first slot on.
    if slots[WAYS - 1] == 0 {
        return slots.iter().position(|slot| *slot == 0).unwrap_or(0);
    }
    let any = (hash.0 >> 32) as usize;
    let notes = (any..any + WAYS).find(|way| mark_of(slots[way % WAYS]) == 0);
    notes.unwrap_or(any) % WAYS
}

/// Multiplies and folds: every bit of both counts.
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

    /// Any hash, by number.
    fn flow(number: u64) -> FlowHash {
        FlowHash(mix(number ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93))
    }

    #[test]
    fn the_second_packet_enters_and_the_next_do_not() {
        let mut seen = Seen::new(1000);
        let now = Moment::at(77 * MS);
        assert!(!seen.is_due(flow(1), MARK, now));
        assert!(!seen.is_due(flow(2), MARK, now));
        assert!(seen.is_due(flow(1), MARK, now));
        for ms in 77..85 {
            assert!(!seen.is_due(flow(1), MARK, Moment::at(ms * MS)), "under way");
        }
        // It came up, so it is not there: the lane was full.
        assert!(seen.is_due(flow(1), MARK, Moment::at((77 + 13) * MS)));
        assert!(!seen.is_due(flow(1), MARK, Moment::at((77 + 13) * MS)));
    }

    #[test]
    fn another_generation_enters_with_its_next_packet() {
        let mut seen = Seen::new(1000);
        let now = Moment::at(0);
        seen.is_due(flow(1), MARK, now);
        for generation in 8..20_000 {
            assert!(seen.is_due(flow(1), Mark::of(generation), now), "{generation}");
            assert!(!seen.is_due(flow(1), Mark::of(generation), now));
        }
        // Minutes later, too: its packets have gone by the lane meanwhile.
        assert!(seen.is_due(flow(1), MARK, Moment::at(200_000 * MS)));
    }

    #[test]
    fn a_packet_is_forgotten_after_half_a_minute() {
        let mut seen = Seen::new(1000);
        assert!(!seen.is_due(flow(1), MARK, Moment::at(0)));
        assert!(!seen.is_due(flow(1), MARK, Moment::at(31_000 * MS)));
        assert!(seen.is_due(flow(1), MARK, Moment::at(60_000 * MS)));
    }

    #[test]
    fn a_flood_of_single_packets_enters_nothing_and_pushes_out_little() {
        let flows = 1 << 14;
        let mut seen = Seen::new(flows);
        let memory = seen.memory_bytes();
        let now = Moment::at(5000 * MS);
        for number in 0..flows as u64 {
            seen.is_due(flow(number), MARK, now);
            seen.is_due(flow(number), MARK, now);
        }
        // A hundred times as many as there is room for.
        let flood = 1 << 40..(1_u64 << 40) + 200 * flows as u64;
        assert_eq!(flood.filter(|number| seen.is_due(flow(*number), MARK, now)).count(), 0);
        assert_eq!(seen.memory_bytes(), memory);
        assert!(memory <= flows * 2 * 8 + 1024);
        // Who had entered is known still: with the next generation the next packet enters.
        let next = Mark::of(8);
        let kept = (0..flows as u64).filter(|number| seen.is_due(flow(*number), next, now)).count();
        assert!(kept * 100 >= flows * 95, "{kept} of {flows}");
    }

    #[test]
    fn flows_that_come_are_found_among_those_that_have_ended() {
        let mut seen = Seen::new(1 << 10);
        for round in 0..50 {
            let now = Moment::at(round * 100 * MS);
            for number in 0..1000 {
                let hash = flow(round << 20 | number);
                assert!(!seen.is_due(hash, MARK, now));
                assert!(seen.is_due(hash, MARK, now), "round {round}");
            }
        }
    }

    #[test]
    fn buckets_are_cache_lines() {
        for flows in [0, 1, 1000, 1 << 20] {
            let seen = Seen::new(flows);
            for number in 0..100 {
                let start = seen.bucket_start(flow(number));
                assert!(start + WAYS <= seen.slots.len());
                assert_eq!(seen.slots[start..].as_ptr() as usize % 64, 0);
            }
        }
    }
}
