use super::*;
use crate::ir::{Chain, Counter, Element, Family, Field, Place, Range, Set};
use etherparse::{IpFragOffset, PacketBuilder};

fn tcp(port: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4([192, 0, 2, 1], [198, 51, 100, 7], 64)
        .tcp(4000, port, 7, 512);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[1, 2, 3, 4]).unwrap();
    frame
}

/// A later fragment whose first bytes look like a TCP header to `port`.
fn later_fragment(port: u16) -> Vec<u8> {
    let mut frame = tcp(port);
    let offset = IpFragOffset::try_new(3).unwrap().value();
    frame[20..22].copy_from_slice(&offset.to_be_bytes());
    frame
}

fn rule(steps: Vec<Step>) -> Rule {
    Rule { place: Place::default(), text: String::new(), steps }
}

fn chain(hook: Hook, priority: i32, policy: Policy, rules: Vec<Rule>) -> Chain {
    let mut chain = Chain::new("test", Family::Inet);
    chain.base = Some(Base::new(hook, priority, policy));
    chain.rules = rules;
    chain
}

fn verdict(rules: &Ruleset, frame: &[u8]) -> (RuleVerdict, State) {
    assert_eq!(rules.check(), Ok(()));
    let link = crate::testkit::link("wan0");
    let mut state = State::new(rules);
    let mut packet = Packet::new(frame, 14, &link);
    let verdict = run(rules, &mut state, Hook::Forward, &mut packet, 0);
    (verdict, state)
}

fn port(port: u128) -> Step {
    Step::Match(Match::is(Field::DestinationPort, port))
}

#[test]
fn a_port_is_never_a_later_fragments() {
    for negate in [false, true] {
        let one = Match::is(Field::DestinationPort, 80);
        let one = if negate { one.negated() } else { one };
        let mut rules = Ruleset::default();
        let steps = vec![Step::Match(one), Step::Verdict(Verdict::Drop)];
        rules.add_chain(chain(Hook::Forward, 0, Policy::Accept, vec![rule(steps)]));
        let there = if negate { RuleVerdict::Accept } else { RuleVerdict::Drop };
        assert_eq!(verdict(&rules, &tcp(80)).0, there);
        assert_eq!(verdict(&rules, &later_fragment(80)).0, RuleVerdict::Accept);
        assert_eq!(verdict(&rules, &later_fragment(81)).0, RuleVerdict::Accept);
        let mut short = tcp(80);
        short[16..18].copy_from_slice(&23_u16.to_be_bytes());
        assert_eq!(verdict(&rules, &short).0, RuleVerdict::Accept, "ports that are not there");
    }
}

#[test]
fn accept_ends_its_chain_only_and_drop_ends_all() {
    let mut rules = Ruleset::default();
    let counters: Vec<_> = (0..3).map(|_| rules.add_counter(Counter::default())).collect();
    let count = |index: usize, verdict| {
        rule(vec![Step::Do(Action::Count(counters[index])), Step::Verdict(verdict)])
    };
    let late = chain(Hook::Forward, 5, Policy::Drop, vec![count(2, Verdict::Return)]);
    let first = chain(Hook::Forward, -5, Policy::Drop, vec![count(0, Verdict::Accept)]);
    let elsewhere = chain(Hook::Prerouting, -9, Policy::Drop, Vec::new());
    let middle = chain(Hook::Forward, 0, Policy::Accept, vec![count(1, Verdict::Continue)]);
    for chain in [late, first, elsewhere, middle] {
        rules.add_chain(chain);
    }
    let (verdict, state) = verdict(&rules, &tcp(80));
    assert_eq!(verdict, RuleVerdict::Drop, "the last chain's policy, by return");
    assert_eq!(state.counts, [(1, 44); 3]);
}

#[test]
fn jumps_come_back_and_gotos_do_not() {
    for (call, expected) in [
        (Verdict::Jump as fn(ChainId) -> Verdict, RuleVerdict::Drop),
        (Verdict::Goto as fn(ChainId) -> Verdict, RuleVerdict::Accept),
    ] {
        let mut rules = Ruleset::default();
        let mut inner = Chain::new("inner", Family::Inet);
        inner.rules.push(rule(vec![port(80), Step::Verdict(Verdict::Return)]));
        inner.rules.push(rule(vec![Step::Verdict(Verdict::Accept)]));
        let inner = rules.add_chain(inner);
        let caller =
            vec![rule(vec![Step::Verdict(call(inner))]), rule(vec![Step::Verdict(Verdict::Drop)])];
        rules.add_chain(chain(Hook::Forward, 0, Policy::Accept, caller));
        assert_eq!(verdict(&rules, &tcp(80)).0, expected);
        assert_eq!(verdict(&rules, &tcp(81)).0, RuleVerdict::Accept);
    }
}

