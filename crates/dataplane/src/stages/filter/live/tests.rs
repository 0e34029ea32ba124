//! Live sets compared with an ordered list, and during lookups.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use super::*;
use crate::burst::BURST;
use crate::testkit::dice::Dice;

fn set(version: u8, epochs: &Arc<Epochs>) -> LiveSet {
    LiveSet::new("inet t bad", version, epochs, &tries(epochs)).unwrap()
}

/// The results of the burst's lookups and of the single one, which are equal if nothing changes.
fn look_up(set: &LiveSet, addresses: &[u128]) -> Vec<bool> {
    let (mut value, mut place) = ([7; BURST], [9; BURST]);
    let mut all = Vec::new();
    for some in addresses.chunks(BURST) {
        if set.version() == 4 {
            for (value, address) in value.iter_mut().zip(some) {
                *value = *address as u32;
            }
            set.look_up4(&mut value, &mut place, 0..some.len());
        } else {
            set.look_up6(|lane| some[lane], &mut value, &mut place, 0..some.len());
        }
        all.extend(value[..some.len()].iter().map(|member| *member == 1));
    }
    all
}

/// An element drawn from few addresses, so that elements overlap, at both ends and in both halves
/// of the address space.
fn element(dice: &mut Dice, bits: u32) -> Element {
    let max = below(bits);
    let base = dice.pick(&[0, max - 0x3ff, 0x0a00_0000, max >> 64 << 64, 1 << (bits / 2)]) & max;
    let first = (base + dice.below(0x400) as u128).min(max);
    match dice.below(4) {
        0 => {
            let open = below(dice.below(bits as usize / 4) as u32);
            (first & !open, first | open)
        }
        1 => (first, first.saturating_add(dice.below(300) as u128).min(max)),
        _ => (first, first),
    }
}

fn changes_are_as_in_a_list(version: u8, seed: u64) {
    let mut dice = Dice(seed);
    let epochs = Epochs::new();
    let reader = epochs.join();
    let set = set(version, &epochs);
    let bits = set.bits();
    let mut oracle: BTreeSet<Element> = BTreeSet::new();
    let (sets, mut root) = (sets(&epochs, 1 << 14), None);
    for step in 0..6000 {
        if step == 1500 {
            root = set.root_in(&sets);
            assert!(root.is_some());
        }
        let some: Vec<_> = (0..1 + dice.below(3)).map(|_| element(&mut dice, bits)).collect();
        // More elements come than go for a while, then the other way round.
        let adds = dice.below(3) < if step / 1000 % 2 == 0 { 2 } else { 1 };
        if adds {
            let new = some.iter().filter(|one| oracle.insert(**one)).count();
            assert_eq!(set.add(&some), Ok(new), "step {step}");
        } else {
            let some: Vec<_> = match oracle.range(some[0]..).next() {
                Some(one) if dice.below(4) > 0 => vec![*one],
                _ => some,
            };
            let missing = some.iter().position(|one| !oracle.remove(one));
            let expected = missing.map_or(Ok(some.len()), |at| Err(LiveSetError::Missing(at)));
            assert_eq!(set.remove(&some), expected, "step {step}");
        }
        if dice.below(8) == 0 {
            reader.pass();
        }
        if step % 50 == 0 {
            assert_eq!(set.count(), oracle.len());
            assert_eq!(set.elements(), oracle.iter().copied().collect::<Vec<_>>());
            let near = |dice: &mut Dice| {
                let (first, last) = element(dice, bits);
                dice.pick(&[first, last, last.wrapping_add(1) & below(bits)])
            };
            let addresses: Vec<_> = (0..150).map(|_| near(&mut dice)).collect();
            let is_in = |address: u128| oracle.iter().any(|(a, b)| *a <= address && address <= *b);
            for (address, found) in addresses.iter().zip(look_up(&set, &addresses)) {
                assert_eq!(found, is_in(*address), "step {step}: {address:#x}");
                assert_eq!(set.covers(*address), found);
                if let Some(root) = root {
                    let members = sets.fib.lookup(root, address << (128 - bits));
                    assert_eq!(members.0 > 0, found, "step {step}: {address:#x}");
                }
            }
        }
    }
    for one in &oracle {
        assert_eq!(set.remove(&[*one]), Ok(1));
    }
    assert_eq!((set.count(), set.has_prefixes(), set.elements()), (0, false, Vec::new()));
    assert!(sets.fib.is_empty() && sets.losses() == 0);
}

