//! What the pairs of processes say.
//!
//! A difference is told only where three things hold, see `docs/decisions/`: Wilcoxon's signed-rank test
//! finds the pairs' differences lopsided, at 1% for all rows together; the bootstrap's interval at 99%
//! (of all rows together) lies on one side of nought; and it lies beyond [`FLOOR`]. The test holds whatever
//! the noise is like, since the sides take turns in everything: without a difference, one as large is as
//! likely below nought as above. The interval says how large it is, and the floor what is worth telling.

use serde::Serialize;

use super::pairs::Pair;
use crate::stats::{self, Bootstrap, Difference, Kind, Sample};

/// What is told as a difference in spite of none: at most this share of all comparisons.
const LEVEL: f64 = 0.01;

/// The confidence of the intervals that are shown.
const SHOWN: f64 = 0.95;

/// Share of the base's time under which a difference is not told: code that is built anew, and does the
/// same, differs by so much by where it comes to lie.
pub const FLOOR: f64 = 0.01;

/// Share of the pairs that is left out at each end before the mean is taken.
const TRIM: f64 = 0.2;

/// Draws of the bootstrap.
const RESAMPLES: usize = 5_000;

/// What the draws begin with.
const SEED: u64 = 0x7011_0a11;

/// Share of runs in which the smallest detectable difference would be found.
const POWER: f64 = 0.9;

/// What is told of two builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// The second takes less time.
    #[serde(rename = "faster")]
    Faster,
    /// The second takes more time.
    #[serde(rename = "slower")]
    Slower,
    /// What they differ by, if anything, can not be told from noise.
    #[serde(rename = "below accuracy")]
    BelowAccuracy,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::BelowAccuracy => "below accuracy",
        }
    }

    /// What is told of an interval: a difference, where all of it lies beyond the floor.
    pub(crate) fn beyond([low, high]: [f64; 2], floor: f64) -> Self {
        if low > floor {
            Self::Slower
        } else if high < -floor {
            Self::Faster
        } else {
            Self::BelowAccuracy
        }
    }
}

/// A test's difference, ns a packet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Test {
    /// The second side's mean less the first's.
    pub difference_ns: f64,
    /// Where it lies at 95%.
    pub interval_ns: [f64; 2],
    /// Degrees of freedom.
    pub freedom: f64,
    /// The standard deviation that it is judged by.
    pub deviation_ns: f64,
    /// Whether the test alone proves a difference at 95%.
    pub proven: bool,
}

impl From<Difference> for Test {
    fn from(of: Difference) -> Self {
        Self {
            difference_ns: of.difference,
            interval_ns: of.interval(),
            freedom: of.freedom,
            deviation_ns: of.deviation,
            proven: of.is_proven(),
        }
    }
}

/// The verdict on a row, and what it comes from; all in ns a packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// What is told.
    pub verdict: Verdict,
    /// The second side less the first: the mean of the pairs' differences without a fifth at each end.
    pub difference_ns: f64,
    /// The same in per cent of the first.
    pub difference_percent: f64,
    /// Where it lies at 95%, by the paired bootstrap (BCa).
    pub interval_ns: [f64; 2],
    /// Where it lies at 99% for all rows together: what the verdict goes by.
    pub strict_interval_ns: [f64; 2],
    /// The least difference that 9 of 10 such runs would tell; none where the pairs are too few to tell any.
    pub smallest_detectable_ns: Option<f64>,
    /// Differences under this are not told.
    pub floor_ns: f64,
    /// Wilcoxon's p of the pairs' differences.
    pub signed_rank_p: f64,
    /// Student's t with pooled deviation, as ministat.
    pub student: Test,
    /// Welch's t.
    pub welch: Option<Test>,
    /// Student's t of the pairs' differences.
    pub paired: Test,
}

/// The pairs that a verdict takes at least, when so many rows are judged together: fewer prove nothing even
/// where all agree.
#[must_use]
pub fn least_pairs(rows: usize) -> usize {
    // What the test says when all agree is halved by every pair but the first.
    let at_best = |pairs: &usize| 0.5_f64.powi(*pairs as i32 - 1);
    (3..).find(|pairs| at_best(pairs) <= level(rows)).unwrap_or(3)
}

fn level(rows: usize) -> f64 {
    LEVEL / rows.max(1) as f64
}

/// Judges the pairs of one row out of so many; none for fewer than three pairs.
#[must_use]
pub fn judge(pairs: &[Pair], rows: usize) -> Option<Judgement> {
    if pairs.len() < 3 {
        return None;
    }
    let side = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<_>>();
    let differences = side(|pair| pair.difference);
    let [base, head] = [side(|pair| pair.base), side(|pair| pair.head)];
    let [base, head] = [Sample::of(&base)?, Sample::of(&head)?];
    let mean = |values: &[f64]| stats::trimmed_mean(values.to_vec(), TRIM);
    let drawn = Bootstrap::of(&differences, mean, RESAMPLES, SEED)?;
    let shown = drawn.interval(Kind::Bca, SHOWN)?;
    let strict = drawn.interval(Kind::Bca, 1.0 - level(rows))?;
    let floor = FLOOR * base.median();
    let p = stats::signed_rank(&differences);
    let student = stats::pooled(&base, &head, SHOWN)?;
    let paired = stats::paired(&Sample::of(&differences)?, SHOWN)?;
    let is_enough = pairs.len() >= least_pairs(rows);
    Some(Judgement {
        verdict: match p <= level(rows) {
            true => Verdict::beyond(strict, floor),
            false => Verdict::BelowAccuracy,
        },
        difference_ns: drawn.estimate,
        difference_percent: 100.0 * drawn.estimate / base.median(),
        interval_ns: shown,
        strict_interval_ns: strict,
        smallest_detectable_ns: is_enough
            .then(|| Some(floor + detectable(shown, paired, rows)?))
            .flatten(),
        floor_ns: floor,
        signed_rank_p: p,
        student: student.into(),
        welch: stats::welch(&base, &head, SHOWN).map(Into::into),
        paired: paired.into(),
    })
}

/// The least difference beyond the floor that would have been told, by the bootstrap's own error.
fn detectable(shown: [f64; 2], paired: Difference, rows: usize) -> Option<f64> {
    let unit = Difference { error: 1.0, freedom: f64::INFINITY, ..paired };
    let margins = stats::smallest_detectable(&unit, SHOWN, 0.5)?;
    let error = (shown[1] - shown[0]) / (2.0 * margins);
    let robust = Difference { error, ..paired };
    stats::smallest_detectable(&robust, 1.0 - level(rows), POWER)
}

#[cfg(test)]
mod tests;
