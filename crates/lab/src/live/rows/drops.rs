//! What a rule before all others drops.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::generator::{Flows, Generator, Stream};
use super::super::rulesets;
use super::super::sink::{Expect, Sink, SinkHook};
use super::super::topology::Topology;
use super::follow::{self, AS_CARDS};
use super::pairs::Side;
use super::{Bench, Outcome};

/// Duration of a measurement. The counts are read before and after it, when no frame is on its way.
const WINDOW: Duration = Duration::from_millis(500);
/// Time for the last frames in flight, and for Tollway to add up what its XDP path has counted.
const DRAIN: Duration = Duration::from_millis(100);
/// Times that Tollway warms up.
const WARM_UPS: usize = 2;

/// Measures with 256 flows, or with a new one for each frame.
pub(super) fn measure(bench: &Bench<'_>, flood: bool) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    topologies.tollway.kernel_forwards(true)?;
    let both = [&topologies.kernel, &topologies.tollway];
    for topology in both {
        rulesets::load(&topology.r, rulesets::DROP_ALL)?;
    }
    let flows = if flood { Flows::Random } else { Flows::InTurn(256) };
    let side = |topology, follows| Dropper::new(topology, flows.clone(), follows);
    let (kernel, side) = (side(both[0], false)?, side(both[1], true)?);
    let outcome = follow::measure(bench, both[1], AS_CARDS, [&kernel, &side])?;
    for topology in both {
        rulesets::clear(&topology.r)?;
    }
    Ok(outcome)
}

/// A router that drops everything.
pub(super) struct Dropper<'a> {
    topology: &'a Topology,
    /// Sees what the router should have dropped.
    sink: Sink,
    stream: Stream,
    /// Whether a Tollway drops, too.
    follows: bool,
}

impl<'a> Dropper<'a> {
    pub(super) fn new(topology: &'a Topology, flows: Flows, follows: bool) -> Result<Self, String> {
        let expect = Expect { vid: None, follow: false, hook: SinkHook::Xdp, bridged: None };
        let sink = Sink::start(&topology.b, expect)?;
        Ok(Self { topology, sink, stream: Stream { flows, vid: None, rate: None }, follows })
    }

    /// Frames that the rule has dropped, by the kernel's count and by Tollway's.
    fn dropped(&self) -> Result<u64, String> {
        let r = &self.topology.r;
        let kernel = counted(&r.sh("nft list chain ip lab early")?)
            .ok_or("nft does not list the rule's count")?;
        if !self.follows {
            return Ok(kernel);
        }
        let program = std::env::current_exe()
            .map_err(|error| format!("this program cannot find itself: {error}"))?;
        let filter = r.sh(&format!("{} show filter --json", program.display()))?;
        let filter: Value = serde_json::from_str(&filter)
            .map_err(|error| format!("`show filter --json` is no JSON: {error}"))?;
        Ok(kernel + counted_by_tollway(&filter))
    }
}

impl Side for Dropper<'_> {
    /// Million frames per second that the rule drops.
    fn rate(&self) -> Result<f64, String> {
        let before = self.dropped()?;
        let generator = Generator::start(&self.topology.a, self.stream.clone())?;
        let start = Instant::now();
        std::thread::sleep(WINDOW);
        let taken = start.elapsed();
        let sent = generator.stop()?.frames;
        std::thread::sleep(DRAIN);
        let dropped = self.dropped()?.saturating_sub(before);
        if dropped > sent {
            return Err(format!("of {sent} frames, the rule has counted {dropped}"));
        }
        match self.sink.seen()?.frames {
            0 => Ok(dropped as f64 / taken.as_secs_f64() / 1e6),
            passed => Err(format!("{passed} frames passed a rule that drops everything")),
        }
    }

    fn warm_up(&self) -> Result<(), String> {
        (0..WARM_UPS).try_for_each(|_| self.rate().map(|_| ()))
    }
}

/// The packets of the first counter in a list of nft.
fn counted(list: &str) -> Option<u64> {
    let (_, rest) = list.split_once("counter packets ")?;
    rest.split(' ').next()?.parse().ok()
}

/// The packets of all rules in an answer of `show filter`.
fn counted_by_tollway(filter: &Value) -> u64 {
    let chains = filter["chains"].as_array().into_iter().flatten();
    let rules = chains.flat_map(|chain| chain["rules"].as_array().into_iter().flatten());
    rules.filter_map(|rule| rule["packets"].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_both_lists() {
        let list = "table ip lab {\n\tchain early {\n\t\tip protocol udp counter packets 123 bytes 5658 drop\n\t}\n}\n";
        assert_eq!(counted(list), Some(123));
        assert_eq!(counted("table ip lab {\n}\n"), None);
        let filter = serde_json::json!({"on": true, "chains": [
            {"rules": [{"packets": 7}, {"packets": null}]}, {"rules": []}, {"rules": [{"packets": 5}]},
        ]});
        assert_eq!(counted_by_tollway(&filter), 12);
        assert_eq!(counted_by_tollway(&serde_json::json!({"on": false})), 0);
    }
}
