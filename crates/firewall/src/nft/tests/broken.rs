//! Tests that the front end reads or rejects any listing.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::read;

/// Words with a meaning in some place.
const WORDS: &[&str] = &[
    "", "*", "@s", "@m", "accept", "c", "d", "0x", "eth*", "::1", "10.0.0.1", "syn", "tcp", "ip",
    "ip6", "inet", "netdev", "bridge", "forward", "ingress", "egress", "dport", "saddr", "flags",
    "frag", "mark", "iifname", "oifname", "l4proto", "nfproto", "minute", "drop",
];

const NAMES: &[&str] = &[
    "match", "op", "left", "right", "payload", "protocol", "field", "base", "offset", "len",
    "meta", "key", "set", "elem", "val", "range", "prefix", "addr", "concat", "map", "vmap",
    "data", "jump", "goto", "target", "counter", "limit", "rate", "burst", "per", "log", "reject",
    "type", "expr", "mangle", "value", "|", "&", "^", "exthdr", "name", "hook", "prio", "dev",
    "policy", "family", "table", "chain", "flags",
];

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0..300_i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        proptest::sample::select(WORDS).prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let member = (proptest::sample::select(NAMES), inner.clone());
        prop_oneof![
            proptest::collection::vec(inner, 0..4).prop_map(Value::from),
            proptest::collection::vec(member, 1..3).prop_map(|members| {
                members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }),
        ]
    })
}

/// A listing with a bit of everything.
fn whole() -> Value {
    let dport = json!({"payload": {"protocol": "tcp", "field": "dport"}});
    let raw = json!({"payload": {"base": "nh", "offset": 13, "len": 30}});
    let pair = json!({"concat": [{"meta": {"key": "iifname"}}, dport]});
    let expr = json!([
        {"match": {"op": "==", "left": dport, "right": {"set": [1, {"range": [5, 9]}]}}},
        {"match": {"op": "!=", "left": {"&": [raw, 255]}, "right": 7}},
        {"match": {"op": "in", "left": {"payload": {"protocol": "tcp", "field": "flags"}},
            "right": ["syn", "ack"]}},
        {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
            "right": {"prefix": {"addr": "10.0.0.0", "len": 8}}}},
        {"match": {"op": "==", "left": pair, "right": {"set": [{"concat": ["eth*", 22]}]}}},
        {"match": {"op": "!=", "left": {"meta": {"key": "oifname"}}, "right": "@s"}},
        {"limit": {"rate": 5, "burst": 3, "per": "minute", "inv": true}},
        {"counter": {"packets": 1, "bytes": 2}},
        {"log": {"prefix": "x", "group": 3, "flags": ["skuid"]}},
        {"mangle": {"key": {"meta": {"key": "mark"}},
            "value": {"|": [{"&": [{"meta": {"key": "mark"}}, 7]}, 8]}}},
        {"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"map": {"key": dport,
            "data": "@m"}}}},
        {"vmap": {"key": dport, "data": {"set": [[1, {"jump": {"target": "d"}}], ["*",
            {"drop": null}]]}}},
        {"reject": {"type": "icmp", "expr": "port-unreachable"}}
    ]);
    json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "flags": "dormant"}},
        {"table": {"family": "inet", "name": "u"}},
        {"chain": {"family": "inet", "table": "u", "name": "c", "type": "filter",
            "hook": "forward", "prio": 0, "policy": "drop", "dev": "x"}},
        {"chain": {"family": "inet", "table": "u", "name": "d"}},
        {"set": {"family": "inet", "table": "u", "name": "s", "type": "ifname", "elem": ["a"],
            "flags": ["timeout"], "stmt": [{"counter": null}]}},
        {"map": {"family": "inet", "table": "u", "name": "m", "type": "inet_service", "map": "mark",
            "elem": [[5, 6], [{"elem": {"val": 7, "comment": "x"}}, 8]]}},
        {"counter": {"family": "inet", "table": "u", "name": "n", "packets": 0, "bytes": 0}},
        {"limit": {"family": "inet", "table": "u", "name": "l", "rate": 1, "per": "day"}},
        {"rule": {"family": "inet", "table": "u", "chain": "c", "handle": 4, "expr": expr}},
        {"rule": {"family": "inet", "table": "u", "chain": "d", "expr": [{"return": null}]}}
    ]})
}

/// The number of values in a value, including itself.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(size).sum(),
        Value::Object(values) => values.values().map(size).sum(),
        _ => 0,
    }
}

/// The value with this number, depth first.
fn at(value: &mut Value, mut number: usize) -> &mut Value {
    if number == 0 {
        return value;
    }
    number -= 1;
    let values: Vec<&mut Value> = match value {
        Value::Array(values) => values.iter_mut().collect(),
        Value::Object(values) => values.values_mut().collect(),
        _ => unreachable!("there is nothing inside"),
    };
    for value in values {
        let size = size(value);
        if number < size {
            return at(value, number);
        }
        number -= size;
    }
    unreachable!("there are as many as were counted")
}

#[test]
fn the_whole_is_sound() {
    let rules = read(&whole().to_string(), "x").unwrap();
    assert_eq!(rules.chains[0].rules[0].steps.len(), 15, "{:?}", rules.chains[0].rules[0].steps);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn values_in_the_wrong_place(changes in proptest::collection::vec((any::<usize>(), anything()), 1..4)) {
        let mut listing = whole();
        for (number, value) in changes {
            let number = number % size(&listing);
            *at(&mut listing, number) = value;
        }
        if let Ok(rules) = read(&listing.to_string(), "x") {
            prop_assert_eq!(rules.check(), Ok(()));
        }
    }

    #[test]
    fn text_that_is_cut_or_changed(cut in any::<usize>(), byte in any::<u8>()) {
        let mut text = whole().to_string().into_bytes();
        let at = cut % text.len();
        text[at] = byte;
        let _ = read(&String::from_utf8_lossy(&text), "x");
        let _ = read(&String::from_utf8_lossy(&text[..at]), "x");
    }
}
