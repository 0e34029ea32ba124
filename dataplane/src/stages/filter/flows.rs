//! What was found for flows seen lately: their packets need no lookup.
//!
//! Where rules look at addresses, protocol and ports alone, a packet of a known flow has a known first rule;
//! that its verdict is no program is required too, for these go on by classes. Keys are kept whole, so
//! no flow is taken for another. Open vSwitch has the same before its classifier (the exact match cache).
//!
//! With more flows than there is room for, asking in vain would cost more than it saves: where less than
//! half of a sample is known, nobody asks for a while.

use super::Field;
use super::classifier::{Act, Classifier};
use super::state::Room;
use crate::burst::{BURST, Lanes};
use crate::cpu::prefetch;

/// Flows of a bucket, which is a cache line.
const WAYS: usize = 3;
/// Buckets: 512 KB, half of an L2 cache.
const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 13;
/// Packets by which it is decided whether to go on asking: more than there is room for flows, so that it
/// is not those that come for the first time which decide.
const SAMPLE: u32 = 1 << 15;
/// Bursts for which nobody asks then: a million packets where they are full.
const PAUSE: u32 = 1 << 14;
/// The protocol in its word of the header: behind the TTL, before the checksum.
const PROTOCOL: u32 = 0x00ff_0000;
/// No rule has this number.
const NONE: u32 = u32::MAX;
/// Odd numbers, by which the words of a key are mixed.
const MIX: [u32; 3] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];

/// A cache line of flows: protocol, source, destination and ports, and the first rule of each.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    key: [[u32; 4]; WAYS],
    first: [u32; WAYS],
    /// The place that is next given up.
    next: u32,
}

/// The flows of one classifier.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    buckets: Vec<Bucket>,
    asked: u32,
    known: u32,
    /// Bursts until somebody asks again.
    pause: u32,
}

/// Says if a flow decides by itself: rules of IPv4 look at nothing else, and are so many that it is worth it.
pub(super) fn decide(classifier: &Classifier) -> bool {
    let is_key = |field| {
        matches!(
            field,
            Field::Source
                | Field::Destination
                | Field::Protocol
                | Field::SourcePort
                | Field::DestinationPort
        )
    };
    classifier.version == 4
        && classifier.width > 1
        && classifier.dims.len() > 1
        && classifier.dims.iter().all(|dim| is_key(dim.field))
}

impl Flows {
    /// Room for flows, none yet.
    pub(super) fn new() -> Self {
        let empty = Bucket { key: [[0; 4]; WAYS], first: [NONE; WAYS], next: 0 };
        Self { buckets: vec![empty; BUCKETS], ..Self::default() }
    }

    /// Says if it is worth asking now; to be called once for each burst.
    #[inline(always)]
    pub(super) fn is_asked(&mut self) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        !self.buckets.is_empty()
    }

    /// Writes the first rule of each packet whose flow is known to [`Room::first`]; returns the others.
    /// The headers' words have been gathered.
    #[inline(always)]
    pub(super) fn recall(&mut self, room: &mut Room, lanes: Lanes) -> Lanes {
        for lane in 0..BURST {
            room.value[lane] = bucket_of(key(room, lane));
        }
        for place in &room.value {
            prefetch(self.buckets.as_ptr().wrapping_add(*place as usize));
        }
        let mut unknown = Lanes::NONE;
        for lane in lanes {
            let Some(bucket) = self.buckets.get(room.value[lane] as usize) else { continue };
            let wanted = key(room, lane);
            let mut first = NONE;
            for (key, own) in bucket.key.iter().zip(bucket.first) {
                let difference = key.iter().zip(wanted).fold(0, |sum, (a, b)| sum | (a ^ b));
                first = if difference == 0 { own } else { first };
            }
            room.first[lane] = first;
            unknown.put(lane, first == NONE);
        }
        self.asked += lanes.count() as u32;
        self.known += lanes.count() as u32 - unknown.count() as u32;
        if self.asked >= SAMPLE {
            self.pause = if self.known * 2 < self.asked { PAUSE } else { 0 };
            (self.asked, self.known) = (0, 0);
        }
        unknown
    }

    /// Keeps what was found, where that is a verdict.
    pub(super) fn keep(&mut self, classifier: &Classifier, room: &Room, lanes: Lanes) {
        for lane in lanes {
            let first = room.first[lane];
            let key = key(room, lane);
            let is_verdict =
                classifier.acts.get(first as usize).is_some_and(|act| *act != Act::Program);
            let place = bucket_of(key) as usize;
            if let Some(bucket) = self.buckets.get_mut(place).filter(|_| is_verdict) {
                let way = bucket.next as usize % WAYS;
                bucket.key[way] = key;
                bucket.first[way] = first;
                bucket.next = (way + 1) as u32;
            }
        }
    }
}

#[inline(always)]
fn key(room: &Room, lane: usize) -> [u32; 4] {
    let [protocol, others @ ..] = room.word.each_ref().map(|word| word[lane & (BURST - 1)]);
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
