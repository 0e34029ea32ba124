//! Next hops, alone or in groups (`[groups.NAME]`).

use std::collections::HashSet;
use std::net::IpAddr;

use super::links::narrow;
use super::raw::{At, Section, Setting, bare};
use super::topology::Topology;
use super::values::{host_address, is_link_local};
use crate::{LinkIndex, NextHop, NextHopGroup, VrfIndex};
use tollway_firewall::mistake::{Fault, Ledger, Span};

const WEIGHT_MAX: u32 = 256;

/// A next hop with its link.
#[derive(Clone)]
pub(super) struct Resolved {
    pub(super) hop: NextHop,
    /// Whether the file names the link. Only then may the link be in another VRF than the route.
    pub(super) dev_given: bool,
    pub(super) span: Span,
}

/// A group of next hops, with what routes need to know of it.
pub(super) struct Group<'a> {
    pub(super) name: &'a str,
    pub(super) group: NextHopGroup,
    /// None if a member is wrong.
    pub(super) members: Option<Vec<Resolved>>,
}

/// Reads the groups, in the order of their index in the model.
pub(super) fn read_groups<'a>(
    root: &Section<'a>,
    topology: &Topology<'_>,
    ledger: &mut Ledger<'_>,
) -> Vec<Group<'a>> {
    let mut groups = Vec::new();
    for (name, section) in root.tables("groups", "group", ledger) {
        section.check_keys(&["nexthops"], ledger);
        if name.value.is_empty() || name.value.chars().any(char::is_control) {
            let fault = Fault::new("the group name is empty or unprintable", "choose another");
            ledger.value(name.span.clone(), fault);
        }
        if section.key_span("nexthops").is_none() {
            let remedy = "add nexthops = [{ via = \"...\", dev = \"...\" }]";
            section.missing("nexthops", remedy, ledger);
        }
        let members = read_list(&section, None, topology, ledger).given().map(|at| at.value);
        check_one_family(members.as_deref().unwrap_or_default(), ledger);
        let hops = members.iter().flatten().map(|member| member.hop).collect();
        let group = NextHopGroup { name: name.value.to_owned(), members: hops };
        groups.push(Group { name: name.value, group, members });
    }
    groups
}

/// Reads `nexthops = [...]`. For a route, `vrf` is the VRF in which links are looked up.
pub(super) fn read_list(
    section: &Section<'_>,
    vrf: Option<VrfIndex>,
    topology: &Topology<'_>,
    ledger: &mut Ledger<'_>,
) -> Setting<Vec<Resolved>> {
    let hops = match section.list_of_tables("nexthops", "this next hop", ledger) {
        Setting::Absent => return Setting::Absent,
        Setting::Bad => return Setting::Bad,
        Setting::Given(at) => at,
    };
    if hops.value.is_empty() {
        let what = format!("{} has an empty list of nexthops", section.title);
        ledger.value(hops.span, Fault::new(what, "add at least one { via = \"...\" }"));
        return Setting::Bad;
    }
    let count = hops.value.len();
    let read: Vec<Resolved> = hops
        .value
        .iter()
        .filter_map(|hop| {
            hop.check_keys(&["via", "dev", "weight"], ledger);
            read_hop(hop, vrf, topology, ledger)
        })
        .collect();
    check_distinct(&read, topology, ledger);
    if read.len() < count {
        Setting::Bad
    } else {
        Setting::Given(At { value: read, span: hops.span })
    }
}

/// Reads one next hop from a table with `via`, `dev` and `weight`, and finds its link.
pub(super) fn read_hop(
    section: &Section<'_>,
    vrf: Option<VrfIndex>,
    topology: &Topology<'_>,
    ledger: &mut Ledger<'_>,
) -> Option<Resolved> {
    let via = section.text("via", ledger).read(ledger, |text| host_address("the next hop", text));
    let dev = topology.dev(section, ledger);
    let weight = section
        .integer("weight", 1..=WEIGHT_MAX, ledger)
        .read(ledger, |weight| narrow("weight", weight));
    if via.is_bad() || dev.is_bad() || weight.is_bad() {
        return None;
    }
    let weight = weight.given().map_or(1, |at| at.value);
    let resolved = |via: Option<IpAddr>, link, dev_given, span| {
        Some(Resolved { hop: NextHop { via, link: LinkIndex(link), weight }, dev_given, span })
    };
    match (via.given(), dev.given()) {
        (None, None) => {
            section.missing_any(
                "via or dev",
                &["via", "dev"],
                "say where to send the packets",
                ledger,
            );
            None
        }
        (None, Some(dev)) => resolved(None, dev.value, true, dev.span),
        (Some(via), Some(dev)) => {
            check(dev.value, &via, topology, ledger)?;
            resolved(Some(via.value), dev.value, true, via.span)
        }
        (Some(via), None) => {
            let link = find_link(&via, vrf, topology, ledger)?;
            check(link, &via, topology, ledger)?;
            resolved(Some(via.value), link, false, via.span)
        }
    }
}

