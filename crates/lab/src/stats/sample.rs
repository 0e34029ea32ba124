/// The sorted values of one series, with common statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    values: Vec<f64>,
    mean: f64,
    variance: f64,
}

impl Sample {
    /// Makes a sample; `None` if there is no value or one is not finite.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let n = values.len() as f64;
        let rough = values.iter().sum::<f64>() / n;
        // A second pass from nearby: the sum of large values has rounded off their differences.
        let mean = rough + values.iter().map(|value| value - rough).sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let freedom = (values.len() - 1) as f64;
        let variance = if freedom > 0.0 { squares / freedom } else { f64::NAN };
        Some(Self { values, mean, variance })
    }

    /// The values in ascending order.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The number of values, at least one.
    #[must_use]
    pub fn n(&self) -> f64 {
        self.values.len() as f64
    }

    /// The smallest value.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.values[0]
    }

    /// The largest value.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.values[self.values.len() - 1]
    }

    /// The median; for an even number of values the mean of the middle two.
    #[must_use]
    pub fn median(&self) -> f64 {
        let middle = self.values.len() / 2;
        if self.values.len() % 2 == 1 {
            return self.values[middle];
        }
        f64::midpoint(self.values[middle - 1], self.values[middle])
    }

    /// Their mean.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Their variance with divisor n - 1; NaN for a single value.
    #[must_use]
    pub fn variance(&self) -> f64 {
        self.variance
    }

    /// Their standard deviation.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.variance.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sample_has_nothing_or_anything_but_numbers() {
        assert_eq!(Sample::of(&[]), None);
        assert_eq!(Sample::of(&[1.0, f64::NAN]), None);
        assert_eq!(Sample::of(&[f64::INFINITY]), None);
        assert!(Sample::of(&[1.0]).unwrap().variance().is_nan());
    }

    /// NIST's StRD data sets NumAcc1 to NumAcc3, with their certified values.
    #[test]
    fn mean_and_deviation_are_those_that_nist_certifies() {
        let first = Sample::of(&[10_000_001.0, 10_000_003.0, 10_000_002.0]).unwrap();
        assert_eq!((first.mean(), first.deviation()), (10_000_002.0, 1.0));
        for (middle, exact) in [(1.2, 1e-12), (1_000_000.2, 1e-9)] {
            let swing = (0..1000).map(|n| middle + if n % 2 == 0 { -0.1 } else { 0.1 });
            let values: Vec<_> = std::iter::once(middle).chain(swing).collect();
            let sample = Sample::of(&values).unwrap();
            assert!((sample.mean() - middle).abs() < exact, "{}", sample.mean());
            assert!((sample.deviation() - 0.1).abs() < exact, "{}", sample.deviation());
        }
    }
}
