//! `[[routes]]`: static routes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::nearest::did_you_mean;
use super::nexthops::{Group, Resolved, read_hop, read_list};
use super::raw::{At, Section, Setting, bare};
use super::topology::Topology;
use super::values::{choice, destination, never_forwarded};
use crate::{GroupIndex, Route, RouteTarget, VrfIndex};
use tollway_firewall::mistake::{Ledger, Span, quoted};

const KEYS: [&str; 8] = ["vrf", "to", "via", "dev", "group", "type", "metric", "nexthops"];

/// The route types, by the kernel's names. All except `unicast` have no next hop.
const TYPES: [(&str, Option<Discard>); 4] = [
    ("unicast", None),
    ("blackhole", Some(Discard::Blackhole)),
    ("unreachable", Some(Discard::Unreachable)),
    ("prohibit", Some(Discard::Prohibit)),
];

#[derive(Clone, Copy)]
enum Discard {
    Blackhole,
    Unreachable,
    Prohibit,
}

impl Discard {
    fn target(self) -> RouteTarget {
        match self {
            Self::Blackhole => RouteTarget::Blackhole,
            Self::Unreachable => RouteTarget::Unreachable,
            Self::Prohibit => RouteTarget::Prohibit,
        }
    }
}

/// The destination of a route; `default` gets its family from the next hops.
#[derive(Clone, Copy)]
enum To {
    Default,
    Prefix(IpNet),
}

/// The target of a route, and the next hops that must be of the destination's family.
struct Target {
    target: RouteTarget,
    hops: Vec<Resolved>,
    /// The position of the group's name, if the route names a group.
    group_span: Option<Span>,
}

/// Reads the routes. Checks each against the links and against the others.
pub(super) fn read(
    root: &Section<'_>,
    topology: &Topology<'_>,
    groups: &[Group<'_>],
    ledger: &mut Ledger<'_>,
) -> Vec<Route> {
    let sections = match root.list_of_tables("routes", "this route", ledger) {
        Setting::Given(at) => at.value,
        Setting::Absent | Setting::Bad => return Vec::new(),
    };
    let by_name = groups.iter().enumerate().map(|(i, group)| (group.name, i)).collect();
    let reader = Reader { topology, groups, by_name };
    let mut seen = HashMap::new();
    let mut routes = Vec::new();
    for section in &sections {
        let Some((route, span)) = reader.read(section, ledger) else { continue };
        let key = (route.vrf, route.dst, route.metric);
        if let Some(first) = seen.get(&key) {
            report_duplicate(&route, *first, span, ledger);
            continue;
        }
        reader.check_connected(&route, &span, ledger);
        seen.insert(key, span.start);
        routes.push(route);
    }
    routes
}

fn report_duplicate(route: &Route, first: usize, span: Span, ledger: &mut Ledger<'_>) {
    let line = ledger.line(first);
    let Route { dst, metric, .. } = route;
    ledger.relation(
        span,
        format!("{dst} with metric {metric} has a route already (line {line})"),
        "give another metric, or list both next hops in one route's nexthops",
    );
}

struct Reader<'r> {
    topology: &'r Topology<'r>,
    groups: &'r [Group<'r>],
    by_name: HashMap<&'r str, usize>,
}

impl Reader<'_> {
    /// Reads a route and the position of its destination; none if the route has a mistake.
    fn read(&self, section: &Section<'_>, ledger: &mut Ledger<'_>) -> Option<(Route, Span)> {
        section.check_keys(&KEYS, ledger);
        let vrf = self.topology.vrfs.of(section, ledger);
        let to = read_to(section, ledger);
        let metric = section.integer("metric", 0..=u32::MAX, ledger);
        let target = self.read_target(section, vrf, ledger);
        let (vrf, to, target) = (vrf?, to?, target?);
        let dst = with_family(&to, &target, ledger)?;
        let At { span, .. } = to;
        self.check_leaks(vrf, &target, ledger);
        if !check_families(&dst, &target, ledger) || !check_forwarded(&dst, &span, &target, ledger)
        {
            return None;
        }
        let metric = match metric {
            Setting::Absent => 0,
            Setting::Bad => return None,
            Setting::Given(at) => at.value,
        };
        Some((Route { vrf, dst, metric, target: target.target }, span))
    }

    fn read_target(
        &self,
        section: &Section<'_>,
        vrf: Option<VrfIndex>,
        ledger: &mut Ledger<'_>,
    ) -> Option<Target> {
        let kind = section.text("type", ledger);
        let kind = kind.read(ledger, |text| choice("type of route", text, &TYPES));
        if kind.is_bad() {
            return None;
        }
        let discard = kind.given().and_then(|at| at.value);
        if !check_one_target(section, discard.is_some(), ledger) {
            return None;
        }
        if let Some(discard) = discard {
            return Some(Target { target: discard.target(), hops: Vec::new(), group_span: None });
        }
        if section.key_span("group").is_some() {
            return self.read_group(section, ledger);
        }
        // An unknown VRF was reported already; without the VRF, its next hops cannot be looked up.
        let vrf = Some(vrf?);
        let hops = if section.key_span("nexthops").is_some() {
            read_list(section, vrf, self.topology, ledger).given()?.value
        } else {
            vec![read_hop(section, vrf, self.topology, ledger)?]
        };
        let target = RouteTarget::NextHops(hops.iter().map(|resolved| resolved.hop).collect());
        Some(Target { target, hops, group_span: None })
    }

    fn read_group(&self, section: &Section<'_>, ledger: &mut Ledger<'_>) -> Option<Target> {
        let At { value: name, span } = section.text("group", ledger).given()?;
        let Some(index) = self.by_name.get(name).copied() else {
            let known: Vec<&str> = self.by_name.keys().copied().collect();
            let add = || "add a [groups.NAME] table or correct the name".to_owned();
            let remedy = did_you_mean(name, &known, add);
            ledger.relation(span, format!("there is no group {}", quoted(name)), remedy);
            return None;
        };
        let hops = self.groups.get(index)?.members.clone()?;
        let target = RouteTarget::Group(GroupIndex(index));
        Some(Target { target, hops, group_span: Some(span) })
    }

    /// Reports next hops in another VRF, unless the file names their link: packets leave a VRF only
    /// on purpose.
    fn check_leaks(&self, vrf: VrfIndex, target: &Target, ledger: &mut Ledger<'_>) {
        let Some(span) = &target.group_span else { return };
        let link_vrf = |hop: &Resolved| self.topology.link(hop.hop.link.0).and_then(|l| l.vrf);
        let leak = |hop: &&Resolved| !hop.dev_given && link_vrf(hop).is_some_and(|v| v != vrf);
        let Some(hop) = target.hops.iter().find(leak) else { return };
        let line = ledger.line(hop.span.start);
        ledger.relation(
            span.clone(),
            format!("a next hop of this group (line {line}) is in another vrf than the route"),
            "name the next hop's dev in the group if the packets are to leave the vrf",
        );
    }

    /// A connected route has metric 0 and comes first. The kernel refuses a second route with
    /// metric 0.
    fn check_connected(&self, route: &Route, span: &Span, ledger: &mut Ledger<'_>) {
        if route.metric > 0 {
            return;
        }
        let Some(link) = self.topology.connected(route.vrf, &route.dst) else { return };
        let line = ledger.line(link.span.start);
        ledger.relation(
            span.clone(),
            format!("{} is connected to {} already (line {line})", route.dst, bare(link.name)),
            "remove the route, or give it a metric above 0",
        );
    }
}

