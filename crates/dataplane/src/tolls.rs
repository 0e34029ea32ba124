//! The tolls: what each stage costs a packet, sampled while packets flow.
//!
//! The path times one burst in [`SAMPLE_EVERY`] packets, stage by stage. The timed path and the plain
//! one are the same function, compiled twice.

use crate::burst::Lanes;
use crate::clock;
use crate::stages::Stage;

/// Packets between two samples: one full burst in 64, smaller bursts less often, because reading the
/// clock costs the same for a burst of one as for 64.
pub const SAMPLE_EVERY: u32 = 64 * 64;

/// An upper bound of the clocks that a stage takes for a burst of 64, even with 10,000 rules. A longer
/// time means that something else ran in between, which is not the stage's toll. Unoptimised code takes
/// some ten times as long.
const INTERRUPTED: u64 = if cfg!(debug_assertions) { 1 << 21 } else { 1 << 17 };

/// The sum of one stage's samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toll {
    /// Clocks, including the cost of reading the clock (see [`Tolls::clock_cost`]).
    pub clocks: u64,
    /// Packets that went into the stage.
    pub packets: u64,
    /// Bursts that were timed.
    pub bursts: u64,
}

/// The tolls of one worker.
#[derive(Clone, Debug)]
pub struct Tolls {
    stages: [Toll; Stage::COUNT],
    /// Packets until the next sample.
    credit: u32,
    /// Whether to sample ([`Tolls::switch`]).
    on: bool,
    clock_cost: f64,
}

impl Tolls {
    /// Creates tolls without samples.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stages: Default::default(),
            credit: SAMPLE_EVERY,
            on: true,
            clock_cost: clock_cost(),
        }
    }

    /// Turns sampling on or off.
    pub fn switch(&mut self, on: bool) {
        self.on = on;
    }

    /// Says whether this burst of `packets` is to be timed.
    #[inline(always)]
    pub fn due(&mut self, packets: usize) -> bool {
        let spent = packets as u32;
        if self.credit > spent {
            self.credit -= spent;
            return false;
        }
        self.credit = SAMPLE_EVERY;
        self.on
    }

    /// Adds the samples of another worker.
    pub fn add(&mut self, other: &Self) {
        // The processors' clocks may cost differently; afterwards all samples include this worker's cost.
        let more = self.clock_cost - other.clock_cost;
        for (own, other) in self.stages.iter_mut().zip(&other.stages) {
            let clocks = other.clocks as f64 + other.bursts as f64 * more;
            own.clocks += clocks.round() as u64;
            own.packets += other.packets;
            own.bursts += other.bursts;
        }
    }

    /// The samples of a stage.
    #[must_use]
    pub const fn of(&self, stage: Stage) -> Toll {
        self.stages[stage as usize]
    }

    /// Clocks that one reading of the clock adds to a stage.
    #[must_use]
    pub const fn clock_cost(&self) -> f64 {
        self.clock_cost
    }

    /// A stage's clocks per packet that entered it, without the cost of the clock; none without
    /// samples.
    #[must_use]
    pub fn per_packet(&self, stage: Stage) -> Option<f64> {
        let toll = self.of(stage);
        let clocks = toll.clocks as f64 - toll.bursts as f64 * self.clock_cost;
        (toll.packets > 0).then(|| clocks.max(0.0) / toll.packets as f64)
    }
}

impl Default for Tolls {
    fn default() -> Self {
        Self::new()
    }
}

/// Clocks between two consecutive readings of the clock. It is the mean, because the counter may advance
/// in longer steps. The longest tenth is left out: something interrupted those.
fn clock_cost() -> f64 {
    let mut gaps = [0; 1024];
    for gap in &mut gaps {
        let before = clock::now();
        *gap = clock::now().wrapping_sub(before);
    }
    gaps.sort_unstable();
    let usual = &gaps[..gaps.len() - gaps.len() / 10];
    usual.iter().sum::<u64>() as f64 / usual.len() as f64
}

/// Times the stages of one burst, or does nothing at all if `ON` is false.
pub struct StageTimer<'a, const ON: bool> {
    tolls: &'a mut Tolls,
    last: u64,
}

impl<'a, const ON: bool> StageTimer<'a, ON> {
    /// Starts the clock.
    #[inline(always)]
    pub fn start(tolls: &'a mut Tolls) -> Self {
        Self { tolls, last: if ON { clock::now() } else { 0 } }
    }

    /// Charges the time since the last call to a stage that `lanes` went into.
    #[inline(always)]
    pub fn record(&mut self, stage: Stage, lanes: Lanes) {
        if ON {
            let now = clock::now();
            let clocks = now.wrapping_sub(self.last);
            if clocks < INTERRUPTED {
                let toll = &mut self.tolls.stages[stage as usize];
                toll.clocks += clocks;
                toll.packets += lanes.count() as u64;
                toll.bursts += 1;
            }
            self.last = clock::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolls(clock_cost: f64, route: Toll) -> Tolls {
        let mut tolls = Tolls { clock_cost, ..Tolls::new() };
        tolls.stages[Stage::Route as usize] = route;
        tolls
    }

    #[test]
    fn the_toll_of_several_workers_is_that_of_their_packets() {
        // 10 clocks a packet at one, 40 at the other, without the cost of the clock.
        let mut one = tolls(20.0, Toll { clocks: 3000 + 100, packets: 300, bursts: 5 });
        let other = tolls(25.5, Toll { clocks: 4000 + 51, packets: 100, bursts: 2 });
        assert_eq!(one.per_packet(Stage::Route), Some(10.0));
        assert_eq!(other.per_packet(Stage::Route), Some(40.0));
        one.add(&other);
        assert_eq!(one.of(Stage::Route), Toll { clocks: 7140, packets: 400, bursts: 7 });
        assert_eq!(one.per_packet(Stage::Route), Some(7000.0 / 400.0));
        assert_eq!(one.per_packet(Stage::Admit), None);
        one.add(&Tolls::new());
        assert_eq!(one.of(Stage::Route).packets, 400);
    }
}
