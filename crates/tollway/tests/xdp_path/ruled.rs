//! Compares the programs with the user path over drawn rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::stages::filter::{
    Address, Condition, Element, Field, Filter, Limit, LimitUnit, LiveSet, Op, Point, Rule, Rules,
};
use tollway_xdp::Action;

use crate::compared::Compared;
use crate::testkit::dice::Dice;
use crate::testkit::mixed;
use crate::testkit::wires::{LinkVariant, PORTS, Special};

/// The numbers of drawn rule sets, and of frames for each.
const RULE_SETS: u64 = 60;
const FRAMES: usize = 150;
/// The number of counters.
const COUNTERS: u32 = 20;
const POINTS: [Point; 3] = [Point::Ingress, Point::Prerouting, Point::Forward];
/// As often as any other field: fields that no program reads.
const STRANGE: [Field; 3] = [Field::EtherSource, Field::VlanId, Field::IpVersion];

fn fields(version: u8) -> Vec<Field> {
    let mut fields = vec![
        Field::Protocol,
        Field::SourcePort,
        Field::DestinationPort,
        Field::TcpFlags,
        Field::IcmpType,
        Field::IcmpCode,
        Field::TransportLength,
        Field::TrafficClass,
        Field::Length,
        Field::Ttl,
        Field::Fragment,
        Field::FragmentOffset,
        Field::Input,
        Field::Output,
        Field::Mark,
        Field::NextHeader6,
    ];
    let addresses = match version {
        4 => [Field::Source4, Field::Destination4],
        _ => [Field::Source6, Field::Destination6],
    };
    fields.extend(addresses.repeat(4));
    let of = [Address::Source, Address::Destination];
    fields.extend(of.map(|of| Field::InSet { set: u16::from(version == 6), of }).repeat(2));
    fields
}

/// Draws elements of a live set: addresses, prefixes and other ranges.
fn elements(dice: &mut Dice, version: u8) -> Vec<Element> {
    let bits = if version == 4 { 32 } else { 128 };
    let one = |dice: &mut Dice| {
        let first = address(dice, version);
        let open = (1_u128 << dice.below(bits / 2)) - 1;
        match dice.below(4) {
            0 => (first & !open, first | open),
            1 => (first, first.saturating_add(5).min(u128::MAX >> (128 - bits))),
            _ => (first, first),
        }
    };
    (0..dice.below(12)).map(|_| one(dice)).collect()
}

/// Adds and removes elements of live sets.
fn change(dice: &mut Dice, sets: &[Arc<LiveSet>]) {
    for set in sets {
        set.add(&elements(dice, set.version())).unwrap();
        let gone: Vec<_> = set.elements().into_iter().filter(|_| dice.one_in(2)).collect();
        set.remove(&gone).unwrap();
    }
}

