//! A million packets for each ruleset, in each language: rules drawn as text, read by the front end, and
//! the classifier against the evaluator.
//!
//! `TOLLWAY_ORACLE_SEED` and `TOLLWAY_ORACLE_CASES` say which rulesets and how many of each language
//! (`make oracle KIND=rules SEED=n CASES=n`).

use std::time::Instant;

use super::{Dice, Frames, compare_drawn, road};
use crate::filter::ir::Ruleset;
use crate::filter::{ipfw, iptables, nft};

/// Packets of a ruleset.
const PACKETS: usize = 1_000_000;
/// Packets that say beforehand if rules are met at all.
const PROBES: usize = 2000;
/// Rules of rulesets, by turns.
const SIZES: [usize; 3] = [6, 40, 160];
/// Rulesets of each language in a run that is not told how many.
const CASES: u64 = 6;

/// Draws rules of a language.
type Draw = fn(&mut Dice, usize) -> Ruleset;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Compares rulesets of one language.
#[allow(clippy::print_stdout, reason = "who asks for a long run sees how far it is")]
fn compare(language: &str, draw: Draw) {
    let seed = setting("TOLLWAY_ORACLE_SEED").unwrap_or(1);
    let cases = setting("TOLLWAY_ORACLE_CASES").unwrap_or(CASES);
    for number in 0..cases {
        let seed = seed << 32 | number;
        let mut dice = Dice(seed);
        let rules = drawn(seed, &mut dice, draw, SIZES[number as usize % SIZES.len()]);
        let count: usize = rules.chains.iter().map(|chain| chain.rules.len()).sum();
        let start = Instant::now();
        let (met, counters) =
            compare_drawn(&rules, &road::links(), seed, &mut dice, PACKETS, Frames::at_edges)
                .counters;
        println!(
            "{language}, seed {seed:#x}: {count} rules, {met} of {counters} counters met, {:.1} s",
            start.elapsed().as_secs_f64()
        );
    }
}

/// A ruleset of which packets meet a good part: the first rules of some drop everything.
fn drawn(seed: u64, dice: &mut Dice, draw: Draw, size: usize) -> Ruleset {
    for _ in 0..100 {
        let rules = draw(dice, size);
        let (met, counters) =
            compare_drawn(&rules, &road::links(), seed, dice, PROBES, Frames::at_edges).counters;
        if met * 4 >= counters {
            return rules;
        }
    }
    panic!("seed {seed:#x}: no packets meet what is drawn");
}

#[test]
fn a_million_packets_meet_nft_rules_as_they_are_evaluated() {
    compare("nft", nft::tests::random::drawn);
}

#[test]
fn a_million_packets_meet_iptables_rules_as_they_are_evaluated() {
    compare("iptables", iptables::tests::random::drawn);
}

#[test]
fn a_million_packets_meet_ipfw_rules_as_they_are_evaluated() {
    compare("ipfw", ipfw::tests::random::drawn);
}