fn check(
    link: usize,
    via: &At<IpAddr>,
    topology: &Topology<'_>,
    ledger: &mut Ledger<'_>,
) -> Option<()> {
    match topology.check_host("the next hop", link, via.value, ledger) {
        Ok(()) => Some(()),
        Err(Fault { what, remedy }) => {
            ledger.relation(via.span.clone(), what, remedy);
            None
        }
    }
}

/// Finds the link whose subnet contains a next hop: in the route's VRF, or in any VRF for a group.
fn find_link(
    via: &At<IpAddr>,
    vrf: Option<VrfIndex>,
    topology: &Topology<'_>,
    ledger: &mut Ledger<'_>,
) -> Option<usize> {
    let address = via.value;
    if is_link_local(address) {
        let what = format!("the next hop {address} is link-local, so it could be on any link");
        ledger.relation(via.span.clone(), what, "add dev = \"...\" with the link that it is on");
        return None;
    }
    let found: Vec<usize> = match vrf {
        Some(vrf) => topology.covering(vrf, address).into_iter().collect(),
        None => (0..topology.links.len())
            .filter(|link| topology.link(*link).is_some_and(|l| l.covering(address).is_some()))
            .collect(),
    };
    let names = |links: &[usize]| -> Vec<String> {
        links.iter().filter_map(|i| topology.link(*i)).map(|link| bare(link.name)).collect()
    };
    match found.as_slice() {
        [one] => return Some(*one),
        [] if topology.is_doubtful(vrf) => {}
        [] => {
            let place = vrf.map_or("any vrf".to_owned(), |vrf| {
                format!("vrf {}", bare(topology.vrfs.name(vrf)))
            });
            ledger.relation(
                via.span.clone(),
                format!("the next hop {address} is in no connected subnet of {place}"),
                off_link_remedy(address, topology),
            );
        }
        several => ledger.relation(
            via.span.clone(),
            format!("the next hop {address} could be on {}", names(several).join(" or ")),
            "add dev = \"...\" with the link that is meant",
        ),
    }
    None
}

fn off_link_remedy(address: IpAddr, topology: &Topology<'_>) -> String {
    let other = topology.links.iter().find(|link| link.covering(address).is_some());
    match other {
        Some(link) => format!(
            "write dev = \"{}\" too if the packets are to leave the vrf by that link",
            bare(link.name)
        ),
        None => "correct it, or add an address of its subnet to a link".to_owned(),
    }
}

fn check_distinct(hops: &[Resolved], topology: &Topology<'_>, ledger: &mut Ledger<'_>) {
    let mut seen = HashSet::new();
    for Resolved { hop, span, .. } in hops {
        if seen.insert((hop.via, hop.link)) {
            continue;
        }
        let dev = topology.link(hop.link.0).map_or(String::new(), |link| bare(link.name));
        let name = hop.via.map_or(dev, |via| via.to_string());
        let what = format!("the next hop {name} is in this list twice");
        ledger.relation(span.clone(), what, "list it once and give it a larger weight");
    }
}

fn check_one_family(hops: &[Resolved], ledger: &mut Ledger<'_>) {
    let mut vias = hops.iter().filter_map(|hop| Some((hop.hop.via?, hop)));
    let Some((first, _)) = vias.next() else { return };
    if let Some((via, hop)) = vias.find(|(via, _)| via.is_ipv4() != first.is_ipv4()) {
        ledger.relation(
            hop.span.clone(),
            format!("the next hop {via} is of another family than {first} in the same group"),
            "make one group for IPv4 and one for IPv6",
        );
    }
}
