//! Partitions compared with trying rule by rule.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::*;
use crate::cpu::Level;
use crate::prefix::{Prefix, RoutePrefix};
use crate::stages::filter::dim::MOST_DIMS;
#[cfg(target_arch = "x86_64")]
use crate::stages::filter::wide::Avx512;
use crate::stages::filter::wide::Words;
use crate::stages::filter::{Condition, Filter, Op, Point, Rule, Rules, rules};
use crate::tables::Tables;
use crate::testkit::dice::Dice;
use crate::testkit::linux::mac;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::path_bench::{Outcome, PathBench, paths};

const FIELDS: [Field; 9] = [
    Field::Source4,
    Field::Destination4,
    Field::SourcePort,
    Field::DestinationPort,
    Field::Protocol,
    Field::Mark,
    Field::EtherSource,
    Field::Source6,
    Field::Destination6,
];

/// The ranges of each rule, by field; a missing field matches everything.
type List = Vec<BTreeMap<Field, Vec<(u128, u128)>>>;

/// A value drawn from a few places, so that ranges overlap.
fn value(dice: &mut Dice, field: Field) -> u128 {
    let max = field.max();
    let base = dice.pick(&[0, max, max / 2, max / 3, max >> 8]);
    base.wrapping_add(dice.below(0x180) as u128 * dice.pick(&[1, 1, (max >> 12).max(1)])) & max
}

fn range(dice: &mut Dice, field: Field) -> (u128, u128) {
    let (one, other) = (value(dice, field), value(dice, field));
    let open = (1_u128 << dice.below(field.bits() as usize)) - 1;
    match dice.below(4) {
        0 => (one.min(other), one.max(other)),
        1 => (one, one),
        _ => (one & !open, one | open),
    }
}

fn list(dice: &mut Dice, count: usize) -> List {
    let fields: Vec<_> = FIELDS.into_iter().filter(|_| dice.one_in(2)).collect();
    let ranges = |dice: &mut Dice, field| {
        let several = if dice.one_in(8) { dice.below(5) } else { 1 };
        rules::join((0..several).map(|_| range(dice, field)).collect())
    };
    let rule = |dice: &mut Dice| {
        let own: Vec<_> = fields.iter().filter(|_| !dice.one_in(3)).copied().collect();
        own.into_iter().map(|field| (field, ranges(dice, field))).collect()
    };
    (0..count).map(|_| rule(dice)).collect()
}

/// The same by fields, as the partition takes it.
fn by_field(list: &List) -> BTreeMap<Field, Ranges> {
    let mut fields: BTreeMap<Field, Ranges> = BTreeMap::new();
    for (rule, conditions) in (0..).zip(list) {
        for (field, ranges) in conditions {
            fields.entry(*field).or_default().push((rule, ranges.clone()));
        }
    }
    fields
}

/// The first rule from `from` on; an unknown field excludes no rule.
fn first(list: &List, packet: &BTreeMap<Field, Option<u128>>, from: u32) -> u32 {
    let holds = |(field, ranges): (&Field, &Vec<(u128, u128)>)| match packet.get(field) {
        // Without a range no packet matches, whatever its value.
        None => !ranges.is_empty(),
        Some(number) => Condition::new(*field, ranges.clone()).holds(*number),
    };
    let mut rules = (0..).zip(list).skip(from as usize);
    rules.find(|(_, rule)| rule.iter().all(holds)).map_or(NONE, |(rule, _)| rule)
}

/// A packet that a rule matches in most fields, or lacks them.
fn packet(dice: &mut Dice, list: &List) -> BTreeMap<Field, Option<u128>> {
    let rule = dice.pick(list);
    let number = |field: &Field, dice: &mut Dice| match rule.get(field).map(|own| &own[..]) {
        // No packet lacks IPv4 addresses here, or the mark.
        _ if !matches!(field, Field::Source4 | Field::Destination4 | Field::Mark)
            && dice.one_in(8) =>
        {
            None
        }
        Some([own @ .., last]) if !dice.one_in(6) => {
            let (first, last) = own.first().unwrap_or(last);
            Some(dice.pick(&[*first, *last, first + (last - first) / 2]))
        }
        _ => Some(value(dice, *field)),
    };
    FIELDS.iter().map(|field| (*field, number(field, dice))).collect()
}

fn found<V: Wide>(partition: &Partition, scratch: &mut Scratch, lanes: Lanes) -> [u32; BURST] {
    partition.find::<V>(scratch, lanes);
    scratch.first
}

