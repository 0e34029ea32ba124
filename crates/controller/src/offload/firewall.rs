//! The rules of nftables, as far as the offload depends on them.

use std::sync::Arc;

use super::{Firewall, KernelRule, PerFamily, Rules};
use crate::kernel::Family;
use tollway_firewall::ir::{self, Chain, Field, Hook, Ruleset, Step};
use tollway_firewall::listing::listed;
use tollway_firewall::offload::{Offload, RuleOffload, kernel_for_all};
use tollway_rules::Reading;

impl From<&Reading> for Firewall {
    fn from(reading: &Reading) -> Self {
        let mut rules = Rules {
            tracking: PerFamily::each(|family| {
                let (needs, is_ipv4) = (&reading.needs, family == Family::V4);
                let need = needs.every_packet(is_ipv4).or_else(|| needs.tracking(is_ipv4));
                need.map(ToString::to_string)
            }),
            spares_established: PerFamily::each(|family| {
                reading.needs.every_packet(family == Family::V4).is_none()
            }),
            fragments: PerFamily::each(|family| {
                let need = reading.needs.fragments(family == Family::V4);
                need.map(ToString::to_string)
            }),
            at_devices: at_devices(reading),
            of_ethernet: of_ethernet(reading),
            of_frames: of_frames(reading),
            of_forwarded: PerFamily::each(|family| of_forwarded(reading, family)),
            whole: PerFamily::each(|family| {
                let is_ipv4 = family == Family::V4;
                // Connection tracking explains more than one of its rules.
                let is_tracked = reading.needs.tracking(is_ipv4).is_some();
                let rule = kernel_for_all(&reading.rules, is_ipv4).filter(|_| !is_tracked);
                rule.as_ref().and_then(comes_to).into_iter().collect()
            }),
            ..Rules::default()
        };
        rules.compiled = sort(&reading.rules, &mut rules.kernel, |rule| &mut rule.of_packets);
        rules.compiled_for_connections = if Arc::ptr_eq(&reading.rules, &reading.connections) {
            rules
                .kernel
                .iter_mut()
                .for_each(|rule| rule.of_connections.clone_from(&rule.of_packets));
            rules.compiled
        } else {
            sort(&reading.connections, &mut rules.kernel, |rule| &mut rule.of_connections)
        };
        Self::Read(rules)
    }
}

/// Adds to the rules on the kernel path those of one form of the rules, with the reason. Returns the number of rules
/// that the router evaluates.
fn sort(
    form: &Ruleset,
    kernel: &mut Vec<KernelRule>,
    reason: impl Fn(&mut KernelRule) -> &mut Option<String>,
) -> usize {
    let mut compiled = 0;
    for one in listed(form) {
        match one.offload {
            Offload::Compiled => compiled += 1,
            Offload::Elsewhere(_) => {}
            Offload::Kernel(why) => {
                let rule = format!("{} in {}", one.rule.text, one.chain.name);
                let mut known = kernel.iter_mut();
                let at = known.position(|known| known.rule == rule && reason(known).is_none());
                let at = at.unwrap_or_else(|| {
                    let families = families(one.chain);
                    kernel.push(KernelRule { rule, families, ..KernelRule::default() });
                    kernel.len() - 1
                });
                *reason(&mut kernel[at]) = Some(why);
            }
        }
    }
    compiled
}

/// The families of the packets that a chain may see.
const fn families(chain: &Chain) -> PerFamily<bool> {
    match chain.family {
        ir::Family::Ip => PerFamily { v4: true, v6: false },
        ir::Family::Ip6 => PerFamily { v4: false, v6: true },
        ir::Family::Inet | ir::Family::Netdev | ir::Family::Bridge => {
            PerFamily { v4: true, v6: true }
        }
    }
}

fn comes_to(one: &RuleOffload<'_>) -> Option<String> {
    let Offload::Kernel(why) = &one.offload else { return None };
    let RuleOffload { chain, rule, .. } = one;
    Some(format!("all packets come to \"{}\" in {}: {why}", rule.text, chain.name))
}

/// The chains at the hooks of devices.
fn at_devices(reading: &Reading) -> Vec<(Hook, String)> {
    let of = |chain: &Chain| {
        let hook = chain.base.as_ref()?.hook;
        matches!(hook, Hook::Ingress | Hook::Egress).then(|| (hook, chain.name.clone()))
    };
    reading.rules.chains.iter().filter_map(of).collect()
}

/// Whether there is a chain for frames of bridges, or at a device.
fn of_frames(reading: &Reading) -> bool {
    let is_of_frames = |chain: &Chain| {
        let is_at_device = |hook| matches!(hook, Hook::Ingress | Hook::Egress);
        let is_of_bridge = chain.family == ir::Family::Bridge;
        chain.base.as_ref().is_some_and(|base| is_of_bridge || is_at_device(base.hook))
    };
    reading.rules.chains.iter().any(is_of_frames)
}

