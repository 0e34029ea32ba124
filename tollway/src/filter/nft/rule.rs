//! One rule in the making, and where it stands.

use std::collections::BTreeSet;

use super::chains::Listing;
use super::fields::Field;
use crate::filter::ir::{Family, Hook, Match, Selector, Step};

/// Where a rule stands: what its chain is for, and whence packets come to it.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) family: Family,
    /// The table, as its sets and chains are kept under it.
    pub(super) table: String,
    /// Hooks from which packets get to the chain.
    pub(super) hooks: BTreeSet<Hook>,
}

/// Whether packets have a link where a rule stands.
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

    /// Whether the header's TTL and checksum may be others than received.
    pub(super) fn is_behind_routing(&self) -> bool {
        let before = [Hook::Ingress, Hook::Prerouting, Hook::Input];
        !self.hooks.iter().all(|hook| before.contains(hook))
    }

    /// Whether frames are as a device has received them, tags included.
    pub(super) fn is_at_device(&self) -> bool {
        matches!(self.family, Family::Netdev | Family::Bridge)
            || self.hooks.contains(&Hook::Ingress)
            || self.hooks.contains(&Hook::Egress)
    }
}

/// A rule in the making.
pub(super) struct Rule<'l, 'v> {
    pub(super) listing: &'l mut Listing<'v>,
    pub(super) site: &'l Site,
    pub(super) steps: Vec<Step>,
    /// The version of IP that packets have which come to the next step, where that is known.
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

    /// Adds a condition on what rules do not write, but where it was asked for already.
    pub(super) fn need(&mut self, one: Match) {
        let step = Step::Match(one);
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    /// What comes next is for one version of IP.
    pub(super) fn need_version(&mut self, version: u8) {
        if self.version != Some(version) {
            self.need(Match::is(Selector::IpVersion, version.into()));
            self.version = Some(version);
        }
    }

    /// What comes next is for no packet.
    pub(super) fn never(&mut self) {
        self.need(Match::in_ranges(Selector::IpVersion, []));
    }

    /// What a test of fields says by itself: the kernel takes the name of a link that a packet does not
    /// have for an empty one. None where it is to be tested.
    ///
    /// # Errors
    /// Where it says different things for packets that come here on different ways.
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
