//! FIBs that run out of memory or numbers: a change fails and leaves the table unchanged, and
//! removals still succeed.

use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::fib::{Capacity, Fib, FibError, Root};
use tollway_dataplane::id::NextHopId;
use tollway_dataplane::prefix::Prefix;

use crate::dice::Dice;
use crate::support::{Family, Pair};

const HEADROOM: Capacity = Capacity { roots: 4, nodes: 1 << 12, values: 1 << 16 };

/// A random prefix; some nest, and many share their first bytes.
fn prefix(family: Family, dice: &mut Dice) -> Prefix {
    let len = dice.below(usize::from(family.width()) + 1) as u8;
    let spread = dice.wide() & dice.wide() & dice.wide();
    family.prefix(0x0a01_8040_20ff_0001_8000_0000_0000_0001 ^ spread, len)
}

/// Fills FIBs until insertions fail, then empties them, and does both twice. Checks the whole table
/// at each error.
fn runs_full(family: Family, capacity: Capacity, seed: u64) {
    let mut dice = Dice(seed);
    let fib = Fib::new(Epochs::new(), capacity);
    let mut pairs = Vec::new();
    while pairs.len() < 2 {
        match fib.add_root() {
            Ok(root) => pairs.push(Pair { root, family, oracle: Default::default() }),
            Err(error) => {
                assert_eq!(error, FibError::Full);
                break;
            }
        }
    }
    assert!(!pairs.is_empty() || capacity.values < 1 << 12 || capacity.nodes < 16);
    for _ in 0..2 {
        let (mut errors, mut routes) = (0, Vec::new());
        while errors < 8 && !pairs.is_empty() {
            let at = dice.below(pairs.len());
            let prefix = prefix(family, &mut dice);
            let next = NextHopId(1 + dice.below(9) as u32);
            match pairs[at].insert(&fib, prefix, next) {
                Ok(()) => routes.push((at, prefix)),
                Err(error) => {
                    assert_eq!(error, FibError::Full);
                    assert_eq!(fib.get(pairs[at].root, prefix), lookup_exact(&pairs[at], prefix));
                    errors += 1;
                    pairs.iter().for_each(|pair| pair.check_edges(&fib));
                    pairs[at].check(&fib, &family.edges(prefix));
                }
            }
            assert!(routes.len() < 100_000, "memory for {} routes", routes.len());
        }
        // No reader holds any memory, so every removal succeeds.
        while !routes.is_empty() {
            let (at, prefix) = routes.swap_remove(dice.below(routes.len()));
            pairs[at].remove(&fib, prefix).expect("removals have memory kept for them");
            pairs[at].check(&fib, &family.edges(prefix));
            if routes.len().is_multiple_of(64) {
                pairs.iter().for_each(|pair| pair.check_edges(&fib));
            }
        }
        assert!(fib.is_empty());
    }
    for pair in &mut pairs {
        let host = family.prefix(7 << 100, family.width());
        pair.insert(&fib, host, NextHopId(3)).expect("room");
        pair.check(&fib, &family.edges(host));
        pair.remove(&fib, host).expect("room");
    }
}

fn lookup_exact(pair: &Pair, prefix: Prefix) -> Option<NextHopId> {
    pair.oracle.routes().find(|(route, _)| *route == prefix).map(|(_, next)| next)
}

#[test]
fn values_run_out() {
    for (seed, values) in [0, 1, 255, 1027, 1284, 4000, 4500, 9000, 20_000].into_iter().enumerate()
    {
        for family in Family::BOTH {
            runs_full(family, Capacity { values, ..HEADROOM }, seed as u64);
        }
    }
}

#[test]
fn nodes_run_out() {
    for (seed, nodes) in [0, 1, 3, 4, 11, 12, 13, 17, 40, 200].into_iter().enumerate() {
        for family in Family::BOTH {
            runs_full(family, Capacity { nodes, ..HEADROOM }, seed as u64);
        }
    }
}

