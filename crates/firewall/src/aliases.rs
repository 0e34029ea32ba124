//! The instances of a ruleset that translate addresses, with the addresses of their links.

use tollway_dataplane::stages::filter::AliasConfig;

use super::ir::{AliasInstance, Ruleset};
use super::links::Link;

/// An instance with its alias address; none if its link is not there, or has no address of IPv4.
pub(super) fn resolved(instance: &AliasInstance, links: &[Link]) -> Option<AliasConfig> {
    let address = match &instance.link {
        None => instance.config.address,
        Some(name) => links.iter().find(|link| link.name == *name)?.first_ip4()?.to_bits(),
    };
    Some(instance.config.clone().with_address(address))
}

/// The configurations of all instances. A ruleset with an instance that lacks its address is refused before (`hops.rs`).
pub(super) fn configs(rules: &Ruleset, links: &[Link]) -> Vec<AliasConfig> {
    let config = |instance: &AliasInstance| {
        resolved(instance, links).unwrap_or_else(|| instance.config.clone())
    };
    rules.aliases.iter().map(config).collect()
}
