//! The highest rate that gets through with no more than a given loss: NDR and PDR.
//!
//! RFC 2544 (26.1) asks for the highest rate without loss, and RFC 9004 for a search that ends. Here the
//! ratio of two neighbouring rates is halved (in logarithms) until both ends are as close as is wanted,
//! first by short trials, then by whole ones that begin where the short ones ended, for each ratio of loss
//! from the greatest to the least: as MLRsearch does it, in a time that is bounded.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Error;

/// A short trial is that part of a whole one.
const SHORT: u32 = 4;
/// No rate below is looked for, frames a second.
const LEAST_PPS: f64 = 100.0;
/// A trial that was not sent within this share of its rate tells nothing of that rate.
const KEPT: f64 = 0.97;
/// One whose sender was away for more than this share of the time neither.
const AWAY: f64 = 0.5;
/// Such a trial is made again so often before the sender's own limit is believed.
const AGAIN: usize = 3;
/// An end of the range that does not hold is moved by this at least.
const STRIDE: f64 = 1.1;

/// What came of one trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Frames that were sent.
    pub sent: u64,
    /// Of these, those that arrived.
    pub received: u64,
    /// How fast they were sent, frames a second, while the sender had its processor.
    pub sent_pps: f64,
    /// The share of the time that it had not.
    pub away: f64,
    /// How long they took, ns.
    pub latency: Histogram<u64>,
}

impl Trial {
    /// The share that was lost.
    #[must_use]
    pub fn loss(&self) -> f64 {
        match self.sent {
            0 => 1.0,
            sent => sent.saturating_sub(self.received) as f64 / sent as f64,
        }
    }
}

/// What is measured: frames go in at a rate, and some come out.
pub trait Path {
    /// Sends for so long at a rate, or as fast as it goes.
    ///
    /// # Errors
    /// The system refuses.
    fn trial(&mut self, pps: Option<f64>, time: Duration) -> Result<Trial, Error>;
}

/// How it is looked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a trial is.
    pub trial: Duration,
    /// All trials of one size of frames end within this, but for the last of each ratio.
    pub within: Duration,
    /// Ratios of loss that are allowed, such as 0 and 0.005.
    pub losses: Vec<f64>,
    /// How close the rates that hold and that do not have to be, as a share.
    pub precision: f64,
    /// No rate above is tried; none for what the sender can do.
    pub most_pps: Option<f64>,
}

/// A rate that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The ratio of loss that was allowed.
    pub allowed: f64,
    /// The highest rate that held, frames a second; 0 where none did.
    pub pps: f64,
    /// The lowest above it that did not.
    pub too_much_pps: f64,
    /// The trial at that rate.
    pub trial: Option<Trial>,
    /// Whether it is the sender's own limit, or the one that was set, and not the path's.
    pub is_senders: bool,
    /// Whether the time was enough; else short trials may be all that the rate is known by.
    pub is_precise: bool,
    /// Trials made for it.
    pub trials: usize,
}

/// Looks for the rates of all ratios; in the order of the options.
///
/// # Errors
/// A ratio, a trial or a precision that can not be; a trial fails.
pub fn search(path: &mut dyn Path, options: &Options) -> Result<Vec<Found>, Error> {
    check(options)?;
    let end = Instant::now() + options.within;
    let all_out = path.trial(options.most_pps, options.trial)?;
    let most = options.most_pps.unwrap_or(all_out.sent_pps).min(all_out.sent_pps).max(LEAST_PPS);
    let arrived = all_out.sent_pps * (1.0 - all_out.loss());
    let mut order: Vec<_> = (0..options.losses.len()).collect();
    order.sort_by(|a, b| options.losses[*b].total_cmp(&options.losses[*a]));
    let mut found: Vec<Option<Found>> = vec![None; options.losses.len()];
    // What gets through of too much is where to begin; less loss is found at lower rates.
    let mut start = arrived.clamp(LEAST_PPS, most);
    for (done, index) in order.into_iter().enumerate() {
        // What is left is for all that are left.
        let left = end.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(options.losses.len() - done).unwrap_or(u32::MAX).max(1);
        let end = Instant::now() + share;
        let mut hunt = Hunt { path, options, allowed: options.losses[index], end, most, trials: 0 };
        let one = hunt.run(start)?;
        // Where nothing held, what is known is what did not.
        start = if one.pps > 0.0 { one.pps } else { start.min(one.too_much_pps) };
        start = start.clamp(LEAST_PPS, most);
        found[index] = Some(one);
    }
    Ok(found.into_iter().flatten().collect())
}

