use std::collections::HashMap;

use proptest::prelude::*;

use super::lines::REMOVED;
use super::*;
use crate::id::Domain;
use crate::testkit::dice::Dice;
use crate::testkit::lender::PlainLender;
use crate::wire::eth::MacWord;

/// A seed with which no run of the small table's buckets is full before a quarter of its slots is taken. One in some
/// thousand seeds is none.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many ports each key of a test has, none of them another key's.
const PORTS_OF_KEY: u16 = 16;

/// A key by its number.
pub(super) fn key(number: u32) -> FdbKey {
    let [a, b, c, d] = number.to_be_bytes();
    in_domain(1, [2, 0, a, b, c, d])
}

fn in_domain(domain: u16, mac: [u8; 6]) -> FdbKey {
    FdbKey::new(Domain::new(domain).expect("not 0"), MacWord::new(mac))
}

/// One of the entries that a key may have in a test.
pub(super) fn entry(number: u32, variant: u16) -> FdbEntry {
    let kind = [FdbKind::Host, FdbKind::Local, FdbKind::Locked][usize::from(variant % 3)];
    FdbEntry { port: PortId(number as u16 * PORTS_OF_KEY + variant), kind }
}

/// The number of the key whose port this is.
pub(super) fn port_of(port: PortId) -> u32 {
    u32::from(port.0 / PORTS_OF_KEY)
}

fn with_sizes(small: u32, large: u32, seed: u64) -> Fdb {
    Fdb::with_sizes(&Memory::default(), Sizes { small, large }, seed)
}

fn found(fdb: &Fdb, key: FdbKey) -> Option<FdbEntry> {
    fdb.look_up(key).map(|hit| hit.entry())
}

/// Every key in memory, by line; line 0 has none.
fn keys_in_memory(fdb: &Fdb) -> Vec<(usize, u64)> {
    let lines = fdb.lines.get().iter().enumerate().skip(1);
    let keys = lines.flat_map(|(number, line)| {
        line.slots.iter().map(move |slot| (number, slot.key.load(Relaxed)))
    });
    keys.filter(|(_, key)| *key != EMPTY).collect()
}

/// Memory has the entries and nothing else; what was removed leaves no trace if nothing needs it.
fn check_memory(fdb: &Fdb) {
    let mut keys = keys_in_memory(fdb);
    let writer = fdb.lock();
    let mut expected: Vec<u64> = writer.entries().map(|(key, _)| key.word()).collect();
    if expected.is_empty() {
        assert_eq!(keys, []);
    }
    keys.retain(|(_, key)| *key != REMOVED);
    let mut keys: Vec<u64> = keys.into_iter().map(|(_, key)| key).collect();
    keys.sort_unstable();
    expected.sort_unstable();
    assert_eq!(keys, expected);
}

#[test]
fn a_key_is_the_address_as_it_lies_in_a_frame_below_the_domain() {
    let key = in_domain(0x1234, [1, 2, 3, 4, 5, 6]);
    assert_eq!(key.word(), 0x1234_0605_0403_0201);
    assert_eq!((key.mac(), key.domain()), ([1, 2, 3, 4, 5, 6], 0x1234));
    assert_eq!(format!("{key:?}"), "01:02:03:04:05:06 in 4660");
    assert_eq!(Domain::new(0), None);
}

#[test]
fn a_slot_has_16_bytes_and_a_bucket_is_a_line() {
    assert_eq!((size_of::<Slot>(), size_of::<Line>(), align_of::<Line>()), (16, 64, 64));
    assert_eq!((fdb_lines(0), fdb_lines(64)), (1, 1 + 256 + 64));
}

/// As a BPF program searches, by words.
fn search(lender: &PlainLender, key: u64) -> Option<(u16, u8, u32)> {
    let word = |index: usize| lender.word(Part::Fdb, index);
    let (head, seed) = (word(0), word(1));
    let (mask, first) = (head as u32, (head >> 32) as usize);
    let product = key.wrapping_mul(seed);
    let home = ((product ^ product >> 32).wrapping_mul(seed) >> 32) as u32;
    for step in 0..4 {
        let line = first + (home.wrapping_add(step) & mask) as usize;
        let slots = [0, 2, 4, 6].map(|slot| 8 * line + slot);
        if let Some(slot) = slots.into_iter().find(|slot| word(*slot) == key) {
            let value = word(slot + 1);
            return Some((value as u16, (value >> 16) as u8, (value >> 32) as u32));
        }
        if slots.into_iter().any(|slot| word(slot) == 0) {
            return None;
        }
    }
    None
}

