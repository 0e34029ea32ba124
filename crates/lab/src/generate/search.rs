//! Searches for the highest rate with no more than a given loss: NDR and PDR.
//!
//! RFC 2544 (26.1) requires the highest rate without loss, and RFC 9004 a search that ends. This
//! search halves the ratio of two neighbouring rates (in logarithms) until both ends are as close
//! as requested. For each ratio of loss, from largest to smallest, it starts with short trials and
//! continues with whole ones from the result of the short ones. This is the method of MLRsearch, in
//! bounded time.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Error;

/// A whole trial is this many times as long as a short one.
const SHORT: u32 = 4;
/// The lowest rate of a search, frames per second.
const LEAST_PPS: f64 = 100.0;
/// A trial proves nothing about a rate if the sender reached less than this share of it.
const KEPT: f64 = 0.97;
/// A trial also proves nothing if its sender had no processor for more than this share of the time.
const MOST_OFF_CPU: f64 = 0.5;
/// Attempts of such a trial before it counts as the sender's own limit.
const AGAIN: usize = 3;
/// The least factor by which an unproven end of the range moves.
const STRIDE: f64 = 1.1;

/// The result of one trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Number of frames sent.
    pub sent: u64,
    /// Number of these that arrived.
    pub received: u64,
    /// Rate of sending in frames per second, while the sender had its processor.
    pub sent_pps: f64,
    /// The share of the time in which it had none.
    pub off_cpu: f64,
    /// Latency of the frames, ns.
    pub latency: Histogram<u64>,
}

impl Trial {
    /// The share of lost frames.
    #[must_use]
    pub fn loss(&self) -> f64 {
        match self.sent {
            0 => 1.0,
            sent => sent.saturating_sub(self.received) as f64 / sent as f64,
        }
    }
}

/// The path under test: it takes frames at a rate, and some arrive.
pub trait Path {
    /// Sends for `time` at a rate, or as fast as possible.
    ///
    /// # Errors
    /// The system refuses.
    fn trial(&mut self, pps: Option<f64>, time: Duration) -> Result<Trial, Error>;
}

/// Parameters of a search.
#[derive(Clone, Debug)]
pub struct Options {
    /// Duration of a trial.
    pub trial: Duration,
    /// Time limit of all trials of one frame size, except the last trial of each ratio.
    pub within: Duration,
    /// Allowed ratios of loss, such as 0 and 0.005.
    pub losses: Vec<f64>,
    /// How close the highest passing and the lowest failing rate must be, as a share.
    pub precision: f64,
    /// The highest rate to try; `None` for the sender's maximum.
    pub most_pps: Option<f64>,
}

impl Options {
    /// Refuses what is impossible.
    ///
    /// # Errors
    /// A ratio, the trial time or the precision is impossible.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.losses.is_empty() || self.losses.iter().any(|loss| !(0.0..1.0).contains(loss)) {
            let remedy = "Say --loss with shares from 0 to less than 1, such as 0 and 0.005";
            return Err(Error::usage("the ratio of loss is out of range", remedy));
        }
        if self.trial.is_zero() || self.within < self.trial {
            let what = "the time is too short for one trial";
            return Err(Error::usage(what, "Say a longer --within, or a shorter --trial"));
        }
        if !(1e-4..=0.5).contains(&self.precision) {
            return Err(Error::usage(
                "the precision is out of range",
                "Say --precision with a share from 0.0001 to 0.5",
            ));
        }
        if self.most_pps.is_some_and(|pps| pps < LEAST_PPS) {
            let remedy = format!("Say --most with {LEAST_PPS} frames a second or more");
            return Err(Error::usage("the highest rate to try is too low", remedy));
        }
        Ok(())
    }
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct SearchResult {
    /// The allowed ratio of loss.
    pub allowed: f64,
    /// The highest passing rate, frames per second; 0 if none passed.
    pub pps: f64,
    /// The lowest failing rate above it.
    pub too_much_pps: f64,
    /// The trial at the passing rate.
    pub trial: Option<Trial>,
    /// Whether the limit is the sender's own, or the configured one, and not the path's.
    pub is_senders_limit: bool,
    /// Whether the time was sufficient. If not, the rate may rest on short trials only.
    pub is_precise: bool,
    /// Number of trials.
    pub trials: usize,
}

