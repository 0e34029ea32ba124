//! A router between the generator and the sink.

use std::time::Duration;

use super::super::generator::{Flows, Generator, Stream};
use super::super::sink::{Expect, Sink, SinkHook};
use super::super::topology::Topology;
use super::pairs::Side;
use crate::stats::Summary;

/// Time after the generator's start that does not count.
const WARM_UP: Duration = Duration::from_millis(150);
/// Duration of a measurement.
const WINDOW: Duration = Duration::from_millis(300);
/// How Tollway warms up.
struct WarmUp {
    /// Steps at most, and how long each takes.
    steps: (usize, Duration),
    /// How many successive steps must agree, and the factor by which they may differ.
    alike: (usize, f64),
}

/// For a million flows, which take half a minute to enter, and gain little at first.
const OF_MANY: WarmUp = WarmUp { steps: (60, Duration::from_secs(1)), alike: (10, 1.05) };
/// For fewer.
const OF_FEW: WarmUp = WarmUp { steps: (12, Duration::from_millis(250)), alike: (4, 1.03) };

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
        let bridged = match stream.flows {
            Flows::Bridged(hosts) => Some(hosts),
            _ => None,
        };
        let sink = Sink::start(&topology.b, Expect { vid, follow: false, hook, bridged })?;
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
        let how = if self.stream.flows.count() < 1 << 20 { OF_FEW } else { OF_MANY };
        let (most, step) = how.steps;
        let generator = self.send()?;
        let mut rates = Vec::new();
        for _ in 0..most {
            rates.push(self.sink.mpps(step)?);
            if is_stable(&rates, how.alike) {
                break;
            }
        }
        generator.stop().map(|_| ())
    }
}

/// Whether so many last rates agree.
fn is_stable(rates: &[f64], (count, factor): (usize, f64)) -> bool {
    let last = Summary::of(rates.get(rates.len().saturating_sub(count)..).unwrap_or(&[]));
    last.is_some_and(|last| last.repeats == count && last.max <= last.min * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_stable_when_the_last_four_agree() {
        assert!(!is_stable(&[], OF_FEW.alike));
        assert!(!is_stable(&[1.0, 1.0, 1.0], OF_FEW.alike));
        assert!(is_stable(&[5.0, 1.0, 1.0, 1.02, 1.01], OF_FEW.alike));
        assert!(!is_stable(&[1.0, 1.0, 1.0, 1.04], OF_FEW.alike));
        // Where nothing arrives there is nothing to wait for.
        assert!(is_stable(&[0.0; 4], OF_FEW.alike));
    }
}
