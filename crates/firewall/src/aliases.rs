//! The instances of a ruleset that translate addresses, with the addresses of their links.

use std::net::Ipv4Addr;

use tollway_dataplane::stages::filter::{AliasConfig, Redirect};

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

/// The configurations of all instances; one that lacks its address translates nothing.
pub(super) fn configs(rules: &Ruleset, links: &[Link]) -> Vec<AliasConfig> {
    let config = |instance: &AliasInstance| {
        resolved(instance, links).unwrap_or_else(|| instance.config.clone())
    };
    rules.aliases.iter().map(config).collect()
}

/// The addresses for which rules translate what comes: even if they are the router's own, its packets may be for others.
#[must_use]
pub fn public_addresses(rules: &Ruleset, links: &[Link]) -> Vec<Ipv4Addr> {
    let mut all = Vec::new();
    for config in configs(rules, links) {
        all.push(config.address);
        all.extend(config.redirects.iter().map(|redirect| match redirect {
            Redirect::Address { public, .. } | Redirect::Protocol { public, .. } => *public,
            Redirect::Port { public, .. } => public.address,
        }));
    }
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(Ipv4Addr::from_bits).collect()
}