/// Room for sets in a FIB with so many nodes.
fn sets(epochs: &Arc<Epochs>, nodes: usize) -> Arc<EngineSets> {
    let capacity = Capacity { roots: 4, nodes, values: 300 * nodes };
    EngineSets::over(Fib::new(Arc::clone(epochs), capacity))
}

#[test]
fn programs_find_no_members_when_there_is_no_room() {
    let epochs = Epochs::new();
    let reader = epochs.join();
    let sets = sets(&epochs, 1 << 10);
    let single = |number: u128| (number << 16 | 1, number << 16 | 1);
    let many = |count| (1..=count).map(single).collect::<Vec<_>>();
    let key = single(900).0 << 96;
    let other = set(4, &epochs);
    other.add(&many(10)).unwrap();
    let root_of_other = other.root_in(&sets);
    assert!(root_of_other.is_some());
    // Each takes most of the memory, and gives it back.
    for round in 0..20 {
        let set = set(4, &epochs);
        set.add(&many(900)).unwrap();
        let root = set.root_in(&sets).expect("room");
        assert_eq!(sets.fib.lookup(root, key), NextHopId(1), "round {round}");
        set.add(&many(2000)).unwrap();
        assert!(sets.losses() == round + 1 && set.covers(single(2000).0));
        assert_eq!((set.root_in(&sets), sets.fib.len()), (None, 10));
        let gone: Vec<_> = (901..=2000).map(single).collect();
        assert_eq!((set.remove(&gone), set.may_return()), (Ok(1100), false));
        reader.pass();
        assert!(set.may_return(), "no reader has the memory any more");
        let returned = set.root_in(&sets).expect("room");
        assert_ne!(returned, root, "readers may still look there");
        assert_eq!(sets.fib.lookup(returned, key), NextHopId(1));
        drop(set);
        // A successor has no room before the readers have passed.
        let late = self::set(4, &epochs);
        late.add(&many(900)).unwrap();
        assert_eq!((late.root_in(&sets), late.may_return()), (None, false));
        reader.pass();
        assert!(late.may_return() && late.root_in(&sets).is_some());
        drop(late);
        reader.pass();
        assert_eq!(other.root_in(&sets), root_of_other, "another set keeps its room");
        assert_eq!((other.add(&many(11)), other.remove(&[single(11)])), (Ok(1), Ok(1)));
        reader.pass();
    }
    // A set that has lost its room to another returns when it is empty.
    let (lost, large) = (set(4, &epochs), set(4, &epochs));
    lost.add(&many(300)).unwrap();
    assert!(lost.root_in(&sets).is_some());
    lost.add(&many(2000)).unwrap();
    reader.pass();
    large.add(&many(900)).unwrap();
    assert!(large.root_in(&sets).is_some() && !lost.may_return());
    lost.remove(&many(2000)).unwrap();
    assert!(lost.may_return() && lost.root_in(&sets).is_some());
    drop((lost, large));
    reader.pass();
    // Too large at first, and then no more.
    let large = set(4, &epochs);
    large.add(&many(3000)).unwrap();
    assert_eq!((large.root_in(&sets), large.may_return()), (None, false));
    large.remove(&many(2500)).unwrap();
    assert!(large.may_return() && large.root_in(&sets).is_some());
    drop(large);
    let elsewhere = self::sets(&epochs, 1 << 10);
    assert_eq!((other.root_in(&elsewhere), sets.fib.len()), (None, 10));
}

#[test]
fn ipv4_changes_are_as_in_a_list() {
    (1..=6).for_each(|seed| changes_are_as_in_a_list(4, seed));
}

#[test]
fn ipv6_changes_are_as_in_a_list() {
    (1..=6).for_each(|seed| changes_are_as_in_a_list(6, seed));
}

