//! Statistics of repeated measurements, and of the difference between two series of them.

mod bootstrap;
mod difference;
mod distribution;
pub mod ministat;
mod sample;
mod wilcoxon;

use serde::{Deserialize, Serialize};

pub use bootstrap::{Bootstrap, Kind};
pub use difference::{Difference, paired, paired_percent, pooled, smallest_detectable, welch};
pub use sample::Sample;
pub use wilcoxon::signed_rank;

/// Median and spread of repeated measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median; for an even number of values the mean of the middle two.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Number of values.
    pub repeats: usize,
}

impl Summary {
    /// Summarizes values; `None` if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max, repeats: sorted.len() })
    }

    /// The same in another unit.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            min: self.min * factor,
            max: self.max * factor,
            repeats: self.repeats,
        }
    }
}

/// The median; for an even number of values the mean of the middle two. NaN if there is no value or
/// one is not finite.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    Sample::of(values).map_or(f64::NAN, |sample| sample.median())
}

/// The mean without a share of the values at each end; NaN if there is no value.
#[must_use]
pub fn trimmed_mean(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let cut = (values.len() as f64 * share) as usize;
    let kept = values.get(cut..values.len() - cut).unwrap_or_default();
    kept.iter().sum::<f64>() / kept.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trimmed_mean_forgets_the_ends() {
        let values: Vec<f64> = (0..20).map(f64::from).chain([1e9]).collect();
        assert_eq!(trimmed_mean(values.clone(), 0.05), 10.0);
        assert!(trimmed_mean(values, 0.0) > 1e6);
        assert!(trimmed_mean(Vec::new(), 0.1).is_nan());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(one, Summary { median: 2.0, min: 1.0, max: 3.0, repeats: 3 });
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(one.scaled(2.0).max, 6.0);
        assert_eq!([median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])], [2.0, 2.5]);
        assert!(median(&[]).is_nan());
    }
}
