//! Compares the whole compiler and the filter stage with the evaluator: random rulesets, random packets.

#![cfg_attr(not(test), allow(dead_code, reason = "another crate draws rules for `million` only"))]

mod connections;
mod edges;
#[cfg(test)]
mod flows;
mod frames;
#[cfg(test)]
mod hooks;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod known;
pub mod million;
mod path_bench;
mod rulesets;
mod states;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::stages::filter::Filter;

use super::levels::Level;
use super::live::Live;
use super::place::Layout;
use super::{ProgramError, compile};
use crate::ir::{Hook, Ruleset};
use crate::links::Link;
use crate::testkit::dice::Dice;
pub use frames::Frames;
use path_bench::PathBench;
use rulesets::Draw;
pub use states::{Conversations, compare_states};

/// How packets are drawn.
type Drawn = fn(&Frames, &mut Dice) -> Vec<u8>;

/// Sends packets through rulesets in both implementations.
fn compare(seed: u64, rulesets: usize, rules: &[usize], packets: usize, drawn: Drawn) {
    compare_links(&path_bench::links(), seed, rulesets, rules, packets, drawn);
}

/// Like [`compare`], with the identities of links given.
fn compare_links(
    links: &[Link],
    seed: u64,
    rulesets: usize,
    rules: &[usize],
    packets: usize,
    drawn: Drawn,
) {
    let (mut refused, mut set_changes) = (0, 0);
    for number in 0..rulesets as u64 {
        let seed = seed << 32 | number;
        let mut dice = Dice(seed);
        let count = dice.pick(rules);
        let ruleset = Draw::new(&mut dice).ruleset(count);
        // Alternatives with negated sets of several keys may be too many to multiply out.
        if let Err(ProgramError::TooMany(_)) = compile(&ruleset, links, &Epochs::new()) {
            refused += 1;
            continue;
        }
        set_changes += compare_drawn(&ruleset, links, seed, &mut dice, packets, drawn).changes;
    }
    assert!(set_changes > 20, "{set_changes}");
    assert!(refused * 10 <= rulesets, "{refused} of {rulesets} rulesets were refused");
}

/// Sends packets through a ruleset in both implementations, for front ends.
pub fn compare_one(ruleset: &Ruleset, seed: u64, dice: &mut Dice, packets: usize) {
    compare_drawn(ruleset, &path_bench::links(), seed, dice, packets, Frames::draw);
}

/// Statistics of a comparison.
struct ComparisonStats {
    /// Elements added to and removed from live sets.
    changes: usize,
    /// Counters that have counted, and all counters.
    counters: (usize, usize),
}

/// Like [`compare_one`], with packets drawn by the caller's function.
fn compare_drawn(
    ruleset: &Ruleset,
    links: &[Link],
    seed: u64,
    dice: &mut Dice,
    packets: usize,
    drawn: Drawn,
) -> ComparisonStats {
    let mut path_bench = PathBench::with(ruleset, links.to_vec());
    // In half of the cases, elements of sets change between bursts.
    let (changes, mut changed) = (dice.one_in(2), 0);
    let frames = Frames::new(ruleset, dice);
    let mut left = packets;
    while left > 0 {
        let burst: Vec<_> = (0..dice.below(64) + 1).map(|_| drawn(&frames, dice)).collect();
        left = left.saturating_sub(burst.len());
        if changes && dice.one_in(4) {
            changed += path_bench.change_sets(dice);
        }
        if let Err((lane, how)) = path_bench.send(&burst) {
            let rules = shrink(path_bench.rules(), links, &burst[lane]);
            panic!("seed {seed:#x}: {how}\n{:02x?}\n{}", burst[lane], described(&rules, links));
        }
    }
    path_bench.same_counts(seed);
    ComparisonStats { changes: changed, counters: path_bench.used_counters() }
}

/// The ruleset reduced to what the packet's different verdict requires.
fn shrink(mut rules: Ruleset, links: &[Link], frame: &[u8]) -> Ruleset {
    let differs =
        |rules: &Ruleset| PathBench::with(rules, links.to_vec()).send(&[frame.to_vec()]).is_err();
    if !differs(&rules) {
        return rules;
    }
    for chain in 0..rules.chains.len() {
        for rule in (0..rules.chains[chain].rules.len()).rev() {
            let mut less = rules.clone();
            less.chains[chain].rules.remove(rule);
            if differs(&less) {
                rules = less;
                continue;
            }
            for step in (0..rules.chains[chain].rules[rule].steps.len()).rev() {
                let mut less = rules.clone();
                less.chains[chain].rules[rule].steps.remove(step);
                if differs(&less) {
                    rules = less;
                }
            }
        }
    }
    rules
}

/// A ruleset, one rule per line, and the compiled rules.
fn described(rules: &Ruleset, links: &[Link]) -> String {
    let mut text = String::new();
    let live = Live::choose(rules, &mut Filter::default(), &Epochs::new()).expect("room");
    for chain in &rules.chains {
        text += &format!("{} {:?} {:?}\n", chain.name, chain.family, chain.base);
        for rule in &chain.rules {
            text += &format!("    {:?}\n", rule.steps);
        }
    }
    for set in &rules.sets {
        text += &format!("{set:?}\n");
    }
    for version in [4, 6, 0] {
        for hooks in [
            &[Hook::Ingress][..],
            &[Hook::Prerouting],
            &[Hook::Forward, Hook::Postrouting, Hook::Egress],
        ] {
            let levels = match hooks {
                [Hook::Ingress] => Level::ingress(links),
                [Hook::Prerouting] => Level::prerouting(links),
                _ => vec![Level::forward(links)],
            };
            let Some(Ok(line)) =
                Layout::new(rules, &live, &levels, version, false).line(hooks, |_| true)
            else {
                continue;
            };
            text += &format!("IPv{version} {hooks:?}, end {}\n", line.end);
            for (number, rule) in line.rules.iter().enumerate() {
                text += &format!("{number}: {:?} {:?} {}\n", rule.conditions, rule.ops, rule.next);
            }
        }
    }
    text
}

/// Random packets with numbers that occur in the rules; see [`Frames::plain`].
pub fn plain(rules: &Ruleset, dice: &mut Dice, count: usize) -> Vec<Vec<u8>> {
    let frames = Frames::new(rules, dice);
    (0..count).map(|_| frames.plain(dice)).collect()
}

/// The router's links in the order of their numbers.
pub fn links() -> Vec<Link> {
    path_bench::links()
}

#[test]
fn small_rulesets_are_as_they_are_evaluated() {
    compare(1, 120, &[1, 2, 5, 12], 5000, Frames::draw);
}

#[test]
fn packets_of_vrf_devices_meet_rules_as_they_are_evaluated() {
    let mut links = path_bench::links();
    // Rules name links, VRFs, or a prefix that both share.
    links[1].vrf_device = Some("wan9".to_owned());
    links[3].vrf_device = Some("wan0".to_owned());
    compare_links(&links, 4, 120, &[1, 2, 5, 12, 60], 5000, Frames::draw);
}

#[test]
fn rulesets_of_every_width_are_as_they_are_evaluated() {
    compare(2, 60, &[30, 60, 110, 220, 400], 5000, Frames::draw);
}

#[test]
fn large_rulesets_are_as_they_are_evaluated() {
    compare(3, 16, &[700, 1000, 2500], 7000, Frames::draw);
}
