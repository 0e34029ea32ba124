//! Distributions for significance tests.

use std::f64::consts::PI;

/// The most steps; a series or a fraction has converged long before.
const STEPS: usize = 10_000;

/// The quantile of Student's t; of the normal distribution for infinite degrees of freedom. `None`
/// if there is no such distribution, or the share is not between 0 and 1.
pub(super) fn quantile(share: f64, freedom: f64) -> Option<f64> {
    if !(share > 0.0 && share < 1.0 && freedom > 0.0) {
        return None;
    }
    if share < 0.5 {
        return quantile(1.0 - share, freedom).map(|value| -value);
    }
    let below = |t| if freedom.is_infinite() { normal(t) } else { student(t, freedom) };
    let mut high = 1.0;
    while below(high) < share && high < 1e300 {
        high *= 2.0;
    }
    let mut low = 0.0;
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            return Some(middle);
        }
        if below(middle) < share { low = middle } else { high = middle }
    }
}

/// The share of the normal distribution below a value (Marsaglia 2004).
pub(super) fn normal(z: f64) -> f64 {
    // Far from the middle the series cancels out, and the result is 0 or 1 anyway.
    if z.abs() > 8.0 {
        return if z > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum) = (z, z);
    for step in 1..STEPS {
        term *= z * z / (2 * step + 1) as f64;
        let next = sum + term;
        if next == sum {
            break;
        }
        sum = next;
    }
    0.5 + sum * (-z * z / 2.0).exp() / (2.0 * PI).sqrt()
}

/// The share of Student's t below a value.
fn student(t: f64, freedom: f64) -> f64 {
    let tail = beta(freedom / (freedom + t * t), freedom / 2.0, 0.5) / 2.0;
    if t > 0.0 { 1.0 - tail } else { tail }
}

/// The regularised incomplete beta function, from its continued fraction on the side with fast
/// convergence.
fn beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = a * x.ln() + b * (-x).ln_1p() - ln_gamma(a) - ln_gamma(b) + ln_gamma(a + b);
    let front = front.exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(x, a, b) / a
    } else {
        1.0 - front * fraction(1.0 - x, b, a) / b
    }
}

/// The fraction of [`beta`], with Lentz's method.
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    let nonzero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut upper = 1.0;
    let mut lower = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let mut value = lower;
    for step in 1..STEPS {
        let m = step as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = value;
        for term in [even, odd] {
            lower = 1.0 / nonzero(1.0 + term * lower);
            upper = nonzero(1.0 + term / upper);
            value *= lower * upper;
        }
        if (value / before - 1.0).abs() < 1e-16 {
            break;
        }
    }
    value
}

/// The logarithm of the gamma function of a positive number (Lanczos, g = 7, nine terms).
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return (PI / (PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let terms = TERMS.iter().enumerate().map(|(at, term)| term / (x + (at + 1) as f64));
    let sum: f64 = 0.999_999_999_999_809_9 + terms.sum::<f64>();
    let shifted = x + 7.5;
    (2.0 * PI).sqrt().ln() + (x + 0.5) * shifted.ln() - shifted + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(value: f64, published: f64, exact: f64) {
        assert!((value - published).abs() < exact, "{value} is not {published}");
    }

    /// NIST/SEMATECH e-Handbook 1.3.6.7.2, and beyond.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, row) in [
            (1.0, [3.078, 6.314, 12.706, 31.821, 63.657]),
            (2.0, [1.886, 2.920, 4.303, 6.965, 9.925]),
            (5.0, [1.476, 2.015, 2.571, 3.365, 4.032]),
            (10.0, [1.372, 1.812, 2.228, 2.764, 3.169]),
            (18.0, [1.330, 1.734, 2.101, 2.552, 2.878]),
            (30.0, [1.310, 1.697, 2.042, 2.457, 2.750]),
            (58.0, [1.296, 1.672, 2.002, 2.392, 2.663]),
            (100.0, [1.290, 1.660, 1.984, 2.364, 2.626]),
            (f64::INFINITY, [1.282, 1.645, 1.960, 2.326, 2.576]),
        ] {
            for (share, published) in [0.9, 0.95, 0.975, 0.99, 0.995].into_iter().zip(row) {
                assert_near(quantile(share, freedom).unwrap(), published, 5.01e-4);
            }
        }
    }

    /// Reference values from another package's incomplete beta function and error function.
    #[test]
    fn quantiles_are_those_of_another_package() {
        for share in [0.6, 0.9, 0.95, 0.975, 0.995, 0.9995, 0.999_999] {
            for freedom in [0.5, 1.0, 2.5, 7.0, 17.776, 40.0, 99.0, 326.0, 5000.0] {
                let t = quantile(share, freedom).unwrap();
                let tail = puruspe::betai(freedom / 2.0, 0.5, freedom / (freedom + t * t)) / 2.0;
                assert_near(1.0 - tail, share, 1e-10);
                assert_near(quantile(1.0 - share, freedom).unwrap() / -t, 1.0, 1e-7);
            }
            let z = quantile(share, f64::INFINITY).unwrap();
            assert_near(1.0 - puruspe::erfc(z / 2.0_f64.sqrt()) / 2.0, share, 1e-10);
        }
        for z in [-9.0, -7.5, -3.0, -0.1, 0.0, 0.5, 2.0, 6.0, 7.9, 8.1] {
            assert_near(normal(z), puruspe::erfc(-z / 2.0_f64.sqrt()) / 2.0, 1e-12);
        }
    }

    #[test]
    fn there_is_no_quantile_beyond_the_ends() {
        for (share, freedom) in
            [(0.0, 5.0), (1.0, 5.0), (f64::NAN, 5.0), (0.9, 0.0), (0.9, f64::NAN)]
        {
            assert_eq!(quantile(share, freedom), None);
        }
        assert_eq!(quantile(0.5, 3.0).map(|middle| middle < 1e-300), Some(true));
    }
}
