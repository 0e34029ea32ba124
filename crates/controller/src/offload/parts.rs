//! Parts of otherwise fast traffic that take the kernel path, and notes.

use std::collections::BTreeSet;

use super::{Facts, Firewall, KernelRule, Link, PerFamily, Reason, Watch};
use crate::kernel::{Family, Ifindex, Kernel, Netdev, Rule, RuleAction};
use crate::lookup_chains;
use tollway_firewall::ir::Hook;
use tollway_model::Engine;
use tollway_rules::LATER_FRAGMENTS;

/// A part of the traffic whose packets take the kernel path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The routes, the rule of routing or the rule of the firewall.
    pub what: String,
    /// Why.
    pub why: String,
}

/// Something to know that concerns no path: a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub String);

/// The parts that take the kernel path.
pub(super) fn parts(
    facts: &Facts<'_>,
    links: &[Link],
    groups: &PerFamily<Vec<Reason>>,
) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |what: String, why: String| parts.push(Part { what, why });
    if facts.ports.iter().any(|(_, engine)| *engine == Engine::Tc) {
        // What holds for a port holds for all VLANs on it.
        let is_of_port = |port: Ifindex, reason: &Reason| {
            let port = links.iter().find(|link| link.ifindex == port);
            port.is_some_and(|port| port.tc_exits.iter().any(|of| of.key() == reason.key()))
        };
        for link in links {
            let own =
                |reason: &&Reason| link.ifindex == link.port || !is_of_port(link.port, reason);
            if let Some(reason) = link.tc_exits.iter().find(own) {
                let what = format!("packets from {} to ports with the engine tc", link.name);
                add(what, reason.to_string());
            }
        }
    }
    let routes = facts.routes;
    let links: BTreeSet<_> = links.iter().map(|link| link.ifindex).collect();
    for (device, count) in routes.by_device.iter().filter(|(device, _)| !links.contains(device)) {
        let (name, why) = name_and_reason(facts, *device);
        // The default route may be the only one.
        let is_default = routes.defaults.contains(device);
        let which = match (is_default, count) {
            (false, _) => "",
            (true, 1) => ", a default route",
            (true, _) => ", a default route among them",
        };
        add(format!("{} by {name}{which}", plural(*count, "route")), why);
    }
    for family in [Family::V4, Family::V6] {
        let count = *routes.several.of(family);
        if let Some(reason) = groups.of(family).first().filter(|_| count > 0) {
            let name = super::reason::family_name(family);
            add(
                format!("{} with several next hops", plural(count, &format!("{name} route"))),
                reason.to_string(),
            );
        }
    }
    for (count, why) in [
        (routes.wrapped, "they encapsulate packets (encap)"),
        (routes.of_tos, "they apply to only one type of service (tos)"),
        (
            routes.in_turn,
            "they differ from others only in the next hop, and the kernel tries them in turn",
        ),
        (routes.unsupported, "they have attributes that the router does not support"),
    ] {
        if count > 0 {
            add(plural(count, "route"), why.to_owned());
        }
    }
    for rule in &facts.kernel.rules {
        let family = match rule.family {
            Family::V4 => "ip rule",
            Family::V6 => "ip -6 rule",
        };
        let what = format!("packets that {family} {} may match", rule.priority);
        if let Some(why) = rule.unsupported.clone().or_else(|| kernel_reason(facts.kernel, rule)) {
            add(what, why);
        }
    }
    if let Firewall::Read(rules) = facts.firewall {
        let tags = most_tags(facts);
        for (hook, chain) in &rules.at_devices {
            let (least, what, why) = match hook {
                Hook::Ingress => {
                    (2, "two VLAN tags", "the rules see no packet behind a second tag")
                }
                _ => (1, "VLAN tags", "the rules of several devices see them in turn"),
            };
            if tags >= least {
                add(
                    format!("packets with {what} that reach the nft rules of {chain}"),
                    why.to_owned(),
                );
            }
        }
    }
    parts
}

/// Rules of nftables that leave packets to the kernel of which others would be fast: none where everything of a family is
/// the kernel's, and where it tracks connections those that it alone can evaluate for established ones.
pub(super) fn rules(
    facts: &Facts<'_>,
    general: &PerFamily<Vec<Reason>>,
    tracked: &PerFamily<Option<String>>,
) -> Vec<Part> {
    let Firewall::Read(rules) = facts.firewall else { return Vec::new() };
    let part = |rule: &KernelRule| {
        // Where the kernel tracks connections, all fragments are its own.
        let is_of_fragments = rule.rule.starts_with(LATER_FRAGMENTS);
        let of = |family| {
            let is_told = is_of_fragments && tracked.of(family).is_some();
            let may = *rule.families.of(family) && general.of(family).is_empty() && !is_told;
            let (packets, why) = match tracked.of(family) {
                Some(_) => ("packets of established connections", &rule.of_connections),
                None => ("packets", &rule.of_packets),
            };
            let what = || format!("{packets} that reach the nft rule {}", rule.rule);
            why.clone().filter(|_| may).map(|why| Part { what: what(), why })
        };
        of(Family::V4).or_else(|| of(Family::V6))
    };
    rules.kernel.iter().filter_map(part).collect()
}