#[test]
fn programs_find_entries_in_lent_memory() {
    let lender = PlainLender::small();
    let fdb = Fdb::with_sizes(&lender.memory(), Sizes::of_capacity(1 << 10), SEED);
    let find = |number: u32| search(&lender, key(number).word());
    for number in 0..160 {
        fdb.lock().set(key(number), entry(number, 1), number).unwrap();
    }
    assert!(fdb.lock().is_small());
    assert_eq!(lender.word(Part::Fdb, 0), 255 | 1 << 32);
    assert_eq!(find(7), Some((7 * PORTS_OF_KEY + 1, 1, 7)));
    fdb.lock().set(key(7), entry(7, 2), 8).unwrap();
    assert_eq!(find(7), Some((7 * PORTS_OF_KEY + 2, 2, 8)));
    fdb.look_up(key(7)).unwrap().refresh(9);
    assert_eq!(find(7), Some((7 * PORTS_OF_KEY + 2, 2, 9)), "a reader stores the tick alone");

    fdb.lock().pause();
    assert_eq!((find(7), found(&fdb, key(7))), (None, None));
    assert!(fdb.lock().remove(key(8)));
    fdb.lock().resume();
    assert_eq!((find(7), find(8)), (Some((7 * PORTS_OF_KEY + 2, 2, 9)), None));

    for number in 0..257 {
        fdb.lock().set(key(number), entry(number, 0), number).unwrap();
    }
    assert_eq!(lender.word(Part::Fdb, 0), 1023 | 257 << 32, "the large table");
    for number in 0..257 {
        assert_eq!(find(number), Some((number as u16 * PORTS_OF_KEY, 0, number)));
    }
    assert_eq!(find(257), None);
    let by_capacity = Fdb::new(&PlainLender::small().memory());
    assert_eq!(by_capacity.lines.get().len(), fdb_lines(1 << 10));
}

#[test]
fn nothing_is_found_in_line_0() {
    for fdb in [with_sizes(2, 4, 1), with_sizes(0, 0, 1)] {
        fdb.lock().pause();
        assert_eq!(fdb.view().head, Head::PAUSED);
        let line = &fdb.lines.get()[0];
        // As if the writer stored the head after the reader has loaded it.
        for head in [Sizes::of_capacity(1 << 16).small(), Sizes::of_capacity(1 << 16).large()] {
            let view = fdb.view();
            line.set_head(head.unwrap());
            for slot in &line.slots {
                let word = slot.key.load(Relaxed);
                assert!(word < in_domain(1, [0; 6]).word(), "no key");
            }
            assert!(view.find(key(1), view.home(key(1))).is_none());
            line.set_head(Head::PAUSED);
        }
    }
}

#[test]
fn without_buckets_no_entry_has_room() {
    let capacities = crate::memory::Capacities { fdb_buckets: 0, ..Default::default() };
    let lender = PlainLender::new(capacities);
    let fdb = Fdb::new(&lender.memory());
    let mut writer = fdb.lock();
    assert_eq!(writer.set(key(1), entry(1, 0), 1), Err(FdbFull));
    assert_eq!(found(&fdb, key(1)), None);
    assert!(!writer.remove(key(1)));
    writer.clear();
    writer.shrink(u64::MAX);
    writer.resume();
    assert_eq!((writer.len(), writer.left_out(), writer.is_empty()), (0, 1, true));
    assert_eq!(search(&lender, key(1).word()), None);
}

#[test]
fn the_number_of_buckets_becomes_a_power_of_two() {
    for (buckets, large) in [(1, 1), (2, 2), (100, 64), (1 << 16, 1 << 16), (usize::MAX, 1 << 31)] {
        let sizes = Sizes::of_capacity(buckets);
        assert_eq!(sizes.large, large);
        assert!(sizes.lines() <= fdb_lines(buckets.min(1 << 32)));
    }
}

