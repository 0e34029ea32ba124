//! Sends a million packets through each ruleset in each language. Draws rules as text, reads them by the
//! front end, and compares the classifier with the evaluator.
//!
//! `TOLLWAY_ORACLE_SEED` and `TOLLWAY_ORACLE_CASES` set the first ruleset and the number of rulesets in each
//! language (`make oracle KIND=rules SEED=n CASES=n`).

use std::time::Instant;

use super::{Frames, compare_drawn, path_bench};
use crate::ir::Ruleset;
use crate::testkit::dice::Dice;
#[cfg(test)]
use crate::{ipfw, iptables};

/// Packets per ruleset.
const PACKETS: usize = 1_000_000;
/// Packets to check in advance whether a ruleset's rules match at all.
const PROBES: usize = 2000;
/// Numbers of rules, in turn. Each number has a test of its own, so that the tests take turns on the
/// processors.
const SIZES: [usize; 3] = [6, 40, 160];
/// Default number of rulesets of each language.
const CASES: u64 = 6;

/// Draws rules of a language.
pub type Draw = fn(&mut Dice, usize) -> Ruleset;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Compares those rulesets of a language that have `size` rules.
#[allow(clippy::print_stdout, reason = "a long run shows its progress")]
pub fn compare(language: &str, draw: Draw, size: usize) {
    assert!(SIZES.contains(&size));
    let seed = setting("TOLLWAY_ORACLE_SEED").unwrap_or(1);
    let cases = setting("TOLLWAY_ORACLE_CASES").unwrap_or(CASES);
    for number in (0..cases).filter(|number| SIZES[*number as usize % SIZES.len()] == size) {
        let seed = seed << 32 | number;
        let mut dice = Dice(seed);
        let rules = drawn(seed, &mut dice, draw, size);
        let count: usize = rules.chains.iter().map(|chain| chain.rules.len()).sum();
        let start = Instant::now();
        let (used, counters) =
            compare_drawn(&rules, &path_bench::links(), seed, &mut dice, PACKETS, Frames::at_edges)
                .counters;
        println!(
            "{language}, seed {seed:#x}: {count} rules, {used} of {counters} counters used, {:.1} s",
            start.elapsed().as_secs_f64()
        );
    }
}

/// A ruleset in which packets meet at least a quarter of the counters: in some, the first rules drop
/// everything.
fn drawn(seed: u64, dice: &mut Dice, draw: Draw, size: usize) -> Ruleset {
    for _ in 0..100 {
        let rules = draw(dice, size);
        let (used, counters) =
            compare_drawn(&rules, &path_bench::links(), seed, dice, PROBES, Frames::at_edges)
                .counters;
        if used * 4 >= counters {
            return rules;
        }
    }
    panic!("seed {seed:#x}: no packets meet what is drawn");
}

#[test]
fn a_million_packets_meet_6_iptables_rules_as_they_are_evaluated() {
    compare("iptables", iptables::tests::random::drawn, 6);
}

#[test]
fn a_million_packets_meet_40_iptables_rules_as_they_are_evaluated() {
    compare("iptables", iptables::tests::random::drawn, 40);
}

#[test]
fn a_million_packets_meet_160_iptables_rules_as_they_are_evaluated() {
    compare("iptables", iptables::tests::random::drawn, 160);
}

#[test]
fn a_million_packets_meet_6_ipfw_rules_as_they_are_evaluated() {
    compare("ipfw", ipfw::tests::random::drawn, 6);
}

#[test]
fn a_million_packets_meet_40_ipfw_rules_as_they_are_evaluated() {
    compare("ipfw", ipfw::tests::random::drawn, 40);
}

#[test]
fn a_million_packets_meet_160_ipfw_rules_as_they_are_evaluated() {
    compare("ipfw", ipfw::tests::random::drawn, 160);
}
