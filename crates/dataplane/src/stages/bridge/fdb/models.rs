//! A database that changes while one thread looks up, in every order that loom explores.

use std::sync::Arc;

use loom::model::Builder;
use loom::thread;

use super::lines::{Head, SEARCHED};
use super::*;
use crate::id::Domain;
use crate::wire::eth::MacWord;

/// Homes depend on it, and loom needs the same ones each time.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// How often threads are interrupted at most, so that the models take seconds.
const MOST_PREEMPTIONS: usize = 5;

/// One bucket in either table.
const TINY: Sizes = Sizes { small: 1, large: 1 };
/// No large table, so that entries have to be in buckets that follow their home.
const ONLY_SMALL: Sizes = Sizes { small: 2, large: 0 };

const A: u8 = 1;
const B: u8 = 2;

fn key(last: u8) -> FdbKey {
    FdbKey::new(Domain::new(1).expect("not 0"), MacWord::new([2, 0, 0, 0, 0, last]))
}

fn at(port: u16) -> FdbEntry {
    FdbEntry { port: PortId(port), kind: FdbKind::Host }
}

/// What a lookup may find.
#[derive(Clone, Copy)]
enum Allowed {
    /// One of these ports.
    Ports(&'static [u16]),
    /// One of these ports, or nothing.
    PortsOrNothing(&'static [u16]),
}

/// Sets up a database, then changes it while a reader looks the keys up, in this order.
fn explore(
    sizes: Sizes,
    before: fn(&mut FdbWriter<'_>),
    changes: fn(&mut FdbWriter<'_>),
    lookups: &'static [(u8, Allowed)],
) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(MOST_PREEMPTIONS);
    builder.max_branches = 100_000;
    builder.check(move || {
        let fdb = Arc::new(Fdb::with_sizes(&Memory::default(), sizes, SEED));
        before(&mut fdb.lock());
        let thread = {
            let fdb = Arc::clone(&fdb);
            thread::spawn(move || {
                for (last, allowed) in lookups {
                    check(fdb.look_up(key(*last)), *allowed);
                }
            })
        };
        changes(&mut fdb.lock());
        thread.join().expect("no panic");
        let writer = fdb.lock();
        for (key, entry) in writer.entries() {
            assert_eq!(fdb.look_up(key).map(|hit| hit.entry()), Some(entry));
        }
    });
}

fn check(found: Option<FdbHit<'_>>, allowed: Allowed) {
    match (found.map(|hit| hit.port().0), allowed) {
        (Some(port), Allowed::Ports(ports) | Allowed::PortsOrNothing(ports)) => {
            assert!(ports.contains(&port), "{port}");
        }
        (None, Allowed::Ports(_)) => panic!("an entry that stays is not found"),
        (None, Allowed::PortsOrNothing(_)) => (),
    }
}

fn set(writer: &mut FdbWriter<'_>, last: u8, port: u16) {
    writer.set(key(last), at(port), 0).expect("room");
}

#[test]
fn an_entry_is_whole_when_it_is_found() {
    explore(
        TINY,
        |_| (),
        |writer| set(writer, A, 1),
        &[(A, Allowed::PortsOrNothing(&[1])), (A, Allowed::PortsOrNothing(&[1]))],
    );
}

#[test]
fn a_port_changes() {
    explore(
        TINY,
        |writer| set(writer, A, 1),
        |writer| {
            set(writer, A, 2);
            set(writer, A, 3);
        },
        &[(A, Allowed::PortsOrNothing(&[1, 2, 3])), (A, Allowed::PortsOrNothing(&[1, 2, 3]))],
    );
}

#[test]
fn a_slot_becomes_another_entrys_and_the_first_ones_again() {
    explore(
        TINY,
        |writer| set(writer, A, 1),
        |writer| {
            assert!(writer.remove(key(A)));
            set(writer, B, 7);
            assert!(writer.remove(key(B)));
            set(writer, A, 2);
        },
        &[(A, Allowed::PortsOrNothing(&[1, 2])), (B, Allowed::PortsOrNothing(&[7]))],
    );
}

#[test]
fn a_slot_becomes_another_entrys_with_a_port_that_the_first_one_had() {
    explore(
        TINY,
        |writer| set(writer, B, 7),
        |writer| {
            assert!(writer.remove(key(B)));
            set(writer, A, 1);
            assert!(writer.remove(key(A)));
            set(writer, B, 8);
        },
        &[(A, Allowed::PortsOrNothing(&[1])), (B, Allowed::PortsOrNothing(&[7, 8]))],
    );
}

/// Keys whose home is the first bucket of a table without a large one.
fn of_first_bucket() -> impl Iterator<Item = u8> {
    let head = ONLY_SMALL.small().expect("a table");
    (1..=u8::MAX).filter(move |last| home(head, *last) == 0)
}

fn home(head: Head, last: u8) -> u32 {
    assert!(head.mask() < SEARCHED);
    head.home(key(last), SEED)
}

/// The first bucket is full, and one more of its keys is in the second one: the last of these.
fn crossing() -> [u8; WAYS + 1] {
    let mut keys = of_first_bucket();
    std::array::from_fn(|_| keys.next().expect("enough keys"))
}

/// The key of [`crossing`] that is not in its home.
const OUTSIDE: u8 = 11;
/// A key of the first bucket that is not there at first.
const ANOTHER: u8 = 12;

#[test]
fn the_keys_of_the_models_are_what_they_say() {
    let keys: Vec<u8> = of_first_bucket().take(WAYS + 2).collect();
    assert_eq!(crossing()[WAYS], OUTSIDE, "{keys:?}");
    assert_eq!(keys[WAYS + 1], ANOTHER, "{keys:?}");
}

fn fill_first_bucket(writer: &mut FdbWriter<'_>) {
    for last in crossing() {
        set(writer, last, u16::from(last));
    }
}

#[test]
fn an_entry_outside_of_its_home_is_found_while_slots_before_it_change() {
    explore(
        ONLY_SMALL,
        fill_first_bucket,
        |writer| {
            assert!(writer.remove(key(crossing()[1])));
            set(writer, ANOTHER, 77);
        },
        &[(OUTSIDE, Allowed::Ports(&[OUTSIDE as u16])), (ANOTHER, Allowed::PortsOrNothing(&[77]))],
    );
}

#[test]
fn entries_in_their_home_are_found_while_searches_end_there_again() {
    explore(
        ONLY_SMALL,
        |writer| {
            fill_first_bucket(writer);
            assert!(writer.remove(key(crossing()[1])));
        },
        |writer| {
            assert!(writer.remove(key(OUTSIDE)));
            set(writer, ANOTHER, 77);
        },
        &[
            (OUTSIDE, Allowed::PortsOrNothing(&[OUTSIDE as u16])),
            (ANOTHER, Allowed::PortsOrNothing(&[77])),
        ],
    );
}

#[test]
fn entries_go_to_the_large_table() {
    explore(
        TINY,
        |writer| set(writer, A, 1),
        |writer| {
            // A quarter of the small table is taken.
            set(writer, B, 7);
            set(writer, A, 2);
            assert!(!writer.is_small());
        },
        &[(A, Allowed::PortsOrNothing(&[1, 2])), (B, Allowed::PortsOrNothing(&[7]))],
    );
}

#[test]
fn the_small_table_is_used_again_after_all_entries_went() {
    explore(
        TINY,
        |writer| {
            set(writer, A, 1);
            set(writer, B, 7);
            assert!(!writer.is_small());
        },
        |writer| {
            writer.clear();
            set(writer, B, 8);
            assert!(writer.is_small());
            // And the large one once more.
            set(writer, A, 2);
        },
        &[(A, Allowed::PortsOrNothing(&[1, 2])), (B, Allowed::PortsOrNothing(&[7, 8]))],
    );
}

#[test]
fn entries_go_back_to_the_small_table() {
    explore(
        // A quarter of the small table are 4 slots, an eighth are 2.
        Sizes { small: 4, large: 2 },
        |writer| {
            (A..=5).for_each(|last| set(writer, last, u16::from(last)));
            (B..=5).for_each(|last| assert!(writer.remove(key(last))));
            writer.shrink(0);
            assert!(!writer.is_small());
        },
        |writer| {
            writer.shrink(u64::MAX);
            assert!(writer.is_small());
            set(writer, A, 9);
            set(writer, B, 8);
        },
        &[(A, Allowed::PortsOrNothing(&[1, 9])), (B, Allowed::PortsOrNothing(&[8]))],
    );
}

#[test]
fn readers_find_nothing_wrong_while_it_is_paused() {
    explore(
        TINY,
        |writer| set(writer, A, 1),
        |writer| {
            writer.pause();
            assert!(writer.remove(key(A)));
            set(writer, B, 7);
            writer.resume();
        },
        &[(A, Allowed::PortsOrNothing(&[1])), (B, Allowed::PortsOrNothing(&[7]))],
    );
}
