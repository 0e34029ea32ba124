//! Packets that the kernel's rules may take for others than rules that nft lists say; they are few, and left
//! to the kernel.
//!
//! - Later fragments, where rules look at transport headers: some kernels (6.18 is one) take what is in such
//!   a fragment for a header where it has one, two or four bytes (`nft_payload_fast_eval` in
//!   `net/netfilter/nf_tables_core.c` does not ask for `fragoff`).
//! - ICMP in IPv6 and ICMPv6 in IPv4, where rules look for these protocols: nft 1.0.6 lists `meta nfproto ipv4
//!   meta l4proto icmp` without its first half.

use crate::filter::ir::{
    Chain, Family, Key, Match, PayloadBase, Place, Range, Rule, Ruleset, Selector, Step, Test,
};

const FRAGMENTS: &str = "kernels differ in what they see of later fragments";
const VERSIONS: &str = "nft does not list for which version of IP the rule is";

const ICMP: u128 = 1;
const ICMP6: u128 = 58;

/// Puts rules before those that such packets may meet.
pub(super) fn guard(rules: &mut Ruleset) {
    for chain in &mut rules.chains {
        let fragments = first(chain, looks_at_transport).map(|at| (at, later_fragments()));
        let mut guards: Vec<_> = fragments.into_iter().collect();
        // Chains of the other families see one version of IP.
        if matches!(chain.family, Family::Inet | Family::Netdev) {
            let icmp = |version, protocol| {
                let at = first(chain, |rule| looks_for(rule, protocol))?;
                Some((at, other_version(version, protocol)))
            };
            guards.extend(icmp(6, ICMP));
            guards.extend(icmp(4, ICMP6));
        }
        // From behind: what stands before stays where it is.
        guards.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, guard) in guards {
            chain.rules.insert(at, guard);
        }
    }
}

fn first(chain: &Chain, is_one: impl Fn(&Rule) -> bool) -> Option<usize> {
    chain.rules.iter().position(is_one)
}

fn later_fragments() -> Rule {
    let later = [Range::new(1, Selector::FragmentOffset.max())];
    added("(later fragments)", vec![Match::in_ranges(Selector::FragmentOffset, later)], FRAGMENTS)
}

fn other_version(version: u128, protocol: u128) -> Rule {
    let is = [Match::is(Selector::IpVersion, version), Match::is(Selector::Protocol, protocol)];
    added("(ICMP of the other version)", is.to_vec(), VERSIONS)
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
        key.selector,
        Selector::SourcePort
            | Selector::DestinationPort
            | Selector::TcpFlags
            | Selector::IcmpType
            | Selector::IcmpCode
            | Selector::Payload { base: PayloadBase::Transport, .. }
    )
}

/// Says if a rule is for one protocol, and may be for one version of IP only.
fn looks_for(rule: &Rule, protocol: u128) -> bool {
    let is_it = |one: &Match| {
        one.keys == [Selector::Protocol.into()]
            && one.test == Test::Ranges(vec![Range::one(protocol)])
            && !one.negate
    };
    rule.steps.iter().any(|step| matches!(step, Step::Match(one) if is_it(one)))
}
