//! Packets that kernels classify differently; they are few and take the kernel path.
//!
//! These are later fragments, if rules test transport headers. Some kernels (6.18 is one) treat the content
//! of a later fragment as a header if the rule tests one, two or four bytes: `nft_payload_fast_eval` in
//! `net/netfilter/nf_tables_core.c` does not check `fragoff`.

use tollway_firewall::ir::{
    Chain, Field, Key, Match, PayloadBase, Place, Range, Rule, Ruleset, Step,
};

/// What stands for the text of a rule about them.
pub const LATER_FRAGMENTS: &str = "(later fragments)";
const FRAGMENTS: &str = "kernels differ in what they see of later fragments";

/// Inserts a rule for these packets before the first rule of each chain that tests transport headers.
pub(super) fn guard(rules: &mut Ruleset) {
    for chain in &mut rules.chains {
        if let Some(at) = first(chain, looks_at_transport) {
            chain.rules.insert(at, later_fragments());
        }
    }
}

fn first(chain: &Chain, is_one: impl Fn(&Rule) -> bool) -> Option<usize> {
    chain.rules.iter().position(is_one)
}

fn later_fragments() -> Rule {
    let later = [Range::new(1, Field::FragmentOffset.max())];
    added(LATER_FRAGMENTS, vec![Match::in_ranges(Field::FragmentOffset, later)], FRAGMENTS)
}

fn added(text: &str, conditions: Vec<Match>, why: &str) -> Rule {
    let mut steps: Vec<_> = conditions.into_iter().map(Step::Match).collect();
    steps.push(Step::Unsupported(why.to_owned()));
    Rule { place: Place::default(), text: text.to_owned(), steps }
}

fn looks_at_transport(rule: &Rule) -> bool {
    rule.steps.iter().flat_map(Step::keys).any(is_of_transport)
}

const fn is_of_transport(key: &Key) -> bool {
    matches!(
        key.field,
        Field::SourcePort
            | Field::DestinationPort
            | Field::TcpFlags
            | Field::IcmpType
            | Field::IcmpCode
            | Field::Payload { base: PayloadBase::Transport, .. }
    )
}
