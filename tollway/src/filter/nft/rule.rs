//! A rule under construction, and its context.

use std::collections::BTreeSet;

use super::chains::Listing;
use super::fields::Field;
use crate::filter::ir::{Family, Hook, Match, Selector, Step};

/// The context of a rule: its chain's family, and the hooks whose packets reach it.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) family: Family,
    /// The table, as the key of its sets and chains.
    pub(super) table: String,
    /// The hooks whose packets reach the chain.
    pub(super) hooks: BTreeSet<Hook>,
}

/// Whether packets have a certain link in a rule's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Always,
    Never,
    Sometimes,
}

impl Site {
    fn presence(&self, selector: Selector) -> Presence {
        let has = |hook: &Hook| match selector {
            Selector::Input => !matches!(hook, Hook::Output | Hook::Egress),
            Selector::Output => !matches!(hook, Hook::Ingress | Hook::Prerouting | Hook::Input),
            _ => true,
        };
        match (self.hooks.iter().all(has), self.hooks.iter().any(has)) {
            (true, _) => Presence::Always,
            (false, true) => Presence::Sometimes,
            (false, false) => Presence::Never,
        }
    }

    /// Whether the header's TTL and checksum may differ from those received.
    pub(super) fn is_behind_routing(&self) -> bool {
        let before = [Hook::Ingress, Hook::Prerouting, Hook::Input];
        !self.hooks.iter().all(|hook| before.contains(hook))
    }

    /// Whether frames are as a device has received them, including tags.
    pub(super) fn is_at_device(&self) -> bool {
        matches!(self.family, Family::Netdev | Family::Bridge)
            || self.hooks.contains(&Hook::Ingress)
            || self.hooks.contains(&Hook::Egress)
    }
}

/// A rule under construction.
pub(super) struct Rule<'l, 'v> {
    pub(super) listing: &'l mut Listing<'v>,
    pub(super) site: &'l Site,
    pub(super) steps: Vec<Step>,
    /// The version of IP of packets that reach the next step, if it is known.
    pub(super) version: Option<u8>,
}

impl<'l, 'v> Rule<'l, 'v> {
    pub(super) fn new(listing: &'l mut Listing<'v>, site: &'l Site) -> Self {
        let version = match site.family {
            Family::Ip => Some(4),
            Family::Ip6 => Some(6),
            _ => None,
        };
        Self { listing, site, steps: Vec::new(), version }
    }

    /// Adds a condition on a field that rules do not write, unless it is already there.
    pub(super) fn need(&mut self, one: Match) {
        let step = Step::Match(one);
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    /// Restricts what follows to one version of IP.
    pub(super) fn need_version(&mut self, version: u8) {
        if self.version != Some(version) {
            self.need(Match::is(Selector::IpVersion, version.into()));
            self.version = Some(version);
        }
    }

    /// Ends the rule with a condition that no packet meets.
    pub(super) fn never(&mut self) {
        self.need(Match::in_ranges(Selector::IpVersion, []));
    }

    /// The result of a test of fields that does not depend on the packet; `None` if it does. The kernel uses
    /// an empty name for a link that a packet does not have.
    ///
    /// # Errors
    /// The result differs between the hooks whose packets reach the rule.
    pub(super) fn without_link(
        &self,
        fields: &[Field],
        negate: bool,
    ) -> Result<Option<bool>, String> {
        for field in fields {
            let selector = field.key.selector;
            match self.site.presence(selector) {
                Presence::Always => {}
                Presence::Never if fields.len() == 1 || !negate => return Ok(Some(negate)),
                Presence::Sometimes if selector == Selector::Output && !negate => {}
                _ => {
                    return Err(
                        "the chain is reached where packets have no such interface".to_owned()
                    );
                }
            }
        }
        Ok(None)
    }
}
