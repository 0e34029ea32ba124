use super::Sample;
use super::distribution::quantile;

/// Degrees of freedom up to which ministat has a table; beyond, it uses the normal distribution.
const TABLE: f64 = 100.0;

/// The difference between the means of two series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The second mean minus the first.
    pub difference: f64,
    /// Half the width of the interval at the requested confidence.
    pub margin: f64,
    /// The standard error of the difference.
    pub error: f64,
    /// The standard deviation of the test: the pooled one, or the pairs' own. For Welch, which
    /// pools none, the root of the mean variance.
    pub deviation: f64,
    /// Degrees of freedom.
    pub freedom: f64,
}

impl Difference {
    /// The interval at that confidence.
    #[must_use]
    pub fn interval(&self) -> [f64; 2] {
        [self.difference - self.margin, self.difference + self.margin]
    }

    /// Whether the difference is significant at that confidence.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.difference.abs() > self.margin
    }

    fn new(difference: f64, error: f64, deviation: f64, freedom: f64, critical: f64) -> Self {
        Self { difference, margin: critical * error, error, deviation, freedom }
    }
}

/// Student's t with a pooled deviation, as in ministat: critical values with three decimals, and
/// those of the normal distribution above 100 degrees of freedom. `confidence` is a share, such as
/// 0.95. `None` if a series has a single value.
#[must_use]
pub fn pooled(base: &Sample, head: &Sample, confidence: f64) -> Option<Difference> {
    let freedom = base.n() + head.n() - 2.0;
    let squares = (base.n() - 1.0) * base.variance() + (head.n() - 1.0) * head.variance();
    let deviation = (squares / freedom).sqrt();
    let error = deviation * (1.0 / base.n() + 1.0 / head.n()).sqrt();
    let exact = if freedom > TABLE { f64::INFINITY } else { freedom };
    let critical = (two_sided(confidence, exact)? * 1000.0).round() / 1000.0;
    usable(Difference::new(head.mean() - base.mean(), error, deviation, freedom, critical))
}

/// Welch's t, for series with different spread. `None` if a series has a single value, or neither
/// has any spread.
#[must_use]
pub fn welch(base: &Sample, head: &Sample, confidence: f64) -> Option<Difference> {
    let shares = [base.variance() / base.n(), head.variance() / head.n()];
    let sum = shares[0] + shares[1];
    let parts = shares[0].powi(2) / (base.n() - 1.0) + shares[1].powi(2) / (head.n() - 1.0);
    let freedom = sum.powi(2) / parts;
    let deviation = f64::midpoint(base.variance(), head.variance()).sqrt();
    let critical = two_sided(confidence, freedom)?;
    usable(Difference::new(head.mean() - base.mean(), sum.sqrt(), deviation, freedom, critical))
}

/// Student's t of differences between pairs; `None` for a single pair.
#[must_use]
pub fn paired(differences: &Sample, confidence: f64) -> Option<Difference> {
    let (n, deviation) = (differences.n(), differences.deviation());
    let freedom = n - 1.0;
    let critical = two_sided(confidence, freedom)?;
    let error = deviation / n.sqrt();
    usable(Difference::new(differences.mean(), error, deviation, freedom, critical))
}

/// The smallest difference that a share `power` (such as 0.9) of all such tests would prove at that
/// confidence: the critical value plus the power's quantile, both Student's, times the standard
/// error.
#[must_use]
pub fn smallest_detectable(of: &Difference, confidence: f64, power: f64) -> Option<f64> {
    let sure = two_sided(confidence, of.freedom)?;
    let often = quantile(power, of.freedom)?;
    Some((sure + often) * of.error)
}

fn usable(difference: Difference) -> Option<Difference> {
    difference.margin.is_finite().then_some(difference)
}

/// The two-sided critical value of t at that confidence.
fn two_sided(confidence: f64, freedom: f64) -> Option<f64> {
    quantile(f64::midpoint(1.0, confidence), freedom)
}

