use super::*;
use crate::frames::Xorshift;

/// The noise of measurements, simulated from a seed. The processes of a pair differ by some 0.04 ns,
/// now and then by several ns. Both drift, and now and then run at half speed.
struct Noise(Xorshift);

impl Noise {
    fn new(seed: u64) -> Self {
        let mut rng = Xorshift::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..8 {
            rng.next();
        }
        Self(rng)
    }

    /// Uniform from 0 to 1.
    fn even(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Approximately normal.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.even()).sum::<f64>() - 6.0
    }

    fn pair(&mut self, ns: f64, delay: f64) -> Pair {
        let speed = if self.even() < 0.05 { 2.0 } else { 1.0 + self.even() * 0.02 };
        let mut difference = delay + 0.04 * self.normal();
        if self.even() < 0.05 {
            difference += 3.0 * self.normal();
        }
        let base = ns * speed + 0.04 * self.normal();
        Pair { base, head: base + difference, difference }
    }

    fn run(&mut self, pairs: usize, delay: f64) -> Judgement {
        let pairs: Vec<_> = (0..pairs).map(|_| self.pair(5.5, delay)).collect();
        evaluate(&pairs, 1).unwrap()
    }
}

/// How many of `runs` runs report this verdict.
fn runs_with(runs: u64, pairs: usize, delay: f64, verdict: Verdict) -> u64 {
    let verdict_of = |seed| Noise::new(seed).run(pairs, delay).verdict;
    (0..runs).filter(|seed| verdict_of(*seed) == verdict).count() as u64
}

#[test]
fn no_difference_is_reported_where_there_is_none() {
    assert_eq!(runs_with(100, 25, 0.0, Verdict::BelowAccuracy), 100);
    assert_eq!(runs_with(100, 8, 0.0, Verdict::BelowAccuracy), 100);
}

#[test]
fn two_ns_are_found_whatever_the_noise() {
    assert_eq!(runs_with(50, 25, 2.0, Verdict::Slower), 50);
    assert_eq!(runs_with(50, 25, -2.0, Verdict::Faster), 50);
    let short = runs_with(100, 8, 2.0, Verdict::Slower);
    assert!(short >= 80, "{short} of 100 with eight pairs");
}

/// Without a floor, the tests alone keep their promised error level of 1%.
#[test]
fn the_tests_alone_err_once_in_a_hundred_runs() {
    let is_wrong = |seed: u64| {
        let mut noise = Noise::new(seed);
        let differences: Vec<_> = (0..25).map(|_| noise.pair(5.5, 0.0).difference).collect();
        stats::signed_rank(&differences) <= LEVEL
    };
    let errors = (0..4000).filter(|seed| is_wrong(*seed)).count();
    assert!((15..70).contains(&errors), "{errors} of 4000");
}

/// Runs find the smallest detectable difference as often as they promise.
#[test]
fn the_smallest_detectable_difference_is_found_nine_times_of_ten() {
    let least: Vec<_> =
        (0..40).map(|seed| Noise::new(seed).run(25, 0.0).smallest_detectable_ns.unwrap()).collect();
    let least = Sample::of(&least).unwrap().median();
    assert!((0.08..0.12).contains(&least), "{least:.3} ns, of which the floor is 0.055");
    let found = runs_with(200, 25, least, Verdict::Slower);
    assert!((160..200).contains(&found), "{found} of 200 find {least:.3} ns");
}

#[test]
fn differences_under_the_floor_are_not_reported_however_sure() {
    let pair = |at: i32| Pair { base: 10.0, head: 10.05, difference: 0.05 + f64::from(at) * 1e-6 };
    let pairs: Vec<_> = (0..30).map(pair).collect();
    let of = evaluate(&pairs, 1).unwrap();
    assert_eq!((of.verdict, of.floor_ns), (Verdict::BelowAccuracy, 0.1));
    assert!(of.signed_rank_p < 1e-6 && of.interval_ns[0] > 0.0);
    assert!(of.smallest_detectable_ns.unwrap() > 0.1);
}

#[test]
fn more_rows_need_more_pairs() {
    assert_eq!([1, 2, 9, 100].map(least_pairs), [8, 9, 11, 15]);
    let pair = |at| Pair { base: 5.5, head: 7.5, difference: 2.0 + f64::from(at) * 0.01 };
    let pairs: Vec<_> = (0..8).map(pair).collect();
    let [alone, among] = [1, 9].map(|rows| evaluate(&pairs, rows).unwrap());
    assert_eq!((alone.verdict, among.verdict), (Verdict::Slower, Verdict::BelowAccuracy));
    assert!(among.strict_interval_ns[0] <= alone.strict_interval_ns[0]);
    // A difference that no run could have proven is not reported as detectable.
    assert!(alone.smallest_detectable_ns.is_some() && among.smallest_detectable_ns.is_none());
}

#[test]
fn two_pairs_prove_nothing() {
    let pair = Pair { base: 1.0, head: 1.0, difference: 0.0 };
    assert_eq!(evaluate(&[pair; 2], 1), None);
    let alike = evaluate(&[pair; 3], 1).unwrap();
    assert_eq!((alike.verdict, alike.welch), (Verdict::BelowAccuracy, None));
}

#[test]
fn the_same_pairs_give_the_same_verdict() {
    assert_eq!(Noise::new(3).run(10, 0.1), Noise::new(3).run(10, 0.1));
}
