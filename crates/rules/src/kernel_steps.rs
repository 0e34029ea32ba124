//! Kernel steps: steps of valid rules that need the kernel path as long as the kernel forwards beside Tollway.
//! They write log lines, or depend on packets that Tollway does not see.
//!
//! On the kernel path, a packet meets all rules from the first on. So a change that Tollway made to the
//! packet before must not affect the rules. A DSCP that Tollway wrote affects them if rules test it.

use std::collections::HashSet;

use tollway_firewall::ir::{
    Action, Field, Key, Match, PayloadBase, Ruleset, SetId, Step, Target, Test,
};

const LOGS: &str = "the kernel has to write the log line";
const LIMITS: &str = "packets on the kernel path use up the same limit, so the kernel applies it";
const EXPIRES: &str = "elements of the set expire";
const REWRITES: &str =
    "rules test the DSCP that this writes, and the kernel would test the new value again";

/// Ends each rule at its first kernel step. `expiring` are the names of sets whose
/// elements expire.
pub(super) fn truncate(rules: &mut Ruleset, expiring: &HashSet<String>) {
    let is_expiring: Vec<_> = rules.sets.iter().map(|set| expiring.contains(&set.name)).collect();
    let steps = rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    let looks_at_dscp = steps.flat_map(Step::keys).any(is_of_first_bytes);
    let kernels = |step: &Step| why(step, &is_expiring, looks_at_dscp);
    for rule in rules.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
        let found = rule.steps.iter().enumerate();
        let found = found.filter_map(|(at, step)| Some((at, kernels(step)?))).next();
        if let Some((at, why)) = found {
            rule.steps.truncate(at);
            rule.steps.push(Step::Unsupported(why.to_owned()));
        }
    }
}

/// Why a step needs the kernel path, if it does.
fn why(step: &Step, is_expiring: &[bool], looks_at_dscp: bool) -> Option<&'static str> {
    let expires = |set: SetId| is_expiring.get(set.0) == Some(&true);
    let dscp = looks_at_dscp.then_some(REWRITES);
    match step {
        Step::Do(Action::Log(_)) => Some(LOGS),
        Step::Do(Action::Dscp(_)) => dscp,
        Step::Limit { .. } => Some(LIMITS),
        Step::Match(Match { test: Test::Set(set), .. }) if expires(*set) => Some(EXPIRES),
        Step::Map { map, .. } | Step::VerdictMap { map, .. } if expires(*map) => Some(EXPIRES),
        Step::Map { target: Target::Dscp, .. } => dscp,
        _ => None,
    }
}

/// Says whether a written DSCP is visible in the key: in the DSCP itself or in IPv4's checksum.
fn is_of_first_bytes(key: &Key) -> bool {
    /// Where the checksum ends.
    const END: u8 = 12;
    match key.field {
        Field::TrafficClass => true,
        Field::Payload { base: PayloadBase::Network, offset, .. } => offset < END,
        // Extends beyond the Ethernet header.
        Field::Payload { base: PayloadBase::Link, offset, bytes } => {
            offset.saturating_add(bytes) > 14
        }
        _ => false,
    }
}
