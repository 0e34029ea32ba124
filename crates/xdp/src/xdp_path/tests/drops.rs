//! Flows that the path drops: which of them enter, when they are void, and where their packets count.

use std::sync::Arc;

use etherparse::IpNumber;
use proptest::prelude::*;
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::filter::Count;
use tollway_dataplane::tables::{ObjectTarget, Tables};
use tollway_dataplane::verdict::DropReason;
use tollway_firewall::carry::carried;
use tollway_firewall::ir::*;
use tollway_firewall::links::Link;
use tollway_firewall::program;

use super::Bench;
use super::repeats::{find, hit};
use crate::testkit::dice::Dice;
use crate::testkit::packet::{Ip, Packet, ip};
use crate::testkit::wires::{LinkVariant, PORTS, Special};

const PLAIN: LinkVariant = LinkVariant::Plain;

/// Rules of one chain at a hook of all devices, each with these steps.
fn add_chain(ruleset: &mut Ruleset, hook: Hook, policy: Policy, rules: &[Vec<Step>]) {
    let mut chain = Chain::new(format!("inet t {hook:?}"), Family::Inet);
    let mut base = Base::new(hook, 0, policy);
    if hook == Hook::Ingress {
        base.devices = vec![LinkPattern::Prefix("l".into())];
    }
    chain.base = Some(base);
    for (number, steps) in rules.iter().enumerate() {
        let text = format!("{hook:?} {number}");
        chain.rules.push(Rule { place: Place::default(), text, steps: steps.clone() });
    }
    ruleset.add_chain(chain);
}

fn ruleset(hook: Hook, rules: &[Vec<Step>]) -> Ruleset {
    let mut ruleset = Ruleset::default();
    (0..10).for_each(|_| _ = ruleset.add_counter(Counter::default()));
    ruleset.add_limit(Limit { rate: 1, period_ns: 1, burst: 1, unit: LimitUnit::Packets });
    add_chain(&mut ruleset, hook, Policy::Accept, rules);
    ruleset
}

fn set(bench: &mut Bench, before: Option<&Ruleset>, rules: &Ruleset) {
    let link = |number| Link { name: format!("l{number}"), ..Link::default() };
    let state = bench.net.worker.state();
    let links: Vec<_> = (0..state.routes.links.len()).map(link).collect();
    let filter = program::compile(rules, &links, &state.epochs).unwrap();
    bench.net.worker.set_filter(Some(Arc::new(filter)), &carried(before, Some(rules)));
}

fn is(field: Field, number: u128) -> Step {
    Step::Match(Match::is(field, number))
}

fn port(number: u128) -> Step {
    is(Field::DestinationPort, number)
}

fn count(number: usize) -> Step {
    Step::Do(Action::Count(CounterId(number)))
}

const DROP: Step = Step::Verdict(Verdict::Drop);
const ACCEPT: Step = Step::Verdict(Verdict::Accept);

fn to_port(destination_port: u16) -> Packet {
    PLAIN.packet(0, PLAIN.host4(1)).ports(1000, destination_port)
}

/// The reason with which a packet's flow enters, with its second packet; `None` if it does not.
fn enters(bench: &mut Bench, frame: &[u8]) -> Option<DropReason> {
    let before = bench.maps.active_flows().len();
    bench.send(0, frame);
    assert_eq!(bench.maps.active_flows().len(), before, "the first packet");
    bench.send(0, frame);
    let (flow, _) = find(&bench.maps, 0, frame)?;
    assert!(hit(bench, 0, frame));
    flow.drop_reason()
}

const HOOKS: [Hook; 5] =
    [Hook::Ingress, Hook::Prerouting, Hook::Forward, Hook::Postrouting, Hook::Egress];