#[test]
fn packets_meet_the_rule_that_comes_first_one_by_one() {
    let mut dice = Dice(7);
    let lists = if cfg!(miri) { 3 } else { 150 };
    let mut deep = 0;
    for number in 0..lists {
        let count = dice.pick(&[1, 17, 60, 300, if cfg!(miri) { 40 } else { 2000 }]);
        let list = list(&mut dice, count);
        let fields = by_field(&list);
        let (partition, dims) = Partition::within(&fields, list.len(), usize::MAX, true).unwrap();
        deep += usize::from(partition.levels.iter().any(|level| level.is_deep));
        for _ in 0..8 {
            let packets: Vec<_> = (0..BURST).map(|_| packet(&mut dice, &list)).collect();
            let mut scratch = Scratch::new();
            for (dim, class) in dims.iter().zip(&mut scratch.class) {
                for (class, packet) in class.iter_mut().zip(&packets) {
                    *class = dim.class(packet[&dim.field]);
                }
            }
            let lanes = Lanes(dice.roll() | 1 << dice.below(BURST));
            let mut all = vec![found::<Words>(&partition, &mut scratch, lanes)];
            #[cfg(target_arch = "x86_64")]
            if Level::detect() == Level::V4 {
                all.push(found::<Avx512>(&partition, &mut scratch, lanes));
            }
            for lane in lanes {
                let packet = &packets[lane];
                let wanted = first(&list, packet, 0);
                for first in &all {
                    assert_eq!(first[lane], wanted, "list {number}: {packet:?}");
                }
                let class = |dim: usize| Some(scratch.class[dim][lane]);
                let from = dice.below(count + 1) as u32;
                assert_eq!(partition.next(class, from), first(&list, packet, from), "from {from}");
                // Fields that are not known exclude no rule.
                let unknown = dice.below(MOST_DIMS);
                let known = |dim: usize| class(dim).filter(|_| dim != unknown);
                let mut less = packet.clone();
                if let Some(dim) = dims.get(unknown) {
                    less.remove(&dim.field);
                }
                assert_eq!(partition.next(known, from), first(&list, &less, from), "{unknown}");
            }
        }
    }
    assert!(cfg!(miri) || deep > 10, "{deep} lists have parts of several leaves");
}

/// The number that a rule has for each of the five fields of a packet.
type Numbers5 = [u128; 5];

/// Rules on addresses, ports and protocol, in the shapes that people write: what they do, in turn, is
/// accept, drop, count, and count and accept.
fn written(dice: &mut Dice, count: usize) -> Rules {
    let mut rules = Rules { end: count as u32, ..Rules::default() };
    for number in 0..count as u32 {
        let mut conditions = Vec::new();
        // Rules for all addresses would decide nearly all packets.
        let any = dice.below(6);
        for (number, field) in FIELDS[..2].iter().enumerate() {
            let open = (1 << dice.pick(&[0, 0, 0, 2, 4, 8, 12])) - 1;
            let address = 0x0a00_0000 + dice.below(0x8000) as u128 * 0x1ff;
            if number != any {
                conditions.push(Condition::new(*field, [(address & !open, address | open)]));
            }
        }
        for field in &FIELDS[2..4] {
            let port = dice.below(50) as u128;
            match dice.below(6) {
                0 | 1 => conditions.push(Condition::new(*field, [(port, port)])),
                2 => conditions.push(Condition::new(*field, [(port, port + 20), (90, 95)])),
                3 => conditions.push(Condition::new(*field, [(port, port)]).outside()),
                _ => {}
            }
        }
        if dice.one_in(2) {
            conditions.push(Condition::new(Field::Protocol, [(17, 17)]));
        }
        let ops = match number % 4 {
            0 => vec![Op::Accept],
            1 => vec![Op::Drop],
            2 => vec![Op::Count(number)],
            _ => vec![Op::Count(number), Op::Accept],
        };
        rules.rules.push(Rule { conditions, ops, next: number + 1 });
    }
    rules.rules.push(Rule { ops: vec![Op::Accept], next: count as u32 + 1, ..Rule::default() });
    rules
}

/// Whether rules accept a packet, and in which they count it.
fn evaluate(rules: &Rules, packet: &Numbers5) -> (bool, Vec<u32>) {
    let mut counted = Vec::new();
    let number = |field| {
        let place = FIELDS.iter().position(|one| *one == field)?;
        packet.get(place).copied()
    };
    for rule in &rules.rules {
        if rule.conditions.iter().all(|one| one.holds(number(one.field))) {
            for op in &rule.ops {
                match op {
                    Op::Count(counter) => counted.push(*counter),
                    op => return (*op == Op::Accept, counted),
                }
            }
        }
    }
    (true, counted)
}

fn tables(rules: &Rules) -> Tables {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf().unwrap();
    let links = [0, 1].map(|port| tables.add_port(mac(port), vrf, 1500).unwrap().1);
    let next = tables.set_neigh(links[1], ip("10.9.0.2"), Some(mac(9))).unwrap();
    tables.insert(vrf, RoutePrefix::V4(Prefix::v4(0x0a00_0000, 8)), next).unwrap();
    let mut filter = Filter::new(rules.rules.len(), Vec::new());
    filter.set(Point::Forward, 4, rules).unwrap();
    assert!(filter.at(Point::Forward, 4).unwrap().partition.is_some());
    tables.filter = Some(Arc::new(filter));
    tables
}

