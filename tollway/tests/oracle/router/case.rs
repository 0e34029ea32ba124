//! One case: a router and packets, and what both routers make of them.

use serde::{Deserialize, Serialize};

use super::bench::{Bench, Start};
use super::config::Config;
use super::draw::{self, Able};
use super::excluded::differences;
use super::paths::Judged;
use super::traffic::{self, Packet};
use crate::dice::Dice;

/// A router and its packets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub seed: u64,
    /// How Tollway comes to the configuration.
    pub start: Start,
    /// What the router was before, under a Tollway that has gone on running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Config>,
    pub config: Config,
    pub packets: Vec<Packet>,
}

/// What a case was good for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub lines: usize,
    /// Lines that the kernel's tools did not take.
    pub refused: usize,
    pub packets: usize,
    /// Frames that the kernel has sent.
    pub sent: usize,
    /// Packets that Tollway has had, and those of them that it has left to the kernel.
    pub received: u64,
    pub punted: u64,
    /// Packets that the XDP path has forwarded.
    pub xdp_path: u64,
    /// What was said of paths, and held.
    pub judged: Judged,
}

/// How a case ended.
pub enum Outcome {
    Same(Tally),
    /// Sentences that say where the two differ.
    Differs(Vec<String>),
    /// Sentences that say where Tollway does not what it says of its paths.
    Strays(Vec<String>),
}

/// A case is run so often on a machine that is slow.
const PATIENCE: usize = 4;
/// Flows of a case.
const FLOWS: usize = 44;

impl Case {
    /// The case of a seed.
    pub fn draw(seed: u64, able: Able, ports: usize, start: Start) -> Self {
        let mut dice = Dice(seed);
        let mut drawn = draw::draw(&mut dice, able, ports);
        let packets = traffic::draw(&mut drawn, FLOWS, &mut dice);
        Self { seed, start, before: None, config: drawn.config, packets }
    }

    /// Runs it in both routers, and again where this machine was too slow to tell.
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
        let mut told = differences(self, words, [&sent.first, &sent.second]);
        told.extend(sent.complaints);
        if !told.is_empty() {
            return (Outcome::Differs(told), sent.late);
        }
        let judged = match bench.paths(self) {
            Ok((wrong, judged)) if wrong.is_empty() => judged,
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
            judged,
        };
        (Outcome::Same(tally), sent.late)
    }
}