#[test]
fn crowded_tables_find_what_is_there() {
    for version in [4, 6] {
        let epochs = Epochs::new();
        let set = set(version, &epochs);
        let mut dice = Dice(77);
        // No two are the same.
        let mut known = BTreeSet::new();
        let mut one = |dice: &mut Dice| loop {
            let address = dice.wide() & below(set.bits()) | 1 << (set.bits() - 1);
            if known.insert(address) {
                return address;
            }
        };
        let mut there: Vec<_> = (0..20_000).map(|_| one(&mut dice)).collect();
        let elements: Vec<_> = there.iter().map(|one| (*one, *one)).collect();
        set.add(&elements).unwrap();
        // As many come as go, so that every bucket is full at one time or another.
        for _ in 0..200_000 {
            let at = dice.below(there.len());
            let new = one(&mut dice);
            set.remove(&[(there[at], there[at])]).unwrap();
            set.add(&[(new, new)]).unwrap();
            there[at] = new;
        }
        assert!(look_up(&set, &there).into_iter().all(|found| found));
        let others: Vec<_> = (0..20_000).map(|_| one(&mut dice)).collect();
        let found = look_up(&set, &others).into_iter().filter(|found| *found).count();
        assert_eq!(found, 0, "others in IPv{version}");
        let size = set.memory_bytes();
        assert!(size < 20_000 * 128, "{size} bytes for IPv{version}");
    }
}

#[test]
fn refused_changes_leave_the_set_unchanged() {
    let epochs = Epochs::new();
    let set = set(4, &epochs);
    assert_eq!(set.add(&[(1, 1), (5, 2), (3, 3)]), Err(LiveSetError::NotARange(1)));
    assert_eq!(set.add(&[(1, 1), (0, 1 << 32)]), Err(LiveSetError::NotARange(1)));
    assert_eq!(set.remove(&[(1, 1), (1, 1)]), Err(LiveSetError::Missing(1)));
    assert_eq!(set.elements(), []);
    // A part of an element is not an element.
    set.add(&[(8, 15), (16, 18)]).unwrap();
    assert_eq!(set.remove(&[(16, 17)]), Err(LiveSetError::Missing(0)));
    assert_eq!(set.remove(&[(8, 8)]), Err(LiveSetError::Missing(0)));
    assert!(set.covers(17) && set.covers(8) && !set.covers(19));
}

#[test]
fn changes_are_counted_and_not_one_by_one() {
    let epochs = Epochs::new();
    let set = set(4, &epochs);
    let elements: Vec<_> = (0..100_000).map(|one| (one * 3, one * 3)).collect();
    let mut versions = Vec::new();
    let mut note = || versions.push(epochs.changes.version());
    note();
    set.add(&elements[..1]).unwrap();
    note();
    set.add(&[(1000, 2000), (1 << 20, (1 << 24) - 7)]).unwrap();
    note();
    set.remove(&elements[..1]).unwrap();
    note();
    assert!(versions.windows(2).all(|pair| pair[0] != pair[1]), "{versions:?}");
    let before = epochs.changes.version();
    assert_eq!(set.add(&[(1000, 2000)]), Ok(0));
    assert_eq!(before, epochs.changes.version(), "nothing changed");
    // 100,000 changes are some hundred for a reader of the version.
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let (mut last, mut seen) = (before, 0);
            loop {
                let is_over = stop.load(Acquire);
                let now = epochs.changes.version();
                seen += usize::from(now != last);
                last = now;
                if is_over {
                    return seen;
                }
            }
        });
        set.add(&elements).unwrap();
        stop.store(true, Release);
        watch.join().unwrap()
    });
    assert!((1..=elements.len() / NOTE_EVERY + 1).contains(&seen), "{seen}");
}

#[test]
fn a_million_addresses_take_less_than_64_mb() {
    for version in [4, 6] {
        let epochs = Epochs::new();
        let fib = tries(&epochs);
        let set = LiveSet::new("s", version, &epochs, &fib).unwrap();
        let mut dice = Dice(5);
        let one = |dice: &mut Dice| dice.wide() & below(set.bits()) | 1 << (set.bits() - 1);
        let elements: Vec<_> = (0..1_000_000).map(|_| one(&mut dice)).map(|a| (a, a)).collect();
        let start = Instant::now();
        let new = set.fill(&elements).unwrap();
        eprintln!("IPv{version}: {new} put in after {:?}", start.elapsed());
        let bytes = set.memory_bytes() + fib.memory_bytes();
        assert!(bytes < 64 << 20, "{bytes} bytes for IPv{version}");
        assert_eq!(set.count(), new);
    }
}

