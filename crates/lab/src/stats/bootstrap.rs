use super::distribution::{normal, quantile};
use crate::frames::Xorshift;

/// How to derive an interval from the resamples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Percentiles of the resamples.
    Percentile,
    /// Percentiles corrected for bias and skew, from values left out one at a time (Efron 1987).
    Bca,
}

/// The distribution of a statistic over resamples of the values.
#[derive(Clone, Debug, PartialEq)]
pub struct Bootstrap {
    /// The statistic of the values themselves.
    pub estimate: f64,
    /// The statistic of each resample, in ascending order.
    drawn: Vec<f64>,
    /// The rate at which the statistic's error changes with its value.
    acceleration: f64,
}

impl Bootstrap {
    /// Draws `resamples` times as many values as there are, with replacement. For pairs, pass their
    /// differences. The same seed gives the same draws. `None` for fewer than two values or
    /// resamples, or a statistic that is not finite.
    pub fn of(
        values: &[f64],
        statistic: impl Fn(&[f64]) -> f64,
        resamples: usize,
        seed: u64,
    ) -> Option<Self> {
        if values.len() < 2 || resamples < 2 {
            return None;
        }
        let estimate = statistic(values);
        let mut drawn = resample(values, &statistic, resamples, seed);
        if !estimate.is_finite() || drawn.iter().any(|value| !value.is_finite()) {
            return None;
        }
        drawn.sort_by(f64::total_cmp);
        Some(Self { estimate, drawn, acceleration: acceleration(values, &statistic) })
    }

    /// The interval of the statistic at a confidence between 0 and 1; `None` outside.
    #[must_use]
    pub fn interval(&self, kind: Kind, confidence: f64) -> Option<[f64; 2]> {
        let tail = (1.0 - confidence) / 2.0;
        let tails = [quantile(tail, f64::INFINITY)?, quantile(1.0 - tail, f64::INFINITY)?];
        let shares = match (kind, self.bias()) {
            (Kind::Bca, Some(bias)) => tails.map(|z| self.corrected(bias, z)),
            _ => [tail, 1.0 - tail],
        };
        Some(shares.map(|share| percentile(&self.drawn, share)))
    }

    /// The distance of the estimate from the middle of the draws, in deviations; `None` if all
    /// draws are on one side of it.
    fn bias(&self) -> Option<f64> {
        // Half of the draws that equal the estimate count as below: a median is often hit exactly.
        let below = self.drawn.iter().filter(|value| **value < self.estimate).count() as f64;
        let equal = self.drawn.iter().filter(|value| **value == self.estimate).count() as f64;
        quantile((below + equal / 2.0) / self.drawn.len() as f64, f64::INFINITY)
    }

    /// The share of the draws that BCa uses for a quantile of the normal distribution.
    fn corrected(&self, bias: f64, z: f64) -> f64 {
        normal(bias + (bias + z) / (1.0 - self.acceleration * (bias + z)))
    }
}

fn resample(
    values: &[f64],
    statistic: impl Fn(&[f64]) -> f64,
    resamples: usize,
    seed: u64,
) -> Vec<f64> {
    let mut random = Xorshift::new(seed);
    let mut draw = vec![0.0; values.len()];
    let mut once = || {
        for value in &mut draw {
            // The high bits are the better ones; the modulo bias is 1 in 2^31 per value.
            *value = values[(random.next() >> 33) as usize % values.len()];
        }
        statistic(&draw)
    };
    (0..resamples).map(|_| once()).collect()
}

/// The acceleration, from the values left out one at a time.
fn acceleration(values: &[f64], statistic: impl Fn(&[f64]) -> f64) -> f64 {
    let without = |at: usize| {
        let mut rest = values.to_vec();
        rest.remove(at);
        statistic(&rest)
    };
    let left: Vec<f64> = (0..values.len()).map(without).collect();
    let mean = left.iter().sum::<f64>() / left.len() as f64;
    let sum = |power| left.iter().map(|value| (mean - value).powi(power)).sum::<f64>();
    let scale = 6.0 * sum(2).powf(1.5);
    if scale > 0.0 { sum(3) / scale } else { 0.0 }
}

/// The value at a share of sorted values, interpolated linearly.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, rest) = (at.floor(), at.fract());
    let value = |at: f64| sorted[(at as usize).min(sorted.len() - 1)];
    value(low) + (value(low + 1.0) - value(low)) * rest
}

#[cfg(test)]
mod tests {
    use super::super::{Sample, paired};
    use super::*;

    /// The spatial test of 26 children, measure A (Efron and Tibshirani 1993, table 14.1).
    const SPATIAL: [f64; 26] = [
        48.0, 36.0, 20.0, 29.0, 42.0, 42.0, 20.0, 42.0, 22.0, 41.0, 45.0, 14.0, 6.0, 0.0, 33.0,
        28.0, 34.0, 4.0, 32.0, 24.0, 47.0, 41.0, 24.0, 26.0, 30.0, 41.0,
    ];

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    fn variance(values: &[f64]) -> f64 {
        let mean = mean(values);
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64
    }

    /// Published for the variance at 90%, with 2,000 resamples: percentiles 100.8 to 233.9, BCa
    /// 115.8 to 259.6, acceleration 0.061.
    #[test]
    fn intervals_are_those_of_efron_and_tibshirani() {
        assert!((acceleration(&SPATIAL, variance) - 0.061).abs() < 5e-4);
        let found = Bootstrap::of(&SPATIAL, variance, 50_000, 7).unwrap();
        assert!((found.estimate - 171.5).abs() < 0.05);
        for (kind, published) in [(Kind::Percentile, [100.8, 233.9]), (Kind::Bca, [115.8, 259.6])] {
            for (value, published) in found.interval(kind, 0.9).unwrap().into_iter().zip(published)
            {
                let off = (value / published - 1.0).abs();
                assert!(off < 0.03, "{kind:?}: {value:.1} is not {published}");
            }
        }
    }

    #[test]
    fn a_mean_has_the_interval_that_student_gives_it() {
        let values: Vec<f64> = (0..60).map(|n| f64::from((n * 37) % 60)).collect();
        let student = paired(&Sample::of(&values).unwrap(), 0.95).unwrap();
        let found = Bootstrap::of(&values, mean, 20_000, 1).unwrap();
        for kind in [Kind::Percentile, Kind::Bca] {
            for (value, student) in
                found.interval(kind, 0.95).unwrap().into_iter().zip(student.interval())
            {
                assert!((value - student).abs() < 0.1 * student.abs(), "{value} {student}");
            }
        }
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed| Bootstrap::of(&SPATIAL, mean, 100, seed).unwrap();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(3));
    }

    #[test]
    fn values_that_are_alike_have_no_spread() {
        let found = Bootstrap::of(&[3.0; 5], mean, 100, 1).unwrap();
        for kind in [Kind::Percentile, Kind::Bca] {
            assert_eq!(found.interval(kind, 0.95), Some([3.0, 3.0]));
        }
    }

    #[test]
    fn too_few_values_have_no_interval() {
        assert_eq!(Bootstrap::of(&[3.0], mean, 100, 1), None);
        assert_eq!(Bootstrap::of(&[3.0; 5], mean, 1, 1), None);
        assert_eq!(Bootstrap::of(&[3.0; 5], |_| f64::NAN, 100, 1), None);
        let found = Bootstrap::of(&SPATIAL, mean, 100, 1).unwrap();
        assert_eq!(found.interval(Kind::Bca, 1.0), None);
    }
}