fn check(options: &Options) -> Result<(), Error> {
    if options.losses.is_empty() || options.losses.iter().any(|loss| !(0.0..1.0).contains(loss)) {
        let remedy = "Say --loss with shares from 0 to less than 1, such as 0 and 0.005";
        return Err(Error::usage("that is no ratio of loss", remedy));
    }
    if options.trial.is_zero() || options.within < options.trial {
        let what = "the time is too short for one trial";
        return Err(Error::usage(what, "Say a longer --within, or a shorter --trial"));
    }
    if !(1e-4..=0.5).contains(&options.precision) {
        return Err(Error::usage(
            "that is no precision",
            "Say --precision with a share from 0.0001 to 0.5",
        ));
    }
    if options.most_pps.is_some_and(|pps| pps < LEAST_PPS) {
        let remedy = format!("Say --most with {LEAST_PPS} frames a second or more");
        return Err(Error::usage("no rate so low is looked for", remedy));
    }
    Ok(())
}

/// The search for one ratio.
struct Hunt<'a> {
    path: &'a mut dyn Path,
    options: &'a Options,
    allowed: f64,
    end: Instant,
    most: f64,
    trials: usize,
}

/// A trial, and whether its loss is allowed.
enum Outcome {
    Holds(Trial),
    Fails,
    /// The sender does not get there.
    Beyond,
}

/// What trials of one length have shown.
struct Bounds {
    /// The rates that held, each above the last one, with their trials.
    held: Vec<(f64, Trial)>,
    /// The lowest rate that did not.
    high: f64,
    /// Whether that is the sender's own limit.
    is_senders: bool,
    /// The rate to try next.
    next: f64,
}

impl Bounds {
    /// The highest rate that held; 0 for none.
    fn low(&self) -> f64 {
        self.held.last().map_or(0.0, |(pps, _)| *pps)
    }

    /// Whether both ends are that close.
    fn is_close(&self, precision: f64) -> bool {
        self.high / self.low().max(LEAST_PPS) <= 1.0 + precision
    }
}

impl Hunt<'_> {
    fn run(&mut self, start: f64) -> Result<Found, Error> {
        let mut short = self.approach(start, SHORT)?;
        let begin = if short.held.is_empty() { short.next } else { short.low() };
        let mut whole = self.approach(begin, 1)?;
        let is_precise = whole.is_close(self.options.precision);
        if whole.held.is_empty() {
            // Time was up before a whole trial held: what short ones say of lower rates is all there is.
            short.held.retain(|(pps, _)| *pps < whole.high);
            whole.held = short.held;
        } else if whole.high > self.most && short.high > whole.low() {
            (whole.high, whole.is_senders) = (short.high, short.is_senders);
        }
        let low = whole.low();
        Ok(Found {
            allowed: self.allowed,
            pps: low,
            too_much_pps: whole.high,
            trial: whole.held.pop().map(|(_, trial)| trial),
            is_senders: whole.is_senders,
            is_precise,
            trials: self.trials,
        })
    }

    /// Brings the rates that hold and that do not close together, by trials of so many parts of a whole one.
    /// Short ones end when time is up; of whole ones there is one in any case.
    fn approach(&mut self, start: f64, parts: u32) -> Result<Bounds, Error> {
        let (time, precision) = (self.options.trial / parts, self.options.precision);
        let high = self.most * STRIDE;
        let mut known = Bounds { held: Vec::new(), high, is_senders: false, next: start };
        let mut stride = 1.0 + precision.max(STRIDE - 1.0) / 4.0;
        let mut owed = parts == 1;
        while owed || (!known.is_close(precision) && !self.is_late()) {
            owed = false;
            let at = known.next;
            match self.attempt(at, time)? {
                Outcome::Holds(trial) => known.held.push((at, trial)),
                Outcome::Fails => (known.high, known.is_senders) = (at, false),
                Outcome::Beyond => (known.high, known.is_senders) = (at, true),
            }
            if known.low() >= self.most {
                (known.high, known.is_senders) = (self.most, true);
                break;
            }
            if known.high <= LEAST_PPS {
                break;
            }
            let open = (known.held.is_empty(), known.high > self.most);
            known.next = match open {
                // One end is only guessed: step there, further each time.
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
            if trial.sent_pps >= pps * KEPT && trial.away <= AWAY {
                return Ok(Outcome::Holds(trial));
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
