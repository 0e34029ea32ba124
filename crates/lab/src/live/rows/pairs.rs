//! Measurements of the kernel and of Tollway in turn.

use serde::Serialize;

use crate::stats::Summary;

/// A router to measure, between whoever sends and whoever receives.
pub(super) trait Side {
    /// Measures once, in the row's unit.
    fn rate(&self) -> Result<f64, String>;

    /// The machine's processor time for a byte of the last measurement, ns: through the router, and without one; none if
    /// the row does not measure that.
    fn processor_ns(&self) -> Option<[f64; 2]> {
        None
    }

    /// Lets a Tollway get used to the traffic.
    fn warm_up(&self) -> Result<(), String> {
        self.rate().map(|_| ())
    }
}

/// The rates of both routers, pair by pair.
pub(super) struct Pairs {
    pub(super) kernel: Vec<f64>,
    pub(super) tollway: Vec<f64>,
    /// Of each measurement that has them.
    pub(super) processor: Vec<ProcessorTimes>,
}

/// The machine's processor time for a byte, ns, in a pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorTimes {
    pub(super) kernel: f64,
    pub(super) tollway: f64,
    /// Without a router.
    pub(super) direct: f64,
}

impl ProcessorTimes {
    /// The medians of all pairs; none without pairs.
    pub(super) fn median(all: &[Self]) -> Option<Self> {
        let median = |of: fn(&Self) -> f64| {
            let values: Vec<_> = all.iter().map(of).collect();
            Summary::of(&values).map(|summary| summary.median)
        };
        Some(Self {
            kernel: median(|times| times.kernel)?,
            tollway: median(|times| times.tollway)?,
            direct: median(|times| times.direct)?,
        })
    }

    /// What the router takes of it, Tollway's divided by the kernel's.
    pub(super) fn ratio(self) -> f64 {
        (self.tollway - self.direct) / (self.kernel - self.direct)
    }
}

/// What both routers let through.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    /// By the kernel, in the row's unit.
    pub kernel: Summary,
    /// By Tollway, in the row's unit.
    pub tollway: Summary,
    /// Tollway's rate divided by the kernel's, pair by pair.
    pub ratio: Summary,
}

impl Pairs {
    /// The summary; `factor` scales the ratio.
    pub(super) fn rates(&self, factor: f64) -> Rates {
        let ratios = self.kernel.iter().zip(&self.tollway);
        let ratios: Vec<_> = ratios.map(|(kernel, tollway)| factor * tollway / kernel).collect();
        let [kernel, tollway, ratio] = [&self.kernel, &self.tollway, &ratios]
            .map(|values| Summary::of(values).unwrap_or_default());
        Rates { kernel, tollway, ratio }
    }
}

/// Measures both in turn, so many times.
pub(super) fn in_turn(
    kernel: &dyn Side,
    tollway: &dyn Side,
    pairs: usize,
    step: &dyn Fn(),
) -> Result<Pairs, String> {
    let mut measured = Pairs { kernel: Vec::new(), tollway: Vec::new(), processor: Vec::new() };
    for pair in 0..pairs {
        let mut rates = [0.0; 2];
        // Each comes first equally often, so that disturbances of the machine favour neither.
        for turn in [pair % 2, 1 - pair % 2] {
            rates[turn] = [kernel, tollway][turn].rate()?;
        }
        // Nothing can be divided by nothing.
        if rates[0] <= 0.0 {
            return Err("nothing gets through the kernel".to_owned());
        }
        measured.kernel.push(rates[0]);
        measured.tollway.push(rates[1]);
        let times = kernel.processor_ns().zip(tollway.processor_ns());
        measured.processor.extend(times.map(|(kernel, tollway)| ProcessorTimes {
            kernel: kernel[0],
            tollway: tollway[0],
            direct: f64::midpoint(kernel[1], tollway[1]),
        }));
        step();
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    struct Recorder<'a> {
        name: char,
        rate: Cell<f64>,
        order: &'a RefCell<String>,
    }

    impl Side for Recorder<'_> {
        fn rate(&self) -> Result<f64, String> {
            self.order.borrow_mut().push(self.name);
            self.rate.set(self.rate.get() + 1.0);
            Ok(self.rate.get())
        }
    }

    #[test]
    fn each_comes_first_equally_often_and_pairs_stay_together() {
        let order = RefCell::new(String::new());
        let side = |name, rate| Recorder { name, rate: Cell::new(rate), order: &order };
        let steps = Cell::new(0);
        let step = || steps.set(steps.get() + 1);
        let pairs = in_turn(&side('k', 0.0), &side('t', 9.0), 4, &step).unwrap();
        assert_eq!((order.borrow().as_str(), steps.get()), ("kttkkttk", 4));
        assert_eq!(pairs.kernel, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(pairs.tollway, [10.0, 11.0, 12.0, 13.0]);
        let rates = pairs.rates(100.0);
        assert_eq!((rates.ratio.min, rates.ratio.max), (325.0, 1000.0));
        assert!((rates.ratio.median - (550.0 + 400.0) / 2.0).abs() < 1e-9);
        assert!((rates.kernel.median, rates.tollway.median) == (2.5, 11.5));
    }

    #[test]
    fn a_kernel_without_traffic_is_an_error_and_a_tollway_without_is_zero() {
        let order = RefCell::new(String::new());
        let side = |name, rate| Recorder { name, rate: Cell::new(rate), order: &order };
        let (silent, lively) = (|| side('s', -1.0), || side('l', 4.0));
        let pairs = in_turn(&lively(), &silent(), 1, &|| ()).unwrap();
        assert_eq!(pairs.rates(1.0).ratio.max, 0.0);
        assert!(in_turn(&silent(), &lively(), 1, &|| ()).is_err());
    }
}