/// Whether forwarded packets of a family come to a chain.
fn of_forwarded(reading: &Reading, family: Family) -> bool {
    let is_on_the_way = |chain: &Chain| {
        let is_forwarded =
            |hook| matches!(hook, Hook::Prerouting | Hook::Forward | Hook::Postrouting);
        let base = chain.base.as_ref().filter(|base| is_forwarded(base.hook));
        base.is_some() && *families(chain).of(family) && chain.family != ir::Family::Bridge
    };
    reading.rules.chains.iter().any(is_on_the_way)
}

/// Says whether rules are about fields of Ethernet's header. The type of IP packets counts, too: rules about
/// `meta protocol` have the same field.
fn of_ethernet(reading: &Reading) -> bool {
    let rules = reading.rules.chains.iter().flat_map(|chain| &chain.rules);
    let mut keys = rules.flat_map(|rule| &rule.steps).flat_map(Step::keys);
    keys.any(|key| {
        matches!(key.field, Field::EtherType | Field::EtherSource | Field::EtherDestination)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tollway_firewall::ir::{Base, Family as Of, Place, Policy, Rule, Ruleset, Step, Verdict};
    use tollway_rules::{Need, Needs};

    #[test]
    fn a_rule_that_all_packets_come_to_is_a_reason_for_the_family() {
        let mut forward = Chain::new("ip t forward", Of::Ip);
        forward.base = Some(Base::new(Hook::Forward, 0, Policy::Accept));
        forward.rules = vec![Rule {
            place: Place::handle(1),
            text: "ip saddr @old drop".to_owned(),
            steps: vec![Step::Unsupported("its elements time out".to_owned())],
        }];
        let mut rules = Ruleset::default();
        rules.add_chain(forward);
        let rules = Arc::new(rules);
        let reading = Reading {
            connections: Arc::clone(&rules),
            rules,
            needs: Needs::default(),
            generation: 7,
            knows_numbers: false,
            watches_ipsets: false,
        };
        let Firewall::Read(rules) = Firewall::from(&reading) else { panic!() };
        let why =
            "all packets come to \"ip saddr @old drop\" in ip t forward: its elements time out";
        assert_eq!(rules.whole, PerFamily { v4: vec![why.to_owned()], v6: vec![] });
    }

    #[test]
    fn a_reading_is_summarized_by_rule() {
        let rule = |text: &str, step| Rule {
            place: Place::handle(1),
            text: text.to_owned(),
            steps: vec![step],
        };
        let mut forward = Chain::new("inet t forward", Of::Inet);
        forward.base = Some(Base::new(Hook::Forward, 0, Policy::Accept));
        forward.rules = vec![
            rule("drop", Step::Verdict(Verdict::Drop)),
            rule("log", Step::Unsupported("it logs".to_owned())),
        ];
        let mut ingress = Chain::new("netdev t in", Of::Netdev);
        ingress.base = Some(Base::new(Hook::Ingress, 0, Policy::Accept));
        let mut input = Chain::new("inet t input", Of::Inet);
        input.base = Some(Base::new(Hook::Input, 0, Policy::Accept));
        input.rules = vec![rule("accept", Step::Verdict(Verdict::Accept))];
        let mut rules = Ruleset::default();
        rules.add_chain(forward);
        rules.add_chain(input);
        rules.add_chain(ingress);
        let need = Need {
            chain: "ip t nat".to_owned(),
            handle: None,
            text: "masquerade".to_owned(),
            why: "addresses are translated",
            v4: true,
            v6: false,
            host: false,
            spares_established: true,
        };
        let own = Need {
            chain: "inet t input".to_owned(),
            text: "ct state new".to_owned(),
            why: "connections are tracked",
            v6: true,
            host: true,
            ..need.clone()
        };
        let needs = Needs { tracking: vec![own, need] };
        let rules = Arc::new(rules);
        let reading = Reading {
            connections: Arc::clone(&rules),
            rules,
            needs,
            generation: 7,
            knows_numbers: false,
            watches_ipsets: false,
        };
        let expected = Rules {
            of_ethernet: false,
            of_frames: true,
            of_forwarded: PerFamily { v4: true, v6: true },
            compiled: 1,
            compiled_for_connections: 1,
            kernel: vec![KernelRule {
                rule: "log in inet t forward".to_owned(),
                families: PerFamily { v4: true, v6: true },
                of_packets: Some("it logs".to_owned()),
                of_connections: Some("it logs".to_owned()),
            }],
            spares_established: PerFamily { v4: true, v6: true },
            tracking: PerFamily {
                v4: Some("\"masquerade\" in ip t nat: addresses are translated".to_owned()),
                v6: None,
            },
            fragments: PerFamily::each(|_| {
                Some("\"ct state new\" in inet t input: connections are tracked".to_owned())
            }),
            at_devices: vec![(Hook::Ingress, "netdev t in".to_owned())],
            whole: PerFamily::default(),
        };
        assert_eq!(Firewall::from(&reading), Firewall::Read(expected));
    }
}
