//! The firewall and the XDP path: rules count packets that the XDP program forwards, and new rules
//! soon apply to them.

use std::sync::Arc;

use tollway_dataplane::stages::filter::Count;
use tollway_firewall::carry::carried;
use tollway_firewall::ir::*;
use tollway_firewall::links::Link;
use tollway_firewall::program;

use crate::bench::Bench;
use crate::testkit::wires::LinkVariant;

/// Returns a rule at hook forward that counts UDP to a port and gives a verdict.
fn ruleset(port: u128, verdict: Verdict) -> Ruleset {
    let mut rules = Ruleset::default();
    let counter = rules.add_counter(Counter { packets: 1000, bytes: 0, name: None });
    let mut chain = Chain::new("inet t forward", Family::Inet);
    chain.base = Some(Base::new(Hook::Forward, 0, Policy::Accept));
    chain.rules.push(Rule {
        place: Place::line("t.nft", 3),
        text: format!("udp dport {port} counter"),
        steps: vec![
            Step::Match(Match::is(Field::Protocol, 17)),
            Step::Match(Match::is(Field::DestinationPort, port)),
            Step::Do(Action::Count(counter)),
            Step::Verdict(verdict),
        ],
    });
    rules.add_chain(chain);
    rules
}

fn set(bench: &mut Bench, before: Option<&Ruleset>, rules: &Ruleset) {
    let worker = &mut bench.net.worker;
    let links = vec![Link::default(); worker.state().routes.links.len()];
    let filter = program::compile(rules, &links, &worker.state().epochs).unwrap();
    worker.set_filter(Some(Arc::new(filter)), &carried(before, Some(rules)));
}

/// A rule counts packets of both paths. The count goes on after a reload if the rule is still
/// there.
pub fn counted() {
    let mut bench = Bench::new();
    let rules = ruleset(53, Verdict::Accept);
    set(&mut bench, None, &rules);
    let frames = [LinkVariant::Plain.host4(1), LinkVariant::Plain.host6(1)]
        .map(|dst| LinkVariant::Vlan.packet(0, dst).ports(9, 53).size(200).build());
    let (mut packets, mut bytes) = (1000, 0);
    for frame in &frames {
        for sent in 0..10 {
            let by_xdp_path = bench.xdp_path(0, frame);
            assert_eq!(by_xdp_path.is_some(), sent >= 2, "{sent}");
            if by_xdp_path.is_none() {
                bench.path(0, frame);
            }
            // The rule's byte count excludes the Ethernet header and the tag.
            (packets, bytes) = (packets + 1, bytes + frame.len() as u64 - 18);
        }
    }
    assert_eq!(bench.net.worker.rule_counts(), [Count { packets, bytes }]);
    // Reads the rules again: first the same rule, then another.
    set(&mut bench, Some(&rules), &rules);
    assert_eq!(bench.net.worker.rule_counts(), [Count { packets, bytes }]);
    set(&mut bench, Some(&rules), &ruleset(54, Verdict::Accept));
    assert_eq!(bench.net.worker.rule_counts(), [Count { packets: 1000, bytes: 0 }]);
}

/// With the worker's next turn, a new rule drops a flow on the XDP path; the next packet takes the user path, and later
/// ones are dropped in XDP.
pub fn dropped() {
    let mut bench = Bench::new();
    let rules = ruleset(53, Verdict::Accept);
    set(&mut bench, None, &rules);
    let frame = LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).ports(9, 53).build();
    assert_eq!([(); 3].map(|()| bench.both(0, &frame)), [false, false, true]);
    set(&mut bench, Some(&rules), &ruleset(53, Verdict::Drop));
    // The worker does this in each turn, with packets or without.
    bench.net.run();
    assert_eq!([(); 3].map(|()| bench.both(0, &frame)), [false, true, true]);
    assert_eq!(bench.path(0, &frame), []);
    set(&mut bench, None, &rules);
    bench.net.run();
    assert_eq!([(); 3].map(|()| bench.both(0, &frame)), [false, true, true]);
    assert_eq!(bench.path(0, &frame).len(), 1);
}
