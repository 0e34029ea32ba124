//! Rules about connections, in the JSON of nft 1.0.6: for flows of known connections, and for packets.

use serde_json::{Value, json};

use super::super::{Forms, read_forms};
use crate::ir::{
    Action, Base, Chain, ChainId, ChainKind, ConnectionField, Datum, Direction, Elements, Family,
    Field, Hook, Key, MarkOf, MarkUpdate, Match, Place, Policy, Range, Rule, Ruleset, Step, Target,
    Test, TupleField, Verdict,
};

const STATE: &str = "ct state looks at connection tracking";

fn forms_in(family: &str, chain: &Value, rules: &[Value]) -> Forms {
    let mut objects = vec![
        json!({"table": {"family": family, "name": "t", "handle": 1}}),
        json!({"set": {"family": family, "table": "t", "name": "s", "type": "ipv4_addr",
            "handle": 1, "elem": ["1.2.3.4"]}}),
        json!({"map": {"family": family, "table": "t", "name": "m", "type": "mark", "handle": 1,
            "map": "verdict", "elem": [[1, {"accept": null}]]}}),
        json!({"chain": {"family": family, "table": "t", "name": "early", "handle": 1,
            "type": "filter", "hook": "prerouting", "prio": -300, "policy": "accept"}}),
        json!({"chain": {"family": family, "table": "t", "name": "nat", "handle": 1,
            "type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}}),
        json!({"chain": {"family": family, "table": "t", "name": "c", "handle": 1,
            "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}}),
    ];
    for (number, expr) in rules.iter().enumerate() {
        objects.push(json!({"rule": {"family": family, "table": "t", "chain": chain,
            "handle": number + 2, "expr": expr}}));
    }
    read_forms(&json!({ "nftables": objects }), "rules.json").unwrap()
}

fn steps_of(rules: &Ruleset, chain: &str) -> Vec<Step> {
    let mut chains = rules.chains.iter().filter(|one| one.name.ends_with(chain));
    chains.next().unwrap().rules[0].steps.clone()
}

/// The steps of a rule at hook forward, for packets and for flows.
fn both(family: &str, expr: Value) -> (Vec<Step>, Vec<Step>) {
    let forms = forms_in(family, &json!("c"), &[expr]);
    let flows = forms.connections.as_ref().expect("there is a chain of type nat");
    flows.check().unwrap();
    forms.packets.check().unwrap();
    (steps_of(&forms.packets, " c"), steps_of(flows, " c"))
}

fn condition(operator: &str, left: Value, right: Value) -> Value {
    json!({"match": {"op": operator, "left": left, "right": right}})
}

fn ct(key: &str) -> Value {
    json!({"ct": {"key": key}})
}

fn of(key: &str, direction: &str) -> Value {
    json!({"ct": {"key": key, "dir": direction}})
}

fn key(field: ConnectionField) -> Key {
    Field::Connection(field).into()
}

fn masked(field: ConnectionField, mask: u128) -> Key {
    Key::masked(Field::Connection(field), mask)
}

/// Says whether a condition is read as this one for flows, and for packets as one of the kernel's.
fn assert_condition(left: Value, operator: &str, right: Value, expected: Match) {
    let ct = left.pointer("/&/0").unwrap_or(&left).clone();
    let expr = json!([condition(operator, left, right), {"accept": null}]);
    let (packets, flows) = both("inet", expr.clone());
    let why = format!("ct {} looks at connection tracking", ct["ct"]["key"].as_str().unwrap());
    assert_eq!(packets, [Step::Unsupported(why)], "{expr}");
    assert_eq!(flows, [Step::Match(expected), Step::Verdict(Verdict::Accept)], "{expr}");
}

#[test]
fn states_are_flags_or_whole_values() {
    let state = ConnectionField::State;
    let any = |mask| Match::in_ranges(masked(state, mask), [Range::new(1, 255)]);
    let none = |mask| Match::is(masked(state, mask), 0);
    let both = json!(["established", "related"]);
    assert_condition(ct("state"), "in", both.clone(), any(6));
    assert_condition(ct("state"), "in", json!("untracked"), any(64));
    assert_condition(ct("state"), "!", json!("established"), none(2));
    assert_condition(ct("state"), "!", both.clone(), none(6));
    assert_condition(ct("state"), "==", json!({"|": both.clone()}), Match::is(key(state), 6));
    assert_condition(ct("state"), "!=", json!("new"), Match::is(key(state), 8).negated());
    let set = Match::in_ranges(key(state), [Range::one(2), Range::one(4)]);
    assert_condition(ct("state"), "==", json!({ "set": both }), set.clone());
    assert_condition(ct("state"), "!=", json!({"set": ["established", "related"]}), set.negated());
}

#[test]
fn properties_of_the_connection_are_conditions() {
    use ConnectionField::{L3Protocol, Mark, Protocol, Status, Zone};
    let status = Match::in_ranges(masked(Status, 12), [Range::new(1, u128::from(u32::MAX))]);
    assert_condition(ct("status"), "in", json!(["assured", "confirmed"]), status);
    let bits = json!({"&": [ct("status"), ["snat", "dnat"]]});
    assert_condition(bits, "==", json!("dnat"), Match::is(masked(Status, 48), 32));
    let reply = Match::is(key(ConnectionField::Direction), 1);
    assert_condition(ct("direction"), "==", json!("reply"), reply);
    assert_condition(ct("mark"), "==", json!(5), Match::is(key(Mark), 5));
    let range = Match::in_ranges(key(Mark), [Range::new(16, 32)]).negated();
    assert_condition(ct("mark"), "!=", json!({"range": [16, 32]}), range);
    let bits = json!({"&": [ct("mark"), 255]});
    assert_condition(bits, "==", json!(3), Match::is(masked(Mark, 255), 3));
    let above = Match::in_ranges(key(Mark), [Range::new(6, u128::from(u32::MAX))]);
    assert_condition(ct("mark"), ">", json!(5), above);
    assert_condition(ct("zone"), "==", json!(5), Match::is(key(Zone), 5));
    assert_condition(ct("protocol"), "==", json!("tcp"), Match::is(key(Protocol), 6));
    assert_condition(of("protocol", "reply"), "==", json!("udp"), Match::is(key(Protocol), 17));
    assert_condition(ct("l3proto"), "==", json!("ipv6"), Match::is(key(L3Protocol), 10));
}

#[test]
fn a_flow_that_no_flowtable_takes_comes_to_the_next_rule() {
    let established = condition("in", ct("state"), json!("established"));
    let flow = json!({"flow": {"op": "add", "flowtable": "@f"}});
    let (packets, flows) = both("inet", json!([established, flow, {"drop": null}]));
    assert_eq!(packets, [Step::Unsupported(STATE.to_owned())]);
    let state = masked(ConnectionField::State, 2);
    assert_eq!(flows, [Step::Match(Match::in_ranges(state, [Range::new(1, 255)]))]);
    let (packets, flows) = both("ip", json!([{"flow": {"op": "add", "flowtable": "@f"}}]));
    let why = "flow add brings connections into a flowtable of the kernel";
    assert_eq!((packets, flows), (vec![Step::Unsupported(why.to_owned())], vec![]));
}

#[test]
fn tuples_are_those_of_a_direction() {
    let part = |direction, field| key(ConnectionField::Tuple(direction, field));
    let (original, reply) = (Direction::Original, Direction::Reply);
    let from = part(original, TupleField::Source4);
    let address = json!("1.2.3.4");
    let one = Match::is(from, 0x0102_0304);
    assert_condition(of("ip saddr", "original"), "==", address.clone(), one.clone());
    let prefix = json!({"prefix": {"addr": "1.2.3.0", "len": 24}});
    let net = Match::in_ranges(from, [Range::new(0x0102_0300, 0x0102_03ff)]);
    assert_condition(of("ip saddr", "original"), "==", prefix, net);
    let to = Match::is(part(reply, TupleField::Destination4), 0x0102_0304).negated();
    assert_condition(of("ip daddr", "reply"), "!=", address.clone(), to);
    let six = Match::is(part(reply, TupleField::Destination6), 0x2001_0db8 << 96 | 1);
    assert_condition(of("ip6 daddr", "reply"), "==", json!("2001:db8::1"), six);
    let port = Match::is(part(original, TupleField::SourcePort), 80);
    assert_condition(of("proto-src", "original"), "==", json!(80), port);
    let ports = [Range::one(80), Range::new(443, 445)];
    let ports = Match::in_ranges(part(reply, TupleField::DestinationPort), ports);
    let range = json!({"range": ["0x1bb [invalid type]", "0x1bd [invalid type]"]});
    let set = json!({"set": ["0x50 [invalid type]", range]});
    assert_condition(of("proto-dst", "reply"), "==", set, ports);
    // In a table of one version, addresses need no word for it.
    let expr = json!([condition("==", of("saddr", "original"), address), {"accept": null}]);
    assert_eq!(both("ip", expr.clone()).1[0], Step::Match(one));
    assert!(matches!(both("inet", expr).1[..], [Step::Unsupported(_)]));
}

#[test]
fn sets_and_maps_may_have_properties_of_connections_as_keys() {
    let found = json!({"set": [["invalid", {"drop": null}], ["established", {"accept": null}]]});
    let expr = json!([{"vmap": {"key": ct("state"), "data": found}}]);
    let forms = forms_in("inet", &json!("c"), &[expr]);
    assert_eq!(steps_of(&forms.packets, " c"), [Step::Unsupported(STATE.to_owned())]);
    assert_eq!(forms.packets.sets, [], "no rule looks it up");
    let flows = forms.connections.unwrap();
    let [Step::VerdictMap { keys, map }] = &steps_of(&flows, " c")[..] else { panic!() };
    assert_eq!(keys[..], [key(ConnectionField::State)]);
    let Elements::Tuples(elements) = &flows.sets[map.0].elements else { panic!() };
    let verdicts = elements.iter().map(|one| one.datum.clone());
    let verdict = |verdict| Some(Datum::Verdict(verdict));
    let expected = [verdict(Verdict::Drop), verdict(Verdict::Accept)];
    assert_eq!(verdicts.collect::<Vec<_>>(), expected);
    let expr = json!([{"vmap": {"key": ct("mark"), "data": "@m"}}]);
    assert!(matches!(both("inet", expr).1[..], [Step::VerdictMap { .. }]));
    let address = json!({"payload": {"protocol": "ip", "field": "saddr"}});
    let pair = json!({"concat": [address, ct("mark")]});
    let expr = json!([condition("==", pair, json!({"set": [{"concat": ["1.2.3.4", 5]}]}))]);
    let (packets, flows) = both("inet", expr);
    // What the first part implies stays in its place.
    let version = Step::Match(Match::is(Field::IpVersion, 4));
    let mark = Step::Unsupported("ct mark looks at connection tracking".to_owned());
    assert_eq!(packets, [version.clone(), mark]);
    let [first, Step::Match(Match { keys, test: Test::Set(_), negate: false })] = &flows[..] else {
        panic!("{flows:?}")
    };
    assert_eq!(*first, version);
    assert_eq!(keys[..], [Field::Source4.into(), key(ConnectionField::Mark)]);
}

/// A statement that sets a mark, its step for flows, and why packets that get there are the kernel's.
fn assert_sets(target: Value, value: Value, expected: Step, why: &str) {
    let expr = json!([{"mangle": {"key": target, "value": value}}]);
    let (packets, flows) = both("inet", expr.clone());
    assert_eq!(packets, [Step::Unsupported(why.to_owned())], "{expr}");
    assert_eq!(flows, [expected], "{expr}");
}

#[test]
fn marks_are_copied_between_packet_and_connection() {
    use MarkOf::{Connection, Packet};
    let meta = || json!({"meta": {"key": "mark"}});
    let update = |target, packet, connection, flip| {
        Step::Do(Action::UpdateMark(MarkUpdate { target, packet, connection, flip }))
    };
    let all = u32::MAX;
    let own = "ct mark is connection tracking's";
    assert_sets(ct("mark"), json!(7), update(Connection, 0, None, 7), own);
    assert_sets(ct("mark"), meta(), update(Connection, all, None, 0), own);
    let low = json!({"&": [meta(), 15]});
    assert_sets(ct("mark"), low, update(Connection, 15, None, 0), own);
    let high = || json!({"&": [ct("mark"), 0xffff_ff00_u32]});
    let bits = json!({"|": [high(), 1]});
    assert_sets(ct("mark"), bits, update(Connection, 0, Some(0xffff_ff00), 1), own);
    let both = json!({"|": [high(), {"&": [meta(), 15]}]});
    assert_sets(ct("mark"), both, update(Connection, 15, Some(0xffff_ff00), 0), own);
    let constant = r#"{"ct":{"key":"mark"}} is no constant that is known here"#;
    assert_sets(meta(), ct("mark"), update(Packet, 0, Some(all), 0), constant);
    let low = json!({"&": [ct("mark"), 255]});
    assert_sets(meta(), low, update(Packet, 0, Some(255), 0), constant);
    let both = json!({"^": [{"^": [meta(), 6]}, {"&": [ct("mark"), 3]}]});
    assert_sets(meta(), both, update(Packet, all, Some(3), 6), constant);
    // Even without a bit of it, a packet without a connection does not get the mark.
    let none = json!({"&": [ct("mark"), 0]});
    assert_sets(meta(), none, update(Packet, 0, Some(0), 0), constant);
    for (operator, why) in
        [("&", "& of two marks is not known here"), ("|", "| of two marks is not known here")]
    {
        let value = json!({operator: [high(), meta()]});
        assert_sets(ct("mark"), value, Step::Unsupported(why.to_owned()), own);
    }
    let value = json!({"^": [high(), ct("mark")]});
    let why = "the mark with itself is not known here".to_owned();
    assert_sets(ct("mark"), value, Step::Unsupported(why), own);
}

#[test]
fn marks_may_come_from_maps() {
    let marks = json!({"set": [[1, 5], [2, 6]]});
    let address = json!({"payload": {"protocol": "ip", "field": "saddr"}});
    let by_address = json!({"map": {"key": address, "data": {"set": [["1.2.3.4", 5]]}}});
    let expr = json!([{"mangle": {"key": ct("mark"), "value": by_address}}]);
    let (packets, flows) = both("inet", expr);
    assert_eq!(packets, [Step::Unsupported("ct mark is connection tracking's".to_owned())]);
    assert!(matches!(flows[..], [_, Step::Map { target: Target::ConnectionMark, .. }]));
    let by_mark = json!({"map": {"key": ct("mark"), "data": marks}});
    let expr = json!([{"mangle": {"key": {"meta": {"key": "mark"}}, "value": by_mark}}]);
    let (packets, flows) = both("inet", expr);
    let why = "ct mark looks at connection tracking";
    assert_eq!(packets, [Step::Unsupported(why.to_owned())]);
    assert!(matches!(flows[..], [Step::Map { target: Target::Mark, .. }]));
}

#[test]
fn what_changes_with_each_packet_stays_with_the_kernel() {
    let number = |key, dir: Option<&str>| {
        let left = dir.map_or_else(|| ct(key), |dir| of(key, dir));
        json!([condition("==", left, json!(5))])
    };
    for (expr, why) in [
        (number("expiration", None), "ct expiration looks at connection tracking"),
        (number("bytes", None), "ct bytes looks at connection tracking"),
        (number("packets", Some("original")), "ct packets looks at connection tracking"),
        (number("avgpkt", None), "ct avgpkt looks at connection tracking"),
        (number("helper", None), "ct helper looks at connection tracking"),
        (number("label", None), "ct label looks at connection tracking"),
        (number("id", None), "ct id looks at connection tracking"),
        (number("zone", Some("original")), "ct zone looks at connection tracking"),
        (json!([{"mangle": {"key": ct("zone"), "value": 3}}]), "ct zone is connection tracking's"),
        (
            json!([{"mangle": {"key": ct("event"), "value": "new"}}]),
            "ct event is connection tracking's",
        ),
        (json!([{"ct count": {"val": 20, "inv": true}}]), "ct count is connection tracking's"),
        (json!([{"ct helper": "ftp"}]), "ct helper is connection tracking's"),
        (json!([{"masquerade": null}]), "masquerade needs address translation"),
    ] {
        let (packets, flows) = both("inet", expr.clone());
        assert_eq!(packets, [Step::Unsupported(why.to_owned())], "{expr}");
        assert_eq!(flows, packets, "{expr}");
    }
}

#[test]
fn flows_do_not_meet_chains_of_type_nat() {
    let forms = forms_in("inet", &json!("nat"), &[json!([{"masquerade": null}])]);
    let flows = forms.connections.unwrap();
    let chain = |rules: &Ruleset| {
        let mut chains = rules.chains.iter().filter(|chain| chain.name == "inet t nat");
        chains.next().unwrap().clone()
    };
    let packets = chain(&forms.packets);
    assert!(packets.is_nat());
    assert_eq!(packets.base.as_ref().map(|base| base.kind), Some(ChainKind::Nat));
    let why = "chains of type nat take the kernel path".to_owned();
    assert_eq!(packets.rules[0].steps, [Step::Unsupported(why)]);
    let flows = chain(&flows);
    assert!(flows.base.is_none() && flows.rules.is_empty());
}

#[test]
fn before_connection_tracking_no_connection_is_known() {
    let established = || json!([condition("in", ct("state"), json!("established"))]);
    let forms = forms_in("inet", &json!("early"), &[established()]);
    assert_eq!(steps_of(&forms.packets, "early"), [Step::Unsupported(STATE.to_owned())]);
    let why = "the packet comes here before connection tracking sees it".to_owned();
    assert_eq!(steps_of(&forms.connections.unwrap(), "early"), [Step::Unsupported(why)]);
    let forms = forms_in("inet", &json!("early"), &[json!([{"notrack": null}])]);
    assert_eq!(steps_of(&forms.packets, "early"), [Step::Do(Action::NoTrack)]);
    assert_eq!(steps_of(&forms.connections.unwrap(), "early"), [Step::Do(Action::NoTrack)]);
}

#[test]
fn notrack_behind_connection_tracking_takes_the_kernel_path() {
    let rule = || json!([{"notrack": null}]);
    let why = || {
        let why = "notrack acts on packets that connection tracking has not seen, and other packets may come here";
        Step::Unsupported(why.to_owned())
    };
    let forms = forms_in("inet", &json!("c"), &[rule()]);
    assert_eq!(steps_of(&forms.connections.unwrap(), "c"), [why()]);
    let chain = |base, step| {
        let rule = Rule { place: Place::default(), text: String::new(), steps: vec![step] };
        Chain { base, rules: vec![rule], ..Chain::new(String::new(), Family::Inet) }
    };
    // A chain that is jumped to from these.
    for (bases, is_taken) in [
        (vec![(Hook::Prerouting, -300)], true),
        (vec![(Hook::Prerouting, -201), (Hook::Output, -300), (Hook::Input, 0)], true),
        (vec![(Hook::Ingress, 0)], true),
        (vec![(Hook::Prerouting, -200)], false),
        (vec![(Hook::Prerouting, -300), (Hook::Forward, 0)], false),
    ] {
        let mut rules = Ruleset::default();
        for (hook, priority) in &bases {
            let jump = Step::Verdict(Verdict::Jump(ChainId(bases.len())));
            rules.chains.push(chain(Some(Base::new(*hook, *priority, Policy::Accept)), jump));
        }
        rules.chains.push(chain(None, Step::Do(Action::NoTrack)));
        let rules = rules.for_connections();
        let steps = &rules.chains[bases.len()].rules[0].steps;
        let expected = if is_taken { Step::Do(Action::NoTrack) } else { why() };
        assert_eq!(*steps, [expected], "{bases:?}");
    }
    // A bridge may have tracked them.
    let early = Some(Base::new(Hook::Prerouting, -300, Policy::Accept));
    let mut rules = Ruleset::default();
    rules.chains.push(chain(early, Step::Do(Action::NoTrack)));
    rules.chains.push(Chain::new("bridge t c".to_owned(), Family::Bridge));
    assert_eq!(rules.for_connections().chains[0].rules[0].steps, [why()]);
}

#[test]
fn packets_meet_the_steps_before_and_only_the_sets_of_these() {
    let from_set = |name: &str| {
        condition("==", json!({"payload": {"protocol": "ip", "field": "saddr"}}), json!(name))
    };
    let count = || json!({"counter": {"packets": 0, "bytes": 0}});
    let new = || condition("in", ct("state"), json!("new"));
    let two = json!({"set": ["1.2.3.4", "1.2.3.5"]});
    let pair = json!({"concat": [{"payload": {"protocol": "ip", "field": "saddr"}},
        {"payload": {"protocol": "ip", "field": "daddr"}}]});
    let elements = json!({"set": [{"concat": ["1.2.3.4", "1.2.3.5"]}]});
    let forms = forms_in(
        "inet",
        &json!("c"),
        &[
            json!([new(), from_set("@s"), count(), {"drop": null}]),
            json!([condition("==", pair, elements), count(), new(), {"drop": null}]),
            json!([from_set("@s"), count(), {"drop": null}]),
            json!([condition("==", json!({"payload": {"protocol": "ip", "field": "saddr"}}), two)]),
        ],
    );
    let chain = |rules: &Ruleset| {
        let mut chains = rules.chains.iter().filter(|chain| chain.name == "inet t c");
        chains.next().unwrap().clone()
    };
    let (packets, flows) = (forms.packets, forms.connections.unwrap());
    assert_eq!(chain(&packets).rules[0].steps, [Step::Unsupported(STATE.to_owned())]);
    assert_eq!(chain(&packets).rules[1].steps.last(), Some(&Step::Unsupported(STATE.to_owned())));
    // The order in which a reader of these steps alone finds them.
    let names = |rules: &Ruleset| rules.sets.iter().map(|set| set.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&packets), ["", "inet t s"]);
    assert_eq!(names(&flows), ["inet t s", ""]);
    assert_eq!(packets.counters, flows.counters);
    assert_eq!(chain(&packets).rules[2].steps[2], chain(&flows).rules[2].steps[2], "its counter");
    assert_eq!(packets.check(), Ok(()));
}

#[test]
fn modules_of_iptables_mean_what_is_said_of_them() {
    let module = |meaning: Value| json!([{"xt": {"type": "match", "name": "conntrack", "meaning": meaning}}]);
    let one_of = |key: &str, mask: u32, last: u32| {
        let range = json!({"set": [{"range": [1, last]}]});
        condition("==", json!({"&": [ct(key), mask]}), range)
    };
    let any = json!([[one_of("state", 255, 2), one_of("status", 48, 48)], [one_of("mark", 7, 7)]]);
    let (packets, flows) = both("ip", module(json!({ "any": any })));
    let why = "xt conntrack is a module of iptables".to_owned();
    assert_eq!(packets, [Step::Unsupported(why.clone())]);
    let is = |field, mask, last| Match::in_ranges(masked(field, mask), [Range::new(1, last)]);
    let (state, status) = (ConnectionField::State, ConnectionField::Status);
    let first = vec![is(state, 255, 2), is(status, 48, 48)];
    let any = vec![first, vec![is(ConnectionField::Mark, 7, 7)]];
    assert_eq!(flows, [Step::Any(any)]);
    let set = json!({"mangle": {"key": ct("mark"), "value": 7}});
    let (packets, flows) = both("ip", module(set));
    assert_eq!(packets, [Step::Unsupported(why.clone())]);
    assert!(matches!(flows[..], [Step::Do(Action::UpdateMark(_))]));
    for unknown in [json!({"any": [[{"drop": null}]]}), json!({"from_the_future": 1}), json!(7)] {
        let (packets, flows) = both("ip", module(unknown));
        assert_eq!(packets, [Step::Unsupported(why.clone())]);
        assert_eq!(flows, packets);
    }
}