/// Searches the rates of all ratios, returned in the order of the options.
///
/// # Errors
/// A ratio, the trial time or the precision is impossible, or a trial fails.
pub fn search(path: &mut dyn Path, options: &Options) -> Result<Vec<SearchResult>, Error> {
    options.check()?;
    let end = Instant::now() + options.within;
    let full_speed = path.trial(options.most_pps, options.trial)?;
    let most =
        options.most_pps.unwrap_or(full_speed.sent_pps).min(full_speed.sent_pps).max(LEAST_PPS);
    let arrived = full_speed.sent_pps * (1.0 - full_speed.loss());
    let mut order: Vec<_> = (0..options.losses.len()).collect();
    order.sort_by(|a, b| options.losses[*b].total_cmp(&options.losses[*a]));
    let mut found: Vec<Option<SearchResult>> = vec![None; options.losses.len()];
    // Start from the rate that passes under overload; less loss is found at lower rates.
    let mut start = arrived.clamp(LEAST_PPS, most);
    for (done, index) in order.into_iter().enumerate() {
        // All remaining ratios share the remaining time.
        let left = end.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(options.losses.len() - done).unwrap_or(u32::MAX).max(1);
        let end = Instant::now() + share;
        let mut search =
            LossSearch { path, options, allowed: options.losses[index], end, most, trials: 0 };
        let one = search.run(start)?;
        // If no rate passed, all that is known is one that failed.
        start = if one.pps > 0.0 { one.pps } else { start.min(one.too_much_pps) };
        start = start.clamp(LEAST_PPS, most);
        found[index] = Some(one);
    }
    Ok(found.into_iter().flatten().collect())
}

/// The search for one ratio.
struct LossSearch<'a> {
    path: &'a mut dyn Path,
    options: &'a Options,
    allowed: f64,
    end: Instant,
    most: f64,
    trials: usize,
}

/// The outcome of a trial.
enum Outcome {
    Passes(Trial),
    Fails,
    /// The sender does not reach the rate.
    Beyond,
}

/// Results of the trials of one length.
struct Bounds {
    /// The passing rates in ascending order, with their trials.
    passing: Vec<(f64, Trial)>,
    /// The lowest failing rate.
    high: f64,
    /// Whether that is the sender's own limit.
    is_senders_limit: bool,
    /// The rate to try next.
    next: f64,
}

impl Bounds {
    /// The highest passing rate; 0 if there is none.
    fn low(&self) -> f64 {
        self.passing.last().map_or(0.0, |(pps, _)| *pps)
    }

    /// Whether both ends are as close as `precision`.
    fn is_close(&self, precision: f64) -> bool {
        self.high / self.low().max(LEAST_PPS) <= 1.0 + precision
    }
}

impl LossSearch<'_> {
    fn run(&mut self, start: f64) -> Result<SearchResult, Error> {
        let mut short = self.approach(start, SHORT)?;
        let begin = if short.passing.is_empty() { short.next } else { short.low() };
        let mut whole = self.approach(begin, 1)?;
        let is_precise = whole.is_close(self.options.precision);
        if whole.passing.is_empty() {
            // Time was up before a whole trial passed, so use the short trials at lower rates.
            short.passing.retain(|(pps, _)| *pps < whole.high);
            whole.passing = short.passing;
        } else if whole.high > self.most && short.high > whole.low() {
            (whole.high, whole.is_senders_limit) = (short.high, short.is_senders_limit);
        }
        let low = whole.low();
        Ok(SearchResult {
            allowed: self.allowed,
            pps: low,
            too_much_pps: whole.high,
            trial: whole.passing.pop().map(|(_, trial)| trial),
            is_senders_limit: whole.is_senders_limit,
            is_precise,
            trials: self.trials,
        })
    }

    /// Narrows the range between passing and failing rates with trials of 1/`parts` of a whole one.
    /// Short trials end when time is up; at least one whole trial always runs.
    fn approach(&mut self, start: f64, parts: u32) -> Result<Bounds, Error> {
        let (time, precision) = (self.options.trial / parts, self.options.precision);
        let high = self.most * STRIDE;
        let mut known = Bounds { passing: Vec::new(), high, is_senders_limit: false, next: start };
        let mut stride = 1.0 + precision.max(STRIDE - 1.0) / 4.0;
        let mut must_try = parts == 1;
        while must_try || (!known.is_close(precision) && !self.is_late()) {
            must_try = false;
            let at = known.next;
            match self.attempt(at, time)? {
                Outcome::Passes(trial) => known.passing.push((at, trial)),
                Outcome::Fails => (known.high, known.is_senders_limit) = (at, false),
                Outcome::Beyond => (known.high, known.is_senders_limit) = (at, true),
            }
            if known.low() >= self.most {
                (known.high, known.is_senders_limit) = (self.most, true);
                break;
            }
            if known.high <= LEAST_PPS {
                break;
            }
            let open = (known.passing.is_empty(), known.high > self.most);
            known.next = match open {
                // One end is only a guess: step there, further each time.
                (true, _) => (known.high / stride).max(LEAST_PPS),
                (_, true) => (known.low() * stride).min(self.most),
                _ => (known.low() * known.high).sqrt(),
            };
            if open.0 || open.1 {
                stride *= stride;
            }
        }
        Ok(known)
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.end
    }

    fn attempt(&mut self, pps: f64, time: Duration) -> Result<Outcome, Error> {
        for _ in 0..AGAIN {
            let trial = self.path.trial(Some(pps), time)?;
            self.trials += 1;
            if trial.loss() > self.allowed {
                return Ok(Outcome::Fails);
            }
            if trial.sent_pps >= pps * KEPT && trial.off_cpu <= MOST_OFF_CPU {
                return Ok(Outcome::Passes(trial));
            }
            if self.is_late() {
                break;
            }
        }
        Ok(Outcome::Beyond)
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
