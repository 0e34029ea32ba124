//! Why everything of a family takes the kernel path.

use super::probe::{Device, Hook, Watch};
use super::{Facts, Firewall, PerFamily, Reason, Rules};
use crate::kernel::{Family, Rule};

/// Kinds of devices that take other devices' frames, but neither `IFLA_LINK` nor `IFLA_MASTER` shows whose.
const HIDDEN: [&str; 2] = ["hsr", "prp"];

/// Why everything of a family takes the kernel path.
pub(super) fn reasons(facts: &Facts<'_>, family: Family) -> Vec<Reason> {
    let mut reasons = Vec::new();
    match family {
        Family::V4 if facts.sysctls.global.path_mtu => reasons.push(Reason::PathMtu),
        Family::V6 if facts.sysctls.all6.proxy_ndp => reasons.push(Reason::ProxyNdp),
        _ => {}
    }
    xfrm(facts, family, &mut reasons);
    netfilter(facts, family, &mut reasons);
    let hidden = facts.kernel.netdevs.values().find_map(|netdev| {
        let kind = netdev.kind.clone().filter(|kind| HIDDEN.contains(&kind.as_str()))?;
        Some(Reason::Hidden { kind, device: netdev.name.clone() })
    });
    reasons.extend(hidden);
    reasons
}

/// The reasons of a family about netfilter.
pub(super) fn of_netfilter(facts: &Facts<'_>, family: Family) -> Vec<Reason> {
    let mut reasons = Vec::new();
    netfilter(facts, family, &mut reasons);
    reasons
}

fn xfrm(facts: &Facts<'_>, family: Family, reasons: &mut Vec<Reason>) {
    match &facts.probes.xfrm {
        Ok(xfrm) => {
            let count = *xfrm.policies.of(family);
            reasons.extend((count > 0).then_some(Reason::Xfrm(count)));
            reasons.extend(xfrm.blocks.then_some(Reason::XfrmBlocks));
        }
        Err(why) => reasons.push(Reason::Unknown("IPsec policies", why.0.clone())),
    }
}

/// Adds the reasons about netfilter's hooks: from traces of their users and, if the kernel lists the
/// hooks, also from that list.
fn netfilter(facts: &Facts<'_>, family: Family, reasons: &mut Vec<Reason>) {
    let probes = facts.probes;
    let hooks = match &probes.hooks {
        Ok(hooks) => hooks.as_ref().map(|hooks| hooks.of(family)),
        Err(why) => {
            reasons.push(Reason::Unknown("netfilter's hooks", why.0.clone()));
            None
        }
    };
    let has = |hook: &Hook| hooks.is_some_and(|hooks| hooks.contains(hook));
    let by = firewall(facts, family, reasons).or(legacy(facts, family, reasons));
    let own = fragments(facts, family);
    // The tracked connections may belong to the other family.
    let explained = own.is_some() || fragments(facts, family.other()).is_some();
    let traces = probes.tracked && !explained || has(&Hook::Conntrack) && own.is_none();
    if by.is_some() || traces {
        reasons.push(Reason::Conntrack(by));
    } else if let Some(watch) = own.and(probes.watched) {
        // Of an established connection, the kernel reports begin and end.
        let is_told = tracked(facts, family).is_none() || watch == Watch::LogInvalid;
        reasons.extend(is_told.then_some(Reason::Watched(watch)));
    }
    reasons.extend((probes.ipvs || has(&Hook::Ipvs)).then_some(Reason::Ipvs));
    reasons.extend(probes.labels.then_some(Reason::Labels));
    for hook in hooks.into_iter().flatten() {
        if let Hook::Other(function) = hook {
            reasons.push(Reason::Hook(function.clone()));
        }
    }
}

/// The rule for which the kernel tracks connections, if the programs may forward those that are established.
pub(super) fn tracked<'a>(facts: &Facts<'a>, family: Family) -> Option<&'a str> {
    let Firewall::Read(rules) = facts.firewall else { return None };
    let spares = facts.probes.asks_conntrack && *rules.spares_established.of(family);
    rules.tracking.of(family).as_deref().filter(|_| spares)
}

/// The rule that enables reassembly of fragments.
pub(super) fn fragments<'a>(facts: &Facts<'a>, family: Family) -> Option<&'a str> {
    match facts.firewall {
        Firewall::Unread(_) => None,
        Firewall::Read(rules) => rules.fragments.of(family).as_deref(),
    }
}

