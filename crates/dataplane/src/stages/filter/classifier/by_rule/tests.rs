//! Lists of rules that count, compared with trying rule by rule for each packet.

use std::sync::Arc;

use super::*;
use crate::cpu::Level;
use crate::dispatch::Path;
use crate::prefix::{Prefix, RoutePrefix};
use crate::stages::filter::{Condition, Count, Field, Filter, Point, Rule, Rules};
use crate::tables::Tables;
use crate::testkit::dice::Dice;
use crate::testkit::linux::mac;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::path_bench::{Outcome, PathBench};

/// The MTU of the egress link.
const MTU: usize = 1400;
/// Layer 3 of the smallest packet: headers, and bytes to tell packets apart.
const LEAST: usize = 40;

/// What rules match on: destination port, length, TTL.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    port: u16,
    bytes: usize,
    ttl: u8,
}

impl Drawn {
    fn new(dice: &mut Dice) -> Self {
        Self {
            port: dice.below(6) as u16,
            bytes: dice.pick(&[LEAST, LEAST + 1, 500, MTU, MTU + 1]),
            ttl: dice.pick(&[1, 2, 64]),
        }
    }

    fn frame(self) -> Vec<u8> {
        let packet = Packet::udp("10.0.0.7", "10.9.0.9").to(mac(0)).ports(9, self.port);
        // The kernel drops what is too long and must not be cut before hook forward.
        packet.size(self.bytes).ttl(self.ttl).v4(|ip| ip.dont_fragment = true).build()
    }

    fn number(self, field: Field, point: Point) -> u128 {
        match field {
            Field::DestinationPort => self.port.into(),
            Field::TransportLength => self.bytes as u128 - 20,
            _ => u128::from(self.ttl) - u128::from(point == Point::Forward),
        }
    }
}

/// Rules that count, jump, accept and drop. A few also mark, so that their packets walk.
fn list(dice: &mut Dice, count: usize) -> Rules {
    // The rule that holds the policy, and the one that follows it.
    let (end, last) = (count as u32 - 2, count as u32 - 1);
    let rule = |dice: &mut Dice, number: u32| {
        let mut conditions = Vec::new();
        if !dice.one_in(4) {
            let port = dice.below(6) as u128;
            conditions.push(Condition::new(Field::DestinationPort, [(port, port + 1)]));
        }
        if dice.one_in(3) {
            conditions.push(Condition::new(Field::TransportLength, [(0, 20), (600, 9000)]));
        }
        if dice.one_in(5) {
            conditions.push(Condition::new(Field::Ttl, [(2, 63)]));
        }
        let mut ops = vec![Op::Count(number); dice.below(3)];
        let later = number + 1 + dice.below((last - number) as usize) as u32;
        match dice.below(12) {
            0 => ops.push(Op::Skip(later)),
            1 => ops.push(Op::Accept),
            2 => ops.push(Op::Drop),
            3 if dice.one_in(4) => ops.push(Op::Mark { keep: 0, flip: 7 }),
            4 => ops.push(Op::Chain { at: later, end }),
            _ => {}
        }
        let next = if dice.one_in(8) { later } else { number + 1 };
        Rule { conditions, ops, next }
    };
    let mut rules: Vec<_> = (0..end).map(|number| rule(dice, number)).collect();
    for number in [end, last] {
        let ops = vec![Op::Count(number), dice.pick(&[Op::Accept, Op::Drop])];
        rules.push(Rule { ops, next: number + 1, ..Rule::default() });
    }
    Rules { rules, end }
}

/// Says whether rules accept a packet; adds what they count.
fn evaluate(rules: &Rules, packet: Drawn, point: Point, counts: &mut [Count]) -> bool {
    let mut at = 0;
    loop {
        let rule = &rules.rules[at];
        let holds = |one: &Condition| one.holds(Some(packet.number(one.field, point)));
        if !rule.conditions.iter().all(holds) {
            at += 1;
            continue;
        }
        at = rule.next as usize;
        for op in &rule.ops {
            match op {
                Op::Count(counter) => {
                    counts[*counter as usize].packets += 1;
                    counts[*counter as usize].bytes += packet.bytes as u64;
                }
                Op::Skip(to) | Op::Chain { at: to, .. } => at = *to as usize,
                Op::Accept => return true,
                Op::Drop => return false,
                _ => {}
            }
        }
    }
}

