//! Compares the result for a flow with the evaluation of each of its packets.

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::id::LinkId;
use tollway_dataplane::stages::filter::{
    Direction, Filter, FlowConnection, FlowKey, FlowReport, Point, Tuple,
};

use super::super::{compile, compile_for_flows};
use super::connections;
use super::frames::{ADDRESSES, Frames, six};
use super::path_bench::{self, MAC, VID};
use super::rulesets::Draw;
use crate::ir::{
    Action, Base, Chain, Family, Field, Hook, LinkPattern, Match, Place, Policy, Rule, Ruleset,
    Step,
};
use crate::links::Link;
use crate::testkit::dice::Dice;
use crate::testkit::eval::{self, Packet, RuleVerdict};

const HOOKS: [Hook; 5] =
    [Hook::Ingress, Hook::Prerouting, Hook::Forward, Hook::Postrouting, Hook::Egress];

/// The ingress links of flows: two ports, and the VLAN on the first.
const INPUTS: [u16; 3] = [0, 1, 3];

fn draw(frames: &Frames, dice: &mut Dice) -> FlowKey {
    let version = dice.pick(&[4, 4, 6]);
    let (source, destination) =
        (dice.pick(&frames.sources), dice.pick(&ADDRESSES) ^ dice.below(2) as u32);
    let wide = |address| if version == 6 { six(address) } else { address.into() };
    let protocol = dice.pick(&[6, 17, if version == 6 { 58 } else { 1 }]);
    let ports = (dice.pick(&frames.ports), dice.pick(&frames.ports));
    FlowKey {
        version,
        source: wide(source),
        destination: wide(destination),
        protocol,
        ports: matches!(protocol, 6 | 17).then_some(ports),
        input: LinkId(dice.pick(&INPUTS)),
        output: Some(LinkId((destination & 1) as u16 + 1)),
        connection: None,
    }
}

/// Any packet of a flow: everything outside of its key is random.
fn packet(flow: &FlowKey, dice: &mut Dice) -> Vec<u8> {
    let mut body: Vec<u8> = (0..4 + dice.below(30)).map(|_| dice.roll() as u8).collect();
    if let Some((source, destination)) = flow.ports {
        body[..2].copy_from_slice(&source.to_be_bytes());
        body[2..4].copy_from_slice(&destination.to_be_bytes());
    } else {
        body[..2].copy_from_slice(&[dice.pick(&[0, 1, 3, 8, 128]), dice.below(3) as u8]);
    }
    let mut frame = [&MAC[..], &[2, 0, 0, 0, 7, dice.below(3) as u8]].concat();
    if flow.input.0 == 3 {
        frame.extend([0x81, 0, (dice.below(8) as u8) << 5, VID as u8]);
    }
    let (class, ttl) = (dice.below(4) as u8, dice.pick(&[2, 64, 65, 255]));
    let header = if flow.version == 6 {
        frame.extend([0x86, 0xdd]);
        let len = (body.len() as u16).to_be_bytes();
        let start = [0x60, class << 6, 0, 0, len[0], len[1], flow.protocol, ttl];
        [&start[..], &flow.source.to_be_bytes(), &flow.destination.to_be_bytes()].concat()
    } else {
        frame.extend([8, 0]);
        let len = (20 + body.len() as u16).to_be_bytes();
        let df = dice.pick(&[0, 0x40]);
        let start = [0x45, class << 2, len[0], len[1], 0, 7, df, 0, ttl, flow.protocol, 0, 0];
        let address = |wide: u128| (wide as u32).to_be_bytes();
        [&start[..], &address(flow.source), &address(flow.destination)].concat()
    };
    frame.extend(header);
    frame.extend(body);
    frame
}

/// Runs a packet of a flow through the hooks until one does not accept it; returns that hook.
fn run_hooks(
    rules: &Ruleset,
    links: &[Link],
    state: &mut eval::State,
    (flow, frame): (&FlowKey, &[u8]),
) -> Option<(Hook, RuleVerdict)> {
    let own = &links[usize::from(flow.input.0)];
    let mut packet = Packet::new(frame, l3(links, flow), own);
    packet.connection = flow.connection;
    if own.on.is_some() {
        // The lower device comes first.
        packet.input = &links[0];
        let verdict = eval::run(rules, state, Hook::Ingress, &mut packet, 0);
        if verdict != RuleVerdict::Accept {
            return Some((Hook::Ingress, verdict));
        }
        packet.input = own;
    }
    for hook in HOOKS {
        if hook == Hook::Forward {
            packet.output = Some(&links[usize::from(flow.output?.0)]);
        }
        let verdict = eval::run(rules, state, hook, &mut packet, 0);
        if verdict != RuleVerdict::Accept {
            return Some((hook, verdict));
        }
    }
    assert_eq!(packet.frame(), frame, "nothing is written");
    let is_kept_out = flow.connection == Some(FlowConnection::Invalid)
        && packet.connection == Some(FlowConnection::Untracked);
    assert!(is_kept_out || packet.connection == flow.connection, "not even to the connection");
    None
}

