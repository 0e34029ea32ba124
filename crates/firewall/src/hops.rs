//! Next hops (`fwd`) and VRFs (`setfib`) that rules name, resolved when rules are loaded.
//!
//! As in ipfw, an address on a link of the router is a neighbour there. Any other address resolves to the
//! next hop that its route has at that time. VRFs are numbered as in the configuration; the main one is
//! 0.

use std::net::IpAddr;

use tollway_dataplane::id::{LinkId, NextHopId, VrfId};
use tollway_dataplane::next_hops::Action as NextAction;
use tollway_dataplane::tables::Tables;

use super::aliases;
use super::ir::{Action, Place, Ruleset, Step};
use super::links::Link;

/// Why a rule cannot send packets to its target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct HopError {
    /// The rule's place.
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// How to correct it.
    pub remedy: &'static str,
}

/// A neighbour that rules name, and its link if they name that too.
pub(super) type Hop<'a> = (IpAddr, Option<&'a str>);

/// The distinct next hops that rules name, in order; their positions are their numbers.
pub(super) fn hops(rules: &Ruleset) -> Vec<Hop<'_>> {
    let mut hops = Vec::new();
    for (_, action) in actions(rules) {
        if let Action::Forward { via, link } = action {
            let hop = (*via, link.as_deref());
            if !hops.contains(&hop) {
                hops.push(hop);
            }
        }
    }
    hops
}

fn actions(rules: &Ruleset) -> impl Iterator<Item = (&Place, &Action)> {
    let rules = rules.chains.iter().flat_map(|chain| &chain.rules);
    rules.flat_map(|rule| {
        rule.steps.iter().filter_map(|step| match step {
            Step::Do(action) => Some((&rule.place, action)),
            _ => None,
        })
    })
}

/// Resolves the next hops that a ruleset names, for [`Filter::with_hops`], and looks for the addresses of links that it
/// translates to. `tables` are those that the rules
/// become active with; `links` are their links.
///
/// [`Filter::with_hops`]: tollway_dataplane::stages::filter::Filter::with_hops
///
/// # Errors
/// The first next hop or VRF that does not resolve.
pub fn resolve(
    rules: &Ruleset,
    tables: &mut Tables,
    links: &[Link],
) -> Result<Vec<NextHopId>, HopError> {
    for (place, action) in actions(rules) {
        let error = match action {
            Action::Fib(number) if *number as usize >= tables.routes.vrfs.len() => HopError {
                place: place.clone(),
                what: format!("there is no VRF number {number}"),
                remedy: "write 0 for the main one, or the place of another in the configuration",
            },
            Action::Forward { via, link } => {
                let Err((what, remedy)) = find((*via, link.as_deref()), tables, links) else {
                    continue;
                };
                HopError { place: place.clone(), what, remedy }
            }
            _ => continue,
        };
        return Err(error);
    }
    for instance in &rules.aliases {
        if let (Some(name), None) = (&instance.link, aliases::resolved(instance, links)) {
            return Err(HopError {
                place: instance.place.clone(),
                what: format!("no link {name} has an IPv4 address to translate to"),
                remedy: "name a link of the router that has one, or write ip and the address",
            });
        }
    }
    Ok(hops(rules).into_iter().filter_map(|hop| find(hop, tables, links).ok()).collect())
}

fn find(
    (via, link): Hop<'_>,
    tables: &mut Tables,
    links: &[Link],
) -> Result<NextHopId, (String, &'static str)> {
    const FULL: &str = "name fewer neighbours";
    const NO_WAY: &str = "name a neighbour, or add a route to it";
    let neigh = |tables: &mut Tables, link| {
        tables.neigh(link, via).map_err(|_| (format!("there is no room for {via}"), FULL))
    };
    if let Some(name) = link {
        let number = links.iter().position(|link| link.name == name);
        let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else {
            return Err((format!("there is no link {name}"), "name a link of the router"));
        };
        return neigh(tables, LinkId(number));
    }
    let id = tables.lookup(VrfId(0), via);
    if id.is_group() {
        return Ok(id);
    }
    let next = tables.next_hop(id);
    match next.action {
        NextAction::Glean => neigh(tables, next.link),
        NextAction::Forward | NextAction::Resolve => Ok(id),
        NextAction::Local => Err((format!("{via} is the router's own"), NO_WAY)),
        NextAction::Bridge | NextAction::Drop(_) | NextAction::Punt(_) => {
            Err((format!("there is no way to {via}"), NO_WAY))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Chain, Family, Rule};
    use tollway_dataplane::prefix::RoutePrefix;

    fn rules(actions: Vec<Action>) -> Ruleset {
        let mut rules = Ruleset::default();
        let mut chain = Chain::new("test", Family::Inet);
        for (line, action) in actions.into_iter().enumerate() {
            let place = Place::line("rules", line + 1);
            chain.rules.push(Rule { place, text: String::new(), steps: vec![Step::Do(action)] });
        }
        rules.add_chain(chain);
        rules
    }

    fn to(via: &str, link: Option<&str>) -> Action {
        Action::Forward { via: via.parse().unwrap(), link: link.map(str::to_owned) }
    }

    #[test]
    fn a_neighbour_a_route_and_a_named_link_are_found() {
        let mut tables = Tables::new();
        let vrf = tables.add_vrf().unwrap();
        let (_, link) = tables.add_port([2, 0, 0, 0, 0, 1], vrf, 1500).unwrap();
        let glean = tables.glean(link).unwrap();
        let prefix = |text: &str, len| RoutePrefix::new(text.parse().unwrap(), len);
        tables.insert(vrf, prefix("192.0.2.0", 24), glean).unwrap();
        let gateway = tables.neigh(link, "192.0.2.9".parse().unwrap()).unwrap();
        tables.insert(vrf, prefix("10.0.0.0", 8), gateway).unwrap();
        let local = tables.local().unwrap();
        tables.insert(vrf, prefix("192.0.2.1", 32), local).unwrap();
        let links = [Link { name: "eth0".into(), ..Link::default() }];
        let all = rules(vec![
            to("192.0.2.7", None),
            to("10.1.1.1", None),
            to("192.0.2.7", None),
            to("203.0.113.1", Some("eth0")),
            Action::Fib(0),
        ]);
        let found = resolve(&all, &mut tables, &links).unwrap();
        let neigh = |address: &str| tables.find_neigh(link, address.parse().unwrap()).unwrap();
        assert_eq!(found, [neigh("192.0.2.7"), gateway, neigh("203.0.113.1")]);
        for (action, what) in [
            (to("172.16.0.1", None), "there is no way to 172.16.0.1; name a"),
            (to("192.0.2.1", None), "192.0.2.1 is the router's own; "),
            (to("192.0.2.7", Some("eth9")), "there is no link eth9; "),
            (Action::Fib(1), "there is no VRF number 1; "),
        ] {
            let rules = rules(vec![Action::NoTrack, action]);
            let error = resolve(&rules, &mut tables, &links).unwrap_err();
            assert!(error.to_string().starts_with(what), "{error}");
            assert_eq!(error.place.line, 2);
        }
    }
}
