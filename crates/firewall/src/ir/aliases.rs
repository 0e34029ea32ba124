//! Rules that translate addresses (`nat` of ipfw).

use super::{CounterId, Place, Ruleset};
use tollway_dataplane::stages::filter::{AliasConfig, AliasPass};

/// A position in [`Ruleset::aliases`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AliasId(pub usize);

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasInstance {
    /// Where it was configured.
    pub place: Place,
    /// Its configuration; without an alias address if that is a link's.
    pub config: AliasConfig,
    /// The link whose first address of IPv4 is the alias address.
    pub link: Option<String>,
}

/// Translates the packet, or drops it if it gets no mapping. What rules see of it stays as it is, so the rule's verdict
/// follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The instance; `None` for the first that knows the packet (`nat global`).
    pub instance: Option<AliasId>,
    /// The pass.
    pub pass: AliasPass,
    /// Counts packets that come without a mapping.
    pub denied: CounterId,
    /// Counts packets for whose mapping there is no room.
    pub full: CounterId,
}

impl Ruleset {
    pub(super) fn check_alias(&self, alias: &Alias) -> Result<(), String> {
        let counts = |counter: &CounterId| counter.0 < self.counters.len();
        let is_there = alias.instance.is_none_or(|id| id.0 < self.aliases.len());
        match is_there && [alias.denied, alias.full].iter().all(counts) {
            true => Ok(()),
            false => Err("translates by an instance that is not there".to_owned()),
        }
    }
}