fn tables(level: Level, lists: &[(Point, &Rules)]) -> Tables {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf().unwrap();
    let links = [9000, MTU as u16].map(|mtu| {
        let port = u8::from(usize::from(mtu) == MTU);
        tables.add_port(mac(port), vrf, mtu).unwrap().1
    });
    let next = tables.set_neigh(links[1], ip("10.9.0.2"), Some(mac(9))).unwrap();
    tables.insert(vrf, RoutePrefix::V4(Prefix::v4(0x0a00_0000, 8)), next).unwrap();
    let count = lists.iter().map(|(_, rules)| rules.rules.len()).max().unwrap();
    let mut filter = Filter::new(count, Vec::new());
    for (point, rules) in lists {
        filter.set_at(level, *point, 4, rules).unwrap();
        assert!(filter.at(*point, 4).unwrap().by_rule.is_some());
    }
    tables.filter = Some(Arc::new(filter));
    tables
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn packets_fare_and_count_as_they_would_one_by_one() {
    let mut dice = Dice(3);
    for number in 0..60 {
        let sizes = [2, 4, 20, 63, 64, 65, 130, 300, 600, 1100];
        let [before, after] = [(); 2].map(|()| list(&mut dice, sizes[number % sizes.len()]));
        for level in [Level::Baseline, Level::V3, Level::V4] {
            let tables = tables(level, &[(Point::Prerouting, &before), (Point::Forward, &after)]);
            let mut bench = PathBench::over(&tables, Path::detect(), 2048);
            bench.filter.renew(tables.filter.as_deref(), 0);
            let mut wanted = bench.filter.counts.clone();
            for _ in 0..20 {
                let alike = dice.one_in(3).then(|| Drawn::new(&mut dice));
                let drawn: Vec<_> = (0..1 + dice.below(BURST))
                    .map(|_| alike.unwrap_or_else(|| Drawn::new(&mut dice)))
                    .collect();
                let frames: Vec<_> = drawn.iter().map(|drawn| drawn.frame()).collect();
                for (drawn, outcome) in drawn.iter().zip(bench.burst(0, &frames)) {
                    let reaches = drawn.ttl > 1 && drawn.bytes <= MTU;
                    let accepts = evaluate(&before, *drawn, Point::Prerouting, &mut wanted)
                        && (!reaches || evaluate(&after, *drawn, Point::Forward, &mut wanted));
                    let is_dropped = matches!(outcome, Outcome::Drop(_));
                    assert_eq!(is_dropped, !accepts, "list {number}: {drawn:?}, {outcome:?}");
                    assert!(is_dropped || reaches == matches!(outcome, Outcome::Sent(..)));
                }
            }
            assert_eq!(bench.filter.counts, wanted, "list {number}, {level:?}");
        }
    }
}

/// If the kernel takes all packets over, nothing stays counted.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn counts_are_taken_back_for_packets_that_the_kernel_counts() {
    let mut dice = Dice(4);
    for number in 0..40 {
        let [before, after] = [(); 2].map(|()| list(&mut dice, [5, 200][number % 2]));
        let lists =
            [(Point::Ingress, &before), (Point::Prerouting, &before), (Point::Forward, &after)];
        let tables = tables(Level::detect(), &lists);
        let mut bench = PathBench::over(&tables, Path::detect(), 2048);
        bench.filter.renew(tables.filter.as_deref(), 0);
        bench.filter.kernel_has_rules = true;
        let drawn: Vec<_> = (0..BURST).map(|_| Drawn::new(&mut dice)).collect();
        let frames: Vec<_> = drawn.iter().map(|drawn| drawn.frame()).collect();
        bench.burst(0, &frames);
        assert_ne!(bench.filter.counts, vec![Count::default(); bench.filter.counts.len()]);
        let odd = |lane: &usize| lane % 2 == 1;
        (0..BURST).filter(odd).for_each(|lane| bench.filter.uncount(lane));
        let half = bench.filter.counts.clone();
        (0..BURST).filter(|lane| !odd(lane)).for_each(|lane| bench.filter.uncount(lane));
        assert_eq!(bench.filter.counts, vec![Count::default(); half.len()], "list {number}");
        // The same packets without those that were taken back count as much.
        let even: Vec<_> = frames.iter().step_by(2).collect();
        bench.burst(0, &even);
        assert_eq!(bench.filter.counts, half, "list {number}");
    }
}
