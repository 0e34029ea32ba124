//! The verdict on the pairs of processes.
//!
//! A difference is reported only if three conditions hold, see `docs/decisions/`:
//!
//! - Wilcoxon's signed-rank test finds the pairs' differences lopsided, at 1% for all rows
//!   together;
//! - the bootstrap's interval at 99% (for all rows together) lies on one side of zero;
//! - the interval lies beyond [`FLOOR`].
//!
//! The test is valid for noise of any distribution, since the sides take turns in everything:
//! without a difference, a result is as likely below zero as above. The interval gives the size of
//! the difference, and the floor the smallest size worth a report.

use serde::Serialize;

use crate::stats::{self, Bootstrap, Difference, Kind, Sample};

/// The largest share of comparisons that report a difference although there is none.
const LEVEL: f64 = 0.01;

/// The confidence of the displayed intervals.
const SHOWN: f64 = 0.95;

/// Share of the base's time below which a difference is not reported. Rebuilt code that does the
/// same differs by this much because its addresses change.
pub const FLOOR: f64 = 0.01;

/// Share of the pairs that is cut off at each end before the mean is taken.
const TRIM: f64 = 0.2;

/// Number of bootstrap resamples.
const RESAMPLES: usize = 5_000;

/// The seed of the resamples.
const SEED: u64 = 0x7011_0a11;

/// Share of runs that would find the smallest detectable difference.
const POWER: f64 = 0.9;

/// The result of a pair of processes, in TSC clocks or ns per packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The median of the base side's slices.
    pub base: f64,
    /// The median of the head side's slices.
    pub head: f64,
    /// The median, over blocks, of the head side's additional time.
    pub difference: f64,
}

impl Pair {
    /// The same in another unit.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self {
            base: self.base * factor,
            head: self.head * factor,
            difference: self.difference * factor,
        }
    }
}

/// The verdict on two builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// The head takes less time.
    #[serde(rename = "faster")]
    Faster,
    /// The head takes more time.
    #[serde(rename = "slower")]
    Slower,
    /// Any difference is too small to distinguish from noise.
    #[serde(rename = "below accuracy")]
    BelowAccuracy,
}

impl Verdict {
    /// The verdict in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::BelowAccuracy => "below accuracy",
        }
    }

    /// The verdict from an interval: a difference, if all of it lies beyond the floor.
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

/// The result of a significance test, ns per packet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Test {
    /// The head's mean minus the base's.
    pub difference_ns: f64,
    /// The 95% interval of the difference.
    pub interval_ns: [f64; 2],
    /// Degrees of freedom.
    pub freedom: f64,
    /// The standard deviation that the test uses.
    pub deviation_ns: f64,
    /// Whether this test alone proves a difference at 95%.
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

/// The verdict on a row with its evidence, in ns per packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The head minus the base: the mean of the pairs' differences, without a fifth at each end.
    pub difference_ns: f64,
    /// The same as a percentage of the base.
    pub difference_percent: f64,
    /// The 95% interval, by the paired bootstrap (BCa).
    pub interval_ns: [f64; 2],
    /// The 99% interval for all rows together, which decides the verdict.
    pub strict_interval_ns: [f64; 2],
    /// The smallest difference that 9 of 10 such runs would report; `None` if there are too few
    /// pairs for any.
    pub smallest_detectable_ns: Option<f64>,
    /// Differences below this are not reported.
    pub floor_ns: f64,
    /// Wilcoxon's p of the pairs' differences.
    pub signed_rank_p: f64,
    /// Student's t with pooled deviation, as in ministat.
    pub student: Test,
    /// Welch's t.
    pub welch: Option<Test>,
    /// Student's t of the pairs' differences.
    pub paired: Test,
}

/// The fewest pairs for a verdict when `rows` rows are evaluated together. With fewer, even unanimous
/// pairs prove nothing.
#[must_use]
pub fn least_pairs(rows: usize) -> usize {
    // Every pair but the first halves the p of a unanimous result.
    let at_best = |pairs: &usize| 0.5_f64.powi(*pairs as i32 - 1);
    (3..).find(|pairs| at_best(pairs) <= level(rows)).unwrap_or(3)
}

fn level(rows: usize) -> f64 {
    LEVEL / rows.max(1) as f64
}

/// Evaluates the pairs of one of `rows` rows; `None` for fewer than three pairs.
#[must_use]
pub fn evaluate(pairs: &[Pair], rows: usize) -> Option<Judgement> {
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

/// The smallest difference beyond the floor that would have been reported, from the bootstrap's own
/// error.
fn detectable(shown: [f64; 2], paired: Difference, rows: usize) -> Option<f64> {
    let unit = Difference { error: 1.0, freedom: f64::INFINITY, ..paired };
    let margins = stats::smallest_detectable(&unit, SHOWN, 0.5)?;
    let error = (shown[1] - shown[0]) / (2.0 * margins);
    let robust = Difference { error, ..paired };
    stats::smallest_detectable(&robust, 1.0 - level(rows), POWER)
}

#[cfg(test)]
mod tests;