#[test]
fn flows_enter_whose_key_alone_has_them_dropped() {
    let length = || Step::Match(Match::in_ranges(Field::Length, [Range::new(0, 1500)]));
    let limit = || Step::Limit { limit: LimitId(0), over: false };
    let cases = [
        (vec![port(53), DROP], true),
        (vec![port(53), count(0), count(1), DROP], true),
        (vec![Step::Do(Action::mark(5)), is(Field::Mark, 5), DROP], true),
        (vec![length(), DROP], false),
        (vec![is(Field::Ttl, 64), DROP], false),
        (vec![port(53), limit(), DROP], false),
        ([vec![port(53)], (0..8).map(count).collect(), vec![DROP]].concat(), true),
        ([vec![port(53)], (0..9).map(count).collect(), vec![DROP]].concat(), false),
    ];
    for hook in HOOKS.into_iter().take(4) {
        for (steps, enters_xdp_path) in &cases {
            let mut bench = Bench::new();
            set(&mut bench, None, &ruleset(hook, std::slice::from_ref(steps)));
            let reason = enters(&mut bench, &to_port(53).build());
            let expected = enters_xdp_path.then_some(DropReason::NetfilterDrop);
            assert!(reason == expected, "{hook:?}, {steps:?}: {reason:?}");
        }
    }
}

#[test]
fn a_policy_drops_and_what_comes_before_it_counts_too() {
    for hook in [Hook::Prerouting, Hook::Forward] {
        let mut bench = Bench::new();
        let mut rules = ruleset(Hook::Prerouting, &[vec![count(0)]]);
        add_chain(&mut rules, hook, Policy::Drop, &[vec![port(80), ACCEPT], vec![count(1)]]);
        set(&mut bench, None, &rules);
        let frame = to_port(53).build();
        assert_eq!(enters(&mut bench, &frame), Some(DropReason::NetfilterDrop), "{hook:?}");
        assert_eq!(enters(&mut bench, &to_port(80).build()), None, "it is forwarded");
        counts_match(&mut bench, &frame);
    }
}

/// Counts at hook ingress include the bytes after a packet, unlike those at later hooks.
#[test]
fn ingress_counts_whole_frames() {
    let mut bench = Bench::new();
    let mut rules = ruleset(Hook::Ingress, &[vec![port(53), count(0), DROP]]);
    add_chain(&mut rules, Hook::Ingress, Policy::Accept, &[vec![port(54), count(1)]]);
    add_chain(&mut rules, Hook::Forward, Policy::Accept, &[vec![count(2), DROP]]);
    set(&mut bench, None, &rules);
    let frame = to_port(53).padded(7).build();
    assert_eq!(enters(&mut bench, &frame), Some(DropReason::NetfilterDrop));
    counts_match(&mut bench, &frame);
    assert_eq!(enters(&mut bench, &to_port(54).build()), None, "two numbers of bytes");
    let frame = to_port(55).padded(7).build();
    assert_eq!(enters(&mut bench, &frame), Some(DropReason::NetfilterDrop));
    counts_match(&mut bench, &frame);
}

/// Asserts that a packet of the XDP path counts for the rules as one of the user path.
fn counts_match(bench: &mut Bench, frame: &[u8]) {
    let grown = |bench: &mut Bench, run: &dyn Fn(&mut Bench)| -> Vec<Count> {
        let before = bench.net.worker.rule_counts();
        run(bench);
        let after = bench.net.worker.rule_counts();
        let both = after.iter().zip(&before);
        both.map(|(after, before)| Count {
            packets: after.packets - before.packets,
            bytes: after.bytes - before.bytes,
        })
        .collect()
    };
    let (flow, len) = find(&bench.maps, 0, frame).unwrap();
    let by_path = grown(bench, &|bench| _ = bench.send(0, frame));
    let by_xdp_path = grown(bench, &|bench| {
        let l3 = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
        let bytes = if flow.l2[1] == 1 { frame.len() - l3 } else { len };
        if flow.tally > 0 {
            let mut tallies = bench.maps.tallies.lock().unwrap();
            let (packets, all_bytes) = tallies.entry(flow.tally).or_default();
            (*packets, *all_bytes) = (*packets + 1, *all_bytes + bytes as u64);
        }
    });
    assert_eq!(by_path, by_xdp_path, "{flow:?}");
}