#[test]
fn roots_run_out() {
    for roots in 0..3 {
        let fib = Fib::new(Epochs::new(), Capacity { roots, ..HEADROOM });
        let added: Vec<_> = (0..roots).map(|_| fib.add_root().expect("a root")).collect();
        assert_eq!(fib.add_root(), Err(FibError::Full));
        let beyond = Root(roots as u32);
        assert!(fib.insert(beyond, Prefix::v4(0, 0), NextHopId(1)).is_err());
        assert_eq!(fib.remove(beyond, Prefix::v4(0, 0)), Ok(false));
        assert_eq!(fib.lookup(Root(u32::MAX), 0), NextHopId::NO_ROUTE);
        for (root, next) in added.iter().zip(1..) {
            fib.insert(*root, Prefix::v4(0, 0), NextHopId(next)).expect("room");
        }
        for (root, next) in added.iter().zip(1..) {
            assert_eq!(fib.lookup(*root, 0), NextHopId(next));
        }
    }
}

/// A change cannot use memory that a reader may still look at. The FIB refuses the change, instead
/// of waiting, until the reader passes.
#[test]
fn a_reader_that_stays_makes_memory_short_until_it_passes() {
    let epochs = Epochs::new();
    let fib = Fib::new(Arc::clone(&epochs), Capacity { values: 20_000, nodes: 200, roots: 1 });
    let mut pair = Pair::new(&fib, Family::V4);
    let reader = epochs.join();
    for round in 0..4 {
        let mut changes = 0_u32;
        loop {
            let prefix = Prefix::v4(0x0a00_0000 | (changes % 512 * 3), 32);
            let next = NextHopId(1 + changes % 7);
            let done = if pair.oracle.lookup(prefix.bits()) == NextHopId::NO_ROUTE {
                pair.insert(&fib, prefix, next)
            } else {
                pair.remove(&fib, prefix)
            };
            if done.is_err() {
                break;
            }
            changes += 1;
        }
        assert!(changes > 8, "round {round}: {changes} changes");
        pair.check_edges(&fib);
        reader.pass();
    }
    reader.park();
    let routes: Vec<_> = pair.oracle.routes().collect();
    for (prefix, _) in routes {
        pair.remove(&fib, prefix).expect("a parked reader holds nothing");
        pair.check(&fib, &Family::V4.edges(prefix));
    }
    assert!(fib.is_empty());
}

#[test]
fn a_next_hop_out_of_range_changes_nothing() {
    for family in Family::BOTH {
        let fib = Fib::new(Epochs::new(), HEADROOM);
        let mut pair = Pair::new(&fib, family);
        let mut dice = Dice(4);
        for _ in 0..200 {
            let prefix = prefix(family, &mut dice);
            pair.insert(&fib, prefix, NextHopId(NextHopId::MASK)).expect("the last number");
            for next in [NextHopId::MASK + 1, u32::MAX] {
                let beyond = fib.insert(pair.root, prefix, NextHopId(next));
                assert_eq!(beyond, Err(FibError::NextHopRange));
            }
        }
        pair.check_edges(&fib);
    }
}

/// If each change needs the memory that the previous one took out, all changes succeed as long as
/// the reader passes after every change.
#[test]
fn a_reader_that_passes_after_each_change_is_enough_at_the_end_of_memory() {
    let epochs = Epochs::new();
    let fib = Fib::new(Arc::clone(&epochs), Capacity { roots: 1, nodes: 64, values: 1 << 14 });
    let mut pair = Pair::new(&fib, Family::V4);
    let mut hosts = (0_u32..).map(|at| Prefix::v4(0x0a00_0000 | at << 8, 32));
    while let Some(host) = hosts.next()
        && pair.insert(&fib, host, NextHopId(1)).is_ok()
    {}
    let reader = epochs.join();
    let last = pair.oracle.routes().map(|(prefix, _)| prefix).max().expect("some went in");
    for round in 0..500 {
        pair.remove(&fib, last).unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        reader.pass();
        let next = NextHopId(2 + round % 3);
        pair.insert(&fib, last, next).unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        reader.pass();
    }
    pair.check_edges(&fib);
}
