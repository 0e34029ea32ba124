//! Entries are found again, count on, and move.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::id::LinkId;

use super::*;
use crate::connections::sizes::SMALL_BUCKETS;
use crate::page::coarse_ns;
use crate::testkit::dice::Dice;

const BUCKETS: u32 = 4;

fn slots(family: Family) -> Slots {
    let slots = slots_of(family, BUCKETS);
    slots.grow(|| {});
    slots
}

/// Slots in memory of a file, as in that of a map.
fn slots_of(family: Family, buckets: u32) -> Slots {
    let path =
        std::env::temp_dir().join(format!("slots-{}-{family:?}-{buckets}", std::process::id()));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(path).unwrap();
    let all = u64::from(buckets + small_buckets(buckets));
    file.set_len(all * (WAYS * family.slot_words() * 8) as u64).unwrap();
    Slots::map(&file.into(), buckets, Seeds::random(), family).unwrap()
}

fn address(dice: &mut Dice, family: Family) -> (IpAddr, u16) {
    let number = u128::from(dice.roll()) << 64 | u128::from(dice.roll());
    let address = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(number as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    };
    (address, dice.roll() as u16)
}

fn forwarded(dice: &mut Dice, family: Family, protocol: u8) -> Taken {
    let ends: [_; 4] = std::array::from_fn(|_| address(dice, family));
    let link = LinkId(dice.roll() as u16);
    let key = ConnectionKey::new(link, protocol, ends[0], ends[1]).unwrap();
    let connection = Connection {
        generation: 7,
        treatment: Treatment::Forwarded(LinkId(dice.roll() as u16)),
        translation: Translation { source: ends[2], destination: ends[3] },
        mark: dice.roll() as u32,
        track: (protocol == 6).then(|| Track::of_word(dice.roll() as u32)),
    };
    (key, connection, [0; 2])
}

fn enter(slots: &Slots, taken: &Taken) -> bool {
    let (key, connection, _) = taken;
    let now_ns = coarse_ns();
    let tick = tick_of(now_ns) as u16;
    let place = slots.place(&key.words(), (connection.generation, tick), false);
    let words = connection.translation.words(key).unwrap();
    place.inspect(|slot| slot.write(&key.words(), connection, words, now_ns)).is_some()
}

#[test]
fn entries_of_both_families_are_found_again() {
    let mut dice = Dice(11);
    for family in [Family::V4, Family::V6] {
        let slots = slots(family);
        assert_eq!(slots.len(), BUCKETS as usize * WAYS);
        let mut entered = Vec::new();
        for number in 0..slots.len() as u32 {
            let taken = forwarded(&mut dice, family, if number % 2 == 0 { 17 } else { 6 });
            if enter(&slots, &taken) {
                entered.push(taken);
            }
        }
        assert!(entered.len() > slots.len() / 2, "{}", entered.len());
        for taken in &entered {
            let found = slots.find(&taken.0.words()).unwrap();
            assert_eq!(found.read(), Some(*taken));
        }
        let all: Vec<_> = slots.iter().filter_map(|slot| slot.read()).collect();
        assert_eq!(all.len(), entered.len());
        // The program notes a next hop in an entry without a mark, and in no other.
        let mut noted = entered[1];
        noted.1.mark = 0;
        assert!(enter(&slots, &noted));
        let slot = slots.find(&noted.0.words()).unwrap();
        let before = slot.rest[ROUTE].load(Relaxed);
        assert_ne!(unpack(before)[0] & NO_ROUTE, 0);
        slot.rest[ROUTE].store(pack(77, 1234), Relaxed);
        assert_eq!(slot.read(), Some(noted));
        assert!(enter(&slots, &noted));
        let after = slot.rest[ROUTE].load(Relaxed);
        assert!(unpack(after)[0] & NO_ROUTE != 0 && after != before, "another change");
        // One that ends makes room for another one with the same key.
        let mut taken = entered[0];
        slots.find(&taken.0.words()).unwrap().end();
        assert_eq!(slots.find(&taken.0.words()).unwrap().read(), None);
        taken.1.mark ^= 1;
        assert!(enter(&slots, &taken));
        assert_eq!(slots.find(&taken.0.words()).unwrap().read(), Some(taken));
        count_on(&slots, &entered);
    }
}

