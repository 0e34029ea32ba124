//! One case: a router and packets, and how both routers handle them.

use serde::{Deserialize, Serialize};
use tollway_model::Engine;

use super::bench::{Bench, Start};
use super::config::Config;
use super::draw::{self, DeviceTypes};
use super::excluded::differences;
use super::kernel_router::Setup;
use super::offloads;
use super::paths::PathCounts;
use super::traffic::{self, Packet};
use crate::dice::Dice;

/// A router and its packets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub seed: u64,
    /// How Tollway gets the configuration.
    pub start: Start,
    /// The configuration before this one, under a Tollway that has kept running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Config>,
    pub config: Config,
    pub packets: Vec<Packet>,
}

/// What a case has covered, as counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub lines: usize,
    /// Lines that the kernel's tools refused.
    pub refused: usize,
    pub packets: usize,
    /// Frames that the kernel sent.
    pub sent: usize,
    /// Packets that Tollway received, and how many of them it punted to the kernel.
    pub received: u64,
    pub punted: u64,
    /// Packets that the XDP path forwarded.
    pub xdp_path: u64,
    /// Packets for which Tollway's report about its paths held.
    pub by_path: PathCounts,
}

/// How a case ended.
pub enum Outcome {
    Same(Tally),
    /// Sentences that describe where the two routers differ.
    Differs(Vec<String>),
    /// Sentences that describe where Tollway contradicts its report about its paths.
    Strays(Vec<String>),
}

/// Attempts for each case on a slow machine.
const PATIENCE: usize = 4;
/// Flows in each case.
const FLOWS: usize = 44;
/// Number of cases that one Tollway gets while it keeps running, before the test starts another.
pub const RUNNING: u64 = 20;
/// Distance between the first case numbers of two seeds.
pub const APART: u64 = 1 << 20;
const ENGINES: [Engine; 3] = [Engine::Xdp, Engine::Tc, Engine::User];

/// The engine of the cases of a run.
const fn engine(seed: u64) -> Engine {
    let run = seed % APART / RUNNING;
    ENGINES[(run % ENGINES.len() as u64) as usize]
}

impl Case {
    /// The case of a seed.
    pub fn draw(seed: u64, device_types: DeviceTypes, ports: usize, start: Start) -> Self {
        let mut dice = Dice(seed);
        let mut drawn = draw::draw(&mut dice, device_types, ports);
        let mut packets = traffic::draw(&mut drawn, FLOWS, &mut dice);
        // With another engine, a host that leaves work to its card takes everything to the kernel path.
        if engine(seed) == Engine::Tc {
            packets.extend(offloads::draw(&drawn, &mut dice));
        }
        Self { seed, start, before: None, config: drawn.config, packets }
    }

    /// How Tollway runs. The cases of one run have one engine.
    pub const fn setup(&self) -> Setup {
        Setup { ports: self.config.ports, engine: engine(self.seed) }
    }

    /// Runs the case in both routers, and repeats it if this machine was too slow for a verdict.
    pub fn run(&self, bench: &mut Bench) -> Outcome {
        for _ in 0..PATIENCE {
            let (outcome, late) = self.once(bench);
            if !late || matches!(outcome, Outcome::Same(_)) {
                return outcome;
            }
        }
        self.once(bench).0
    }

    fn once(&self, bench: &mut Bench) -> (Outcome, bool) {
        let refused = match bench.configure(self) {
            Ok(refused) => refused,
            Err(differences) => return (Outcome::Differs(differences), false),
        };
        let sent = bench.send(&self.packets);
        let words = ["the kernel", bench.second_name()];
        let mut found = differences(self, words, [&sent.first, &sent.second]);
        found.extend(sent.complaints);
        if !found.is_empty() {
            return (Outcome::Differs(found), sent.late);
        }
        let by_path = match bench.paths(self) {
            Ok((wrong, by_path)) if wrong.is_empty() => by_path,
            Ok((wrong, _)) => return (Outcome::Strays(wrong), sent.late),
            Err(error) => return (Outcome::Differs(vec![error]), sent.late),
        };
        let tally = Tally {
            lines: self.config.lines.len(),
            refused,
            packets: self.packets.len(),
            sent: sent.first.len(),
            received: sent.counts.received,
            punted: sent.counts.punted,
            xdp_path: sent.counts.xdp_path,
            by_path,
        };
        (Outcome::Same(tally), sent.late)
    }
}