#[test]
fn an_entry_may_be_in_any_of_four_buckets_and_no_further() {
    let fdb = with_sizes(16, 0, 5);
    let head = fdb.view().head;
    // The last bucket is followed by the first one.
    let mut of_last = (0..).map(key).filter(|key| head.home(*key, fdb.seed) == 15);
    let keys: Vec<FdbKey> = of_last.by_ref().take(4 * WAYS).collect();
    for key in &keys {
        fdb.lock().set(*key, entry(3, 0), 1).unwrap();
    }
    let one_more = of_last.next().unwrap();
    assert_eq!(fdb.lock().set(one_more, entry(4, 0), 1), Err(FdbFull));
    let left_out = fdb.lock().left_out();
    assert_eq!((left_out, fdb.lock().len()), (1, 16));
    assert!(keys.iter().all(|key| found(&fdb, *key).is_some()));
    assert_eq!(found(&fdb, one_more), None);

    // The last ones are found without the first ones, and nothing else is.
    let (first, last) = keys.split_at(3 * WAYS);
    assert!(first.iter().all(|key| fdb.lock().remove(*key)));
    assert!(first.iter().all(|key| found(&fdb, *key).is_none()));
    assert!(last.iter().all(|key| found(&fdb, *key).is_some()));
    fdb.lock().set(one_more, entry(4, 0), 1).unwrap();
    assert_eq!(found(&fdb, one_more), Some(entry(4, 0)));
    assert!(last.iter().all(|key| fdb.lock().remove(*key)));
    assert_eq!(
        keys_in_memory(&fdb),
        [(16, one_more.word())],
        "slots that searches crossed are empty"
    );
}

#[test]
fn entries_move_to_the_large_table_and_back_after_a_minute() {
    const SECOND: u64 = 1_000_000_000;
    let fdb = with_sizes(256, 1 << 16, SEED);
    let set = |number| fdb.lock().set(key(number), entry(number, 0), number).unwrap();
    (0..256).for_each(set);
    assert!(fdb.lock().is_small());
    set(256);
    assert!(!fdb.lock().is_small());
    check_memory(&fdb);
    // Half of the small table's quarter is not few.
    (128..257).for_each(|number| assert!(fdb.lock().remove(key(number))));
    for now in [0, 100] {
        fdb.lock().shrink(now * SECOND);
    }
    assert!(!fdb.lock().is_small());
    // Not few again meanwhile.
    assert!(fdb.lock().remove(key(127)));
    fdb.lock().shrink(200 * SECOND);
    set(127);
    assert!(fdb.lock().remove(key(127)));
    fdb.lock().shrink(260 * SECOND);
    fdb.lock().shrink(319 * SECOND);
    assert!(!fdb.lock().is_small());
    fdb.look_up(key(3)).unwrap().refresh(77);
    fdb.lock().shrink(320 * SECOND);
    assert!(fdb.lock().is_small());
    check_memory(&fdb);
    assert!((0..127).all(|number| found(&fdb, key(number)) == Some(entry(number, 0))));
    assert_eq!(fdb.look_up(key(3)).unwrap().tick(), 77, "the tick moves, too");
}

#[test]
fn a_full_run_of_the_small_table_is_a_reason_to_move() {
    let fdb = with_sizes(256, 1024, 9);
    let head = fdb.view().head;
    let of_one = (0..).map(key).filter(|key| head.home(*key, fdb.seed) == 200);
    let keys: Vec<FdbKey> = of_one.take(4 * WAYS + 1).collect();
    for (number, key) in keys.iter().enumerate() {
        assert!(fdb.lock().is_small(), "{number}");
        fdb.lock().set(*key, entry(1, 0), 1).unwrap();
    }
    assert!(!fdb.lock().is_small());
    assert!(keys.iter().all(|key| found(&fdb, *key).is_some()));
    assert_eq!(fdb.lock().left_out(), 0);
}

/// Keys that are alike: most of networks have such ones.
fn alike(kind: usize, number: u32) -> FdbKey {
    let [_, high, middle, low] = number.to_be_bytes();
    match kind {
        0 => in_domain(1, [2, 0x42, 0xac, high, middle, low]),
        1 => in_domain(1, [2, low, middle, high, 0, 1]),
        2 => in_domain(7, [2, 0, middle, low, high, 9]),
        // The same sixteen hosts in each VLAN.
        _ => in_domain(1 + (number >> 4) as u16, [2, 0x42, 0xac, 0, 0, low & 15]),
    }
}

/// Parts of a thousand of `count` keys outside of their home, and without any room.
fn outside(kind: usize, count: u32, buckets: u32, seed: u64) -> (u32, u32) {
    let mut taken = vec![0_u8; buckets as usize];
    let (mut outside, mut left_out) = (0, 0);
    for number in 0..count {
        let home = Head::new(buckets, 1).home(alike(kind, number), seed);
        let step =
            (0..SEARCHED).find(|step| taken[((home + step) & (buckets - 1)) as usize] < WAYS as u8);
        match step {
            Some(step) => taken[((home + step) & (buckets - 1)) as usize] += 1,
            None => left_out += 1,
        }
        outside += u32::from(step != Some(0));
    }
    (outside * 1000 / count, left_out)
}

