//! Tests of the entries that a database gets, by what the kernel says.

use std::sync::Arc;

use tollway_dataplane::id::{Domain, PortId};
use tollway_dataplane::memory::{Capacities, Lender, Memory, Part, Words};
use tollway_dataplane::stages::bridge::{Fdb, FdbEntry, FdbKey, FdbKind};
use tollway_dataplane::wire::eth::MacWord;

use super::*;
use crate::fdb::LOCAL_PORT;

const BRIDGE: u32 = 2;
/// Members that are ports, and one that is none.
const A: u32 = 4;
const B: u32 = 6;
const OTHER: u32 = 8;
const NOW: u32 = 5000;

fn domain(number: u16) -> Domain {
    Domain::new(number).unwrap()
}

fn watch() -> FdbWatch {
    FdbWatch::default()
        .with_domain(BRIDGE, 0, domain(1))
        .with_domain(BRIDGE, 10, domain(2))
        .with_port(A, PortId(1))
        .with_port(B, PortId(3))
}

fn state() -> State {
    State::new(watch(), Arc::new(Fdb::new(&Memory::default())))
}

fn key(number: u32) -> EntryKey {
    let [_, a, b, c] = number.to_be_bytes();
    EntryKey { bridge: BRIDGE, vid: 0, mac: [2, 0, 0, a, b, c] }
}

const fn at(device: u32, kind: EntryKind) -> Option<KernelEntry> {
    Some(KernelEntry { device, kind })
}

const fn host(port: u16) -> Option<FdbEntry> {
    Some(FdbEntry { port: PortId(port), kind: FdbKind::Host })
}

impl State {
    /// Applies and installs; returns the news and the number of changes.
    fn learn(&mut self, key: EntryKey, entry: Option<KernelEntry>, tick: u32) -> (News, usize) {
        let news = self.apply(Event { key, entry }, tick);
        (news, self.install())
    }
}

fn found(fdb: &Fdb, domain_number: u16, key: EntryKey) -> Option<FdbEntry> {
    let found = fdb.look_up(FdbKey::new(domain(domain_number), MacWord::new(key.mac)));
    found.map(|hit| hit.entry())
}

fn tick(fdb: &Fdb, key: EntryKey) -> u32 {
    fdb.look_up(FdbKey::new(domain(1), MacWord::new(key.mac))).unwrap().tick()
}

#[test]
fn entries_come_move_and_go() {
    let mut state = state();
    let fdb = Arc::clone(state.fdb());
    let one = key(1);
    assert_eq!(state.learn(one, at(A, EntryKind::Host), NOW), (News::Other, 1));
    assert_eq!((found(&fdb, 1, one), tick(&fdb, one)), (host(1), NOW));
    assert_eq!(state.learn(one, at(A, EntryKind::Host), NOW + 9), (News::Nothing, 0));
    assert_eq!(tick(&fdb, one), NOW, "what has not changed was not refreshed");
    assert_eq!(state.learn(one, at(B, EntryKind::Host), NOW + 10), (News::Moved, 1));
    assert_eq!((found(&fdb, 1, one), tick(&fdb, one)), (host(3), NOW + 10));
    assert_eq!(state.learn(one, at(OTHER, EntryKind::Host), NOW), (News::Moved, 1));
    assert_eq!(found(&fdb, 1, one), None, "its frames take the kernel path");
    assert_eq!(state.learn(one, at(A, EntryKind::Locked), NOW), (News::Moved, 1));
    let locked = FdbEntry { port: PortId(1), kind: FdbKind::Locked };
    assert_eq!(found(&fdb, 1, one), Some(locked));
    assert_eq!(state.learn(one, None, NOW), (News::Other, 1));
    assert_eq!(state.learn(one, None, NOW), (News::Nothing, 0));
    assert_eq!((found(&fdb, 1, one), state.keys().count()), (None, 0));
}

#[test]
fn only_watched_bridges_have_entries() {
    let mut state = state();
    let fdb = Arc::clone(state.fdb());
    let local = FdbEntry { port: LOCAL_PORT, kind: FdbKind::Local };
    state.learn(key(1), at(BRIDGE, EntryKind::Local), NOW);
    assert_eq!(found(&fdb, 1, key(1)), Some(local));
    state.learn(EntryKey { vid: 10, ..key(2) }, at(A, EntryKind::Host), NOW);
    assert_eq!((found(&fdb, 1, key(2)), found(&fdb, 2, key(2))), (None, host(1)));
    for elsewhere in [EntryKey { vid: 11, ..key(3) }, EntryKey { bridge: 9, ..key(3) }] {
        assert_eq!(state.learn(elsewhere, at(A, EntryKind::Host), NOW), (News::Other, 0));
    }
    assert_eq!((fdb.lock().len(), state.keys().count()), (2, 4));
}