/// The excess of each pair's second value over its first, in percent: the mean of all pairs and its
/// interval. The mean is NaN if a value is zero; the interval is infinite if there are too few
/// pairs. Pairs are compared by logarithms, so that twice and half are equally far.
#[must_use]
pub fn paired_percent(base: &[f64], head: &[f64], confidence: f64) -> (f64, [f64; 2]) {
    const EVERYWHERE: [f64; 2] = [f64::NEG_INFINITY, f64::INFINITY];
    let logs: Vec<_> = base.iter().zip(head).map(|(base, head)| (head / base).ln()).collect();
    let percent = |log: f64| log.exp_m1() * 100.0;
    let Some(sample) = Sample::of(&logs) else { return (f64::NAN, EVERYWHERE) };
    match paired(&sample, confidence) {
        Some(found) => (percent(found.difference), found.interval().map(percent)),
        None => (percent(sample.mean()), EVERYWHERE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hours of sleep that two drugs added for ten people (Student 1908), R's data set `sleep`.
    const SLEEP: [[f64; 10]; 2] = [
        [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
        [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
    ];

    fn assert_near(value: f64, published: f64, exact: f64) {
        assert!((value - published).abs() < exact, "{value} is not {published}");
    }

    fn sleep() -> [Sample; 2] {
        SLEEP.map(|values| Sample::of(&values).unwrap())
    }

    /// R's result of `t.test(extra ~ group, data = sleep)`: t = -1.8608, df = 17.776.
    #[test]
    fn welch_is_as_r_has_it() {
        let [base, head] = sleep();
        let found = welch(&base, &head, 0.95).unwrap();
        assert_near(found.difference, 1.58, 1e-12);
        assert_near(found.difference / found.error, 1.8608, 5e-5);
        assert_near(found.freedom, 17.776, 5e-4);
        assert_near(found.interval()[0], -0.205_483_2, 5e-8);
        assert_near(found.interval()[1], 3.365_483_2, 5e-8);
        assert!(!found.is_proven());
    }

    /// The same with `var.equal = TRUE`: from -0.203874 to 3.363874 with the exact quantile;
    /// ministat's table has 2.101.
    #[test]
    fn pooled_is_as_r_has_it_but_for_the_table() {
        let [base, head] = sleep();
        let found = pooled(&base, &head, 0.95).unwrap();
        assert_eq!(found.freedom, 18.0);
        assert_near(found.margin / found.error, 2.101, 1e-9);
        let exact = found.error * 2.100_922;
        assert_near(found.difference - exact, -0.203_874, 1e-6);
        assert_near(found.difference + exact, 3.363_874, 1e-6);
    }

    /// The same with `paired = TRUE`: t = -4.0621, df = 9.
    #[test]
    fn paired_is_as_r_has_it() {
        let differences: Vec<_> = (0..10).map(|n| SLEEP[1][n] - SLEEP[0][n]).collect();
        let found = paired(&Sample::of(&differences).unwrap(), 0.95).unwrap();
        assert_near(found.difference / found.error, 4.0621, 5e-5);
        assert_eq!(found.freedom, 9.0);
        assert_near(found.interval()[0], 0.700_114_2, 5e-8);
        assert_near(found.interval()[1], 2.459_885_8, 5e-8);
        assert!(found.is_proven());
    }

    /// NIST/SEMATECH e-Handbook 1.3.5.3: cars of the USA and of Japan (AUTO83B), from their
    /// moments.
    #[test]
    fn pooled_is_as_nist_has_it() {
        let made = |n: usize, mean: f64, deviation: f64| {
            let shape: Vec<f64> = (0..n).map(|at| ((at * 37) % n) as f64).collect();
            let shape = Sample::of(&shape).unwrap();
            let fit = |value| mean + (value - shape.mean()) / shape.deviation() * deviation;
            Sample::of(&shape.values().iter().map(fit).collect::<Vec<_>>()).unwrap()
        };
        let usa = made(249, 20.14458, 6.41470);
        let japan = made(79, 30.48101, 6.10771);
        let found = pooled(&usa, &japan, 0.95).unwrap();
        assert_eq!(found.freedom, 326.0);
        assert_near(found.deviation, 6.34260, 5e-6);
        assert_near(found.difference / found.error, 12.62059, 5e-5);
        let found = welch(&usa, &japan, 0.95).unwrap();
        assert_near(found.difference / found.error, 12.94627, 5e-5);
        assert_near(found.freedom, 136.8750, 5e-4);
    }

    /// R's result of `power.t.test(delta = 1, sd = 1, power = 0.9)`: n = 22.02110. The formula here
    /// ignores the noncentral t, which costs less than 0.2%.
    #[test]
    fn the_smallest_detectable_difference_has_the_required_power() {
        let n = 22.02110_f64;
        let of = Difference::new(0.0, (2.0 / n).sqrt(), 1.0, 2.0 * n - 2.0, 2.0);
        assert_near(smallest_detectable(&of, 0.95, 0.9).unwrap(), 1.0, 2e-3);
    }

    #[test]
    fn too_little_proves_nothing() {
        let [one, two] = [[1.0].as_slice(), &[2.0, 2.0]].map(|values| Sample::of(values).unwrap());
        assert_eq!(pooled(&one, &two, 0.95), None);
        assert_eq!(welch(&one, &two, 0.95), None);
        assert_eq!(welch(&two, &two, 0.95), None, "no spread, so no degrees of freedom");
        assert_eq!(paired(&one, 0.95), None);
    }

    #[test]
    fn nothing_varies_so_any_difference_is_one() {
        let [base, head] = [[1.0; 3], [2.0; 3]].map(|values| Sample::of(&values).unwrap());
        assert!(pooled(&base, &head, 0.95).unwrap().is_proven());
        assert!(!pooled(&base, &base, 0.95).unwrap().is_proven());
    }

    #[test]
    fn pairs_are_compared_by_their_ratio() {
        let base = [100.0, 200.0, 50.0, 80.0];
        let head = base.map(|rate| rate * 1.1);
        let (mean, [low, high]) = paired_percent(&base, &head, 0.95);
        assert!(
            (mean - 10.0).abs() < 1e-9 && (low - 10.0).abs() < 1e-6 && (high - 10.0).abs() < 1e-6
        );
        let (mean, [low, high]) =
            paired_percent(&[100.0, 100.0, 100.0], &[200.0, 50.0, 100.0], 0.95);
        assert!(mean.abs() < 1e-9 && low < 0.0 && high > 0.0);
        assert_eq!(paired_percent(&[1.0], &[2.0], 0.95).1, [f64::NEG_INFINITY, f64::INFINITY]);
    }
}