#[test]
fn a_blackhole_drops_whatever_the_packet() {
    for dst in [Special::Blackhole.host4(), Special::Blackhole.host6()] {
        let mut bench = Bench::new();
        let frame = PLAIN.packet(0, dst).build();
        assert_eq!(enters(&mut bench, &frame), Some(DropReason::Blackhole));
        for frame in [PLAIN.packet(0, dst).ttl(2), PLAIN.packet(0, dst).size(1500)] {
            assert!(hit(&mut bench, 0, &frame.build()));
        }
        for frame in [PLAIN.packet(0, dst).ttl(1), PLAIN.packet(0, dst).fragment(0, true)] {
            assert!(!hit(&mut bench, 0, &frame.build()));
        }
        // Rules before the route count, and those behind it do not.
        let mut rules = ruleset(Hook::Prerouting, &[vec![count(0)]]);
        add_chain(&mut rules, Hook::Forward, Policy::Drop, &[vec![count(1)]]);
        set(&mut bench, None, &rules);
        bench.net.run();
        bench.send(0, &frame);
        assert_eq!(
            find(&bench.maps, 0, &frame).unwrap().0.drop_reason(),
            Some(DropReason::Blackhole)
        );
        counts_match(&mut bench, &frame);
        let rules = ruleset(Hook::Prerouting, &[vec![is(Field::Ttl, 3), DROP]]);
        set(&mut bench, None, &rules);
        bench.net.run();
        bench.send(0, &frame);
        assert_eq!(find(&bench.maps, 0, &frame), None, "some of its packets are dropped by a rule");
    }
}

#[test]
fn other_drops_stay_out() {
    let mut bench = Bench::new();
    let packet = || to_port(53);
    let mut wrong_sum = packet().build();
    wrong_sum[24] ^= 1;
    let martian = packet().v4(|header| header.source = [127, 0, 0, 1]).build();
    let unknown = packet().tagged(&[(0x8100, 4000)]).build();
    for frame in [wrong_sum, martian, unknown] {
        let before = bench.net.counters().dropped_packets();
        (0..4).for_each(|_| _ = bench.send(0, &frame));
        assert_eq!(bench.net.counters().dropped_packets(), before + 4);
        assert_eq!(bench.maps.writes(), 0);
    }
    // Not of a flow: fragments, other protocols, several tags.
    set(&mut bench, None, &ruleset(Hook::Prerouting, &[vec![DROP]]));
    let qinq = LinkVariant::Qinq.packet(0, PLAIN.host4(1)).build();
    let gre = packet().v4(|header| header.protocol = IpNumber(47)).build();
    for frame in [packet().fragment(0, true).build(), gre, qinq] {
        let before = bench.net.counters().dropped_packets();
        (0..4).for_each(|_| _ = bench.send(0, &frame));
        assert_eq!(bench.net.counters().dropped_packets(), before + 4);
        assert_eq!(bench.maps.writes(), 0);
    }
}

/// At hook forward, a packet that does not fit is not always the rules'.
#[test]
fn hook_forward_drops_what_fits() {
    let mut bench = Bench::new();
    set(&mut bench, None, &ruleset(Hook::Forward, &[vec![count(0), DROP]]));
    // Port 2 has an MTU of 1280.
    let packet = |size| PLAIN.packet(0, PLAIN.host4(2)).size(size);
    assert_eq!(enters(&mut bench, &packet(100).build()), Some(DropReason::NetfilterDrop));
    let (flow, _) = find(&bench.maps, 0, &packet(100).build()).unwrap();
    assert_eq!(flow.mtu, 1280);
    assert!(hit(&mut bench, 0, &packet(1280).build()));
    assert!(!hit(&mut bench, 0, &packet(1281).build()));
    counts_match(&mut bench, &packet(1280).build());
    // Without a known neighbour, the next hop's MTU is not known.
    let frame = PLAIN.packet(0, Special::Resolve.host4()).build();
    let before = bench.net.counters().dropped_packets();
    assert_eq!(enters(&mut bench, &frame), None);
    assert_eq!(bench.net.counters().dropped_packets(), before + 2);
    // Before the route, neither matters.
    set(&mut bench, None, &ruleset(Hook::Prerouting, &[vec![count(0), DROP]]));
    bench.net.run();
    for frame in [frame, packet(1281).build()] {
        bench.send(0, &frame);
        assert!(hit(&mut bench, 0, &frame));
    }
}

