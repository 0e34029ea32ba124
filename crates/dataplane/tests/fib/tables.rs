//! Tables of all kinds, and random changes of them.

use proptest::prelude::*;
use tollway_dataplane::burst::BURST;
use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::fib::{Capacity, Fib};
use tollway_dataplane::id::NextHopId;
use tollway_dataplane::prefix::Prefix;

use crate::dice::Dice;
use crate::support::{Bursts, Family, Pair};

const CAPACITY: Capacity = Capacity { roots: 16, nodes: 1 << 17, values: 1 << 22 };

/// The number of routes from which a FIB's top has 16 bits.
const WIDE_FROM: usize = 4096;

fn new_fib() -> Fib {
    Fib::new(Epochs::new(), CAPACITY)
}

fn random_addresses(family: Family, dice: &mut Dice, count: usize) -> Vec<u128> {
    (0..count).map(|_| family.address(dice.wide())).collect()
}

/// Builds a table and checks it, then removes its routes in another order and checks the rest.
fn check_table(family: Family, table: &[(Prefix, NextHopId)]) {
    let (fib, mut dice) = (new_fib(), Dice(5));
    let mut pair = Pair::new(&fib, family);
    for (prefix, next) in table {
        pair.insert(&fib, *prefix, *next).expect("room");
    }
    pair.check_edges(&fib);
    let addresses = random_addresses(family, &mut dice, 1000);
    pair.check(&fib, &addresses);
    if table.len() < 1000 {
        for address in table.iter().flat_map(|(prefix, _)| family.edges(*prefix)) {
            assert_eq!(fib.lookup(pair.root, address), pair.oracle.scan(address));
        }
    }
    let mut left: Vec<_> = table.iter().map(|(prefix, _)| *prefix).collect();
    while !left.is_empty() {
        let prefix = left.swap_remove(dice.below(left.len()));
        pair.remove(&fib, prefix).expect("room");
        pair.check(&fib, &family.edges(prefix));
        if left.len().is_multiple_of(table.len() / 4 + 1) {
            pair.check_edges(&fib);
            pair.check(&fib, &addresses);
        }
    }
    assert!(fib.is_empty());
}

#[test]
fn nothing_but_a_default_route() {
    for family in Family::BOTH {
        check_table(family, &[(family.prefix(0, 0), NextHopId(1))]);
    }
}

#[test]
fn nothing_but_host_routes() {
    for family in Family::BOTH {
        let mut dice = Dice(6);
        let hosts = (0..20_000).map(|at| {
            // Every second address is random; the others are close together.
            let near = (at as u128) << (128 - family.width());
            let bits = if at % 2 == 0 { dice.wide() } else { near | 0x0a << 120 };
            (family.prefix(bits, family.width()), NextHopId(1 + dice.below(3) as u32))
        });
        check_table(family, &hosts.collect::<Vec<_>>());
    }
}

#[test]
fn prefixes_of_all_lengths_nested() {
    for family in Family::BOTH {
        for bits in [0, u128::MAX, 0x0a01_8040_20ff_0001_8000_0000_0000_0001] {
            for hops in [1, 2, 200] {
                let lens = 0..=family.width();
                let nested = lens
                    .map(|len| (family.prefix(bits, len), NextHopId(1 + u32::from(len) % hops)));
                let mut nested: Vec<_> = nested.collect();
                check_table(family, &nested);
                nested.reverse();
                check_table(family, &nested);
            }
        }
    }
}

#[test]
fn a_group_for_each_of_64k_prefixes() {
    for family in Family::BOTH {
        let groups = (0..1 << 16).map(|at: u32| {
            let bits = u128::from(at) << 104 | 0x2a << 120;
            (family.prefix(bits, 24), NextHopId(NextHopId::GROUP | at))
        });
        let groups: Vec<_> = groups.collect();
        let fib = new_fib();
        let mut pair = Pair::new(&fib, family);
        for (prefix, next) in &groups {
            pair.insert(&fib, *prefix, *next).expect("room");
        }
        pair.check_edges(&fib);
        for (prefix, next) in &groups {
            assert_eq!(fib.lookup(pair.root, prefix.bits()), *next);
            assert!(next.is_group());
        }
    }
}