/// A packet that matches most conditions of some rule.
fn frame(dice: &mut Dice, rules: &Rules) -> (Numbers5, Vec<u8>) {
    let rule = dice.pick(&rules.rules);
    let mut number = |field: Field, other: u128| {
        let own = rule.conditions.iter().find(|one| one.field == field && !dice.one_in(12));
        own.map_or(other, |one| {
            let (first, last) = dice.pick(&one.ranges);
            dice.pick(&[first, last])
        })
    };
    let [source, destination] = [FIELDS[0], FIELDS[1]].map(|field| number(field, 0x0a77_0007));
    let ports = [FIELDS[2], FIELDS[3]].map(|field| number(field, 30));
    let [from, to] = [source, destination].map(|one| IpAddr::V4((one as u32).into()));
    let packet = Packet::between(from, to).to(mac(0)).ports(ports[0] as u16, ports[1] as u16);
    ([source, destination, ports[0], ports[1], 17], packet.build())
}

/// The whole path over a partition: verdicts and counts.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn packets_take_the_path_of_their_rules() {
    let mut dice = Dice(12);
    for path in paths() {
        let rules = written(&mut dice, 12_000);
        let tables = tables(&rules);
        let mut bench = PathBench::over(&tables, path, 2048);
        bench.filter.renew(tables.filter.as_deref(), 0);
        let mut wanted = vec![0; rules.rules.len()];
        let (mut accepted, mut dropped) = (0, 0);
        for _ in 0..100 {
            let packets: Vec<_> =
                (0..1 + dice.below(BURST)).map(|_| frame(&mut dice, &rules)).collect();
            let frames: Vec<_> = packets.iter().map(|(_, frame)| frame).collect();
            let outcomes = bench.burst(0, &frames);
            for ((numbers, _), outcome) in packets.iter().zip(outcomes) {
                let (accepts, counted) = evaluate(&rules, numbers);
                counted.iter().for_each(|counter| wanted[*counter as usize] += 1);
                let is_sent = matches!(outcome, Outcome::Sent(..));
                assert_eq!(is_sent, accepts, "{numbers:x?}");
                *if accepts { &mut accepted } else { &mut dropped } += 1;
            }
        }
        let counts: Vec<u64> = bench.filter.counts.iter().map(|count| count.packets).collect();
        assert_eq!(counts, wanted);
        assert!(accepted > 500 && dropped > 500, "{accepted}, {dropped}");
    }
}

/// Rules of the kinds that are hardest to part.
fn hard(kind: usize, count: usize) -> List {
    let field = |number: usize| FIELDS[number % 4];
    let max = |number: usize| field(number).max();
    let rule = |number: usize| {
        let at = number as u128;
        let step = |of: usize| max(of) / (count as u128 + 1) * at;
        let (one, other, third) = (at % 32, at / 32 % 32, at / 1024);
        let own: Vec<(Field, (u128, u128))> = match kind {
            // Everything matches all addresses; ports overlap.
            0 => vec![(field(3), (at % 30_000, 30_000 + at % 30_000))],
            // Ranges of both addresses overlap, in opposite order.
            1 => vec![(field(0), (step(0), max(0))), (field(1), (0, max(1) - step(1)))],
            // All combinations of a few values.
            2 => {
                vec![(field(0), (one, one)), (field(1), (other, other)), (field(3), (third, third))]
            }
            // Prefixes within prefixes.
            3 => vec![(field(0), (0, max(0) >> (number % 32))), (field(1), (at, at))],
            // The same rule again and again.
            4 => vec![(field(0), (7, 9)), (field(3), (80, 80))],
            // Everything in one network, host by host.
            5 => vec![(field(1), (0x0a01_0000 + at, 0x0a01_0000 + at))],
            // Everything is open but the protocol.
            _ => vec![(Field::Protocol, (at % 256, at % 256))],
        };
        own.into_iter().map(|(field, range)| (field, vec![range])).collect()
    };
    (0..count).map(rule).collect()
}

#[test]
fn hard_lists_have_bounded_lookups_and_memory() {
    for kind in 0..7 {
        for count in [1100, 5000, if cfg!(miri) { 1100 } else { 32_000 }] {
            let list = hard(kind, count);
            let fields = by_field(&list);
            let most = most_leaves(bits::width(count));
            let Some((partition, _)) = Partition::within(&fields, count, most, true) else {
                assert!([0, 1, 2, 4, 6].contains(&kind), "{count} rules of kind {kind}");
                continue;
            };
            assert!(partition.most_leaves() <= MOST_LEAVES, "{}", partition.most_leaves());
            // A leaf is half full or more on average.
            let most = count * (fields.len() * 16 + 12) + partition.levels.len() * (5 << 16);
            assert!(partition.memory_bytes() <= most, "{}", partition.memory_bytes());
        }
    }
}