/// A packet that a rule drops at hook ingress has no route. That of an earlier packet in its lane is not its own.
#[test]
fn a_malformed_packet_has_no_route() {
    let mut bench = Bench::new();
    let mut rules = Ruleset::default();
    add_chain(&mut rules, Hook::Ingress, Policy::Drop, &[vec![port(53), ACCEPT]]);
    let link = LinkPattern::Name(format!("l{}", PLAIN.link(2).0));
    let to_link_2 = Step::Match(Match::link(Field::Output, link));
    add_chain(&mut rules, Hook::Forward, Policy::Accept, &[vec![to_link_2, DROP]]);
    set(&mut bench, None, &rules);
    let frame = to_port(53).build();
    // By its header, it ends before the port that lies in the frame.
    let mut cut = frame.clone();
    cut[16..18].copy_from_slice(&20_u16.to_be_bytes());
    cut[24..26].fill(0);
    for _ in 0..4 {
        assert_eq!(bench.send(0, &PLAIN.packet(0, PLAIN.host4(2)).ports(1000, 53).build()), []);
        assert_eq!(bench.send(0, &cut), []);
    }
    assert_eq!(bench.maps.len(), 1, "the other packet's");
    assert_eq!(bench.send(0, &frame).len(), 1);
}

#[test]
fn a_change_voids_dropped_flows() {
    let rule = || ruleset(Hook::Prerouting, &[vec![port(53), DROP]]);
    let frame = to_port(53).build();
    let mut bench = Bench::new();
    set(&mut bench, None, &rule());
    assert!(enters(&mut bench, &frame).is_some());
    set(&mut bench, Some(&rule()), &ruleset(Hook::Prerouting, &[vec![port(54), DROP]]));
    bench.net.run();
    assert_eq!(bench.maps.installed(), 0);
    assert_eq!(bench.send(0, &frame).len(), 1, "the rule is gone");
    // And back: a forwarded flow becomes one that is dropped with its next packet.
    assert_eq!(bench.maps.installed(), 1);
    set(&mut bench, None, &rule());
    bench.net.run();
    assert_eq!(bench.maps.installed(), 0);
    assert_eq!(bench.send(0, &frame), []);
    assert_eq!(
        find(&bench.maps, 0, &frame).unwrap().0.drop_reason(),
        Some(DropReason::NetfilterDrop)
    );

    // A blackhole route that goes.
    type Change = fn(&mut Tables);
    let changes: [Change; 2] = [
        |tables| {
            let next = tables.lookup(PLAIN.vrf(), PLAIN.host4(2));
            tables
                .insert(PLAIN.vrf(), RoutePrefix::host(Special::Blackhole.host4()), next)
                .unwrap();
        },
        |tables| {
            let prefix = RoutePrefix::new(Special::Blackhole.host4(), 24);
            assert!(tables.remove(PLAIN.vrf(), prefix).unwrap());
        },
    ];
    for change in changes {
        let mut bench = Bench::new();
        let frame = PLAIN.packet(0, Special::Blackhole.host4()).build();
        assert!(enters(&mut bench, &frame).is_some());
        change(&mut bench.net.worker.lock().tables);
        bench.net.run();
        assert_eq!(bench.maps.installed(), 0);
    }
}

#[test]
fn a_next_hop_that_was_a_blackhole_voids_its_flows() {
    let mut bench = Bench::new();
    let dst = Special::Blackhole.host4();
    let id = {
        let tables = &mut bench.net.worker.lock().tables;
        let id = tables.add_object(ObjectTarget::Drop(DropReason::Blackhole)).unwrap();
        tables.insert(PLAIN.vrf(), RoutePrefix::host(dst), id).unwrap();
        id
    };
    let frame = PLAIN.packet(0, dst).build();
    assert_eq!(enters(&mut bench, &frame), Some(DropReason::Blackhole));
    let via = ip("10.255.1.1");
    let to = ObjectTarget::Neigh { link: PLAIN.link(1), via, mtu: None, is_ipv4: true };
    bench.net.worker.lock().tables.set_object(id, to).unwrap();
    bench.net.run();
    assert_eq!(bench.maps.installed(), 0);
    assert_eq!(bench.send(0, &frame).len(), 1);
}

