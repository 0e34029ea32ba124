//! Parts of listings that nft does not produce on every machine.

use serde_json::{Value, json};

use super::super::read;
use crate::ir::{
    Action, Datum, Elements, Field, LimitUnit, LinkPattern, Match, Ruleset, Step, Target, Verdict,
};

/// A ruleset of one chain at hook forward in table `inet t`, and other objects.
fn ruleset(rules: &[Value], others: &[Value]) -> Ruleset {
    let mut objects = vec![
        json!({"metainfo": {"version": "9.9.9", "json_schema_version": 1}}),
        json!({"table": {"family": "inet", "name": "t", "handle": 1}}),
        json!({"chain": {"family": "inet", "table": "t", "name": "c", "handle": 1, "type": "filter",
            "hook": "forward", "prio": 0, "policy": "accept"}}),
    ];
    objects.extend_from_slice(others);
    for (number, expr) in rules.iter().enumerate() {
        objects.push(json!({"rule": {"family": "inet", "table": "t", "chain": "c",
            "handle": number + 2, "expr": expr}}));
    }
    read(&json!({ "nftables": objects }).to_string(), "rules.json").unwrap()
}

fn steps(expr: Value) -> Vec<Step> {
    ruleset(&[expr], &[]).chains[0].rules[0].steps.clone()
}

fn port(right: Value) -> Value {
    json!({"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}},
        "right": right}})
}

#[test]
fn unknown_statements_are_unsupported_in_their_place() {
    let steps = steps(json!([port(json!(22)), {"from_the_future": {"a": 1}}, {"drop": null}]));
    let [Step::Match(_), Step::Match(_), Step::Unsupported(why)] = &steps[..] else {
        panic!("{steps:?}")
    };
    assert!(why.contains("from_the_future"));
    let rules = ruleset(
        &[json!([{"accept": null}])],
        &[
            json!({"flowtable": {"family": "inet", "name": "f", "table": "t", "dev": "eth0"}}),
            json!({"from_the_future": {"family": "inet", "name": "x"}}),
            json!(7),
        ],
    );
    assert_eq!(rules.chains[0].rules[0].steps, [Step::Verdict(Verdict::Accept)]);
}

#[test]
fn values_that_cannot_be_are_not_guessed() {
    for right in [
        json!(70_000),
        json!("nonsense"),
        json!({"range": [9, 1]}),
        json!({"range": [1]}),
        json!({"prefix": {"addr": 1, "len": 99}}),
        json!({"set": [1, {"map": {}}]}),
        json!({"set": [{"concat": [1, 2]}]}),
        json!("@missing"),
        json!(1.5),
        json!(null),
    ] {
        let steps = steps(json!([port(right.clone()), {"drop": null}]));
        assert!(matches!(steps.last(), Some(Step::Unsupported(_))), "{right}: {steps:?}");
    }
}

#[test]
fn a_rule_has_its_place_and_its_words() {
    let rules = ruleset(&[json!([port(json!(22)), {"drop": null}])], &[]);
    let rule = &rules.chains[0].rules[0];
    assert_eq!(rules.chains[0].name, "inet t c");
    assert_eq!(rule.place.handle, Some(2));
    assert_eq!(rule.place.file.as_deref(), Some("rules.json"));
    assert_eq!(rule.text, "tcp dport 22 drop");
}

#[test]
fn several_devices_are_a_list() {
    let chain = json!({"chain": {"family": "netdev", "table": "n", "name": "c", "handle": 1,
        "type": "filter", "hook": "ingress", "dev": ["a", "b*"], "prio": 0, "policy": "drop"}});
    let rules = ruleset(&[], &[chain]);
    let base = rules.chains[1].base.clone().unwrap();
    let prefix = LinkPattern::Prefix("b".into());
    assert_eq!(base.devices, [LinkPattern::Name("a".into()), prefix]);
    assert!(rules.chains[1].rules.is_empty());
}

