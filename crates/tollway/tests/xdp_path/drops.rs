//! Flows that the user path drops: the XDP program drops their later packets for the same reason, and all counts have
//! them.

use std::sync::Arc;

use tollway_dataplane::counters::Counters;
use tollway_dataplane::stages::filter::Count;
use tollway_dataplane::verdict::DropReason;
use tollway_firewall::ir::*;
use tollway_firewall::links::Link;
use tollway_firewall::program;
use tollway_xdp::xdp_path::XdpTotals;

use crate::bench::Bench;
use crate::testkit::dice::Dice;
use crate::testkit::packet::Packet;
use crate::testkit::wires::{LinkVariant, PORTS, Special};

/// Packets of each flow that take the user path.
const BY_PATH: usize = 2;

/// Adds a rule at a hook of all devices: it counts UDP to a port, and gives a verdict.
fn add_rule(rules: &mut Ruleset, hook: Hook, port: u128, verdict: Verdict) {
    let counter = rules.add_counter(Counter::default());
    let mut chain = Chain::new(format!("inet t {hook:?}"), Family::Inet);
    let mut base = Base::new(hook, 0, Policy::Accept);
    if hook == Hook::Ingress {
        base.devices = vec![LinkPattern::Prefix("l".into())];
    }
    chain.base = Some(base);
    chain.rules.push(Rule {
        place: Place::default(),
        text: format!("{hook:?}: udp dport {port} counter"),
        steps: vec![
            Step::Match(Match::is(Field::Protocol, 17)),
            Step::Match(Match::is(Field::DestinationPort, port)),
            Step::Do(Action::Count(counter)),
            Step::Verdict(verdict),
        ],
    });
    rules.add_chain(chain);
}

fn set(bench: &mut Bench, rules: &Ruleset) {
    let worker = &mut bench.net.worker;
    let link = |number| Link { name: format!("l{number}"), ..Link::default() };
    let links: Vec<_> = (0..worker.state().routes.links.len()).map(link).collect();
    let filter = program::compile(rules, &links, &worker.state().epochs).unwrap();
    worker.set_filter(Some(Arc::new(filter)), &[]);
}

/// Sends a frame on the XDP path, or on the user path if the former does not take it. Says whether it does.
fn send(bench: &mut Bench, frame: &[u8]) -> bool {
    let is_taken = bench.xdp_path(0, frame).is_some();
    if !is_taken {
        bench.path(0, frame);
    }
    is_taken
}

/// Returns the counters of both paths, which must add up.
fn counters(bench: &mut Bench, totals: &mut XdpTotals) -> Counters {
    totals.update(bench.reading());
    let mut counters = bench.net.counters().clone();
    totals.add_to(&mut counters);
    counters.check().unwrap();
    counters
}

fn to(dst: std::net::IpAddr, variant: LinkVariant, source_port: u16) -> Packet {
    variant.packet(0, dst).ports(source_port, 53).size(200)
}

/// Each hook's drops and a blackhole's: the same reason, the same counts of ports and rules.
pub fn counted() {
    let (mut bench, prerouting) = (Bench::new(), Some(Hook::Prerouting));
    let cases = [
        (Some(Hook::Ingress), Verdict::Drop, None),
        (prerouting, Verdict::Drop, None),
        (Some(Hook::Forward), Verdict::Drop, None),
        (Some(Hook::Postrouting), Verdict::Drop, None),
        (None, Verdict::Drop, Some(Special::Blackhole)),
        (prerouting, Verdict::Accept, Some(Special::Blackhole)),
    ];
    for ((hook, verdict, special), source_port) in cases.into_iter().zip(1..) {
        let mut rules = Ruleset::default();
        if let Some(hook) = hook {
            add_rule(&mut rules, hook, 53, verdict);
        }
        set(&mut bench, &rules);
        bench.net.run();
        let before = bench.net.counters().clone();
        let mut totals = XdpTotals::new(bench.reading());
        let (plain, vlan) = (LinkVariant::Plain, LinkVariant::Vlan);
        let [four, six] = match special {
            Some(special) => [special.host4(), special.host6()],
            None => [plain.host4(1), plain.host6(1)],
        };
        let padded = to(four, vlan, source_port).padded(9);
        let frames = [to(four, plain, source_port), to(six, plain, source_port), padded];
        let frames = frames.map(|packet| packet.build());
        let (mut packets, mut bytes, mut of_rule) = (0, 0, 0);
        for frame in &frames {
            for sent in 0..10 {
                assert_eq!(send(&mut bench, frame), sent >= BY_PATH, "{hook:?}, {sent}");
                (packets, bytes) = (packets + 1, bytes + frame.len() as u64);
                of_rule += match hook {
                    // There the bytes after a packet count, too.
                    Some(Hook::Ingress) if frame[12] == 0x81 => frame.len() as u64 - 18,
                    _ => 200,
                };
            }
        }
        let counters = counters(&mut bench, &mut totals);
        let reason =
            if special.is_some() { DropReason::Blackhole } else { DropReason::NetfilterDrop };
        let grown = |of: fn(&Counters) -> u64| of(&counters) - of(&before);
        assert_eq!(counters.drops[reason as usize] - before.drops[reason as usize], packets);
        assert_eq!((grown(Counters::dropped_packets), counters.held), (packets, 0), "{hook:?}");
        assert_eq!(grown(|counters| counters.rx[0].packets), packets);
        assert_eq!(grown(|counters| counters.rx[0].bytes), bytes);
        let by_xdp_path: u64 = totals.dropped().map(|traffic| traffic.packets).sum();
        assert_eq!(by_xdp_path, packets - (BY_PATH * frames.len()) as u64);
        if hook.is_some() {
            let counted = Count { packets, bytes: of_rule };
            assert_eq!(bench.net.worker.rule_counts(), [counted], "{hook:?}");
        }
        assert!(totals.sum().rx.iter().all(|traffic| traffic.packets == 0), "none is forwarded");
    }
}

