//! A router between the generator and the sink.

use std::time::Duration;

use super::super::generator::{Generator, Stream};
use super::super::sink::{Expect, Sink, SinkHook};
use super::super::topology::Topology;
use super::pairs::Side;
use crate::stats::Summary;

/// Time after the generator's start that does not count.
const WARM_UP: Duration = Duration::from_millis(150);
/// Duration of a measurement.
const WINDOW: Duration = Duration::from_millis(300);
/// Steps in which Tollway warms up, at most, and how long each takes: for a million flows, of which each needs some packets
/// to enter, and for fewer.
const STEPS: [(usize, Duration); 2] =
    [(60, Duration::from_secs(1)), (12, Duration::from_millis(250))];
/// How many successive steps must agree, and the factor by which they may differ.
const ALIKE: (usize, f64) = (4, 1.03);

/// A router under test, its traffic, and where that is counted.
pub(super) struct Wire<'a> {
    topology: &'a Topology,
    sink: Sink,
    stream: Stream,
}

impl<'a> Wire<'a> {
    /// A wire for a stream, whose frames arrive at a hook with this VLAN tag.
    pub(super) fn new(
        topology: &'a Topology,
        stream: Stream,
        hook: SinkHook,
        vid: Option<u16>,
    ) -> Result<Self, String> {
        let sink = Sink::start(&topology.b, Expect { vid, follow: false, hook })?;
        Ok(Self { topology, sink, stream })
    }

    /// The same with another rate, frames per second.
    pub(super) fn paced(self, rate: u32) -> Self {
        Self { stream: Stream { rate: Some(rate), ..self.stream }, ..self }
    }

    fn send(&self) -> Result<Generator, String> {
        Generator::start(&self.topology.a, self.stream.clone())
    }
}

impl Side for Wire<'_> {
    /// Million frames per second.
    fn rate(&self) -> Result<f64, String> {
        let generator = self.send()?;
        std::thread::sleep(WARM_UP);
        let rate = self.sink.mpps(WINDOW)?;
        generator.stop()?;
        Ok(rate)
    }

    /// Sends until the rate is stable.
    fn warm_up(&self) -> Result<(), String> {
        let (most, step) = STEPS[usize::from(self.stream.flows.count() < 1 << 20)];
        let generator = self.send()?;
        let mut rates = Vec::new();
        for _ in 0..most {
            rates.push(self.sink.mpps(step)?);
            if is_stable(&rates) {
                break;
            }
        }
        generator.stop().map(|_| ())
    }
}

/// Whether the last rates agree.
fn is_stable(rates: &[f64]) -> bool {
    let last = Summary::of(rates.get(rates.len().saturating_sub(ALIKE.0)..).unwrap_or(&[]));
    last.is_some_and(|last| last.repeats == ALIKE.0 && last.max <= last.min * ALIKE.1)
}

#[cfg(test)]
mod tests {
    use super::is_stable;

    #[test]
    fn rates_are_stable_when_the_last_four_agree() {
        assert!(!is_stable(&[]));
        assert!(!is_stable(&[1.0, 1.0, 1.0]));
        assert!(is_stable(&[5.0, 1.0, 1.0, 1.02, 1.01]));
        assert!(!is_stable(&[1.0, 1.0, 1.0, 1.04]));
        // Where nothing arrives there is nothing to wait for.
        assert!(is_stable(&[0.0; 4]));
    }
}
