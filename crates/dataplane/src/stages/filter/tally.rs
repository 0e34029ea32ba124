//! The result of rules that were executed rule by rule: what each rule counts, and which packets it drops.

use std::ops::Range;

use crate::burst::{BURST, Burst, Lanes};

/// The maximum number of rules that are executed for a burst.
pub(super) const MOST_HITS: usize = 64;

/// The result for a burst; it is used again for the next one.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Packets that a rule drops.
    pub(super) drop: Lanes,
    /// Packets whose rules the walk executes, from the first on. In the end, nothing of them is counted.
    pub(super) walk: Lanes,
    /// The rules that count, up to `count`; garbage from there on.
    hits: [Hit; MOST_HITS],
    count: usize,
}

/// The packets that match a rule that counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hit {
    /// The rule's number in the list.
    pub(super) rule: usize,
    /// The packets.
    pub(super) lanes: Lanes,
    /// Their bytes of layer 3.
    pub(super) bytes: u64,
}

impl Tally {
    pub(super) fn new() -> Self {
        let hits = [Hit::default(); MOST_HITS];
        Self { drop: Lanes::NONE, walk: Lanes::NONE, hits, count: 0 }
    }

    /// Forgets the last burst.
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        (self.drop, self.walk) = (Lanes::NONE, Lanes::NONE);
        self.count = 0;
    }

    /// Notes the packets that match a rule that counts; there are at most [`MOST_HITS`] such notes.
    #[inline(always)]
    pub(super) fn hit(&mut self, rule: usize, lanes: Lanes) {
        self.hits[self.count % MOST_HITS] = Hit { rule, lanes, bytes: 0 };
        self.count += 1;
    }

    /// What the rules count.
    #[inline(always)]
    pub(super) fn hits(&self) -> &[Hit] {
        &self.hits[..self.count.min(MOST_HITS)]
    }

    /// Leaves out packets that walk, and adds up the bytes of the others. `lanes` are all packets for which
    /// the rules were executed.
    #[inline(always)]
    pub(super) fn finish(&mut self, burst: &Burst, lanes: Lanes) {
        let mut bytes = [0; BURST];
        for lane in span(lanes) {
            bytes[lane & (BURST - 1)] = u32::from(burst.layer3_bytes(lane));
        }
        // The rules of a list often count the same packets.
        let (mut last, mut sum) = (Lanes::NONE, 0);
        for hit in &mut self.hits[..self.count.min(MOST_HITS)] {
            hit.lanes = hit.lanes.without(self.walk);
            if hit.lanes != last {
                last = hit.lanes;
                sum = 0;
                for (lane, bytes) in bytes.iter().enumerate() {
                    sum += bytes * (last.0 >> lane & 1) as u32;
                }
            }
            hit.bytes = sum.into();
        }
    }
}

/// From the first to the last of these packets.
#[inline(always)]
pub(super) fn span(lanes: Lanes) -> Range<usize> {
    let first = lanes.lowest().unwrap_or(BURST);
    first..BURST - if first < BURST { lanes.0.leading_zeros() as usize } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_ends_before_layer_3_has_no_bytes() {
        let mut burst = Burst::new();
        for (lane, len) in [14, 18, 60, 1500].into_iter().enumerate() {
            (burst.len[lane], burst.l3[lane]) = (len, 18);
        }
        let mut tally = Tally::new();
        tally.hit(0, Lanes(0b1111));
        tally.hit(1, Lanes(0b0101));
        tally.walk = Lanes(0b1000);
        tally.finish(&burst, Lanes(0b1111));
        let hits = tally.hits().iter().map(|hit| (hit.rule, hit.lanes.0, hit.bytes));
        assert_eq!(hits.collect::<Vec<_>>(), [(0, 0b0111, 42), (1, 0b0101, 42)]);
    }
}
