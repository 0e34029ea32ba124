use std::sync::Arc;

use crate::id::{LinkId, NextHopId, VrfId};
use crate::prefix::{Prefix, RoutePrefix};
use crate::tables::{RouteQuery, Tables, TablesError};
use crate::verdict::{DropReason, PuntReason};

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
#[derive(Debug, Default)]
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
}

/// The rules of a link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// For IPv4 and IPv6.
    rules: [Vec<Rule>; 2],
}

impl Policy {
    /// The rules for a version of IP, in order.
    pub(crate) fn rules(&self, version: u8) -> &[Rule] {
        &self.rules[usize::from(version != 4)]
    }
}

/// A compiled rule.
#[derive(Debug, PartialEq, Eq)]
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
    /// Says whether the rule matches a packet.
    pub(crate) fn matches(&self, query: &RouteQuery) -> bool {
        // `fib_rule_match`: no differing bit is in the mask.
        (query.mark ^ self.mark) & self.mask == 0
            && self.src.contains(query.src)
            && self.dst.contains(query.dst)
    }
}

impl Tables {
    /// Sets a link's policy, which replaces its VRF's FIB; no rules remove it.
    ///
    /// The first rule that matches a packet decides. A rule that selects a VRF only decides if that VRF
    /// or one that it falls back to has a route for the packet. If no rule decides, there is no route.
    ///
    /// # Errors
    /// See [`TablesError`]; the link then keeps its policy.
    pub fn set_policy(&mut self, link: LinkId, rules: Vec<PolicyRule>) -> Result<(), TablesError> {
        self.links.get(usize::from(link.0)).ok_or(TablesError::Unknown)?;
        let policy = match rules.is_empty() {
            true => None,
            false => {
                let compiled = [self.compile(&rules, true)?, self.compile(&rules, false)?];
                Some(Arc::new(Policy { rules: compiled }))
            }
        };
        let all = self.policies.get_or_insert_default();
        let index = usize::from(link.0);
        if all.by_link.len() <= index {
            all.by_link.resize(index + 1, None);
        }
        all.by_link[index] = policy;
        if all.by_link.iter().all(Option::is_none) {
            self.policies = None;
        }
        self.epochs.changes.note();
        Ok(())
    }

    /// The rules for a family.
    fn compile(&mut self, rules: &[PolicyRule], is_ipv4: bool) -> Result<Vec<Rule>, TablesError> {
        let mut compiled = Vec::new();
        for rule in rules {
            let prefixes = part(rule.src, is_ipv4).zip(part(rule.dst, is_ipv4));
            let Some((src, dst)) = prefixes else { continue };
            let (mark, mask) = rule.mark.unwrap_or_default();
            let decision = self.decision(rule.action, is_ipv4)?;
            compiled.push(Rule { src, dst, mark, mask, decision });
        }
        Ok(compiled)
    }

    fn decision(&mut self, action: PolicyAction, is_ipv4: bool) -> Result<Decision, TablesError> {
        Ok(Decision::Next(match action {
            PolicyAction::View(vrf) => {
                let vrf = self.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown)?;
                return Ok(Decision::Root(if is_ipv4 { vrf.root4.0 } else { vrf.root6.0 }));
            }
            PolicyAction::Blackhole => self.drop(DropReason::Blackhole)?,
            PolicyAction::Unreachable => self.punt(PuntReason::Unreachable)?,
            PolicyAction::Prohibit => self.punt(PuntReason::Prohibit)?,
            PolicyAction::Punt => self.punt(PuntReason::KernelRule)?,
        }))
    }
}

/// A rule's prefix for a family; none if the prefix is for the other family.
fn part(prefix: Option<RoutePrefix>, is_ipv4: bool) -> Option<Prefix> {
    match (prefix.unwrap_or(RoutePrefix::all(is_ipv4)), is_ipv4) {
        (RoutePrefix::V4(prefix), true) | (RoutePrefix::V6(prefix), false) => Some(prefix),
        _ => None,
    }
}