/// The top widens between two changes. Routes of all lengths lie around the bits at which it
/// widens.
#[test]
fn a_top_that_widens() {
    for (family, seed) in Family::BOTH.into_iter().zip(7..) {
        for fill in [12, 16, 20, 24, 32] {
            let fib = new_fib();
            let mut pair = Pair::new(&fib, family);
            let mut dice = Dice(seed);
            let mut inserted = Vec::new();
            while inserted.len() < WIDE_FROM + 600 {
                let len = match dice.below(8) {
                    0 => dice.below(25) as u8,
                    1 => dice.below(usize::from(family.width()) + 1) as u8,
                    _ => fill,
                };
                let prefix = family.prefix(dice.wide(), len);
                pair.insert(&fib, prefix, NextHopId(1 + dice.below(5) as u32)).expect("room");
                inserted.push(prefix);
                if inserted.len() > WIDE_FROM - 200 && inserted.len().is_multiple_of(100) {
                    pair.check_edges(&fib);
                }
            }
            while let Some(prefix) = inserted.pop() {
                if fib.get(pair.root, prefix).is_some() {
                    pair.remove(&fib, prefix).expect("room");
                }
                pair.check(&fib, &family.edges(prefix));
                if inserted.len().is_multiple_of(512) {
                    pair.check_edges(&fib);
                }
            }
            assert!(fib.is_empty());
        }
    }
}

/// Packets of many VRFs in one burst: each gets the result of its own FIB.
#[test]
fn roots_mixed_in_a_burst() {
    for family in Family::BOTH {
        let (fib, mut dice) = (new_fib(), Dice(8));
        let mut pairs: Vec<_> = (0..8).map(|_| Pair::new(&fib, family)).collect();
        for at in 0..4000 {
            let len = dice.below(usize::from(family.width()) + 1) as u8;
            let prefix = family.prefix(dice.wide() & 0x0fff_f0f0_0f0f_ffff << 64, len);
            let next = NextHopId(1 + dice.below(9) as u32);
            pairs[at % 8].insert(&fib, prefix, next).expect("room");
        }
        let mut bursts = Bursts::new(family);
        for _ in 0..2000 {
            let mut addresses = random_addresses(family, &mut dice, BURST);
            addresses.iter_mut().for_each(|bits| *bits &= 0x0fff_f0f0_0f0f_ffff << 64);
            let found = bursts.lookup(&fib, |lane| pairs[lane % 8].root, &addresses);
            for (lane, (address, next)) in addresses.iter().zip(found).enumerate() {
                assert_eq!(next, pairs[lane % 8].oracle.lookup(*address), "{address:#034x}");
            }
        }
    }
}

/// Prefixes that differ in few bits, near the ends of levels, of tops and of address halves.
fn crowded(family: Family) -> impl Strategy<Value = Prefix> {
    let edges = [0_u8, 1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32];
    let edges6 = [48_u8, 55, 56, 57, 63, 64, 65, 71, 72, 73, 120, 121, 127, 128];
    let lens = match family {
        Family::V4 => edges.to_vec(),
        Family::V6 => [&edges[..], &edges6].concat(),
    };
    let len = prop_oneof![3 => proptest::sample::select(lens), 1 => 0..=family.width()];
    let flips = proptest::collection::vec(0..usize::from(family.width()), 0..4);
    (len, flips, any::<bool>()).prop_map(move |(len, flips, ones)| {
        let base = if ones { u128::MAX } else { 0x2001_0db8_00ff_ff00_0000_0000_0000_0001 };
        let bits = flips.iter().fold(base, |bits, flip| bits ^ 1 << (127 - flip));
        family.prefix(bits, len)
    })
}

/// Makes random changes in two FIBs that share memory. Checks the edges of all routes after every
/// few changes.
fn random_changes(family: Family, steps: &[(bool, Prefix, u32, prop::sample::Index)]) {
    let fib = new_fib();
    let mut pairs = [Pair::new(&fib, family), Pair::new(&fib, family)];
    let mut seen = Vec::new();
    for (at, (insert, prefix, next, index)) in steps.iter().enumerate() {
        if *insert || seen.is_empty() {
            pairs[at % 2].insert(&fib, *prefix, NextHopId(*next)).expect("room");
            seen.push((at % 2, *prefix));
        } else {
            let (of, prefix) = seen.swap_remove(index.index(seen.len()));
            pairs[of].remove(&fib, prefix).expect("room");
        }
        if at % 5 == 0 {
            pairs.iter().for_each(|pair| pair.check_edges(&fib));
        }
        for pair in &pairs {
            pair.check(&fib, &family.edges(*prefix));
            let first = prefix.bits();
            assert_eq!(fib.lookup(pair.root, first), pair.oracle.scan(first));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 128,
        ..Default::default()
    })]

    #[test]
    fn random_changes_of_ipv4(
        steps in prop::collection::vec(
            (prop::bool::weighted(0.6), crowded(Family::V4), 1..5_u32, any::<prop::sample::Index>()),
            1..120,
        ),
    ) {
        random_changes(Family::V4, &steps);
    }

    #[test]
    fn random_changes_of_ipv6(
        steps in prop::collection::vec(
            (prop::bool::weighted(0.6), crowded(Family::V6), 1..5_u32, any::<prop::sample::Index>()),
            1..120,
        ),
    ) {
        random_changes(Family::V6, &steps);
    }
}