/// Bytes before layer 3.
fn l3(links: &[Link], flow: &FlowKey) -> usize {
    if links[usize::from(flow.input.0)].on.is_some() { 18 } else { 14 }
}

const fn point_of(hook: Hook) -> Point {
    match hook {
        Hook::Ingress => Point::Ingress,
        Hook::Prerouting => Point::Prerouting,
        _ => Point::Forward,
    }
}

/// How many flows had which results.
#[derive(Debug, Default)]
struct Results {
    flows: usize,
    accepted: usize,
    dropped: [usize; 3],
    /// Packets that rules keep out of connection tracking.
    untracked: usize,
}

impl Results {
    /// Compares the result for a flow with the evaluation of some of its packets.
    fn compare(
        &mut self,
        (rules, links): (&Ruleset, &[Link]),
        flow: &FlowKey,
        report: FlowReport,
        (dice, what): (&mut Dice, &str),
    ) {
        match report.dropped_at {
            None => self.accepted += 1,
            Some(point) => self.dropped[point as usize] += 1,
        }
        for _ in 0..8 {
            let frame = packet(flow, dice);
            let what = format!("{what}, {flow:?}, {frame:02x?}");
            let mut state = eval::State::new(rules);
            let mut expected = state.counts.clone();
            let end = run_hooks(rules, links, &mut state, (flow, &frame));
            let dropped_at = end.map(|(hook, verdict)| {
                assert_eq!(verdict, RuleVerdict::Drop, "{what}");
                point_of(hook)
            });
            assert_eq!(dropped_at, report.dropped_at, "{what}");
            for counter in report.touched.counters() {
                let count = &mut expected[*counter as usize];
                *count = (count.0 + 1, count.1 + (frame.len() - l3(links, flow)) as u64);
            }
            assert_eq!(state.counts, expected, "{what}");
            if report.is_untracked {
                self.untracked += 1;
                // The rules do the same with a packet that tracking has not seen yet, and it never will.
                let unseen = FlowKey { connection: Some(FlowConnection::Invalid), ..*flow };
                let mut state = eval::State::new(rules);
                let end = run_hooks(rules, links, &mut state, (&unseen, &frame));
                assert_eq!(end.map(|(hook, _)| point_of(hook)), dropped_at, "{what}");
                assert_eq!(state.counts, expected, "{what}");
            }
        }
    }

    fn assert_are_mixed(&self) {
        let Self { flows, accepted, dropped, .. } = self;
        println!("{self:?}");
        assert!(accepted * 10 > *flows, "{self:?}");
        assert!(accepted * 10 < flows * 9, "{self:?}");
        assert!(dropped.iter().all(|at_point| at_point * 200 > *flows), "{self:?}");
    }
}

#[test]
fn the_result_for_a_flow_holds_for_each_of_its_packets() {
    let mut results = Results::default();
    let links = path_bench::links();
    for number in 0..400 {
        let seed = 4 << 32 | number;
        let mut dice = Dice(seed);
        let count = dice.pick(&[1, 2, 5, 12, 80, 300]);
        let rules = Draw::new(&mut dice).ruleset(count);
        let Ok(filter) = compile(&rules, &links, &Epochs::new()) else { continue };
        let frames = Frames::new(&rules, &mut dice);
        for _ in 0..50 {
            let flow = draw(&frames, &mut dice);
            results.flows += 1;
            let Some(report) = filter.of_flow(&flow) else { continue };
            check_before_route(&filter, &flow, report);
            let what = format!("seed {seed:#x}");
            results.compare((&rules, &links), &flow, report, (&mut dice, &what));
        }
    }
    results.assert_are_mixed();
}