fn address(dice: &mut Dice, version: u8) -> u128 {
    let (port, variant) = (dice.below(PORTS.into()) as u8, dice.pick(&LinkVariant::ALL));
    let special = dice.pick(&Special::ALL);
    let of = match (version, dice.one_in(4)) {
        (4, true) => special.host4(),
        (4, false) => variant.host4(port),
        (_, true) => special.host6(),
        (_, false) => variant.host6(port),
    };
    match of {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Numbers that packets of the tests have, more often than others.
fn number(dice: &mut Dice, field: Field, version: u8) -> u128 {
    let of = match field {
        Field::Source4 | Field::Destination4 | Field::Source6 | Field::Destination6 => {
            return address(dice, version);
        }
        Field::Protocol | Field::NextHeader6 => dice.pick(&[1, 6, 17, 17, 58]),
        Field::SourcePort | Field::DestinationPort => dice.pick(&[53, 80, 443, 1000, 40_000]),
        Field::TcpFlags => dice.pick(&[2, 16, 18]),
        Field::IcmpType => dice.pick(&[0, 8, 128, 129]),
        Field::Length | Field::TransportLength => dice.pick(&[0, 28, 60, 200, 1000, 1280]),
        Field::Ttl => dice.pick(&[1, 63, 64]),
        Field::Fragment => dice.pick(&[0, 0x2000, 0x4000]),
        Field::FragmentOffset => dice.pick(&[0, 7]),
        Field::Input | Field::Output => dice.below(7 * usize::from(PORTS)) as u64,
        Field::Mark => dice.below(3) as u64,
        _ => dice.below(256) as u64,
    };
    of.into()
}

fn condition(dice: &mut Dice, version: u8, fields: &[Field]) -> Condition {
    let field = if dice.one_in(100) { dice.pick(&STRANGE) } else { dice.pick(fields) };
    let first = number(dice, field, version).min(field.max());
    let is_address = field.bits() >= 32 && field != Field::Mark;
    let wide = 1_u128 << if is_address { dice.below(field.bits() as usize) } else { dice.below(8) };
    let ranges = match dice.below(4) {
        0 => vec![(first, first)],
        1 => vec![(first, first), (first / 2, first / 2)],
        2 => vec![(first & !(wide - 1), first | (wide - 1))],
        _ => vec![(first, first.saturating_add(wide).min(field.max()))],
    };
    let condition = Condition::new(field, ranges);
    if dice.one_in(3) { condition.outside() } else { condition }
}

/// Draws the ops of a rule; the rules `behind` it are those that it may lead to.
fn ops(dice: &mut Dice, number: u32, last: u32) -> Vec<Op> {
    let mut ops = Vec::new();
    let later = |dice: &mut Dice| number + 1 + dice.below((last - number) as usize) as u32;
    while dice.one_in(2) {
        ops.push(match dice.below(12) {
            0 => Op::Mark { keep: 1, flip: dice.below(4) as u32 },
            1 => Op::Check(Condition::new(Field::Mark, [(0, dice.below(3) as u128)])),
            _ => Op::Count(dice.below(COUNTERS as usize) as u32),
        });
    }
    let end = match dice.below(300) {
        0..90 => Op::Accept,
        90..140 => Op::Drop,
        140..143 => Op::Unsupported,
        143..146 => Op::Log { log: 0, limit: None },
        146 => Op::Limit { limit: 0, over: false },
        147..177 => Op::Skip(later(dice)),
        177..207 => Op::Call(later(dice)),
        207..225 => Op::Return,
        _ => return ops,
    };
    ops.push(end);
    ops
}

fn rules(dice: &mut Dice, version: u8) -> Rules {
    let count = dice.pick(&[1, 5, 30, 64, 65, 100, 129, 400, 1100]);
    let last = count - 1;
    // A few of all fields, as real rules have; more than a program looks up now and then.
    let fields: Vec<_> =
        (0..dice.pick(&[2, 6, 8, 40])).map(|_| dice.pick(&fields(version))).collect();
    let rule = |number: u32| {
        if number == last {
            let ops = vec![dice.pick(&[Op::Accept, Op::Accept, Op::Drop])];
            return Rule { ops, next: count, ..Rule::default() };
        }
        // Of many rules, most match few packets.
        let least = if count > 100 { 2 } else { 1 };
        let conditions = (0..least + dice.below(2)).map(|_| condition(dice, version, &fields));
        let conditions = conditions.collect();
        Rule { conditions, ops: ops(dice, number, last), next: number + 1 }
    };
    Rules { rules: (0..count).map(rule).collect(), end: last }
}

fn filter(dice: &mut Dice, epochs: &Arc<Epochs>) -> Filter {
    let limit = Limit { rate: 1000, period_ns: 1, burst: 1000, unit: LimitUnit::Packets };
    let mut filter = Filter::new(COUNTERS as usize, vec![limit]);
    for version in [4, 6] {
        filter.add_live_set("", version, &elements(dice, version), epochs).unwrap();
    }
    for point in POINTS {
        for version in [4, 6] {
            if !dice.one_in(if point == Point::Ingress { 2 } else { 4 }) {
                filter.set(point, version, &rules(dice, version)).unwrap();
            }
        }
    }
    filter
}

fn frame(dice: &mut Dice) -> (u8, Vec<u8>) {
    let port = dice.below(PORTS.into()) as u8;
    if dice.one_in(3) {
        return (port, mixed::frame(port, dice.roll()));
    }
    let variant = dice.pick(&LinkVariant::ALL);
    let version = dice.pick(&[4, 6]);
    let to = match address(dice, version) {
        bits if version == 4 => Ipv4Addr::from_bits(bits as u32).into(),
        bits => Ipv6Addr::from_bits(bits).into(),
    };
    let numbers = [53, 80, 443, 1000, 40_000];
    let packet = variant.packet(port, to).ports(dice.pick(&numbers), dice.pick(&numbers));
    let packet = match dice.below(6) {
        0 => packet.size(dice.pick(&[60, 61, 200, 1000, 1280])),
        1 => packet.ttl(dice.pick(&[1, 2, 64])),
        2 => packet.fragment(dice.pick(&[0, 7]), true),
        3 => packet.padded(dice.below(30)),
        _ => packet,
    };
    (port, packet.build())
}

/// Programs forward, drop and count as the user path does, or ask it.
pub fn drawn() {
    let mut compared = Compared::new();
    for seed in 0..RULE_SETS {
        let dice = &mut Dice(seed);
        let filter = filter(dice, &compared.tables.epochs);
        let sets = filter.live_sets().to_vec();
        compared.set_filter(filter);
        for _ in 0..2 {
            let frames: Vec<(u8, Vec<u8>)> = (0..FRAMES).map(|_| frame(dice)).collect();
            compared.both(frames.iter().map(|(port, frame): &(u8, Vec<u8>)| (*port, &frame[..])));
            change(dice, &sets);
        }
    }
    println!("{:?}", compared.tally);
    let tally = &compared.tally;
    assert!(tally.passed.contains_key("kernel_rule"), "{tally:?}");
    assert!(tally.redirected > 500 && tally.dropped > 500 && tally.counted > 500, "{tally:?}");
    assert!(tally.by_tc > 500, "{tally:?}");
}

/// A program looks into a live set as it is at that moment, and asks when that has no more room.
pub fn members() {
    let mut compared = Compared::new();
    let epochs = Arc::clone(&compared.tables.epochs);
    let mut filter = Filter::new(1, Vec::new());
    let hosts = [LinkVariant::Vlan.host4(1), LinkVariant::Plain.host6(2)];
    for (version, host) in [4_u8, 6].into_iter().zip(hosts) {
        let own: Vec<_> = (1..=500).map(|number| (number << 8, number << 8 | 3)).collect();
        let set = filter.add_live_set("", version, &own, &epochs).unwrap();
        let is_member = Field::InSet { set, of: Address::Destination };
        let dropped = vec![Condition::new(is_member, [(1, 1)])];
        let rules = vec![
            Rule { conditions: dropped, ops: vec![Op::Count(0), Op::Drop], next: 1 },
            Rule { ops: vec![Op::Accept], next: 2, ..Rule::default() },
        ];
        assert_eq!(host.is_ipv4(), version == 4);
        filter.set(Point::Forward, version, &Rules { rules, end: 1 }).unwrap();
    }
    let sets = filter.live_sets().to_vec();
    compared.set_filter(filter);
    let run = |compared: &mut Compared, at: usize| {
        compared.tables.write_engines();
        compared.run(0, &LinkVariant::Plain.packet(0, hosts[at]).build()).action
    };
    for (at, host) in hosts.into_iter().enumerate() {
        let bits = match host {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        assert_eq!(run(&mut compared, at), Action::Redirect);
        for element in [(bits, bits), (bits & !7, bits | 7), (bits - 1, bits + 5)] {
            sets[at].add(&[element]).unwrap();
            assert_eq!(run(&mut compared, at), Action::Drop, "{element:?}");
        }
        sets[at].remove(&[(bits, bits), (bits - 1, bits + 5)]).unwrap();
        assert_eq!(run(&mut compared, at), Action::Drop);
        sets[at].remove(&[(bits & !7, bits | 7)]).unwrap();
        assert_eq!(run(&mut compared, at), Action::Redirect);
    }
    // More than the maps have room for: the user path decides.
    let many: Vec<_> =
        (1..100_000_u128).map(|number| (number << 12 | 5, number << 12 | 5)).collect();
    sets[0].add(&many).unwrap();
    assert_eq!(run(&mut compared, 0), Action::Pass);
    assert_eq!(run(&mut compared, 1), Action::Redirect, "another set has kept its room");
}

/// The first packet of a flow takes each op in the program, and counts.
pub fn first() {
    let mut compared = Compared::new();
    let udp = |port| {
        let to = |field, number| Condition::new(field, [(number, number)]);
        vec![to(Field::Protocol, 17), to(Field::DestinationPort, port)]
    };
    let rule = |conditions, ops, next| Rule { conditions, ops, next };
    let mark = |number| Op::Check(Condition::new(Field::Mark, [(number, number)]));
    // Chains that are called come last, before the policy.
    let mut list = vec![
        rule(udp(80), vec![Op::Count(0), Op::Drop], 1),
        rule(udp(53), vec![Op::Count(1), Op::Call(4)], 2),
        rule(Vec::new(), vec![mark(3), Op::Count(2), Op::Accept], 3),
        rule(Vec::new(), vec![Op::Count(3), Op::Skip(106)], 4),
        rule(Vec::new(), vec![Op::Count(4), Op::Mark { keep: 0, flip: 3 }], 5),
        rule(udp(443), vec![Op::Drop], 6),
    ];
    list.extend(
        (6..105).map(|number| rule(udp(2000 + u128::from(number)), vec![Op::Drop], number + 1)),
    );
    list.push(rule(Vec::new(), vec![Op::Return], 106));
    list.push(rule(Vec::new(), vec![Op::Count(5), Op::Accept], 107));
    let rules = Rules { rules: list, end: 106 };
    for point in POINTS {
        let mut filter = Filter::new(6, Vec::new());
        for version in [4, 6] {
            filter.set(point, version, &rules).unwrap();
        }
        compared.set_filter(filter);
        for (port, is_sent) in [(53, true), (80, false), (443, true), (2050, true)] {
            for to in [LinkVariant::Vlan.host4(1), LinkVariant::Plain.host6(2)] {
                let frame = LinkVariant::Plain.packet(0, to).ports(7, port).build();
                let run = compared.run(0, &frame);
                assert_eq!(run.action == Action::Redirect, is_sent, "{point:?} {port}");
                assert_eq!(run.action == Action::Drop, !is_sent, "{point:?} {port}");
            }
        }
        let packets: Vec<_> =
            compared.tables.engine_counts().iter().map(|one| one.packets).collect();
        assert_eq!(packets, [2, 2, 2, 4, 2, 4], "{point:?}");
    }
}