/// Some addresses stay, some never come, and others come and go: only for the last may a lookup return
/// either result.
fn changes_while_read(version: u8) {
    const PAIRS: usize = 4000;
    let epochs = Epochs::new();
    let set = set(version, &epochs);
    let mut dice = Dice(8);
    // The same halves in different pairs: a torn read would return another address.
    let halves: Vec<u64> = (0..64).map(|_| dice.roll() | 1 << 63).collect();
    let mut known = BTreeSet::new();
    let mut draw = |dice: &mut Dice| loop {
        let wide = match version {
            4 => u128::from(dice.roll() as u32 | 1 << 31),
            _ => u128::from(dice.pick(&halves)) << 64 | u128::from(dice.pick(&halves)),
        };
        if known.insert(wide) {
            return wide;
        }
    };
    let [stay, never] = [0; 2].map(|_| (0..1000).map(|_| draw(&mut dice)).collect::<Vec<_>>());
    let flapping: Vec<_> =
        (0..if version == 4 { PAIRS } else { 1000 }).map(|_| draw(&mut dice)).collect();
    let single = |addresses: &[u128]| addresses.iter().map(|a| (*a, *a)).collect::<Vec<_>>();
    set.add(&single(&stay)).unwrap();
    // A range that comes and goes over addresses that stay, and one below all of them that is never
    // looked up.
    let (low, wide) = ((3, 9), (stay[0] & !0xff, stay[0] | 0xff));
    let stop = AtomicBool::new(false);
    let lookups = AtomicU64::new(0);
    let changes = std::thread::scope(|scope| {
        for seed in 0..2 {
            let (set, stop, lookups, epochs) = (&set, &stop, &lookups, &epochs);
            let (stay, never, flapping) = (&stay, &never, &flapping);
            scope.spawn(move || {
                let _stop = StopAtEnd(stop);
                let (reader, mut dice) = (epochs.join(), Dice(100 + seed));
                while !stop.load(Relaxed) {
                    let mut some: Vec<_> = Vec::new();
                    for _ in 0..BURST / 4 {
                        some.extend([dice.pick(stay), dice.pick(never)]);
                        some.extend([dice.pick(flapping), dice.pick(stay)]);
                    }
                    for (lane, found) in look_up(set, &some).into_iter().enumerate() {
                        let address = some[lane];
                        let may = wide.0 <= address && address <= wide.1;
                        match lane % 4 {
                            0 | 3 => assert!(found, "{address:#x} stays"),
                            1 => assert!(!found || may, "{address:#x} never comes"),
                            _ => {}
                        }
                    }
                    lookups.fetch_add(BURST as u64, Relaxed);
                    reader.pass();
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        let (mut up, mut changes) = (BTreeSet::new(), 0_usize);
        let begun = Instant::now();
        while changes < 400_000 && begun.elapsed() < Duration::from_secs(10) && !stop.load(Relaxed)
        {
            let address = match dice.below(200) {
                0 => low,
                1 => wide,
                _ => {
                    let one = dice.pick(&flapping);
                    (one, one)
                }
            };
            let done = match up.remove(&address) {
                true => set.remove(&[address]),
                false => {
                    up.insert(address);
                    set.add(&[address])
                }
            };
            assert_eq!(done, Ok(1));
            changes += 1;
        }
        let there: Vec<_> = up.iter().copied().collect();
        let mut expected = single(&stay);
        expected.extend(there);
        expected.sort_unstable();
        assert_eq!(set.elements(), expected);
        changes
    });
    eprintln!("IPv{version}: {changes} changes, {} lookups meanwhile", lookups.into_inner());
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn ipv4_changes_while_it_is_read() {
    changes_while_read(4);
}

#[test]
fn ipv6_changes_while_it_is_read() {
    changes_while_read(6);
}