/// Flows that wait for a pause would let a flood through to the user path meanwhile.
#[test]
fn dropped_flows_enter_at_once() {
    let mut bench = Bench::new();
    let flows = super::XdpFlows::new(bench.maps.clone(), Arc::clone(&bench.ports), 1 << 12);
    bench.net.worker.xdp_path = Some(Box::new(flows.in_order()));
    set(&mut bench, None, &ruleset(Hook::Prerouting, &[vec![port(53), DROP]]));
    for _ in 0..2 {
        bench.send(0, &to_port(53).build());
        bench.send(0, &to_port(54).build());
    }
    assert_eq!(bench.maps.len(), 1, "the other one waits");
    assert!(hit(&mut bench, 0, &to_port(53).build()));
}

/// A flood of more flows than there is room for must not cost more than to drop it.
#[test]
fn a_full_table_is_tried_now_and_then() {
    let mut bench = Bench::with(super::Maps { full: true, ..super::Maps::default() });
    set(&mut bench, None, &ruleset(Hook::Prerouting, &[vec![DROP]]));
    for round in 1..4 {
        for flow in 0..50 {
            (0..2).for_each(|_| _ = bench.send(0, &to_port(flow).build()));
        }
        assert_eq!((bench.entered.entered(), bench.entered.refused()), (0, round));
        bench.net.now_ns += 20_000_000;
    }
}

/// A rule of a random chain.
fn random_rule(dice: &mut Dice, hook: Hook) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..dice.below(3) {
        steps.push(match dice.below(9) {
            0..=2 => port(53 + dice.below(3) as u128),
            3 => is(Field::Protocol, dice.pick(&[17, 6])),
            4 => Step::Match(Match::link(Field::Input, LinkPattern::Name("l0".into()))),
            5 if hook == Hook::Forward => is(Field::Mark, 1),
            5 | 6 => Step::Do(Action::mark(dice.below(2) as u32)),
            7 => is(Field::Ttl, 64),
            _ => Step::Match(Match::in_ranges(Field::Length, [Range::new(0, 100)])),
        });
    }
    if dice.one_in(2) {
        steps.push(count(dice.below(10)));
    }
    match dice.below(5) {
        0 | 1 => steps.push(DROP),
        2 => steps.push(ACCEPT),
        _ => {}
    }
    steps
}

/// A packet of one of a few flows.
fn random_packet(dice: &mut Dice) -> Packet {
    let to = dice.below(PORTS.into()) as u8;
    let variant = dice.pick(&[LinkVariant::Plain, LinkVariant::Vlan]);
    let dst = dice.pick(&[
        PLAIN.host4(to),
        PLAIN.host6(to),
        Special::Group.host4(),
        Special::Blackhole.host4(),
        Special::Resolve.host6(),
    ]);
    let packet = variant.packet(0, dst).ports(7, 53 + dice.below(3) as u16);
    let is_v4 = matches!(packet.ip, Ip::V4(_));
    match dice.below(10) {
        0 => packet.ttl(dice.below(4) as u8),
        1 => packet.size(dice.pick(&[60, 1280, 1281, 1500])),
        2 => packet.padded(dice.below(60)),
        3 if is_v4 => packet.size(1300).v4(|header| header.dont_fragment = true),
        _ => packet,
    }
}

proptest! {
    #[test]
    fn dropped_flows_never_differ_from_the_user_path(seed in any::<u64>()) {
        let (mut bench, mut dice) = (Bench::new(), Dice(seed));
        let mut rules = ruleset(Hook::Postrouting, &[]);
        for hook in HOOKS.into_iter().take(3) {
            let list: Vec<_> = (0..dice.below(5)).map(|_| random_rule(&mut dice, hook)).collect();
            let policy = if dice.one_in(8) { Policy::Drop } else { Policy::Accept };
            add_chain(&mut rules, hook, policy, &list);
        }
        set(&mut bench, None, &rules);
        for _ in 0..200 {
            let frame = random_packet(&mut dice).build();
            if hit(&mut bench, 0, &frame) && find(&bench.maps, 0, &frame).is_some() {
                counts_match(&mut bench, &frame);
            }
            if bench.net.counters().held > 50 {
                bench.net.pass(5);
                bench.net.take_all();
            }
        }
    }
}
