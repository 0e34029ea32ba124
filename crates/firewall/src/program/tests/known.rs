//! Recurring flows: the result that the stage stores for a flow is that of its rules, in every burst. Packets
//! that only look similar do not belong to the flow.

use super::Frames;
use super::frames::{ADDRESSES, PORTS, PROTOCOLS};
use super::path_bench::PathBench;
use crate::ir::{
    Action, Base, Chain, Counter, Family, Field, Hook, Match, Place, Policy, Range, Rule, Ruleset,
    Step, Verdict,
};
use crate::testkit::dice::Dice;

/// Rules that test only addresses, protocol and ports, enough of them for sets of several words.
fn rules(dice: &mut Dice) -> Ruleset {
    let mut rules = Ruleset::default();
    let mut chain = Chain::new("ip filter forward", Family::Ip);
    chain.base = Some(Base::new(Hook::Forward, 0, Policy::Accept));
    for number in 0..150_u64 {
        let mut steps = Vec::new();
        for (field, from) in [
            (Field::Source4, &ADDRESSES.map(u128::from)[..]),
            (Field::Destination4, &ADDRESSES.map(u128::from)),
            (Field::Protocol, &PROTOCOLS.map(u128::from)),
            (Field::SourcePort, &PORTS.map(u128::from)),
            (Field::DestinationPort, &PORTS.map(u128::from)),
        ] {
            if dice.one_in(2) {
                let first = dice.pick(from);
                let last = (first + dice.below(9) as u128).min(field.max());
                steps.push(Step::Match(Match::in_ranges(field, [Range::new(first, last)])));
            }
        }
        if dice.one_in(8) {
            let counter = rules.add_counter(Counter::default());
            steps.push(Step::Do(Action::Count(counter)));
        }
        let verdict = if dice.one_in(2) { Verdict::Accept } else { Verdict::Drop };
        steps.push(Step::Verdict(verdict));
        chain.rules.push(Rule { place: Place::handle(number), text: String::new(), steps });
    }
    rules.add_chain(chain);
    rules
}

#[test]
fn known_flows_fare_as_if_they_were_new() {
    for seed in 0..20 {
        let mut dice = Dice(seed);
        let ruleset = rules(&mut dice);
        let mut path_bench = PathBench::new(&ruleset);
        let frames = Frames::new(&ruleset, &mut dice);
        let mut pool: Vec<_> = (0..200).map(|_| frames.plain(&mut dice)).collect();
        pool.extend((0..50).map(|_| frames.draw(&mut dice)));
        for _ in 0..300 {
            let burst: Vec<_> = (0..dice.below(64) + 1).map(|_| dice.pick(&pool)).collect();
            if let Err((lane, how)) = path_bench.send(&burst) {
                panic!("seed {seed}: {how}\n{:02x?}", burst[lane]);
            }
        }
        path_bench.same_counts(seed);
    }
}
