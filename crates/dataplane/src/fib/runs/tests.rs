use std::ops::Range;

use proptest::prelude::*;

use super::Runs;
use crate::epoch::Epochs;
use crate::fib::Capacity;
use crate::fib::node::{Changes, Location, SLOTS};
use crate::fib::{Entry, Fib};

/// Compares every property of runs with a plain list of slots.
fn assert_is(runs: &Runs, slots: &[u32; SLOTS]) {
    assert_eq!(runs.expand().map(|entry| entry.0), *slots);
    let begins: Vec<_> =
        (0..SLOTS).filter(|slot| *slot == 0 || slots[*slot] != slots[slot - 1]).collect();
    let found: Vec<_> = (0..SLOTS).filter(|slot| runs.changes().at(*slot)).collect();
    assert_eq!(found, begins);
    assert_eq!(runs.changes().count() as usize, begins.len());
    let values: Vec<_> = begins.iter().map(|slot| Entry(slots[*slot])).collect();
    assert_eq!(runs.values().collect::<Vec<_>>(), values);
}

/// Changes both, and returns the values that each passed to the function.
fn change(
    runs: &mut Runs,
    slots: &mut [u32; SLOTS],
    range: Range<usize>,
    with: impl Fn(u32) -> u32,
) {
    let mut visited = Vec::new();
    runs.map(range.clone(), |entry| {
        visited.push(entry.0);
        Entry(with(entry.0))
    });
    let mut expected = slots[range.clone()].to_vec();
    expected.dedup();
    assert_eq!(visited, expected, "each run is visited once");
    for slot in &mut slots[range] {
        *slot = with(*slot);
    }
    assert_is(runs, slots);
}

#[test]
fn all_slots_are_one_run() {
    let (mut runs, mut slots) = (Runs::all(Entry(7)), [7; SLOTS]);
    assert_is(&runs, &slots);
    change(&mut runs, &mut slots, 0..SLOTS, |_| 8);
}

#[test]
fn runs_part_and_join_at_every_slot() {
    // All of them take minutes under Miri.
    for slot in (0..SLOTS).step_by(if cfg!(miri) { 51 } else { 1 }) {
        let (mut runs, mut slots) = (Runs::all(Entry(7)), [7; SLOTS]);
        for value in [8, 9, 9, 7] {
            runs.set(slot, Entry(value));
            slots[slot] = value;
            assert_is(&runs, &slots);
        }
        change(&mut runs, &mut slots, slot..SLOTS, |_| 1);
        change(&mut runs, &mut slots, 0..slot + 1, |_| 2);
        change(&mut runs, &mut slots, 0..SLOTS, |_| 1);
    }
}

#[test]
fn as_many_runs_as_slots() {
    let (mut runs, mut slots) = (Runs::all(Entry(7)), [7; SLOTS]);
    for slot in (0..SLOTS).rev() {
        runs.set(slot, Entry(slot as u32));
        slots[slot] = slot as u32;
    }
    assert_is(&runs, &slots);
    change(&mut runs, &mut slots, 1..255, |value| value / 2);
    change(&mut runs, &mut slots, 0..SLOTS, |value| value % 2);
    change(&mut runs, &mut slots, 64..128, |value| 1 - value);
    change(&mut runs, &mut slots, 0..SLOTS, |_| 3);
}

#[test]
fn runs_of_a_node_equal_those_that_filled_it() {
    let capacity = Capacity { roots: 0, nodes: 1, values: 300 };
    let (fib, base) = (Fib::new(Epochs::new(), capacity), 20);
    let mut runs = Runs::all(Entry(7));
    for (slot, value) in [(0, 1), (63, 2), (64, 3), (200, 4), (255, 5)] {
        runs.set(slot, Entry(value));
    }
    for (place, value) in (base + 1..).zip(runs.values()) {
        fib.set(place, value);
    }
    fib.node(0).fill(Location { level: 16, bits: 0 }, runs.changes(), base, 0);
    assert_is(&Runs::of(&fib, fib.node(0)), &runs.expand().map(|entry| entry.0));
}

#[test]
fn a_bitmap_counts_runs() {
    let mut changes = Changes::NONE;
    assert!((0..SLOTS).all(|slot| changes.run(slot) == 0));
    for (count, slot) in [1, 62, 63, 64, 127, 128, 192, 255].into_iter().enumerate() {
        changes.put(slot, true);
        assert_eq!((changes.run(slot - 1), changes.run(slot)), (count, count + 1));
    }
    changes.put(64, false);
    assert_eq!((changes.run(64), changes.run(255), changes.count()), (3, 7, 8));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Few values, so that many runs join; ranges like those of prefixes, and any others.
    #[test]
    fn random_changes_are_those_of_a_plain_list(
        steps in prop::collection::vec((0..SLOTS, 0..9_u32, 0..SLOTS, 0..4_u32, 0..4_u32), 1..80),
    ) {
        let (mut runs, mut slots) = (Runs::all(Entry(0)), [0; SLOTS]);
        for (slot, bits, other, old, new) in steps {
            let first = slot >> bits << bits;
            let range = match new {
                0 => slot.min(other)..slot.max(other) + 1,
                _ => first..first + (1 << bits),
            };
            change(&mut runs, &mut slots, range, |value| if value == old { new } else { value });
            runs.set(other, Entry(new));
            slots[other] = new;
            assert_is(&runs, &slots);
        }
    }
}