#[test]
fn the_dscp_comes_from_a_map_too() {
    let map = json!({"map": {"key": {"payload": {"protocol": "udp", "field": "dport"}},
        "data": {"set": [[53, "cs1"], [{"range": [80, 90]}, 10]]}}});
    let key = json!({"payload": {"protocol": "ip", "field": "dscp"}});
    let rules = ruleset(&[json!([{"mangle": {"key": key, "value": map}}])], &[]);
    let [version, protocol, Step::Map { keys, map, target: Target::Dscp }] =
        &rules.chains[0].rules[0].steps[..]
    else {
        panic!("{:?}", rules.chains[0].rules[0].steps)
    };
    assert_eq!(*version, Step::Match(Match::is(Field::IpVersion, 4)));
    assert_eq!(*protocol, Step::Match(Match::is(Field::Protocol, 17)));
    assert_eq!(keys[..], [Field::DestinationPort.into()]);
    let Elements::Tuples(elements) = &rules.sets[map.0].elements else { panic!() };
    let data: Vec<_> = elements.iter().map(|element| element.datum.clone()).collect();
    assert_eq!(data, [Some(Datum::Number(8)), Some(Datum::Number(10))]);
}

#[test]
fn operators_take_more_than_two_in_later_versions() {
    let flags = json!({"payload": {"protocol": "tcp", "field": "flags"}});
    let left = json!({"&": [flags, {"|": ["fin", "syn", "rst", "ack"]}]});
    let steps = steps(json!([{"match": {"op": "==", "left": left, "right": "syn"}}]));
    let Some(Step::Match(one)) = steps.last() else { panic!("{steps:?}") };
    assert_eq!(one.keys[0].mask, 0x17);
    let mark = json!({"meta": {"key": "mark"}});
    let value = json!({"|": [{"&": [mark, 0xff, 0xf0]}, 1]});
    let steps = self::steps(json!([{"mangle": {"key": mark, "value": value}}]));
    assert_eq!(steps, [Step::Do(Action::Mark { keep: 0xf0, flip: 1 })]);
}

#[test]
fn a_queue_in_a_map_is_the_kernels_for_those_it_is_for() {
    let key = json!({"payload": {"protocol": "tcp", "field": "dport"}});
    let data = json!({"set": [[1, {"queue": {"num": 1}}], [2, {"drop": null}]]});
    let rules = ruleset(&[json!([{"vmap": {"key": key, "data": data}}])], &[]);
    let Elements::Tuples(elements) = &rules.sets[0].elements else { panic!() };
    assert!(matches!(elements[0].datum, Some(Datum::Verdict(Verdict::Unsupported(_)))));
    assert_eq!(elements[1].datum, Some(Datum::Verdict(Verdict::Drop)));
}

#[test]
fn sets_say_if_their_elements_come_and_go() {
    let set = |name: &str, more: Value| {
        let mut set = json!({"family": "inet", "table": "t", "name": name, "type": "ipv4_addr",
            "elem": [{"elem": {"val": "192.0.2.1", "timeout": 60, "expires": 50}}]});
        set.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "set": set })
    };
    let source = |name: &str| {
        json!([{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
            "right": name}}])
    };
    let rules = ruleset(
        &[source("@fixed"), source("@timed"), source("@timed"), source("@limited")],
        &[
            set("fixed", json!({})),
            set("timed", json!({"flags": ["timeout"]})),
            set("limited", json!({"stmt": [{"limit": {"rate": 1, "per": "second"}}]})),
        ],
    );
    assert_eq!(rules.sets.iter().map(|set| set.dynamic).collect::<Vec<_>>(), [false, true]);
    let last = &rules.chains[0].rules[3].steps;
    assert!(matches!(last.last(), Some(Step::Unsupported(_))), "{last:?}");
}

#[test]
fn a_rate_of_bytes_is_in_bytes() {
    let limit = json!({"limit": {"rate": 2, "rate_unit": "kbytes", "burst": 1,
        "burst_unit": "mbytes", "per": "minute"}});
    let rules = ruleset(&[json!([limit])], &[]);
    let limit = rules.limits[0];
    assert_eq!((limit.rate, limit.period_ns), (2_048, 60_000_000_000));
    assert_eq!((limit.burst, limit.unit), (2_048 + (1 << 20), LimitUnit::Bytes));
}