#[test]
fn maps_give_verdicts_and_marks() {
    let mut rules = Ruleset::default();
    let element =
        |port, datum| Element { key: vec![Item::Range(Range::one(port))], datum: Some(datum) };
    let map = |elements| Set {
        name: "map".into(),
        key: vec![Field::DestinationPort.into()],
        dynamic: false,
        elements: Elements::Tuples(elements),
    };
    let marks =
        rules.add_set(map(vec![element(80, Datum::Number(7)), element(443, Datum::Number(9))]));
    let verdicts = rules.add_set(map(vec![
        element(25, Datum::Verdict(Verdict::Drop)),
        element(53, Datum::Verdict(Verdict::Continue)),
    ]));
    let keys = || vec![Field::DestinationPort.into()];
    let set_mark = Step::Map { keys: keys(), map: marks, target: Target::Mark };
    let unless = Step::Verdict(Verdict::Reject(Reject::TcpReset));
    let rules_of_chain = vec![
        rule(vec![
            Step::VerdictMap { keys: keys(), map: verdicts },
            Step::Verdict(Verdict::Reject(Reject::Icmp(13))),
        ]),
        rule(vec![set_mark, Step::Match(Match::is(Field::Mark, 9)), unless]),
    ];
    rules.add_chain(chain(Hook::Forward, 0, Policy::Accept, rules_of_chain));
    assert_eq!(verdict(&rules, &tcp(25)).0, RuleVerdict::Drop);
    let after = RuleVerdict::Reject(Reject::Icmp(13));
    assert_eq!(verdict(&rules, &tcp(53)).0, after, "who continues does so in the same rule");
    assert_eq!(verdict(&rules, &tcp(80)).0, RuleVerdict::Accept);
    assert_eq!(verdict(&rules, &tcp(443)).0, RuleVerdict::Reject(Reject::TcpReset));
    assert_eq!(verdict(&rules, &tcp(22)).0, RuleVerdict::Accept);
}

#[test]
fn limits_fill_again() {
    let mut rules = Ruleset::default();
    let limit = Limit { rate: 2, period_ns: 1_000, burst: 3, unit: LimitUnit::Packets };
    let limit = rules.add_limit(limit);
    let steps = vec![Step::Limit { limit, over: true }, Step::Verdict(Verdict::Drop)];
    rules.add_chain(chain(Hook::Forward, 0, Policy::Accept, vec![rule(steps)]));
    let (link, mut state) = (Link::default(), State::new(&rules));
    let frame = tcp(80);
    let mut passed = |now| {
        let mut one = || {
            let mut packet = Packet::new(&frame, 14, &link);
            run(&rules, &mut state, Hook::Forward, &mut packet, now) == RuleVerdict::Accept
        };
        (0..10).filter(|_| one()).count()
    };
    assert_eq!(passed(0), 3);
    assert_eq!(passed(999), 1);
    assert_eq!(passed(10_000), 3);
}

#[test]
fn circles_and_strangers_are_found() {
    let mut rules = Ruleset::default();
    let call = |chain| rule(vec![Step::Verdict(Verdict::Jump(ChainId(chain)))]);
    for next in [1, 0] {
        let mut chain = Chain::new(format!("chain {next}"), Family::Ip);
        chain.rules.push(call(next));
        rules.add_chain(chain);
    }
    assert!(rules.check().unwrap_err().problem.contains("circle"));
    rules.chains[1].rules[0] = call(7);
    assert!(rules.check().unwrap_err().to_string().contains("rule 1: leads to a chain"));
}

/// An IPv6 frame with these bytes behind the header, and padding behind the packet.
fn six(next: u8, payload: &[u8], padding: &[u8]) -> Vec<u8> {
    let mut frame = [&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0]].concat();
    frame.extend([payload.len() as u8, next, 64]);
    frame.extend([0x20; 32]);
    [&frame[..], payload, padding].concat()
}

fn found(frame: &[u8], field: Field, hook: Hook) -> Option<u128> {
    Packet::new(frame, 14, &Link::default()).number(field, hook)
}

#[test]
fn headers_are_found_as_the_kernel_finds_them() {
    let fragment = |next, field: u8| [next, 0, 0, field, 0, 0, 0, 7];
    let auth = [&[44, 4, 0, 0, 0, 0, 0, 1][..], &[0; 16]].concat();
    let behind = six(51, &[&auth[..], &fragment(17, 1)].concat(), &[]);
    assert_eq!(found(&behind, Field::Fragment, Hook::Forward), Some(1 << 13));
    assert_eq!(found(&behind, Field::Protocol, Hook::Forward), Some(51));
    let two = six(44, &[fragment(44, 1), fragment(17, 0)].concat(), &[]);
    assert_eq!(found(&two, Field::Fragment, Hook::Forward), Some(1 << 13));
    // The kernel reads four bytes of a routing header, two of options.
    for (next, protocol) in [(43, None), (60, Some(17))] {
        let cut = six(next, &[17, 0], &[]);
        assert_eq!(found(&cut, Field::Protocol, Hook::Forward), protocol);
    }
    // At hook ingress the packet is not yet cut to its length.
    let padded = six(17, &[], &[0, 53, 0, 80, 0, 8, 0, 0]);
    assert_eq!(found(&padded, Field::DestinationPort, Hook::Ingress), Some(80));
    assert_eq!(found(&padded, Field::DestinationPort, Hook::Forward), None);
}

#[test]
fn ingress_of_inet_drops_broken_headers() {
    let mut rules = Ruleset::default();
    rules.add_chain(chain(Hook::Ingress, 0, Policy::Accept, Vec::new()));
    let at_ingress = |frame: &[u8]| {
        let link = Link::default();
        let mut packet = Packet::new(frame, 14, &link);
        run(&rules, &mut State::new(&rules), Hook::Ingress, &mut packet, 0)
    };
    assert_eq!(at_ingress(&six(17, &[0; 8], &[])), RuleVerdict::Accept);
    assert_eq!(at_ingress(&six(43, &[17, 0], &[])), RuleVerdict::Drop);
}
