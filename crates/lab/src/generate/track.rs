//! Evaluates sequence numbers at a sink: loss, duplicates, reordering, latency.
//!
//! A frame is reordered if a later one arrived before it (RFC 4737, type-P-reordered: its sequence
//! number is below the next expected one). A duplicate is neither new nor reordered. The tracker
//! remembers the last million numbers of each stream. `bpf/collect.c` counts in the same way.

use hdrhistogram::Histogram;

use super::mark::{Mark, STREAMS, of_frame};

/// Size of the window of remembered sequence numbers, a power of two.
const WINDOW_BITS: u32 = 20;
const WORDS: usize = 1 << (WINDOW_BITS - 5);
/// Number of runs that each stream tracks at once.
pub const RUNS: usize = 4;
/// A run without frames for this long makes room for another.
const QUIET_NS: u64 = 100_000_000;
/// The highest measured latency, ns; higher ones count as this.
pub const LONGEST_NS: u64 = 60_000_000_000;

/// Which frames a sink counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Frames with a mark, of any run.
    #[default]
    Marked,
    /// Frames of one run.
    Run(u8),
    /// All frames, without evaluating their numbers.
    All,
}

/// The mask for measuring the latency of one frame in `sample`: it selects numbers without these
/// bits.
#[must_use]
pub fn sample_mask(sample: u64) -> u64 {
    sample.max(1).checked_next_power_of_two().unwrap_or(1 << 63) - 1
}

/// The counts of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Frames with a mark.
    pub frames: u64,
    /// Their bytes, without check sequence.
    pub bytes: u64,
    /// Frames that arrived more than once.
    pub duplicates: u64,
    /// Frames that arrived after later ones.
    pub reordered: u64,
    /// Frames that arrived too late to check whether they are duplicates.
    pub late: u64,
    /// Number of frames sent, from the largest sequence number of each stream and run.
    pub expected: u64,
    /// Frames of runs beyond the number that can be tracked at once.
    pub unfollowed: u64,
}

impl Counts {
    /// Number of different frames that arrived, among those tracked.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.frames.saturating_sub(self.duplicates).saturating_sub(self.unfollowed)
    }

    /// Number of missing frames: of `sent`, or of those expected if that is unknown.
    #[must_use]
    pub fn lost(&self, sent: Option<u64>) -> u64 {
        sent.unwrap_or(self.expected).saturating_sub(self.arrived())
    }

    /// Adds the counts of another sink.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.late += other.late;
        self.expected += other.expected;
        self.unfollowed += other.unfollowed;
    }

    /// The difference to earlier counts.
    #[must_use]
    pub fn since(&self, then: &Self) -> Self {
        Self {
            frames: self.frames - then.frames,
            bytes: self.bytes - then.bytes,
            duplicates: self.duplicates - then.duplicates,
            reordered: self.reordered - then.reordered,
            late: self.late - then.late,
            expected: self.expected - then.expected,
            unfollowed: self.unfollowed - then.unfollowed,
        }
    }
}

/// An empty histogram of latencies in ns, with three significant digits.
#[must_use]
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds that a histogram takes")
}

/// Tracks the sequence numbers of streams.
#[derive(Clone, Debug)]
pub struct Tracker {
    counts: Counts,
    wanted: Wanted,
    /// Selects the numbers whose latency is measured: those without these bits.
    mask: u64,
    /// For each stream the tracked runs, at most [`RUNS`].
    streams: Vec<Vec<Stream>>,
    latency: Histogram<u64>,
}

#[derive(Clone, Debug)]
struct Stream {
    run: u8,
    /// When its last frame arrived.
    used_ns: u64,
    /// One more than the largest number that arrived.
    next: u64,
    /// The numbers that arrived. A word's upper half is its epoch (the number by the window), the
    /// lower half has one bit for each of 32 numbers.
    words: Box<[u64]>,
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new(Wanted::Marked, 1)
    }
}

impl Tracker {
    /// Makes a tracker that measures the latency of one frame in `sample`.
    #[must_use]
    pub fn new(wanted: Wanted, sample: u64) -> Self {
        Self {
            counts: Counts::default(),
            wanted,
            mask: sample_mask(sample),
            streams: vec![Vec::new(); STREAMS],
            latency: latencies(),
        }
    }

    /// Counts a frame that arrived at `now_ns`, if it is wanted.
    #[inline]
    pub fn look(&mut self, frame: &[u8], now_ns: u64) {
        if self.wanted == Wanted::All {
            self.counts.frames += 1;
            self.counts.bytes += frame.len() as u64;
        } else if let Some(mark) = of_frame(frame) {
            self.take(&mark, frame.len(), now_ns);
        }
    }