#[test]
fn the_result_for_a_flow_of_a_connection_holds_for_each_of_its_packets() {
    let mut results = Results::default();
    let links = path_bench::links();
    for number in 0..150 {
        let seed = 5 << 32 | number;
        let mut dice = Dice(seed);
        let count = dice.pick(&[1, 2, 5, 12, 80, 300]);
        let rules = Draw::with_connections(&mut dice).ruleset(count);
        let flow_rules = rules.clone().for_connections();
        let Ok(filter) = compile_for_flows(&flow_rules, &links, &Epochs::new()) else { continue };
        let frames = Frames::new(&rules, &mut dice);
        for _ in 0..50 {
            let flow = draw(&frames, &mut dice);
            let connection = untranslated(connections::of_flow(&flow, &mut dice), &flow);
            let flow = FlowKey { connection: Some(connection), ..flow };
            results.flows += 1;
            let Some(report) = filter.of_flow(&flow) else { continue };
            // Without the connection, the result is the same or not known.
            let without = filter.of_flow(&FlowKey { connection: None, ..flow });
            assert!(without.is_none_or(|without| without == report), "seed {seed:#x}, {flow:?}");
            let what = format!("seed {seed:#x}");
            results.compare((&rules, &links), &flow, report, (&mut dice, &what));
        }
    }
    results.assert_are_mixed();
    assert!(results.untracked > 40, "{results:?}");
}

/// The same connection, whose packets leave as they arrive: the evaluator knows no translation.
fn untranslated(connection: FlowConnection, flow: &FlowKey) -> FlowConnection {
    let FlowConnection::Tracked(mut connection) = connection else { return connection };
    let (source_port, destination_port) = flow.ports.unwrap_or_default();
    let answers = Tuple {
        source: flow.destination,
        destination: flow.source,
        source_port: destination_port,
        destination_port: source_port,
    };
    match connection.direction {
        Direction::Original => connection.reply = answers,
        Direction::Reply => connection.original = answers,
    }
    FlowConnection::Tracked(connection)
}

/// Without an egress link, the result is the same up to the route lookup.
fn check_before_route(filter: &Filter, flow: &FlowKey, report: FlowReport) {
    let before = filter.of_flow(&FlowKey { output: None, ..*flow });
    match report.dropped_at {
        Some(Point::Ingress | Point::Prerouting) => assert_eq!(before, Some(report)),
        Some(Point::Forward) | None => {
            let before = before.expect("the first rules do not depend on more");
            assert_eq!(before.dropped_at, None);
            assert!(report.touched.counters().starts_with(before.touched.counters()));
        }
        Some(point) => panic!("only a router that tracks has rules of {point:?}"),
    }
}

/// A packet of a device in a VRF meets hook prerouting twice; the second time, connection tracking has seen it.
#[test]
fn only_the_first_pass_of_prerouting_keeps_packets_out_of_tracking() {
    let mut links = path_bench::links();
    links[1].vrf_device = Some("red".to_owned());
    let untracked = |name: Option<&str>, connection| {
        let mut steps: Vec<_> = name
            .map(|name| Step::Match(Match::link(Field::Input, LinkPattern::Name(name.into()))))
            .into_iter()
            .collect();
        steps.push(Step::Do(Action::NoTrack));
        let rule = Rule { place: Place::default(), text: String::new(), steps };
        let base = Some(Base::new(Hook::Prerouting, -300, Policy::Accept));
        let mut rules = Ruleset::default();
        let chain = Chain::new("inet t raw".to_owned(), Family::Inet);
        rules.chains.push(Chain { base, rules: vec![rule], ..chain });
        let rules = rules.for_connections();
        let filter = compile_for_flows(&rules, &links, &Epochs::new()).unwrap();
        let flow = FlowKey {
            version: 4,
            source: 1,
            destination: 2,
            protocol: 17,
            ports: Some((3, 4)),
            input: LinkId(1),
            output: Some(LinkId(2)),
            connection: Some(connection),
        };
        filter.of_flow(&flow).map(|report| report.is_untracked)
    };
    let of =
        |name| [FlowConnection::Untracked, FlowConnection::Invalid].map(|one| untracked(name, one));
    assert_eq!(of(None), [Some(true), None]);
    assert_eq!(of(Some("wan1")), [Some(true), None]);
    assert_eq!(of(Some("red")), [Some(false), None], "the kernel has tracked it by then");
    assert_eq!(of(Some("lan0")), [Some(false), Some(false)]);
}