#[test]
fn keys_that_are_alike_have_different_homes() {
    let mut dice = Dice(1);
    // What is equally distributed has 4 in 1,000 outside when a quarter is taken.
    let (few, many) = if cfg!(miri) { (1, 0) } else { (300, 6) };
    for kind in 0..4 {
        let mut of_small = 0;
        for _ in 0..few {
            let (outside, left_out) = outside(kind, 256, 256, dice.roll() | 1);
            of_small += outside;
            assert!(left_out < 32, "of kind {kind}, {left_out} have no room");
        }
        assert!(of_small <= few * 10, "kind {kind}: {of_small} in {few} times 1,000");
        for _ in 0..many {
            let (outside, left_out) = outside(kind, 1 << 16, 1 << 16, dice.roll() | 1);
            assert!(outside <= 10 && left_out < 32, "kind {kind}: {outside}, {left_out}");
        }
    }
}

#[test]
fn a_large_table_takes_a_flood_of_addresses() {
    let count: u32 = if cfg!(miri) { 500 } else { 1 << 16 };
    let fdb = with_sizes(256, 1 << 16, SEED);
    let mut writer = fdb.lock();
    for number in 0..count {
        _ = writer.set(alike(0, number), FdbEntry { port: PortId(3), kind: FdbKind::Host }, 1);
    }
    assert!(writer.left_out() < 32, "{} left out", writer.left_out());
    let hits = (0..count).filter(|number| found(&fdb, alike(0, *number)).is_some()).count();
    assert_eq!((hits, writer.left_out()), (writer.len(), u64::from(count) - writer.len() as u64));
    writer.clear();
    drop(writer);
    check_memory(&fdb);
    assert!(fdb.lock().is_small());
}

/// A change of the database.
#[derive(Clone, Debug)]
enum Change {
    Set(u32, u16),
    Remove(u32),
    Clear,
    Pause,
    Resume,
    Shrink(u64),
}

fn changes(keys: u32) -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        12 => (0..keys, 0..PORTS_OF_KEY).prop_map(|(key, variant)| Change::Set(key, variant)),
        8 => (0..keys).prop_map(Change::Remove),
        1 => Just(Change::Clear),
        1 => Just(Change::Pause),
        2 => Just(Change::Resume),
        2 => (0..90_u64).prop_map(|seconds| Change::Shrink(seconds * 1_000_000_000)),
    ];
    proptest::collection::vec(change, 1..150)
}

/// What the database should say.
#[derive(Default)]
struct Naive {
    entries: HashMap<u32, FdbEntry>,
    is_paused: bool,
    left_out: u64,
    now_ns: u64,
}

impl Naive {
    fn apply(&mut self, change: &Change, fdb: &Fdb) {
        let mut writer = fdb.lock();
        match *change {
            Change::Set(number, variant) => {
                let entry = entry(number, variant);
                match writer.set(key(number), entry, 5) {
                    Ok(()) => _ = self.entries.insert(number, entry),
                    Err(FdbFull) => {
                        self.left_out += 1;
                        assert!(!self.entries.contains_key(&number), "its slot is there");
                        assert!(self.entries.len() >= WAYS, "there is room");
                    }
                }
            }
            Change::Remove(number) => {
                assert_eq!(writer.remove(key(number)), self.entries.remove(&number).is_some());
            }
            Change::Clear => {
                writer.clear();
                self.entries.clear();
            }
            Change::Pause => {
                writer.pause();
                self.is_paused = true;
            }
            Change::Resume => {
                writer.resume();
                self.is_paused = false;
            }
            Change::Shrink(by_ns) => {
                self.now_ns += by_ns;
                writer.shrink(self.now_ns);
            }
        }
        assert_eq!((writer.len(), writer.left_out()), (self.entries.len(), self.left_out));
    }

    fn check(&self, fdb: &Fdb, keys: u32) {
        for number in 0..keys {
            let expected = self.entries.get(&number).copied();
            assert_eq!(fdb.lock().get(key(number)), expected);
            assert_eq!(found(fdb, key(number)), expected.filter(|_| !self.is_paused));
        }
        check_memory(fdb);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn it_says_what_a_map_says(
        (small, large) in proptest::sample::select(vec![(1, 1), (1, 2), (2, 2), (2, 8), (4, 2), (8, 32)]),
        seed: u64,
        (keys, changes) in (4..60_u32).prop_flat_map(|keys| (Just(keys), changes(keys))),
    ) {
        let (fdb, mut naive) = (with_sizes(small, large, seed), Naive::default());
        for change in &changes {
            naive.apply(change, &fdb);
            naive.check(&fdb, keys);
        }
    }
}
