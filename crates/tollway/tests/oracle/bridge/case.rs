//! One case: a bridge, and what becomes of it and of frames, step by step.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::bench::Bench;
use super::config::{self, Changes};
use super::frames::Draw;
use super::net::{HOSTS, PORTS};
use crate::case::hex;
use crate::dice::Dice;
use crate::kernel::Sent;

/// Changes in each case, and frames between two of them.
const CHANGES: usize = 10;
const FRAMES: usize = 32;
/// Frames that are sent before what came out is compared.
const MOST: usize = 12;

/// What happens next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// The line of a shell changes the bridge.
    Change(String),
    /// A frame arrives at a port.
    Frame(usize, Vec<u8>),
}

/// A bridge, and what happens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub seed: u64,
    /// How many of the first ports are Tollway's.
    pub ports: usize,
    pub config: Vec<String>,
    pub steps: Vec<Step>,
}

/// What a case has covered, as counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub frames: usize,
    /// Frames that came out of the kernel's bridge.
    pub sent: usize,
    /// Frames that Tollway's programs forwarded.
    pub by_xdp: u64,
    pub lines: usize,
    /// Lines that the kernel's tools refused.
    pub refused: usize,
    /// Entries of forwarding databases that were compared.
    pub entries: usize,
}

impl Case {
    /// The case of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let of_bridge = 2 + dice.below(PORTS.len() - 1);
        // Mostly all that may be.
        let ports = of_bridge.min(dice.pick(&[2, 3, 4, 4, 4, 4]));
        let config = config::draw(&mut dice, of_bridge);
        let mut steps = Vec::new();
        let mut homes = [0; HOSTS];
        homes.iter_mut().for_each(|home| *home = dice.below(of_bridge));
        let mut changes = Changes::new(of_bridge);
        let mut draw = Draw { dice: &mut dice, ports: of_bridge, homes, number: 0 };
        let frame = |(port, frame)| Step::Frame(port, frame);
        steps.extend((0..HOSTS).map(|number| frame(draw.announcement(number))));
        for _ in 0..CHANGES {
            steps.extend((0..FRAMES).map(|_| frame(draw.frame())));
            steps.push(Step::Change(changes.draw(draw.dice)));
        }
        if draw.dice.one_in(4) {
            steps.push(Step::Change(config::SPANNING_TREE.to_owned()));
        }
        steps.extend((0..FRAMES).map(|_| frame(draw.frame())));
        Self { seed, ports, config, steps }
    }

    /// Runs the case on both bridges.
    pub fn run(&self, bench: &mut Bench) -> Result<Tally, Vec<String>> {
        bench.begin(self)?;
        let mut tally = Tally { lines: self.config.len(), ..Tally::default() };
        let mut homes = bench.compare_entries()?;
        let mut frames: Vec<Sent> = Vec::new();
        for step in &self.steps {
            match step {
                Step::Frame(port, frame) => {
                    frames.push((*port, frame.clone()));
                    // Programs know of a host that has moved some time after the kernel.
                    let source = frame.get(6..12).unwrap_or_default();
                    let before = homes.insert(source.to_vec(), *port);
                    let moves = before.is_some_and(|before| before != *port);
                    if moves || frames.len() == MOST {
                        exchange(bench, &mut frames, &mut tally)?;
                    }
                    if moves {
                        bench.sync()?;
                    }
                }
                Step::Change(line) => {
                    exchange(bench, &mut frames, &mut tally)?;
                    tally.lines += 1;
                    tally.refused += usize::from(bench.apply(line)?);
                    homes = bench.compare_entries()?;
                    tally.entries += homes.len();
                }
            }
        }
        exchange(bench, &mut frames, &mut tally)?;
        tally.entries += bench.compare_entries()?.len();
        tally.by_xdp = bench.by_xdp();
        Ok(tally)
    }
}

/// Sends frames to both bridges, and compares what comes out.
fn exchange(
    bench: &mut Bench,
    frames: &mut Vec<Sent>,
    tally: &mut Tally,
) -> Result<(), Vec<String>> {
    let frames = std::mem::take(frames);
    if frames.is_empty() {
        return Ok(());
    }
    let [first, second] = bench.exchange(&frames);
    tally.frames += frames.len();
    tally.sent += first.len();
    let (first, second) = (crate::tollway::tally(&first), crate::tollway::tally(&second));
    let all: BTreeSet<_> = first.keys().chain(second.keys()).collect();
    let count = |of: &BTreeMap<Sent, usize>, what| of.get(what).copied().unwrap_or(0);
    let other = all.into_iter().filter(|what| count(&first, what) != count(&second, what));
    let mut found: Vec<_> = other
        .map(|what| {
            let (port, frame) = (PORTS[what.0], hex(&what.1[..what.1.len().min(80)]));
            let (first, second) = (count(&first, what), count(&second, what));
            format!("by {port}, {first} of the kernel and {second} of Tollway: {frame}")
        })
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    found.extend(frames.iter().map(|(port, frame)| {
        format!(
            "sent to {}: {} bytes, {}",
            PORTS[*port],
            frame.len(),
            hex(&frame[..frame.len().min(80)])
        )
    }));
    Err(found)
}
