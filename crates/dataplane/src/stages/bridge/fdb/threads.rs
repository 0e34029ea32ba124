//! Readers in threads of their own, while the database changes: their hits are right, and what stays they find.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use super::tests::{entry, key, port_of};
use super::*;
use crate::testkit::dice::Dice;

/// Keys that stay; the others come and go.
const STAYING: u32 = 8;
const KEYS: u32 = 24;

/// How often the writer changes something.
const CHANGES: usize = if cfg!(miri) { 60 } else { 400_000 };

/// Threads that read.
const READERS: u64 = 2;

/// Which hits the readers of a test can rely on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Staying {
    AreFound,
    MayBeMissed,
}

fn read(fdb: &Fdb, stop: &AtomicBool, staying: Staying, seed: u64) -> u64 {
    let (mut dice, mut hits) = (Dice(seed), 0);
    while !stop.load(Relaxed) {
        let number = dice.below(KEYS as usize) as u32;
        let Some(hit) = fdb.look_up(key(number)) else {
            assert!(number >= STAYING || staying == Staying::MayBeMissed, "{number} is missing");
            continue;
        };
        assert_eq!(port_of(hit.port()), number, "another key's port");
        hit.refresh(7);
        hits += 1;
    }
    hits
}

fn change(fdb: &Fdb, dice: &mut Dice, now_ns: &mut u64) {
    let mut writer = fdb.lock();
    let others = (KEYS - STAYING) as usize;
    let number = STAYING + dice.below(others) as u32;
    match dice.below(20) {
        0 => {
            *now_ns += 30_000_000_000;
            writer.shrink(*now_ns);
        }
        1 => (STAYING..KEYS).for_each(|number| _ = writer.remove(key(number))),
        2..9 => _ = writer.remove(key(number)),
        // There may be no room.
        _ => _ = writer.set(key(number), entry(number, dice.below(16) as u16), 1),
    }
}

fn run(sizes: Sizes, staying: Staying) {
    for seed in 1..=2 {
        let fdb = Fdb::with_sizes(&Memory::default(), sizes, Dice(seed).roll());
        for number in (0..STAYING).rev() {
            fdb.lock().set(key(number), entry(number, 0), 1).expect("room");
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS)
                .map(|reader| (&fdb, &stop, seed << 8 | reader))
                .map(|(fdb, stop, seed)| scope.spawn(move || read(fdb, stop, staying, seed)))
                .collect();
            let (mut dice, mut now_ns) = (Dice(seed), 0);
            for _ in 0..CHANGES {
                change(&fdb, &mut dice, &mut now_ns);
                if cfg!(miri) {
                    thread::yield_now();
                }
            }
            stop.store(true, Relaxed);
            for reader in readers {
                let hits = reader.join().expect("no panic");
                assert!(hits > 0 || cfg!(miri));
            }
        });
        for number in 0..STAYING {
            assert_eq!(fdb.look_up(key(number)).map(|hit| port_of(hit.port())), Some(number));
        }
    }
}

#[test]
fn what_stays_is_found_while_entries_around_it_change() {
    for buckets in [4, 8] {
        run(Sizes { small: buckets, large: 0 }, Staying::AreFound);
    }
}

#[test]
fn hits_are_right_while_tables_change() {
    run(Sizes { small: 16, large: 4 }, Staying::MayBeMissed);
    run(Sizes { small: 16, large: 64 }, Staying::MayBeMissed);
}
