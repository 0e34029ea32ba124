//! Rules that translate addresses, in the JSON of nft 1.0.6.

use serde_json::{Value, json};

use super::super::read_value;
use crate::ir::{
    Datum, Elements, NatRange, NatTarget, NatVerdict, Ruleset, Step, Translation, Verdict,
};
use crate::listing::refusals;

/// Rules of one chain of type nat, beside another chain.
fn rules_in(family: &str, hook: &str, other: (&str, i32), expr: &[Value]) -> Ruleset {
    let mut objects = vec![
        json!({"table": {"family": family, "name": "t", "handle": 1}}),
        json!({"map": {"family": family, "table": "t", "name": "m", "type": "inet_service", "handle": 1,
            "map": "ipv4_addr . inet_service", "elem": [[80, {"concat": ["10.0.0.1", 8080]}]]}}),
        json!({"chain": {"family": family, "table": "t", "name": "c", "handle": 1,
            "type": "nat", "hook": hook, "prio": 0, "policy": "accept"}}),
        json!({"chain": {"family": family, "table": "t", "name": "other", "handle": 1,
            "type": "filter", "hook": other.0, "prio": other.1, "policy": "accept"}}),
        json!({"rule": {"family": family, "table": "t", "chain": "other", "handle": 2,
            "expr": [{"accept": null}]}}),
    ];
    for (number, expr) in expr.iter().enumerate() {
        objects.push(json!({"rule": {"family": family, "table": "t", "chain": "c",
            "handle": number + 3, "expr": expr}}));
    }
    let rules = read_value(&json!({ "nftables": objects }), "rules.json").unwrap();
    rules.check().unwrap();
    rules
}

fn range(target: NatTarget) -> NatRange {
    NatRange::new(target)
}

fn steps(family: &str, hook: &str, expr: Value) -> Vec<Step> {
    let rules = rules_in(family, hook, ("forward", 0), &[expr]);
    let mut chains = rules.chains.iter().filter(|chain| chain.name.ends_with(" c"));
    chains.next().unwrap().rules[0].steps.clone()
}

#[test]
fn statements_say_what_is_translated() {
    let (one, four) = (0x0a00_0001_u128, 0x0a00_0004);
    let from = |range| NatVerdict { version: Some(4), range };
    let both = |range| NatVerdict { version: None, range };
    let destination = range(NatTarget::Destination(Some((one, one))));
    for (family, hook, statement, expected) in [
        ("ip", "prerouting", json!({"dnat": {"addr": "10.0.0.1"}}), from(destination)),
        (
            "inet",
            "prerouting",
            json!({"dnat": {"family": "ip", "addr": "10.0.0.1", "port": 8080}}),
            from(NatRange { ports: Some((8080, 8080)), ..destination }),
        ),
        (
            "ip",
            "prerouting",
            json!({"dnat": {"addr": {"range": ["10.0.0.1", "10.0.0.4"]},
                "port": {"range": [80, 90]}, "flags": ["random", "persistent"]}}),
            from(NatRange {
                target: NatTarget::Destination(Some((one, four))),
                ports: Some((80, 90)),
                is_random: true,
                is_persistent: true,
            }),
        ),
        (
            "ip",
            "postrouting",
            json!({"snat": {"addr": {"prefix": {"addr": "10.0.0.0", "len": 29}}}}),
            from(range(NatTarget::Source(Some((one - 1, one + 6))))),
        ),
        (
            "ip",
            "prerouting",
            json!({"dnat": {"port": 81}}),
            from(NatRange { ports: Some((81, 81)), ..range(NatTarget::Destination(None)) }),
        ),
        ("inet", "postrouting", json!({"masquerade": null}), both(range(NatTarget::Masquerade))),
        (
            "inet",
            "postrouting",
            json!({"masquerade": {"port": {"range": [1024, 2048]}, "flags": "fully-random"}}),
            both(NatRange {
                ports: Some((1024, 2048)),
                is_random: true,
                ..range(NatTarget::Masquerade)
            }),
        ),
        ("inet", "prerouting", json!({"redirect": null}), both(range(NatTarget::Redirect))),
    ] {
        let expected = [Step::Verdict(Verdict::Nat(expected))];
        assert_eq!(steps(family, hook, json!([statement])), expected, "{statement}");
    }
}