fn read_to(section: &Section<'_>, ledger: &mut Ledger<'_>) -> Option<At<To>> {
    let to = section.text("to", ledger);
    if to.is_absent() {
        section.missing("to", "add the destination, as to = \"192.0.2.0/24\"", ledger);
    }
    to.read(ledger, |text| match text {
        "default" => Ok(To::Default),
        _ => destination(text).map(To::Prefix),
    })
    .given()
}

/// Reports a route that has no target, or more than one.
fn check_one_target(section: &Section<'_>, discards: bool, ledger: &mut Ledger<'_>) -> bool {
    // `via` and `dev` both describe the same target.
    let single = if section.key_span("via").is_some() { "via" } else { "dev" };
    let mut present: Vec<(&str, Span)> = [single, "nexthops", "group"]
        .into_iter()
        .filter_map(|key| Some((key, section.key_span(key)?)))
        .collect();
    present.sort_by_key(|(_, span)| span.start);
    match (discards, present.as_slice()) {
        (false, [_]) | (true, []) => true,
        (true, [(key, span), ..]) => {
            let what = format!("a route that discards packets has no next hop, but this has {key}");
            ledger.relation(span.clone(), what, format!("remove {key} or type"));
            false
        }
        (false, []) => {
            let remedy = "add via, dev, nexthops or group, or type = \"blackhole\"";
            let keys = ["via", "dev", "nexthops", "group", "type"];
            section.missing_any("next hop", &keys, remedy, ledger);
            false
        }
        (false, [(first, _), (second, span), ..]) => {
            let what = format!("this route has both {first} and {second}");
            ledger.relation(span.clone(), what, "keep the one that is meant");
            false
        }
    }
}

/// The destination; `default` becomes the prefix of the next hops' family.
fn with_family(to: &At<To>, target: &Target, ledger: &mut Ledger<'_>) -> Option<IpNet> {
    let net = match to.value {
        To::Prefix(net) => return Some(net),
        To::Default => target.hops.iter().find_map(|hop| hop.hop.via).map(|via| match via {
            IpAddr::V4(_) => IpNet::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            IpAddr::V6(_) => IpNet::new(Ipv6Addr::UNSPECIFIED.into(), 0),
        }),
    };
    if net.is_none() {
        ledger.relation(
            to.span.clone(),
            "\"default\" could be IPv4 or IPv6, as no next hop with an address shows which",
            "write \"0.0.0.0/0\" or \"::/0\"",
        );
    }
    net.and_then(Result::ok)
}

fn check_families(dst: &IpNet, target: &Target, ledger: &mut Ledger<'_>) -> bool {
    let is_v4 = dst.addr().is_ipv4();
    let other = |hop: &&Resolved| hop.hop.via.is_some_and(|via| via.is_ipv4() != is_v4);
    let Some(hop) = target.hops.iter().find(other) else { return true };
    let via = hop.hop.via.map_or(String::new(), |via| via.to_string());
    let span = target.group_span.clone().unwrap_or(hop.span.clone());
    if is_v4 {
        ledger.relation(
            span,
            format!("IPv4 over an IPv6 next hop (RFC 5549: {dst} via {via}) is not supported"),
            "give an IPv4 next hop",
        );
    } else {
        ledger.relation(
            span,
            format!("the IPv6 destination {dst} cannot have the IPv4 next hop {via}"),
            "give an IPv6 next hop",
        );
    }
    false
}

/// Reports a route to destinations that are never forwarded. Routes that discard are allowed there.
fn check_forwarded(dst: &IpNet, span: &Span, target: &Target, ledger: &mut Ledger<'_>) -> bool {
    let Some(kind) = never_forwarded(dst).filter(|_| !target.hops.is_empty()) else { return true };
    let what = format!("{dst} holds only {kind}, which are never forwarded");
    ledger.relation(span.clone(), what, "remove the route or correct its destination");
    false
}
