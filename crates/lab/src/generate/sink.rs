//! Sinks of all kinds and their reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use hdrhistogram::Histogram;
use tollway_dataplane::burst::Burst;

use super::load::is_over;
use super::port::take;
use super::track::{Counts, Tracker, Wanted};
use super::{Error, Opened, Report, xdp};
use crate::machine::Machine;

/// Time that a thread without frames sleeps before it polls again.
const NAP: Duration = Duration::from_micros(50);
/// The most frames that it still reads after the order to end, if they keep arriving.
const LAST: usize = 1 << 16;

/// The results of a sink.
#[derive(Clone, Debug)]
pub struct SinkStats {
    /// The counts.
    pub counts: Counts,
    /// Latency of the frames, ns.
    pub latency: Histogram<u64>,
}

/// The percentiles in reports.
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];

impl SinkStats {
    /// The results of a tracker.
    #[must_use]
    pub fn by(tracker: &Tracker) -> Self {
        Self { counts: tracker.counts(), latency: tracker.latency().clone() }
    }

    /// The results as figures by name; `sent` is the number of frames sent, if known.
    #[must_use]
    pub fn figures(&self, sent: Option<u64>) -> BTreeMap<String, f64> {
        let counts = &self.counts;
        let (lost, whole) = (counts.lost(sent), sent.unwrap_or(counts.expected));
        let mut figures = BTreeMap::new();
        for (name, value) in [
            ("received_frames", counts.frames),
            ("lost_frames", lost),
            ("duplicate_frames", counts.duplicates),
            ("reordered_frames", counts.reordered),
            ("late_frames", counts.late),
            ("unfollowed_frames", counts.unfollowed),
        ] {
            figures.insert(name.to_owned(), value as f64);
        }
        let ratio = if whole == 0 { 0.0 } else { lost as f64 / whole as f64 };
        figures.insert("loss_ratio".to_owned(), ratio);
        figures.extend(percentiles(&self.latency));
        figures
    }

    /// Figures for frames without numbers. The number of lost frames is unknown: not a number.
    #[must_use]
    pub fn figures_without_numbers(&self) -> BTreeMap<String, f64> {
        let figures = [
            ("received_frames", self.counts.frames as f64),
            ("lost_frames", f64::NAN),
            ("loss_ratio", f64::NAN),
        ];
        figures.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

/// Percentiles of latency in microseconds; empty if no frame arrived.
#[must_use]
pub fn percentiles(latency: &Histogram<u64>) -> BTreeMap<String, f64> {
    if latency.is_empty() {
        return BTreeMap::new();
    }
    let one = |(name, quantile): (&str, f64)| {
        (format!("latency_{name}_us"), latency.value_at_quantile(quantile) as f64 / 1e3)
    };
    PERCENTILES.into_iter().map(one).collect()
}

/// The report of a sink alone that ran for `time`.
#[must_use]
pub fn report(seen: &SinkStats, time: Duration) -> Report {
    let mut report = Report::new(Machine::probe(), Vec::new());
    report.figures = seen.figures(None);
    let mpps = seen.counts.frames as f64 / time.as_secs_f64() / 1e6;
    report.figures.insert("received_mpps".to_owned(), mpps);
    report.figures.insert("seconds".to_owned(), time.as_secs_f64());
    report
}

/// A running sink.
pub enum Sink {
    /// An XDP program at a device.
    Xdp(Box<xdp::Sink>),
    /// A thread that reads a port.
    Port {
        /// Set to end the thread.
        stop: Arc<AtomicBool>,
        /// The thread.
        work: std::thread::JoinHandle<SinkStats>,
    },
}

impl Sink {
    /// Reads a port in a thread that opens it. Measures the latency of one frame in `sample`.
    ///
    /// # Errors
    /// The port cannot be opened, or no thread can start.
    pub fn over(
        open: impl FnOnce() -> Result<Opened, Error> + Send + 'static,
        wanted: Wanted,
        sample: u64,
    ) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&stop);
        let (ready, opened) = channel();
        let work = move || {
            let (mut tracker, mut burst) = (Tracker::new(wanted, sample), Burst::new());
            match open() {
                Ok((mut port, mut umem)) => {
                    // The first receive makes a port ready.
                    take(port.as_mut(), &mut umem, &mut burst, &mut tracker);
                    let _ = ready.send(Ok(()));
                    while !is_over(&end) {
                        if take(port.as_mut(), &mut umem, &mut burst, &mut tracker) == 0 {
                            std::thread::sleep(NAP);
                        }
                    }
                    // All frames that have arrived by then count, however long this thread had no
                    // processor.
                    let mut last = 0;
                    while last < LAST {
                        match take(port.as_mut(), &mut umem, &mut burst, &mut tracker) {
                            0 => break,
                            taken => last += taken,
                        }
                    }
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
            SinkStats::by(&tracker)
        };
        let failed = |what: &dyn std::fmt::Display| Error::failed(what, "Try again");
        let work = std::thread::Builder::new().name("sink".to_owned()).spawn(work);
        let work = work.map_err(|error| failed(&format!("no thread can be started: {error}")))?;
        opened.recv().map_err(|_| failed(&"the sink's thread panicked"))??;
        Ok(Self::Port { stop, work })
    }

    /// Ends the sink and returns its results.
    ///
    /// # Errors
    /// Its counts cannot be read.
    pub fn end(self) -> Result<SinkStats, Error> {
        match self {
            Self::Xdp(sink) => Ok(SinkStats { counts: sink.counts()?, latency: sink.latency()? }),
            Self::Port { stop, work } => {
                stop.store(true, Ordering::Relaxed);
                work.join().map_err(|_| {
                    Error::failed("the sink's thread panicked", "Report this as a defect")
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_dataplane::frame::{Descriptor, Umem};
    use tollway_dataplane::port::MemoryPort;

    use super::super::fill::Filler;
    use super::super::plan::{Plan, tests::spec};
    use super::*;

    #[test]
    fn a_sink_over_a_port_counts_the_wanted_frames() {
        let open = || {
            let mut umem = Umem::new(256, 2048).unwrap();
            let mut port = MemoryPort::new(64);
            for run in [1, 2] {
                let mut filler = Filler::new(Plan::new(&spec()).unwrap(), run, 0);
                let mut frames = [Descriptor::default(); 64];
                assert_eq!(filler.fill(&mut umem, &mut frames, 5), 64);
                port.inject_all(&frames);
            }
            Ok((Box::new(port) as Box<dyn tollway_dataplane::port::Port>, umem))
        };
        for (wanted, frames, sampled) in
            [(Wanted::Run(2), 64, 4), (Wanted::Marked, 128, 8), (Wanted::All, 128, 0)]
        {
            let sink = Sink::over(open, wanted, 16).unwrap();
            let seen = sink.end().unwrap();
            assert_eq!((seen.counts.frames, seen.latency.len()), (frames, sampled), "{wanted:?}");
        }
    }
}
