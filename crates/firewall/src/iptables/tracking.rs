//! The effect of rules that need connection tracking on all other packets.
//!
//! Connection tracking has to see all packets of a connection: it cannot assign the answer to a packet that
//! the kernel has not seen. So if forwarded packets meet such rules, all packets take the kernel path. If
//! only packets to or from the router meet one, the kernel tracks too, and it reassembles fragments before
//! any rule (`nf_defrag_ipv4.c`, `nf_defrag_ipv6_hooks.c`). Then fragments take the kernel path.

use super::file::{Line, Table};
use super::graph::Reach;
use super::names;
use crate::ir::{
    Base, Chain, Family, Field, Hook, Key, Match, Place, Policy, Range, Rule, Ruleset, Step,
};

/// `NF_IP_PRI_CONNTRACK_DEFRAG`.
const DEFRAG: i32 = -400;
/// `NF_IP_PRI_CONNTRACK`.
const CONNTRACK: i32 = -200;

/// Adds the chains that send packets to the kernel path for connection tracking, if a rule needs it.
pub(super) fn add_chains(
    rules: &mut Ruleset,
    tables: &[(&Table, Vec<Reach>)],
    file: &str,
    family: Family,
) {
    let mut tracking = tables.iter().flat_map(|(table, reaches)| {
        let chains = table.chains.iter().zip(reaches);
        chains.flat_map(|(chain, reach)| {
            chain.rules.iter().filter(|line| line.rule.tracks).map(|line| (line, reach.forwarded))
        })
    });
    let Some((first, forwarded)) = tracking.next() else { return };
    rules.add_chain(single_rule_chain(
        family,
        "defragmentation",
        DEFRAG,
        first,
        file,
        vec![
            fragments(family),
            Step::Unsupported("connection tracking reassembles fragments first".to_owned()),
        ],
    ));
    let tracking_line =
        forwarded.then_some(first).or_else(|| tracking.find(|(_, all)| *all).map(|one| one.0));
    if let Some(line) = tracking_line {
        let why = "a rule uses connection tracking, which has to see all packets".to_owned();
        let steps = vec![Step::Unsupported(why)];
        rules.add_chain(single_rule_chain(family, "connections", CONNTRACK, line, file, steps));
    }
}

/// A chain of a single rule, caused by a line.
fn single_rule_chain(
    family: Family,
    name: &str,
    priority: i32,
    line: &Line,
    file: &str,
    steps: Vec<Step>,
) -> Chain {
    let name = format!("{} {name}", names::family_name(family));
    let mut chain = Chain::new(name, family);
    chain.base = Some(Base::new(Hook::Prerouting, priority, Policy::Accept));
    chain.rules.push(Rule {
        place: Place::line(file, line.number),
        text: line.text.clone(),
        steps,
    });
    chain
}

fn fragments(family: Family) -> Step {
    Step::Match(match family {
        Family::Ip6 => Match::in_ranges(Field::Fragment, [Range::new(0, Field::Fragment.max())]),
        _ => Match::is(Key::masked(Field::Fragment, 0x3fff), 0).negated(),
    })
}
