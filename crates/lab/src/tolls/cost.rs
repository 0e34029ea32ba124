//! The additional cost of a row over another, from rounds in which both took turns.

use crate::stats::{self, Bootstrap, Kind};

/// Share of the rounds cut off at each end before the mean is taken.
const TRIM: f64 = 0.2;

/// Number of bootstrap resamples, and their seed.
const RESAMPLES: usize = 2000;
const SEED: u64 = 0x7011_0a11;

/// The confidence of intervals.
const CONFIDENCE: f64 = 0.95;

/// The middle of values and its 95% interval: the mean without a fifth at each end, with the
/// bootstrap (BCa). For a single value the interval is that value; `None` for no value.
pub(super) fn middle(values: &[f64]) -> Option<(f64, [f64; 2])> {
    if let [value] = values {
        return Some((*value, [*value; 2]));
    }
    let mean = |values: &[f64]| stats::trimmed_mean(values.to_vec(), TRIM);
    let drawn = Bootstrap::of(values, mean, RESAMPLES, SEED)?;
    Some((drawn.estimate, drawn.interval(Kind::Bca, CONFIDENCE)?))
}

/// The additional cost of the second row, round by round.
pub(super) fn between(base: &[f64], head: &[f64]) -> Option<(f64, [f64; 2])> {
    let differences: Vec<f64> = base.iter().zip(head).map(|(base, head)| head - base).collect();
    middle(&differences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_on_both_rows_is_no_cost() {
        // A machine that takes half as long again from the middle on, and a row that costs 2 more.
        let base: Vec<f64> = (0..40).map(|at| if at < 20 { 10.0 } else { 15.0 }).collect();
        let jitter = |at: usize| 0.1 * ((at * 7 % 5) as f64 - 2.0);
        let head: Vec<f64> =
            base.iter().enumerate().map(|(at, base)| base + 2.0 + jitter(at)).collect();
        let (cost, [low, high]) = between(&base, &head).unwrap();
        assert!((cost - 2.0).abs() < 0.05, "{cost}");
        assert!(low <= 2.0 && 2.0 <= high && high - low < 0.2, "{low} {high}");
        let (alone, [low, high]) = middle(&base).unwrap();
        assert!(low < alone && alone < high && high - low > 1.0, "each alone is not as sure");
    }

    #[test]
    fn one_round_has_no_spread() {
        assert_eq!(middle(&[3.0]), Some((3.0, [3.0; 2])));
        assert_eq!(middle(&[]), None);
    }
}