#[test]
fn parts_that_a_version_omits_are_in_its_text() {
    let listing = json!({"nftables": [
        {"table": {"family": "netdev", "name": "t", "handle": 1}},
        {"chain": {"family": "netdev", "table": "t", "name": "c", "type": "filter",
            "hook": "ingress", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "netdev", "table": "t", "name": "d", "type": "filter",
            "hook": "ingress", "prio": 0, "policy": "drop"}},
        {"table": {"family": "inet", "name": "u", "flags": "u"}},
        {"chain": {"family": "inet", "table": "u", "name": "c", "type": "filter",
            "hook": "forward", "prio": 0, "policy": "drop"}}
    ]})
    .to_string();
    let rules = read(&listing, "x").unwrap();
    for chain in &rules.chains {
        assert!(matches!(chain.rules[0].steps[..], [Step::Unsupported(_)]), "{chain:?}");
    }
    let words = "table netdev t {\n\tchain c {\n\t\ttype filter hook ingress device \"eth0\" \
                 priority filter; policy drop;\n\t}\n\n\tchain d {\n\t\ttype filter hook ingress \
                 devices = { a, b } priority filter; policy drop;\n\t}\n}\ntable inet u {\n\t\
                 flags dormant\n\n\tchain c {\n\t\ttype filter hook forward priority filter; \
                 policy drop;\n\t}\n}\n";
    let rules = read(&super::super::complete(&listing, words), "x").unwrap();
    let devices = |chain: usize| rules.chains[chain].base.clone().unwrap().devices;
    assert!(rules.chains.iter().all(|chain| chain.rules.is_empty()));
    let name = |name: &str| LinkPattern::Name(name.to_owned());
    // The newest is first.
    assert_eq!(rules.chains[0].name, "netdev t d");
    assert_eq!(devices(0), [name("a"), name("b")]);
    assert_eq!(devices(1), [name("eth0")]);
    assert_eq!(rules.chains[2].base, None);
}

#[test]
fn sets_that_change_are_recognized_by_the_text() {
    let listing = json!({"nftables": [
        {"table": {"family": "ip", "name": "t", "handle": 1}},
        {"set": {"family": "ip", "table": "t", "name": "c", "type": "ipv4_addr"}},
        {"set": {"family": "ip", "table": "t", "name": "d", "type": "ipv4_addr"}},
        {"chain": {"family": "ip", "table": "t", "name": "c", "handle": 2}},
        {"rule": {"family": "ip", "table": "t", "chain": "c", "expr": [saddr_in("@c")]}},
        {"rule": {"family": "ip", "table": "t", "chain": "c", "expr": [saddr_in("@d")]}}
    ]})
    .to_string();
    let words = "table ip t {\n\tset c {\n\t\ttype ipv4_addr\n\t\tflags interval,dynamic\n\t}\n\n\t\
                 set d {\n\t\ttype ipv4_addr\n\t}\n\n\tchain c {\n\t\tip saddr @c comment \"\n\tset d {\n\t\tflags dynamic\n\"\n\t}\n}\n";
    let rules = read(&super::super::complete(&listing, words), "x").unwrap();
    let dynamic: Vec<_> = rules.sets.iter().map(|set| (&set.name[..], set.dynamic)).collect();
    assert_eq!(dynamic, [("ip t c", true), ("ip t d", false)]);
}

fn saddr_in(set: &str) -> Value {
    json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
        "right": set}})
}

#[test]
fn bits_beyond_a_mask_are_not_taken_for_a_prefix() {
    // `meta mark & 0 == 3` as nft lists it.
    let mark = json!({"match": {"op": "==", "left": {"meta": {"key": "mark"}},
        "right": {"prefix": {"addr": 3, "len": 0}}}});
    let steps = steps(json!([mark, {"drop": null}]));
    assert!(matches!(&steps[..], [Step::Unsupported(_)]), "{steps:?}");
}