    /// Counts a frame of `len` bytes that arrived at `now_ns`.
    #[inline]
    pub fn take(&mut self, mark: &Mark, len: usize, now_ns: u64) {
        if matches!(self.wanted, Wanted::Run(run) if run != mark.run) {
            return;
        }
        self.counts.frames += 1;
        self.counts.bytes += len as u64;
        if mark.seq & self.mask == 0 {
            self.latency.saturating_record(now_ns.saturating_sub(mark.sent_ns).max(1));
        }
        let runs = &mut self.streams[usize::from(mark.stream) % STREAMS];
        match stream_of(runs, mark.run, now_ns) {
            Some(stream) => stream.take(mark.seq, &mut self.counts),
            None => self.counts.unfollowed += 1,
        }
    }

    /// The counts so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Latency of the frames, ns.
    #[must_use]
    pub const fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }
}

/// The state of a run; `None` if too many runs are active.
#[inline]
fn stream_of(runs: &mut Vec<Stream>, run: u8, now_ns: u64) -> Option<&mut Stream> {
    let known = runs.iter().position(|stream| stream.run == run);
    let at = known.or_else(|| make_room(runs, run, now_ns))?;
    let stream = runs.get_mut(at)?;
    stream.used_ns = now_ns;
    Some(stream)
}

/// A slot for another run: a new one, or that of a run that has long been quiet.
#[cold]
fn make_room(runs: &mut Vec<Stream>, run: u8, now_ns: u64) -> Option<usize> {
    if runs.len() < RUNS {
        runs.push(Stream::new(run, now_ns));
        return Some(runs.len() - 1);
    }
    let (at, oldest) = runs.iter_mut().enumerate().min_by_key(|(_, stream)| stream.used_ns)?;
    if now_ns < oldest.used_ns.saturating_add(QUIET_NS) {
        return None;
    }
    *oldest = Stream::new(run, now_ns);
    Some(at)
}

impl Stream {
    fn new(run: u8, now_ns: u64) -> Self {
        Self { run, used_ns: now_ns, next: 0, words: vec![0; WORDS].into_boxed_slice() }
    }

    #[inline]
    fn take(&mut self, seq: u64, counts: &mut Counts) {
        let word = &mut self.words[(seq >> 5) as usize % WORDS];
        // Never 0, which marks an unused word.
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
    fn frames_in_order_have_no_other_counts() {
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
    fn loss_duplicates_and_order_are_distinguished() {
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
    fn runs_at_once_do_not_disturb_each_other() {
        let mut tracker = Tracker::default();
        let mut send = |runs: std::ops::Range<u8>, now_ns: u64| {
            for seq in 0..100 {
                for run in runs.clone() {
                    tracker.take(&Mark { run, stream: 0, seq, sent_ns: 0 }, 60, now_ns);
                }
            }
            tracker.counts()
        };
        let counts = send(0..2, 5);
        assert_eq!((counts.expected, counts.lost(None), counts.duplicates), (200, 0, 0));
        // There is room for two more. Of six, the last two are not tracked, and counted as such.
        let counts = send(2..6, 6);
        assert_eq!((counts.expected, counts.unfollowed, counts.lost(None)), (400, 200, 0));
        // In sequence there may be any number.
        for run in 10..30 {
            send(run..run + 1, u64::from(run) * 2 * QUIET_NS);
        }
        let counts = tracker.counts();
        assert_eq!((counts.expected, counts.unfollowed, counts.lost(None)), (2400, 200, 0));
        assert_eq!((counts.frames, counts.reordered, counts.duplicates), (2600, 0, 0));
    }

    #[test]
    fn only_what_is_wanted_counts() {
        let mark = |run, seq| Mark { run, stream: 0, seq, sent_ns: 0 };
        let mut tracker = Tracker::new(Wanted::Run(3), 32);
        for seq in 0..320 {
            tracker.take(&mark(3, seq), 60, 5);
            tracker.take(&mark(4, seq), 60, 5);
        }
        let counts = tracker.counts();
        assert_eq!((counts.frames, counts.expected, tracker.latency().len()), (320, 320, 10));
        let mut tracker = Tracker::new(Wanted::All, 1);
        tracker.look(&[0; 60], 5);
        assert_eq!((tracker.counts().frames, tracker.counts().bytes), (1, 60));
        assert_eq!([0, 1, 3, 64].map(sample_mask), [0, 0, 3, 63]);
        assert_eq!(sample_mask(u64::MAX), (1 << 63) - 1);
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