/// Adds the reasons about nftables; returns the rule for which the kernel has to see all packets of connections.
fn firewall(facts: &Facts<'_>, family: Family, reasons: &mut Vec<Reason>) -> Option<String> {
    match facts.firewall {
        Firewall::Unread(why) => {
            reasons.push(Reason::RulesUnread(why.clone()));
            None
        }
        Firewall::Read(rules) => {
            reasons.extend(rules.whole.of(family).iter().cloned().map(Reason::Rules));
            let need = rules.tracking.of(family).as_ref();
            let need = need.filter(|_| tracked(facts, family).is_none())?;
            Some(format!("{need}{}", no_engine(facts, family, rules)))
        }
    }
}

/// Why the programs forward no connections of a family, if rules would permit it: the end of a sentence.
fn no_engine(facts: &Facts<'_>, family: Family, rules: &Rules) -> &'static str {
    if facts.probes.asks_conntrack || !rules.spares_established.of(family) {
        return "";
    }
    ", and it has no functions by which Tollway's programs could ask about them (Linux 6.1 and newer)"
}

/// The same for iptables-legacy.
fn legacy(facts: &Facts<'_>, family: Family, reasons: &mut Vec<Reason>) -> Option<String> {
    let legacy = match &facts.probes.legacy {
        Ok(legacy) => legacy.of(family),
        Err(why) => {
            reasons.push(Reason::Unknown("rules of iptables-legacy", why.0.clone()));
            return None;
        }
    };
    let chains: Vec<_> = legacy.chains.iter().cloned().collect();
    reasons.extend((!chains.is_empty()).then_some(Reason::Legacy(chains)));
    legacy.tracks.then(|| "a rule of iptables-legacy: connections are tracked".to_owned())
}

fn selects_by_transport(rule: &Rule) -> bool {
    let words = rule.unsupported.as_deref().into_iter().flat_map(|words| words.split(", "));
    words
        .flat_map(|word| word.split(' ').next())
        .any(|word| matches!(word, "ipproto" | "sport" | "dport"))
}

/// Why the kernel would choose other next hops than the router for packets that arrive by a device:
/// instead of its own hash of layer 4, it uses one that came with the packet (`skb->l4_hash`).
pub(super) fn own_hash(
    facts: &Facts<'_>,
    family: Family,
    name: &str,
    found: &Device,
) -> Option<Reason> {
    let global = facts.sysctls.global;
    let policy = *PerFamily { v4: global.multipath4, v6: global.multipath6 }.of(family);
    let counts = found.own_hash && policy == 1 && *facts.spread.groups.of(family);
    counts.then(|| Reason::OwnHash(name.to_owned()))
}

/// Why routes with several next hops take the kernel path.
pub(super) fn groups(facts: &Facts<'_>, family: Family) -> Vec<Reason> {
    let global = facts.sysctls.global;
    let policy = *PerFamily { v4: global.multipath4, v6: global.multipath6 }.of(family);
    let version = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    let mut reasons = Vec::new();
    let mut add = |is: bool, why: String| reasons.extend(is.then_some(Reason::Multipath(why)));
    add(
        policy > 1,
        format!(
            "the kernel chooses next hops by more than flows (net.{version}.fib_multipath_hash_policy = {policy})"
        ),
    );
    add(
        global.multipath_seed.is_none(),
        "the seed by which the kernel chooses among them is secret; Linux 6.11 and newer have \
         net.ipv4.fib_multipath_hash_seed"
            .to_owned(),
    );
    add(
        global.multipath_seed == Some(0) && facts.spread.seed_refused,
        "the seed by which the kernel chooses among them is secret, and Tollway may not set one; run \
         sysctl -w net.ipv4.fib_multipath_hash_seed=N"
            .to_owned(),
    );
    // With such rules the kernel reads flow labels as numbers before it hashes
    // (`fib6_rules_early_flow_dissect`), which gives another hash.
    let mut rules = facts.kernel.rules.iter().filter(|rule| rule.family == Family::V6);
    add(
        family == Family::V6 && policy == 0 && rules.any(selects_by_transport),
        "an ip -6 rule selects by protocol or ports, and the kernel then chooses other next hops"
            .to_owned(),
    );
    add(
        family == Family::V4 && global.multipath_neigh,
        "the kernel skips next hops that do not answer (net.ipv4.fib_multipath_use_neigh)"
            .to_owned(),
    );
    reasons
}
