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

/// What repeats of one measurement say: median and spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle value (of an even number the mean of the two).
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
    /// How many values there were.
    pub repeats: usize,
}

impl Summary {
    /// Sums up values; none for no value.
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

/// The middle of values, of an even number the mean of the two; not a number for no value, or where one is not
/// finite.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    Sample::of(values).map_or(f64::NAN, |sample| sample.median())
}

/// The mean of values without the given share of them at each end; not a number for no value.
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
