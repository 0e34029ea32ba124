//! RFC 2544 throughput over two devices: for each frame size, the rates without loss and with
//! little loss.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;

use super::plan::{Plan, Spec};
use super::port::{DRAIN, Sent, Task};
use super::search::{Options, Path, SearchResult, Trial, search};
use super::sink::percentiles;
use super::track::Wanted;
use super::{Error, Traffic, any_run, xdp};
use crate::machine::Machine;
use crate::report::Report;
use crate::text::{align, figure, heading, plain_table, trimmed};

/// Frame sizes of RFC 2544, 9.1, with check sequence.
pub const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// Time for frames in flight after a trial (RFC 2544, 23).
const RESIDUAL: Duration = Duration::from_secs(2);

/// A rate for one frame size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Bytes of a frame, with check sequence.
    pub size: usize,
    /// The allowed share of loss; 0 for NDR.
    pub allowed_loss_ratio: f64,
    /// The highest passing rate, million frames per second.
    pub mpps: f64,
    /// The same rate on the wire in Gbit/s, with preamble and gap.
    pub wire_gbps: f64,
    /// The lowest failing rate above it.
    pub too_much_mpps: f64,
    /// The share of lost frames at the passing rate.
    pub loss_ratio: Option<f64>,
    /// Latency at that rate in microseconds: median, 99th percentile, maximum.
    pub latency_us: Option<[f64; 3]>,
    /// Whether the sender reached its maximum, so that the path may be capable of more.
    pub is_senders_limit: bool,
    /// Whether the time was sufficient for the requested precision.
    pub is_precise: bool,
    /// Number of trials.
    pub trials: usize,
}

/// A path between two devices: the generator's BPF program sends from one, a sink counts at the
/// other.
struct Wire<'a> {
    device: &'a str,
    sink: xdp::Sink,
    plan: Plan,
    load: (usize, usize, usize),
    run: u8,
    stop: &'a AtomicBool,
}

impl Path for Wire<'_> {
    fn trial(&mut self, pps: Option<f64>, time: Duration) -> Result<Trial, Error> {
        if super::load::is_over(self.stop) {
            return Err(Error::failed("it was stopped", "Run it again for its result"));
        }
        let (threads, first_cpu, burst) = self.load;
        let pps = pps.map(|pps| pps / threads as f64);
        let task = Task { pps, count: None, time: Some(time), burst };
        // Start a new run and count only that: late frames of the last run do not belong to it.
        self.run = self.run.wrapping_add(1);
        self.sink.want(self.run)?;
        let (before, known) = (self.sink.counts()?, self.sink.latency()?);
        let load = |stream| {
            xdp::Stream::load(self.device, &self.plan, (self.run, stream as u8), task, false)
        };
        let streams = (0..threads).map(load).collect::<Result<_, _>>()?;
        let sent = xdp::send_all(streams, first_cpu, self.stop)?;
        let frames = sent.iter().map(|sent| sent.frames).sum();
        let look = || Ok(self.sink.counts()?.since(&before).arrived());
        let received = wait_for_arrivals(look, frames, DRAIN)?;
        let mut latency = self.sink.latency()?;
        // The histogram contains all of the earlier values, so the subtraction cannot fail.
        let _ = latency.subtract(&known);
        Ok(Trial {
            sent: frames,
            received,
            sent_pps: sent.iter().map(Sent::offered_pps).sum(),
            off_cpu: sent.iter().map(Sent::off_cpu).fold(0.0, f64::max),
            latency,
        })
    }
}

/// Polls until all frames have arrived, or no more arrive for a while. Returns the number of
/// frames.
fn wait_for_arrivals(
    mut look: impl FnMut() -> Result<u64, Error>,
    sent: u64,
    step: Duration,
) -> Result<u64, Error> {
    let mut last = 0;
    for _ in 0..(RESIDUAL.as_nanos() / step.as_nanos().max(1)) {
        std::thread::sleep(step);
        let arrived = look()?;
        // If none has arrived, the path may simply be long.
        if arrived >= sent || (arrived > 0 && arrived == last) {
            return Ok(arrived);
        }
        last = arrived;
    }
    look()
}

/// Devices, and parameters of the sender.
#[derive(Clone, Copy, Debug)]
pub struct Between<'a> {
    /// The sending device.
    pub device: &'a str,
    /// Its MTU.
    pub mtu: u16,
    /// The receiving device.
    pub sink: &'a str,
    /// Number of sending threads.
    pub threads: usize,
    /// The processor of the first thread.
    pub first_cpu: usize,
    /// Frames per transmit call.
    pub burst: usize,
}

/// Searches the rates of all sizes in the specification, one after the other.
///
/// # Errors
/// The request is wrong, the system refuses, or no frame arrives.
pub fn run(
    spec: &Spec,
    between: Between<'_>,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Report<Row>, Error> {
    options.check()?;
    can_be_sent(spec, between)?;
    let mut report = Report::new(Machine::probe(), Vec::new());
    for (size, _) in &spec.sizes {
        let plan = Plan::new(&Spec { sizes: vec![(*size, 1)], ..spec.clone() })?;
        let run = any_run();
        let wire_bytes = plan.wire_bytes();
        let sink = xdp::Sink::attach(between.sink, Wanted::Run(run), 1)?;
        let load = (between.threads, between.first_cpu, between.burst);
        let mut wire = Wire { device: between.device, sink, plan, load, run, stop };
        arrives(&mut wire, between)?;
        for found in search(&mut wire, options)? {
            report.rows.push(row(*size, wire_bytes, &found));
        }
    }
    Ok(report)
}

