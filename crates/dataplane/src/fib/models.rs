//! A FIB that changes while one thread looks up, in every order that loom explores.

use std::sync::Arc;

use loom::model::Builder;
use loom::thread;

use super::{Capacity, Fib, Root};
use crate::epoch::Epochs;
use crate::id::NextHopId;
use crate::prefix::Prefix;

/// Nodes that must be free for an insertion.
const INSERTION: usize = 12;

const fn ip4(address: u32) -> u128 {
    (address as u128) << 96
}

/// Memory, existing routes, changes that follow, and an address with the next hops that it may get.
fn explore(
    nodes: usize,
    before: &'static [(Prefix, u32)],
    changes: &'static [(Prefix, Option<u32>)],
    probe: u128,
    allowed: &'static [u32],
) {
    let capacity = Capacity { roots: 1, nodes, values: 256 + (nodes + 1) * 257 };
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 100_000;
    builder.check(move || {
        let epochs = Epochs::new();
        let fib = Arc::new(Fib::new(Arc::clone(&epochs), capacity));
        let root = fib.add_root().expect("a root");
        for (prefix, next) in before {
            fib.insert(root, *prefix, NextHopId(*next)).expect("room");
        }
        let reader = epochs.join();
        let thread = {
            let fib = Arc::clone(&fib);
            thread::spawn(move || {
                let mut seen = [(0, 0); 2];
                for seen in &mut seen {
                    let generation = fib.generation();
                    let found = lookup(&fib, root, probe);
                    assert!(allowed.contains(&found), "{found}");
                    *seen = (generation, found);
                    reader.pass();
                }
                seen
            })
        };
        for (prefix, next) in changes {
            match next {
                // Refused while the reader may still read what was taken out.
                Some(next) => _ = fib.insert(root, *prefix, NextHopId(*next)),
                None => assert_eq!(fib.remove(root, *prefix), Ok(true)),
            }
        }
        // What a reader has found holds as long as the generation that it has seen before.
        let now = lookup(&fib, root, probe);
        for (generation, found) in thread.join().expect("no panic") {
            assert!(generation != fib.generation() || found == now, "{found}, and now {now}");
        }
    });
}

fn lookup(fib: &Fib, root: Root, address: u128) -> u32 {
    fib.lookup(root, address).0
}

const HOST: Prefix = Prefix::v4(0x0a01_0105, 32);
const NET24: Prefix = Prefix::v4(0x0a01_0100, 24);
const NET20: Prefix = Prefix::v4(0x0a01_0000, 20);
const OTHER24: Prefix = Prefix::v4(0x0b01_0100, 24);

#[test]
fn a_node_is_whole_when_it_is_found() {
    explore(INSERTION, &[], &[(NET24, Some(1))], ip4(0x0a01_0105), &[0, 1]);
}

#[test]
fn a_route_above_a_node_is_not_seen_beside_it() {
    let changes = &[(NET20, Some(2))];
    explore(INSERTION + 4, &[(HOST, 1)], changes, ip4(0x0a01_8001), &[0]);
    explore(INSERTION + 4, &[(HOST, 1)], changes, ip4(0x0a01_0105), &[1]);
    explore(INSERTION + 4, &[(HOST, 1)], changes, ip4(0x0a01_0106), &[0, 2]);
}

/// Memory is so short that the second route has to reuse the memory of the first one.
#[test]
fn removed_nodes_are_not_reused_while_they_are_read() {
    const BEFORE: &[(Prefix, u32)] =
        &[(Prefix::v4(10 << 24, 8), 5), (Prefix::v4(11 << 24, 8), 6), (NET24, 1)];
    const CHANGES: &[(Prefix, Option<u32>)] = &[(NET24, None), (OTHER24, Some(7))];
    explore(INSERTION, BEFORE, CHANGES, ip4(0x0a01_0105), &[1, 5]);
}
