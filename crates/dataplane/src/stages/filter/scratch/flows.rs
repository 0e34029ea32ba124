//! A cache of the results for recent flows, whose packets then need no lookup.
//!
//! If rules match on addresses, protocol and ports alone, the first rule of a known flow is known. The
//! result must be a verdict and not a program, because programs continue by classes. Entries hold whole
//! keys, so the cache takes no flow for another. Open vSwitch has the same cache in front of its
//! classifier (the exact match cache).
//!
//! With more flows than entries, lookups would cost more than they save. So if less than half of a
//! sample hits, the cache pauses for a while.

use super::super::summary::RuleSummary;
use super::Scratch;
use crate::burst::{BURST, Lanes};
use crate::cpu::prefetch;

/// The number of flows in a bucket, which is a cache line.
const WAYS: usize = 3;
/// Buckets: 512 KB, half of an L2 cache.
const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 13;
/// Packets in the sample that decides whether to continue: more than there are entries, so that first
/// packets of flows do not decide it.
const SAMPLE: u32 = 1 << 15;
/// The length of the pause in bursts: a million packets if they are full.
const PAUSE: u32 = 1 << 14;
/// The protocol in its word of the header: after the TTL, before the checksum.
const PROTOCOL: u32 = 0x00ff_0000;
/// No rule has this number.
const NONE: u32 = u32::MAX;
/// Odd numbers that mix the words of a key.
const MIX: [u32; 3] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];

/// A cache line of flows: protocol, source, destination and ports, and the first rule of each.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    key: [[u32; 4]; WAYS],
    first: [u32; WAYS],
    /// The entry to replace next.
    next: u32,
}

/// The flows of one classifier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flows {
    buckets: Vec<Bucket>,
    lookups: u32,
    known: u32,
    /// Bursts until the end of the pause.
    pause: u32,
}

impl Flows {
    /// Creates an empty cache.
    pub(crate) fn new() -> Self {
        let empty = Bucket { key: [[0; 4]; WAYS], first: [NONE; WAYS], next: 0 };
        Self { buckets: vec![empty; BUCKETS], ..Self::default() }
    }

    /// Says whether lookups pay off now; call it once for each burst.
    #[inline(always)]
    pub(crate) fn pays_off(&mut self) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        !self.buckets.is_empty()
    }

    /// Writes the first rule of each packet with a known flow to [`Scratch::first`]; returns the others.
    /// Requires the gathered words of the headers.
    #[inline(always)]
    pub(crate) fn look_up(&mut self, scratch: &mut Scratch, lanes: Lanes) -> Lanes {
        for lane in 0..BURST {
            scratch.value[lane] = bucket_of(key(scratch, lane));
        }
        for place in &scratch.value {
            prefetch(self.buckets.as_ptr().wrapping_add(*place as usize));
        }
        let mut unknown = Lanes::NONE;
        for lane in lanes {
            let Some(bucket) = self.buckets.get(scratch.value[lane] as usize) else { continue };
            let wanted = key(scratch, lane);
            let mut first = NONE;
            for (key, own) in bucket.key.iter().zip(bucket.first) {
                let difference = key.iter().zip(wanted).fold(0, |sum, (a, b)| sum | (a ^ b));
                first = if difference == 0 { own } else { first };
            }
            scratch.first[lane] = first;
            unknown.put(lane, first == NONE);
        }
        self.lookups += lanes.count() as u32;
        self.known += lanes.count() as u32 - unknown.count() as u32;
        if self.lookups >= SAMPLE {
            self.pause = if self.known * 2 < self.lookups { PAUSE } else { 0 };
            (self.lookups, self.known) = (0, 0);
        }
        unknown
    }

    /// Stores the results that are verdicts.
    pub(crate) fn store(&mut self, summaries: &[RuleSummary], scratch: &Scratch, lanes: Lanes) {
        for lane in lanes {
            let first = scratch.first[lane];
            let key = key(scratch, lane);
            let is_verdict = summaries
                .get(first as usize)
                .is_some_and(|summary| *summary != RuleSummary::Program);
            let place = bucket_of(key) as usize;
            if let Some(bucket) = self.buckets.get_mut(place).filter(|_| is_verdict) {
                let jump = bucket.next as usize % WAYS;
                bucket.key[jump] = key;
                bucket.first[jump] = first;
                bucket.next = (jump + 1) as u32;
            }
        }
    }
}

#[inline(always)]
fn key(scratch: &Scratch, lane: usize) -> [u32; 4] {
    let [protocol, others @ ..] = scratch.word.each_ref().map(|word| word[lane & (BURST - 1)]);
    let [source, destination, ports] = others;
    [protocol & PROTOCOL, source, destination, ports]
}

/// The bucket of a flow.
#[inline(always)]
const fn bucket_of([protocol, source, destination, ports]: [u32; 4]) -> u32 {
    let mixed = source.wrapping_mul(MIX[0])
        ^ destination.wrapping_mul(MIX[1]).rotate_left(15)
        ^ (ports ^ protocol >> 8).wrapping_mul(MIX[2]).rotate_left(7);
    mixed.wrapping_mul(MIX[0]) >> (u32::BITS - BUCKET_BITS)
}