/// Checks all sizes first: a refusal in the middle would discard the rates already measured.
fn can_be_sent(spec: &Spec, between: Between<'_>) -> Result<(), Error> {
    spec.sizes.iter().try_for_each(|(size, _)| {
        // A frame's length does not depend on its flow.
        let one = Spec { sizes: vec![(*size, 1)], flows: Some(1), ..spec.clone() };
        Traffic::Generated(Plan::new(&one)?).fits(between.device, between.mtu, true)
    })
}

/// Sends a few frames first: if none arrives, a search is pointless.
fn arrives(wire: &mut Wire<'_>, between: Between<'_>) -> Result<(), Error> {
    let trial = wire.trial(Some(10_000.0), Duration::from_millis(100))?;
    if trial.received > 0 {
        return Ok(());
    }
    let what = format!(
        "of {} frames that {} sent none came to {}",
        trial.sent, between.device, between.sink
    );
    Err(Error::failed(
        what,
        "Look whether -m is the router's address, and whether it has a route and a neighbour for -d",
    ))
}

fn row(size: usize, wire_bytes: f64, found: &SearchResult) -> Row {
    let latency = found.trial.as_ref().map(|trial| percentiles(&trial.latency));
    let latency = latency.filter(|latency| !latency.is_empty()).map(|latency| {
        ["latency_p50_us", "latency_p99_us", "latency_max_us"].map(|name| latency[name])
    });
    Row {
        size,
        allowed_loss_ratio: found.allowed,
        mpps: found.pps / 1e6,
        wire_gbps: found.pps * wire_bytes * 8.0 / 1e9,
        too_much_mpps: found.too_much_pps / 1e6,
        loss_ratio: found.trial.as_ref().map(Trial::loss),
        latency_us: latency,
        is_senders_limit: found.is_senders_limit,
        is_precise: found.is_precise,
        trials: found.trials,
    }
}

/// The rates as a table.
#[must_use]
pub fn render(report: &Report<Row>) -> String {
    let header =
        ["bytes", "loss allowed", "Mpps", "Gbit/s", "lost", "p50 us", "p99 us", "max us", "limit"];
    let mut table = plain_table(&header);
    for row in &report.rows {
        let latency = |index: usize| row.latency_us.map_or("-".to_owned(), |us| figure(us[index]));
        let limit = match (row.is_senders_limit, row.is_precise) {
            (true, _) => "the sender's".to_owned(),
            (_, true) => format!("below {:.3}", row.too_much_mpps),
            _ => format!("below {:.3}, time was up", row.too_much_mpps),
        };
        let name = if row.allowed_loss_ratio == 0.0 {
            "none (NDR)".to_owned()
        } else {
            format!("{}%", row.allowed_loss_ratio * 100.0)
        };
        table.add_row([
            row.size.to_string(),
            name,
            format!("{:.3}", row.mpps),
            format!("{:.3}", row.wire_gbps),
            row.loss_ratio.map_or("-".to_owned(), |loss| format!("{loss:.5}")),
            latency(0),
            latency(1),
            latency(2),
            limit,
        ]);
    }
    align(&mut table, 2..=7);
    format!("{}{}\n", heading(report), trimmed(&table))
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::spec;
    use super::*;

    #[test]
    fn all_sizes_are_looked_at_before_one_is_measured() {
        // A missing device would be found only when the first size is measured.
        let between =
            Between { device: "a0", mtu: 1400, sink: "?", threads: 1, first_cpu: 0, burst: 1 };
        let time = Duration::from_millis(1);
        let options = Options {
            trial: time,
            within: time,
            losses: vec![0.0],
            precision: 0.1,
            most_pps: None,
        };
        for (last, about) in [(9000, "cannot send a frame of 9000 bytes"), (1518, "MTU is 1400")] {
            let spec = Spec { sizes: vec![(64, 1), (last, 1)], ..spec() };
            let error = run(&spec, between, &options, &AtomicBool::new(false)).unwrap_err();
            assert!(error.usage && error.what.contains(about), "{error}");
        }
    }

    /// Feeds growing counts to `wait_for_arrivals`. Returns its result and the number of polls.
    fn arrivals(sent: u64, counts: &[u64]) -> (u64, usize) {
        let mut looks = 0;
        let look = || {
            looks += 1;
            Ok(counts.get(looks - 1).or(counts.last()).copied().unwrap_or(0))
        };
        let arrived = wait_for_arrivals(look, sent, RESIDUAL / 200).unwrap();
        (arrived, looks)
    }

    #[test]
    fn late_frames_are_waited_for() {
        assert_eq!(arrivals(100, &[100]), (100, 1));
        assert_eq!(arrivals(100, &[40, 70, 100]), (100, 3));
        assert_eq!(arrivals(100, &[40, 70, 90]), (90, 4));
        assert_eq!(arrivals(100, &[0, 0, 0, 10, 100]), (100, 5));
        let (arrived, looks) = arrivals(100, &[0]);
        assert!(arrived == 0 && looks == 201);
    }
}
