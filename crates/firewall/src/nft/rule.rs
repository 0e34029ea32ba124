//! A rule under construction.

use super::listing::{Listing, Presence, Site};
use super::named_bits::NamedBits;
use crate::ir::{Family, Field, Match, Step};

/// A rule under construction.
pub(super) struct Rule<'l, 'v> {
    pub(super) listing: &'l mut Listing<'v>,
    pub(super) site: &'l Site,
    pub(super) steps: Vec<Step>,
    /// The version of IP of packets that reach the next step, if it is known.
    pub(super) version: Option<u8>,
    /// The first step that tests or sets something of the packet's connection.
    pub(super) connection: Option<OfConnection>,
}

/// The first step of a rule that tests or sets something of the packet's connection.
pub(super) struct OfConnection {
    /// Its position in the rule.
    pub(super) at: usize,
    /// Why packets that get there take the kernel path.
    pub(super) why: String,
}

impl<'l, 'v> Rule<'l, 'v> {
    pub(super) fn new(listing: &'l mut Listing<'v>, site: &'l Site) -> Self {
        let version = match site.family {
            Family::Ip => Some(4),
            Family::Ip6 => Some(6),
            _ => None,
        };
        Self { listing, site, steps: Vec::new(), version, connection: None }
    }

    /// Records that the next step tests or sets something of the packet's connection, and why packets that get
    /// there take the kernel path.
    pub(super) fn note_connection(&mut self, why: String) {
        self.connection.get_or_insert(OfConnection { at: self.steps.len(), why });
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
            self.need(Match::is(Field::IpVersion, version.into()));
            self.version = Some(version);
        }
    }

    /// Ends the rule with a condition that no packet meets.
    pub(super) fn never(&mut self) {
        self.need(Match::in_ranges(Field::IpVersion, []));
    }

    /// The result of a test of bits that does not depend on the packet; `None` if it does. The kernel uses
    /// an empty name for a link that a packet does not have.
    ///
    /// # Errors
    /// The result differs between the hooks whose packets reach the rule.
    pub(super) fn without_link(
        &self,
        named: &[NamedBits],
        negate: bool,
    ) -> Result<Option<bool>, String> {
        for bits in named {
            let field = bits.key.field;
            match self.site.presence(field) {
                Presence::Always => {}
                Presence::Never if named.len() == 1 || !negate => return Ok(Some(negate)),
                Presence::Sometimes if field == Field::Output && !negate => {}
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