/// One rule drops a flood. From the third packet of each flow on, XDP does.
pub fn flood() {
    const FLOWS: u16 = 500;
    const ROUNDS: usize = 6;
    let mut bench = Bench::new();
    let mut rules = Ruleset::default();
    add_rule(&mut rules, Hook::Prerouting, 53, Verdict::Drop);
    set(&mut bench, &rules);
    let mut totals = XdpTotals::new(bench.reading());
    let frame = |flow: u16| {
        let packet = LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(flow as u8 % PORTS));
        packet.ports(1000 + flow, 53).build()
    };
    let frames: Vec<_> = (0..FLOWS).map(frame).collect();
    for round in 0..ROUNDS {
        let taken = frames.iter().filter(|frame| send(&mut bench, frame)).count();
        let expected = if round < BY_PATH { 0 } else { frames.len() };
        assert_eq!(taken, expected, "round {round}");
    }
    let packets = frames.len() as u64 * ROUNDS as u64;
    let counters = counters(&mut bench, &mut totals);
    assert_eq!(counters.drops[DropReason::NetfilterDrop as usize], packets);
    assert_eq!(counters.received_packets(), packets);
    let bytes = packets * (frames[0].len() as u64 - 14);
    assert_eq!(bench.net.worker.rule_counts(), [Count { packets, bytes }]);
}

/// Returns rules at random hooks, some of which look at more than a flow's key.
fn random_rules(dice: &mut Dice) -> Ruleset {
    let mut rules = Ruleset::default();
    for hook in [Hook::Ingress, Hook::Prerouting, Hook::Forward, Hook::Postrouting] {
        let verdict = dice.pick(&[Verdict::Drop, Verdict::Drop, Verdict::Accept]);
        add_rule(&mut rules, hook, 53 + dice.below(4) as u128, verdict);
        if dice.one_in(3) {
            let chain = rules.chains.last_mut().unwrap();
            let at_most = Match::in_ranges(Field::Length, [Range::new(0, 199)]);
            chain.rules[0].steps.insert(0, Step::Match(at_most));
        }
    }
    rules
}

fn random_packet(dice: &mut Dice) -> Packet {
    let to = dice.below(PORTS.into()) as u8;
    let plain = LinkVariant::Plain;
    let dst = dice.pick(&[
        plain.host4(to),
        plain.host6(to),
        Special::Group.host4(),
        Special::Blackhole.host6(),
    ]);
    let variant = dice.pick(&[plain, LinkVariant::Vlan]);
    let packet = variant.packet(0, dst).ports(7, 53 + dice.below(4) as u16);
    match dice.below(8) {
        0 => packet.ttl(dice.below(4) as u8),
        1 => packet.size(dice.pick(&[199, 200, 1280, 1281])),
        2 => packet.padded(dice.below(60)),
        _ => packet,
    }
}

/// Whatever the rules, the XDP path drops what the user path drops, and nothing else.
pub fn mixture() {
    let (mut bench, mut dice) = (Bench::new(), Dice(815));
    let (mut taken, mut dropped) = (0, 0);
    for _ in 0..60 {
        set(&mut bench, &random_rules(&mut dice));
        bench.net.run();
        for _ in 0..80 {
            let frame = random_packet(&mut dice).build();
            let before = bench.net.counters().dropped_packets();
            if bench.both(0, &frame) {
                taken += 1;
                dropped += bench.net.counters().dropped_packets() - before;
            }
        }
    }
    println!("{taken} packets, {dropped} of them dropped");
    assert!(dropped > 500 && taken > dropped + 200, "{taken} packets, {dropped} dropped");
}
