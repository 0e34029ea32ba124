//! What a sink makes of sequence numbers: loss, duplicates, reordering, latency.
//!
//! A frame is reordered where a later one came before it (RFC 4737, type-P-reordered: its sequence
//! number is below the next expected one); a duplicate is neither new nor reordered. Which numbers came
//! is known for the last million of each stream. `bpf/collect.c` counts in the same way.

use hdrhistogram::Histogram;

use super::mark::{Mark, STREAMS};

/// Sequence numbers that are remembered, a power of two.
const WINDOW_BITS: u32 = 20;
const WORDS: usize = 1 << (WINDOW_BITS - 5);
/// The longest way that is measured, ns; a longer one is taken for it.
pub const LONGEST_NS: u64 = 60_000_000_000;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Frames with a mark.
    pub frames: u64,
    /// Their bytes, without check sequence.
    pub bytes: u64,
    /// Frames that came again.
    pub duplicates: u64,
    /// Frames that came after later ones.
    pub reordered: u64,
    /// Frames so late that nobody knows if they had come before.
    pub late: u64,
    /// Frames that were sent, by the largest sequence number of each stream and run.
    pub expected: u64,
}

impl Counts {
    /// Different frames that arrived.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.frames - self.duplicates.min(self.frames)
    }

    /// What is missing of `sent` frames, or where that is not known of those that were expected.
    #[must_use]
    pub fn lost(&self, sent: Option<u64>) -> u64 {
        sent.unwrap_or(self.expected).saturating_sub(self.arrived())
    }

    /// Takes in what another sink has counted.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.late += other.late;
        self.expected += other.expected;
    }

    /// What has come since then.
    #[must_use]
    pub fn since(&self, then: &Self) -> Self {
        Self {
            frames: self.frames - then.frames,
            bytes: self.bytes - then.bytes,
            duplicates: self.duplicates - then.duplicates,
            reordered: self.reordered - then.reordered,
            late: self.late - then.late,
            expected: self.expected - then.expected,
        }
    }
}

/// A histogram of latencies, ns, to three digits.
#[must_use]
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds that a histogram takes")
}

/// Follows streams.
#[derive(Clone, Debug)]
pub struct Tracker {
    counts: Counts,
    streams: Vec<Option<Stream>>,
    latency: Histogram<u64>,
}

#[derive(Clone, Debug)]
struct Stream {
    run: u8,
    /// The number behind the largest that came.
    next: u64,
    /// Which numbers came: in the upper half of a word its epoch (the number by the window), in the
    /// lower one bit for each of 32 numbers.
    words: Box<[u64]>,
}

impl Default for Tracker {
    fn default() -> Self {
        Self { counts: Counts::default(), streams: vec![None; STREAMS], latency: latencies() }
    }
}

impl Tracker {
    /// Takes a frame of so many bytes that came at that time.
    #[inline]
    pub fn take(&mut self, mark: &Mark, len: usize, now_ns: u64) {
        self.counts.frames += 1;
        self.counts.bytes += len as u64;
        self.latency.saturating_record(now_ns.saturating_sub(mark.sent_ns).max(1));
        let slot = &mut self.streams[usize::from(mark.stream) % STREAMS];
        if slot.as_ref().is_none_or(|stream| stream.run != mark.run) {
            let words = vec![0; WORDS].into_boxed_slice();
            *slot = Some(Stream { run: mark.run, next: 0, words });
        }
        if let Some(stream) = slot {
            stream.take(mark.seq, &mut self.counts);
        }
    }

    /// What was counted.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// How long frames took, ns.
    #[must_use]
    pub const fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }
}

impl Stream {
    #[inline]
    fn take(&mut self, seq: u64, counts: &mut Counts) {
        let word = &mut self.words[(seq >> 5) as usize % WORDS];
        // Never 0, which is no epoch.
        let (epoch, bit) = ((seq >> WINDOW_BITS) + 1, 1_u64 << (seq & 31));
        match (*word >> 32).cmp(&epoch) {
            std::cmp::Ordering::Less => *word = epoch << 32 | bit,
            std::cmp::Ordering::Equal if *word & bit != 0 => {
                counts.duplicates += 1;
                return;
            }
            std::cmp::Ordering::Equal => *word |= bit,
            std::cmp::Ordering::Greater => counts.late += 1,
        }
        if seq < self.next {
            counts.reordered += 1;
        } else {
            counts.expected += seq + 1 - self.next;
            self.next = seq + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracked(seqs: impl IntoIterator<Item = u64>) -> Counts {
        let mut tracker = Tracker::default();
        for seq in seqs {
            tracker.take(&Mark { run: 1, stream: 2, seq, sent_ns: 10 }, 60, 1010);
        }
        tracker.counts()
    }

    #[test]
    fn what_comes_in_order_is_nothing_but_there() {
        let counts = tracked(0..3_000_000);
        assert_eq!(
            counts,
            Counts {
                frames: 3_000_000,
                bytes: 180_000_000,
                expected: 3_000_000,
                ..Counts::default()
            }
        );
        assert_eq!((counts.lost(None), counts.lost(Some(3_000_007))), (0, 7));
    }

    #[test]
    fn loss_duplicates_and_order_are_told_apart() {
        let counts = tracked([0, 1, 3, 2, 3, 3, 7, 5, 9]);
        assert_eq!((counts.duplicates, counts.reordered, counts.lost(None)), (2, 2, 3));
        // RFC 4737, table 1: 4 comes after 7 and 8.
        let counts = tracked([1, 2, 3, 5, 6, 7, 8, 4, 9, 10]);
        assert_eq!((counts.reordered, counts.lost(None)), (1, 1));
    }

    #[test]
    fn a_window_is_a_million_numbers() {
        let counts = tracked((1..=1 << 20).chain([40, 0]));
        assert_eq!((counts.duplicates, counts.late, counts.reordered), (1, 1, 1));
        let counts = tracked([0, 1 << 20, 0]);
        assert_eq!((counts.late, counts.reordered, counts.duplicates), (1, 1, 0));
    }

    #[test]
    fn runs_and_streams_have_their_own_numbers() {
        let mut tracker = Tracker::default();
        for (run, stream) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
            for seq in 0..100 {
                tracker.take(&Mark { run, stream, seq, sent_ns: 0 }, 60, 5);
            }
        }
        let counts = tracker.counts();
        assert_eq!(
            (counts.expected, counts.lost(None), counts.duplicates, counts.reordered),
            (400, 0, 0, 0)
        );
    }

    #[test]
    fn latency_has_three_digits() {
        let mut tracker = Tracker::default();
        for seq in 0..1000 {
            tracker.take(
                &Mark { run: 1, stream: 0, seq, sent_ns: 1000 },
                60,
                1000 + 1000 * (seq + 1),
            );
        }
        let median = tracker.latency().value_at_quantile(0.5) as f64;
        assert!((median / 500_000.0 - 1.0).abs() < 2e-3, "{median}");
        tracker.take(&Mark { run: 1, stream: 0, seq: 1000, sent_ns: 0 }, 60, u64::MAX);
        assert!(tracker.latency().max() >= LONGEST_NS);
    }
}
