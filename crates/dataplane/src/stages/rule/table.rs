use std::sync::Arc;

use super::RouteQuery;
use crate::id::{LinkId, NextHopId, VrfId};
use crate::prefix::{Prefix, RoutePrefix};

/// One rule of a link's policy: a packet matches if it matches all given selectors.
///
/// A prefix makes it a rule for packets of its family; a rule without any is for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// Sources.
    pub src: Option<RoutePrefix>,
    /// Destinations.
    pub dst: Option<RoutePrefix>,
    /// Marks that have this value in the bits of the mask: value, mask.
    pub mark: Option<(u32, u32)>,
    /// The action for the packet.
    pub action: PolicyAction,
}

impl PolicyRule {
    /// The sources and destinations of a family; none if the rule is for the other family.
    pub(crate) fn prefixes(&self, is_ipv4: bool) -> Option<(Prefix, Prefix)> {
        part(self.src, is_ipv4).zip(part(self.dst, is_ipv4))
    }
}

/// The action for a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// The route in this VRF and those that it falls back to decides; without a route, the next rule
    /// does.
    View(VrfId),
    /// Dropped.
    Blackhole,
    /// Dropped; the router has to answer with ICMP unreachable.
    Unreachable,
    /// Dropped; the router has to answer with ICMP administratively prohibited.
    Prohibit,
    /// The kernel decides.
    Punt,
}

/// The policies of links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    by_link: Vec<Option<Arc<Policy>>>,
}

impl Policies {
    /// The policy of a link.
    #[inline(always)]
    pub(crate) fn of(&self, link: LinkId) -> Option<&Arc<Policy>> {
        self.by_link.get(usize::from(link.0))?.as_ref()
    }

    /// Says whether the policies of two links have the same result for every packet.
    pub(crate) fn are_alike(&self, one: LinkId, other: LinkId) -> bool {
        match (self.of(one), self.of(other)) {
            (None, None) => true,
            (Some(one), Some(other)) => one == other,
            _ => false,
        }
    }

    /// Sets or removes the policy of a link.
    pub(crate) fn set(&mut self, link: LinkId, policy: Option<Arc<Policy>>) {
        let index = usize::from(link.0);
        if self.by_link.len() <= index {
            self.by_link.resize(index + 1, None);
        }
        self.by_link[index] = policy;
    }

    /// Says whether no link has a policy.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_link.iter().all(Option::is_none)
    }
}

/// The rules of a link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// For IPv4 and IPv6.
    rules: [Vec<Rule>; 2],
}

impl Policy {
    /// A policy of these rules, for IPv4 and IPv6.
    pub(crate) const fn new(rules: [Vec<Rule>; 2]) -> Self {
        Self { rules }
    }

    /// The rules for a version of IP, in order.
    pub(crate) fn rules(&self, version: u8) -> &[Rule] {
        &self.rules[usize::from(version != 4)]
    }
}

/// A compiled rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    src: Prefix,
    dst: Prefix,
    mark: u32,
    mask: u32,
    pub(crate) decision: Decision,
}

/// The result of a matching rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Looks up the FIB with this root.
    Root(u32),
    /// The packet gets this next hop.
    Next(NextHopId),
}

impl Rule {
    /// A rule for packets of these sources and destinations, if they have the rule's mark.
    pub(crate) fn new(rule: &PolicyRule, (src, dst): (Prefix, Prefix), decision: Decision) -> Self {
        let (mark, mask) = rule.mark.unwrap_or_default();
        Self { src, dst, mark, mask, decision }
    }

    /// A rule for all packets.
    pub(crate) const fn any(decision: Decision) -> Self {
        let all = Prefix::v6(0, 0);
        Self { src: all, dst: all, mark: 0, mask: 0, decision }
    }

    /// A rule for the same packets.
    pub(crate) const fn with(self, decision: Decision) -> Self {
        Self { decision, ..self }
    }

    /// The sources and destinations.
    pub(crate) const fn prefixes(&self) -> (Prefix, Prefix) {
        (self.src, self.dst)
    }

    /// The mark, and its bits that count.
    pub(crate) const fn mark(&self) -> (u32, u32) {
        (self.mark, self.mask)
    }

    /// Says whether the rule matches a packet.
    pub(crate) fn matches(&self, query: &RouteQuery) -> bool {
        // `fib_rule_match`: no differing bit is in the mask.
        (query.mark ^ self.mark) & self.mask == 0
            && self.src.contains(query.src)
            && self.dst.contains(query.dst)
    }
}

/// A rule's prefix for a family; none if the prefix is for the other family.
fn part(prefix: Option<RoutePrefix>, is_ipv4: bool) -> Option<Prefix> {
    match (prefix.unwrap_or(RoutePrefix::all(is_ipv4)), is_ipv4) {
        (RoutePrefix::V4(prefix), true) | (RoutePrefix::V6(prefix), false) => Some(prefix),
        _ => None,
    }
}