#[test]
fn expired_entries_are_no_news() {
    let mut state = state();
    let fdb = Arc::clone(state.fdb());
    state.learn(key(1), at(A, EntryKind::Host), NOW);
    assert_eq!(state.learn(key(1), at(A, EntryKind::Expired), NOW), (News::Nothing, 1));
    assert_eq!(found(&fdb, 1, key(1)), None);
    let tick_of_list = due_tick(NOW);
    assert_eq!(state.learn(key(1), at(A, EntryKind::Host), tick_of_list), (News::Nothing, 1));
    assert_eq!(found(&fdb, 1, key(1)), host(1));
    // As a reader computes it, with the longest ageing time that a bridge can have: 2^32 hundredths of a second.
    let longest = (u64::from(u32::MAX) * 10_000_000 / 4) >> 26;
    assert!(u64::from(NOW.wrapping_sub(tick(&fdb, key(1)))) >= longest);
    assert_eq!(state.learn(key(2), at(A, EntryKind::Expired), NOW), (News::Nothing, 0));
    assert_eq!(state.learn(key(2), None, NOW), (News::Nothing, 0));
}

#[test]
fn another_database_gets_what_its_watch_wants() {
    const COUNT: u32 = 1 << 16;
    let mut state = state();
    for number in 0..COUNT {
        let device = [A, B, OTHER][number as usize % 3];
        state.apply(Event { key: key(number), entry: at(device, EntryKind::Host) }, NOW);
    }
    state.install();
    let earlier = Arc::clone(state.fdb());
    // The first member is no port, another one is, and the numbers are other ones.
    let other = FdbWatch::default()
        .with_domain(BRIDGE, 0, domain(7))
        .with_port(OTHER, PortId(5))
        .with_port(B, PortId(0));
    let fdb = Arc::new(Fdb::new(&Memory::default()));
    // What the database had before is not the bridge's.
    let stale = EntryKey { mac: [2, 9, 9, 9, 9, 9], ..key(0) };
    let entry = FdbEntry { port: PortId(1), kind: FdbKind::Host };
    fdb.lock().set(FdbKey::new(domain(7), MacWord::new(stale.mac)), entry, NOW).unwrap();
    let before = state.rebind(other, Arc::clone(&fdb), NOW);
    assert_eq!(fdb.lock().len() + state.left_out(), (COUNT - COUNT.div_ceil(3)) as usize);
    let looked = [0, 1, 2].map(|number| found(&fdb, 7, key(number)));
    assert_eq!(looked, [None, host(0), host(5)]);
    assert_eq!(found(&fdb, 7, stale), None);
    state.learn(key(1), None, NOW);
    assert_eq!((found(&fdb, 7, key(1)), found(&earlier, 1, key(1))), (None, host(3)));
    state.go_back(before, NOW);
    assert!(Arc::ptr_eq(state.fdb(), &earlier));
    let looked = [0, 1, 2].map(|number| found(&earlier, 1, key(number)));
    assert_eq!(looked, [host(1), None, None], "with what has changed meanwhile");
}

/// Lends nothing, and says how large tables are.
struct NoLargeTable;

impl Lender for NoLargeTable {
    fn capacities(&self) -> Capacities {
        Capacities { fdb_buckets: 1, ..Capacities::default() }
    }

    fn lend(&self, _: Part) -> Option<Box<dyn Words>> {
        None
    }
}

#[test]
fn what_has_no_room_is_tried_again() {
    let memory = Memory::lent(Arc::new(NoLargeTable));
    let mut state = State::new(watch(), Arc::new(Fdb::new(&memory)));
    let fdb = Arc::clone(state.fdb());
    const COUNT: u32 = 4096;
    for number in 0..COUNT {
        state.learn(key(number), at(A, EntryKind::Host), NOW);
    }
    let (there, left_out) = (fdb.lock().len(), state.left_out());
    assert_eq!(there + left_out, COUNT as usize);
    assert!(left_out > 0);
    let is_there = |number: &u32| found(&fdb, 1, key(*number)).is_some();
    let (there, missing): (Vec<_>, Vec<_>) = (0..COUNT).partition(is_there);
    // A missing one that goes is missing no longer.
    state.learn(key(missing[0]), None, NOW);
    assert_eq!(state.left_out(), left_out - 1);
    for number in there {
        state.learn(key(number), None, NOW);
    }
    assert_eq!((fdb.lock().len(), state.left_out()), (0, left_out - 1));
    state.retry(NOW);
    assert!(state.left_out() < left_out - 1);
    assert_eq!(fdb.lock().len() + state.left_out(), left_out - 1);
}