#[test]
fn maps_say_what_each_element_is_translated_to() {
    let port = json!({"payload": {"protocol": "tcp", "field": "dport"}});
    let daddr = json!({"payload": {"protocol": "ip", "field": "daddr"}});
    let one = range(NatTarget::Destination(Some((0x0a00_0001, 0x0a00_0001))));
    let with_port = NatRange { ports: Some((8080, 8080)), ..one };
    let network = range(NatTarget::DestinationNetwork(0x0a00_0000, 0x0a00_00ff));
    let redirected = NatRange { ports: Some((8080, 8080)), ..range(NatTarget::Redirect) };
    let map = |key: &Value, data: Value| json!({"map": {"key": key, "data": data}});
    for (statement, version, expected) in [
        (json!({"dnat": {"addr": map(&port, json!({"set": [[80, "10.0.0.1"]]}))}}), Some(4), one),
        (
            json!({"dnat": {"family": "ip", "addr":
                map(&port, json!({"set": [[80, {"concat": ["10.0.0.1", 8080]}]]}))}}),
            Some(4),
            with_port,
        ),
        (json!({"dnat": {"addr": map(&port, json!("@m"))}}), Some(4), with_port),
        (
            json!({"dnat": {"addr": map(&daddr, json!({"set": [[
                {"prefix": {"addr": "192.0.2.0", "len": 24}},
                {"prefix": {"addr": "10.0.0.0", "len": 24}}]]})),
                "flags": "netmap", "type_flags": "prefix"}}),
            Some(4),
            network,
        ),
        (
            json!({"redirect": {"port": map(&port, json!({"set": [[80, 8080]]}))}}),
            Some(4),
            redirected,
        ),
    ] {
        let rules = rules_in("ip", "prerouting", ("forward", 0), &[json!([statement])]);
        let Some(Step::VerdictMap { map, .. }) = rules.chains[0].rules[0].steps.last() else {
            panic!("{:?}", rules.chains[0].rules[0]);
        };
        let Elements::Tuples(elements) = &rules.sets[map.0].elements else { panic!("a map") };
        let expected = Verdict::Nat(NatVerdict { version, range: expected });
        assert_eq!(elements[0].datum, Some(Datum::Verdict(expected)), "{statement}");
    }
}

#[test]
fn what_does_not_go_with_translation_is_a_mistake() {
    let masquerade = || [json!([{"masquerade": null}])];
    for (family, hook, other, expr, why) in [
        ("ip", "postrouting", ("postrouting", 100), masquerade(), "priority below 100"),
        ("ip", "postrouting", ("prerouting", -100), masquerade(), "give it another priority"),
        ("ip", "prerouting", ("forward", 0), masquerade(), "outside of a chain of type nat"),
        (
            "ip",
            "prerouting",
            ("forward", 0),
            [json!([{"dnat": {"addr": "10.0.0.1", "flags": "odd"}}])],
            "flag \"odd\" is not known",
        ),
        (
            "inet",
            "prerouting",
            ("forward", 0),
            [json!([{"dnat": {"addr": "10.0.0.1"}}])],
            "version of IP",
        ),
    ] {
        let rules = rules_in(family, hook, other, &expr);
        let refused = refusals(&rules, "rules.json");
        assert!(refused.len() == 1 && refused[0].to_string().contains(why), "{why}: {refused:?}");
    }
    for (hook, other) in [("postrouting", ("postrouting", 99)), ("postrouting", ("prerouting", 0))]
    {
        let rules = rules_in("ip", hook, other, &masquerade());
        assert_eq!(refusals(&rules, "rules.json"), []);
        let translation = rules.tracking.unwrap().translation;
        assert!(
            matches!(translation, Some(Translation { versions: [true, false], .. })),
            "{translation:?}"
        );
    }
    // Packets of the router itself are not its concern.
    let rules =
        rules_in("ip", "output", ("forward", 0), &[json!([{"dnat": {"addr": "10.0.0.1"}}])]);
    assert!(refusals(&rules, "rules.json").is_empty() && rules.tracking.is_none());
}
