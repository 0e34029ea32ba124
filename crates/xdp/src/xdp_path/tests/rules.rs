//! The XDP path with a firewall: which flows may enter, and where their packets count.

use std::sync::Arc;

use etherparse::IpNumber;
use tollway_dataplane::stages::filter::Count;

use super::{Bench, Flows as _};
use crate::testkit::wires::LinkVariant;
use tollway_firewall::carry::carried;
use tollway_firewall::ir::*;
use tollway_firewall::links::Link;
use tollway_firewall::program;

const UDP: u8 = 17;
const ICMP: u8 = 1;

/// A ruleset of one chain at hook forward, each rule with these steps.
fn ruleset(rules: &[Vec<Step>], counters: usize) -> Ruleset {
    let mut ruleset = Ruleset::default();
    (0..counters).for_each(|_| _ = ruleset.add_counter(Counter::default()));
    ruleset.add_limit(Limit { rate: 1, period_ns: 1, burst: 1, unit: LimitUnit::Packets });
    let mut chain = Chain::new("ip t forward", Family::Ip);
    chain.base = Some(Base::new(Hook::Forward, 0, Policy::Accept));
    for (number, steps) in rules.iter().enumerate() {
        let text = format!("rule {number}");
        chain.rules.push(Rule { place: Place::default(), text, steps: steps.clone() });
    }
    ruleset.add_chain(chain);
    ruleset
}

fn set(bench: &mut Bench, before: Option<&Ruleset>, rules: &Ruleset) {
    let links = vec![Link::default(); bench.net.worker.state().routes.links.len()];
    let filter = program::compile(rules, &links, &bench.net.worker.state().epochs).unwrap();
    let carried = carried(before, Some(rules));
    bench.net.worker.set_filter(Some(Arc::new(filter)), &carried);
}

fn frame(protocol: u8) -> Vec<u8> {
    let packet =
        LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).ports(1000, 53).size(100);
    packet.v4(|header| header.protocol = IpNumber(protocol)).build()
}

/// Whether a flow enters the XDP path under these rules.
fn enters(rules: &[Vec<Step>], protocol: u8) -> bool {
    let mut bench = Bench::new();
    set(&mut bench, None, &ruleset(rules, 16));
    bench.twice(0, &frame(protocol)) == [0, 1]
}

fn is(field: Field, number: u128) -> Step {
    Step::Match(Match::is(field, number))
}

fn count(number: usize) -> Step {
    Step::Do(Action::Count(CounterId(number)))
}

#[test]
fn flows_enter_whose_key_alone_decides() {
    let accept = || Step::Verdict(Verdict::Accept);
    let udp = || is(Field::Protocol, 17);
    let icmp = || is(Field::Protocol, 1);
    let port = || is(Field::DestinationPort, 53);
    let other_port = || is(Field::DestinationPort, 54);
    let length = || Step::Match(Match::in_ranges(Field::Length, [Range::new(0, 1500)]));
    let limit = || Step::Limit { limit: LimitId(0), over: false };
    for (rules, udp_enters, icmp_enters) in [
        (vec![], true, true),
        (vec![vec![udp(), port(), accept()]], true, true),
        (vec![vec![udp(), port(), count(0), count(1), accept()]], true, true),
        // Rules that match these packets depend on more than the key.
        (vec![vec![udp(), length(), accept()]], false, true),
        (vec![vec![udp(), other_port(), length(), accept()]], true, true),
        (vec![vec![udp(), accept()], vec![length(), accept()]], true, false),
        (vec![vec![icmp(), is(Field::IcmpType, 8), accept()]], true, false),
        // For ICMP, the ports are not part of the key.
        (vec![vec![port(), accept()]], true, false),
        (vec![vec![udp(), limit(), accept()]], false, true),
        (vec![vec![udp(), Step::Do(Action::Dscp(7))]], false, true),
        // The mark depends only on the key.
        (
            vec![
                vec![udp(), Step::Do(Action::mark(5))],
                vec![is(Field::Mark, 0), length(), accept()],
            ],
            true,
            false,
        ),
        (vec![[vec![udp()], (0..8).map(count).collect()].concat()], true, true),
        (vec![[vec![udp()], (0..9).map(count).collect()].concat()], false, true),
    ] {
        assert_eq!(enters(&rules, UDP), udp_enters, "UDP: {rules:?}");
        assert_eq!(enters(&rules, ICMP), icmp_enters, "ICMP: {rules:?}");
    }
}

#[test]
fn packets_of_the_xdp_path_count_as_those_of_the_path() {
    let mut bench = Bench::new();
    let udp = || is(Field::Protocol, 17);
    let rules = ruleset(&[vec![count(0)], vec![udp(), count(1)]], 2);
    set(&mut bench, None, &rules);
    let entered = bench.twice(0, &frame(UDP));
    assert_eq!(entered, [0, 1]);
    let tally = bench.maps.flows()[0].tally;
    assert_ne!(tally, 0);
    let len = frame(UDP).len() as u64 - 14;
    let counts = |bench: &mut Bench| bench.net.worker.rule_counts();
    let packets = |n: u64| Count { packets: n, bytes: n * len };
    assert_eq!(counts(&mut bench), [packets(2), packets(2)]);
    let add = |bench: &Bench, n: u64| {
        let mut tallies = bench.maps.tallies.lock().unwrap();
        let (packets, bytes) = tallies.entry(tally).or_default();
        (*packets, *bytes) = (*packets + n, *bytes + n * len);
    };
    add(&bench, 5);
    assert_eq!(counts(&mut bench), [packets(7), packets(7)]);
    assert_eq!(counts(&mut bench), [packets(7), packets(7)], "each packet once");
    bench.send(0, &frame(ICMP));
    // The other rule goes; counts that were not reported yet are not lost.
    add(&bench, 3);
    let other = ruleset(&[vec![count(0)]], 1);
    let generation = bench.maps.generation();
    set(&mut bench, Some(&rules), &other);
    let icmp = frame(ICMP).len() as u64 - 14;
    let carried = Count { packets: 11, bytes: 10 * len + icmp };
    assert_eq!(counts(&mut bench), [carried]);
    // In the next turn no flow is active any more, and there is another tally.
    bench.net.run();
    assert_ne!(bench.maps.generation(), generation);
    assert_eq!(bench.maps.installed(), 0);
    bench.twice(0, &frame(UDP));
    assert_eq!(bench.maps.installed(), 1);
    let flow = bench.maps.flows().into_iter().find(|flow| flow.generation != generation);
    assert_ne!(flow.unwrap().tally, tally);
    let two_more = Count { packets: 13, bytes: 12 * len + icmp };
    assert_eq!(counts(&mut bench), [two_more]);
}