/// The largest number of stacked VLAN devices, at most 2.
fn most_tags(facts: &Facts<'_>) -> usize {
    let netdevs = &facts.kernel.netdevs;
    let is_tagged = |netdev: &&Netdev| netdev.vlan.is_some();
    let tags = netdevs.values().filter(is_tagged).map(|netdev| {
        let below = netdev.lower.and_then(|lower| netdevs.get(&lower));
        1 + usize::from(below.is_some_and(|below| below.vlan.is_some()))
    });
    tags.max().unwrap_or(0)
}

/// All but packets of established connections, if the kernel tracks connections.
pub(super) fn tracked(rules: &PerFamily<Option<String>>) -> Vec<Part> {
    let of = |name: &str, rule: &Option<String>| {
        rule.as_ref().map(|rule| Part {
            what: format!(
                "{name} packets that begin or end a connection, or belong to none that is established, of UDP or TCP"
            ),
            why: format!("the kernel makes, translates and ends connections, for {rule}"),
        })
    };
    of("IPv4", &rules.v4).into_iter().chain(of("IPv6", &rules.v6)).collect()
}

/// Fragments, if rules for the host's own packets enable their reassembly.
pub(super) fn fragments(rules: &PerFamily<Option<String>>) -> Vec<Part> {
    let of = |what: &str, rule: &Option<String>| {
        rule.as_ref().map(|rule| Part {
            what: what.to_owned(),
            why: format!("the kernel reassembles them, for {rule}"),
        })
    };
    let v4 = of("IPv4 fragments", &rules.v4);
    let v6 = of("IPv6 packets with extension headers, which may be fragments", &rules.v6);
    v4.into_iter().chain(v6).collect()
}

/// Says whether a rule selects packets by more than their VRF.
const fn selects(rule: &Rule) -> bool {
    rule.src.is_some() || rule.dst.is_some() || rule.mark.is_some()
}

/// Why packets of a rule take the kernel path: it sends some to another rule, or selects by a VRF's devices.
fn kernel_reason(kernel: &Kernel, rule: &Rule) -> Option<String> {
    if lookup_chains::is_by_member(kernel, rule) {
        return Some("kernels differ in the input device of packets in a VRF (iif)".to_owned());
    }
    let skips = selects(rule) && matches!(rule.action, RuleAction::Goto(_));
    skips.then(|| "it sends some packets to another rule (goto)".to_owned())
}

/// The name of a device that is not a link of the router, and its kind.
fn name_and_reason(facts: &Facts<'_>, device: Ifindex) -> (String, String) {
    let Some(netdev) = facts.kernel.netdevs.get(&device) else {
        return (format!("device {device}"), "there is no such device now".to_owned());
    };
    let is = match netdev.kind.as_deref() {
        _ if netdev.vlan.is_some() => "a VLAN device that is not on a port".to_owned(),
        Some(kind) => format!("of kind {kind}, and not a port"),
        None => "not a port".to_owned(),
    };
    (netdev.name.clone(), format!("{} is {is}", netdev.name))
}

/// The notes: on connections, captures and links that are down.
pub(super) fn notes(
    facts: &Facts<'_>,
    links: &[Link],
    (fragments, tracked): (&PerFamily<Option<String>>, &PerFamily<Option<String>>),
) -> Vec<Note> {
    let mut notes = Vec::new();
    let taps = &facts.probes.taps;
    let has_unknown = |family| fragments.of(family).is_some() && tracked.of(family).is_none();
    let tracks = tracked.v4.is_some() || tracked.v6.is_some();
    if tracks && facts.probes.watched == Some(Watch::Accounting) {
        notes.push(Note(
            "the kernel counts packets of connections (net.netfilter.nf_conntrack_acct), but not those on the fast \
             path: `conntrack -L` lacks them, `tollway show connections` adds the latest, and `tollway run \
             --exact-counters` leaves all connections to the kernel"
                .to_owned(),
        ));
    }
    if [Family::V4, Family::V6].into_iter().any(has_unknown) {
        notes.push(Note(
            "connections on the fast path are not in the kernel's list of connections (conntrack -L)"
                .to_owned(),
        ));
    }
    // Captures on a port see a tc program's packets, those on VLAN devices on it do not.
    let is_shown =
        |link: &Link| link.ifindex == link.port && facts.ports.contains(&(link.port, Engine::Tc));
    for link in links {
        let is_captured = taps.contains(&None) || taps.contains(&Some(link.ifindex));
        if is_captured && !is_shown(link) {
            notes.push(Note(format!(
                "a program captures on {}, and does not see packets on the fast path",
                link.name
            )));
        }
        if !link.up {
            notes.push(Note(format!("{} is down, or has no carrier", link.name)));
        }
    }
    notes
}

/// A count, and the word in singular or plural.
fn plural(count: u64, word: &str) -> String {
    if count == 1 { format!("{count} {word}") } else { format!("{count} {word}s") }
}