/// What an entry has counted belongs to its connection: of UDP until the entry ends, of TCP while it has the same track.
fn count_on(slots: &Slots, entered: &[Taken]) {
    let count = |taken: &Taken| {
        let slot = slots.find(&taken.0.words()).unwrap();
        slot.rest[USED].store(5, Relaxed);
        slot.rest[BYTES].store(500, Relaxed);
        slot
    };
    let counts = |taken: &Taken| slots.find(&taken.0.words()).unwrap().read_last().unwrap().2;
    let [udp, tcp] = [17, 6].map(|protocol| {
        let mut of = entered.iter().filter(|taken| taken.0.protocol() == protocol);
        *of.next().unwrap()
    });
    let kernels = |taken: &Taken| {
        let treatment = Treatment::Kernel { retry: 1, why: 2 };
        (taken.0, Connection { treatment, track: None, ..taken.1 }, taken.2)
    };
    for (taken, is_over) in [(udp, true), (tcp, false)] {
        // Void, as behind a change of rules.
        count(&taken);
        let mut next = taken;
        next.1.generation += 1;
        assert!(enter(slots, &next));
        assert_eq!(counts(&taken), [5, 500]);
        count(&taken).end();
        assert_eq!(counts(&taken), [5, 500], "it has ended, and shows what it has counted");
        assert!(enter(slots, &kernels(&taken)));
        assert_eq!(counts(&taken), if is_over { [0; 2] } else { [5, 500] });
        assert!(enter(slots, &taken));
    }
    count(&tcp).end();
    assert!(enter(slots, &tcp));
    assert_eq!(counts(&tcp), [5, 500], "the same track");
    let untracked = Treatment::Untracked(LinkId(1));
    let untracked = (udp.0, Connection { treatment: untracked, ..udp.1 }, udp.2);
    count(&udp);
    for next in [&untracked, &udp] {
        assert!(enter(slots, next));
        assert_eq!(counts(&udp), [0; 2], "packets of no connection");
        count(&udp);
    }
    let (track, is_reply) = tcp.1.track.unwrap();
    let mut other = tcp;
    other.1.track = Some(Track::of_word(track.word(is_reply) ^ 1));
    count(&tcp);
    assert!(enter(slots, &other));
    assert_eq!(counts(&tcp), [0; 2], "another one");
}

#[test]
fn a_small_table_that_grows_keeps_its_entries() {
    let mut dice = Dice(12);
    for family in [Family::V4, Family::V6] {
        let slots = slots_of(family, 4 * SMALL_BUCKETS);
        let mut entered = Vec::new();
        for number in 0..SMALL_BUCKETS * 8 {
            let taken = forwarded(&mut dice, family, if number % 2 == 0 { 17 } else { 6 });
            if enter(&slots, &taken) {
                entered.push(taken);
            }
        }
        assert!(slots.may_grow() && entered.len() > 900, "{}", entered.len());
        let (first, len) = slots.used();
        let (ended, open) = entered.split_at(1);
        let original = slots.find(&ended[0].0.words()).unwrap();
        let mut is_told = false;
        let moved = slots.grow(|| {
            is_told = true;
            // A program has found the original still.
            original.end();
        });
        assert!(is_told && !slots.may_grow());
        assert_eq!(moved.len(), entered.len());
        assert!(open.iter().all(|taken| {
            slots.find(&taken.0.words()).is_some_and(|slot| slot.read() == Some(*taken))
        }));
        assert_eq!(slots.find(&ended[0].0.words()).unwrap().read(), None, "so ends the copy");
        assert_eq!(slots.iter().filter(|slot| slot.read_last().is_some()).count(), moved.len());
        assert!(
            (first..first + len).all(|slot| slots.slot(slot).read().is_none()),
            "no original goes on"
        );
    }
}

#[test]
fn keys_of_two_families_are_none() {
    let [v4, v6] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([1_u16; 8])];
    assert_eq!(ConnectionKey::new(LinkId(1), 17, (v4, 1), (v6, 2)), None);
    let keys = [v4, v6].map(|ip| ConnectionKey::new(LinkId(1), 17, (ip, 1), (ip, 2)).unwrap());
    let translation = Translation { source: (v6, 1), destination: (v6, 2) };
    assert_eq!(translation.words(&keys[0]), None, "no packet of IPv4 leaves so");
    for key in keys {
        assert_eq!((key.source().1, key.destination().1), (1, 2));
        assert_eq!(key.family().key(key.words()), key);
        assert_eq!(key.on(LinkId(9)).link(), LinkId(9));
    }
}
