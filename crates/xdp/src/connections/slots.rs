//! The slots of one family's table, in memory that the programs share (`struct connection` of `bpf/connections.h`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use super::entry::{Connection, Head, KERNEL, Treatment};
use super::key::{ConnectionKey, Family};
use super::tracks::Track;
use super::translation::{MOST_TRANSLATION, Translation};
use crate::flows::{KEPT_TICKS, MOST_KEY, PACKETS, Seeds, TICK_AT, TICK_SHIFT, WAYS};
use crate::shared::Shared;

/// The place of each word behind the key: head, next hop or mark, use, bytes, and how packets leave.
const HEAD: usize = 0;
const ROUTE: usize = 1;
const USED: usize = 2;
const BYTES: usize = 3;
const LEAVES: usize = 4;
/// Words of `struct leaves6`, the longer one.
const MOST_LEAVES: usize = MOST_TRANSLATION + 1;
/// In the lower half of the word at [`ROUTE`]: the program has noted no next hop, and the upper half is the mark.
const NO_ROUTE: u32 = 1 << 31;
/// So many ticks ago, nobody has asked the kernel.
const UNASKED: u16 = 1 << 10;
/// A slot whose entry is not active takes a new one before all that are, whatever their ticks without a packet are.
const INACTIVE: u16 = 3 << 14;
/// Nanoseconds of the unit of `retry`, as a power of two.
const RETRY_SHIFT: u32 = 20;

/// All slots of a family.
pub(super) struct Slots {
    words: Shared<AtomicU64>,
    seeds: Seeds,
    mask: usize,
    family: Family,
}

/// A place for an entry.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    family: Family,
    key: &'a [AtomicU64],
    rest: &'a [AtomicU64],
}

/// What takes a slot: a key, an entry, and its packets and bytes.
pub(super) type Taken = (ConnectionKey, Connection, [u64; 2]);

impl Slots {
    /// Maps the memory of a family's map, which has so many buckets.
    pub(super) fn map(
        map: &OwnedFd,
        buckets: u32,
        seeds: Seeds,
        family: Family,
    ) -> io::Result<Self> {
        let words = Shared::map(map.as_fd(), buckets as usize * WAYS * family.slot_words())?;
        Ok(Self { words, seeds, mask: buckets as usize - 1, family })
    }

    /// The number of slots, a power of two.
    pub(super) fn len(&self) -> usize {
        self.words.len() / self.family.slot_words()
    }

    pub(super) fn slot(&self, index: usize) -> Slot<'_> {
        let words = self.family.slot_words();
        let slot = &self.words[index * words..(index + 1) * words];
        let (key, rest) = slot.split_at(self.family.key_words());
        Slot { family: self.family, key, rest }
    }

    /// All slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = Slot<'_>> {
        (0..self.len()).map(|index| self.slot(index))
    }

    /// A key's bucket, and the way that the search begins with.
    pub(super) fn bucket(&self, key: &[u64; MOST_KEY]) -> (usize, usize) {
        let hash = self.seeds.hash(&key[..self.family.key_words()]);
        ((hash >> 32) as usize & self.mask, (hash >> 60) as usize)
    }

    /// The slots of a key's bucket, in the order of search.
    fn ways(&self, key: &[u64; MOST_KEY]) -> impl Iterator<Item = Slot<'_>> {
        let (bucket, first) = self.bucket(key);
        (0..WAYS).map(move |way| self.slot(bucket * WAYS + (first + way) % WAYS))
    }

    /// The slot with a key.
    pub(super) fn find(&self, key: &[u64; MOST_KEY]) -> Option<Slot<'_>> {
        self.ways(key).find(|slot| slot.has_key(key))
    }

    /// The slot with a key, or else one whose entry is not active, or was not used for the longest time. What the kernel
    /// forwards (`is_kernels`) gives way to what it does not.
    pub(super) fn place(
        &self,
        key: &[u64; MOST_KEY],
        (generation, tick): (u32, u16),
        is_kernels: bool,
    ) -> Option<Slot<'_>> {
        let (mut longest, mut best) = (KEPT_TICKS, None);
        for slot in self.ways(key) {
            let head = slot.head();
            if slot.has_key(key) && head.word() != 0 {
                return Some(slot);
            }
            let idle = slot.idle(tick);
            let rank = if head.word() == 0 {
                u16::MAX
            } else if head.generation != generation {
                // What it has counted may be of a connection that the kernel still has.
                INACTIVE + idle / 4
            } else if head.kind == KERNEL && !is_kernels {
                idle.saturating_add(KEPT_TICKS + 1).min(INACTIVE - 1)
            } else {
                idle.min(INACTIVE - 1)
            };
            if rank > longest {
                (longest, best) = (rank, Some(slot));
            }
            // The search for an entry ends at a slot that was never used.
            if head.word() == 0 {
                break;
            }
        }
        best
    }
}

impl Slot<'_> {
    fn head(&self) -> Head {
        Head::of(self.rest[HEAD].load(Acquire))
    }

    fn has_key(&self, key: &[u64; MOST_KEY]) -> bool {
        self.key.iter().zip(key).all(|(word, own)| word.load(Relaxed) == *own)
    }

    /// What takes the slot; none if nothing does, or it is changed meanwhile.
    pub(super) fn read(&self) -> Option<Taken> {
        self.read_last().filter(|(_, connection, _)| connection.generation != 0)
    }

    /// What has taken the slot last, with generation 0 if it has ended; none if nothing has, or it is changed meanwhile.
    pub(super) fn read_last(&self) -> Option<Taken> {
        let head = self.head();
        let copy = |words: &[AtomicU64], at: usize| {
            words.get(at).map_or(0, |word: &AtomicU64| word.load(Relaxed))
        };
        let key: [u64; MOST_KEY] = std::array::from_fn(|at| copy(self.key, at));
        let leaves = self.leaves();
        let [route, used, bytes] = [ROUTE, USED, BYTES].map(|at| copy(self.rest, at));
        fence(Acquire);
        let is_same = self.rest[HEAD].load(Relaxed) == head.word();
        let treatment = Treatment::of(head).filter(|_| is_same)?;
        let key = self.family.key(key);
        let [entry, mark] = unpack(route);
        let (translation, track) = split_leaves(self.family, leaves);
        let connection = Connection {
            generation: head.generation,
            treatment,
            translation: Translation::of(self.family, translation),
            mark: if entry & NO_ROUTE != 0 { mark } else { 0 },
            track: has_track(&key, treatment).then(|| Track::of_word(track)),
        };
        Some((key, connection, [used & PACKETS, bytes & PACKETS]))
    }

    /// Gives the slot to an entry, with the words of its translation.
    pub(super) fn write(
        &self,
        key: &[u64; MOST_KEY],
        connection: &Connection,
        translation: [u64; MOST_TRANSLATION],
        now_ns: u64,
    ) {
        let tick = (now_ns >> TICK_SHIFT) as u16;
        let head = self.head();
        let (goes_on, closed) = (self.goes_on(key, head, connection), head.closed());
        let rest = self.rest;
        rest[HEAD].store(closed.word(), Relaxed);
        fence(Release);
        store(self.key, key);
        let leaves = join_leaves(self.family, translation, last_word(connection, now_ns));
        store(&rest[LEAVES..], &leaves);
        // A program that has read the slot before notes no next hop in what takes it now: the number is another one.
        let number = u32::from(closed.version) << 23 | (now_ns >> RETRY_SHIFT) as u32 & 0x7f_ffff;
        rest[ROUTE].store(pack(NO_ROUTE | number, connection.mark), Relaxed);
        if !goes_on {
            rest[BYTES].store(0, Relaxed);
            rest[USED].store(0, Relaxed);
        }
        let [packets, bytes] = [USED, BYTES].map(|at: usize| rest[at].load(Relaxed) & PACKETS);
        // The next packet makes the program ask the kernel.
        let asked = u64::from(tick.wrapping_sub(UNASKED)) << TICK_AT;
        rest[BYTES].store(bytes | asked, Relaxed);
        rest[USED].store(packets | u64::from(tick) << TICK_AT, Relaxed);
        let head = connection.treatment.head(connection.generation, closed.version);
        rest[HEAD].store(head.word(), Release);
    }

    /// Says whether an entry with this key is of the connection that has the slot, whose packets count further. That of TCP
    /// is another one if it has another track; a program forgets the counts with a SYN. That of UDP is, if the last one ended.
    fn goes_on(&self, key: &[u64; MOST_KEY], head: Head, connection: &Connection) -> bool {
        if head.word() == 0 || !self.has_key(key) {
            return false;
        }
        let last = Treatment::of(head);
        if last.is_some_and(Treatment::is_untracked) != connection.treatment.is_untracked() {
            return false;
        }
        let key = self.family.key(*key);
        match connection.track {
            Some((track, is_reply)) if last.is_some_and(|last| has_track(&key, last)) => {
                split_leaves(self.family, self.leaves()).1 == track.word(is_reply)
            }
            _ => i32::from(key.protocol()) == libc::IPPROTO_TCP || head.generation != 0,
        }
    }

    /// How packets leave, and the track or the time when to ask again.
    fn leaves(&self) -> [u64; MOST_LEAVES] {
        std::array::from_fn(|at| self.rest.get(LEAVES + at).map_or(0, |word| word.load(Relaxed)))
    }

    /// The ticks since the last packet; they start over after 73 minutes.
    pub(super) fn idle(&self, tick: u16) -> u16 {
        tick.wrapping_sub((self.rest[USED].load(Relaxed) >> TICK_AT) as u16)
    }

    /// Ends the entry, as the programs do.
    pub(super) fn end(&self) {
        let head = self.head();
        let ended = head.ended().word();
        let _ = self.rest[HEAD].compare_exchange(head.word(), ended, Release, Relaxed);
    }
}

/// Stores as many words as there is room for.
fn store(to: &[AtomicU64], words: &[u64]) {
    to.iter().zip(words).for_each(|(place, word)| place.store(*word, Relaxed));
}

/// Says whether entries of a key have a track in the place of the time when to ask again.
fn has_track(key: &ConnectionKey, treatment: Treatment) -> bool {
    i32::from(key.protocol()) == libc::IPPROTO_TCP && treatment.has_track()
}

/// The track, or the time when to ask again.
fn last_word(connection: &Connection, now_ns: u64) -> u32 {
    if let Some((track, is_reply)) = connection.track {
        return track.word(is_reply);
    }
    let retry = match connection.treatment {
        Treatment::Kernel { retry, .. } | Treatment::Unruled { retry } => retry,
        _ => 0,
    };
    ((now_ns >> RETRY_SHIFT) as u32).wrapping_add(retry)
}

/// The translation and the last word in the places of `struct leaves4` and `struct leaves6`.
fn join_leaves(
    family: Family,
    translation: [u64; MOST_TRANSLATION],
    last: u32,
) -> [u64; MOST_LEAVES] {
    let [a, b, c, d, e] = translation;
    match family {
        Family::V4 => [a, pack(unpack(b)[0], last), 0, 0, 0, 0],
        Family::V6 => [a, b, c, d, e, pack(last, 0)],
    }
}

fn split_leaves(family: Family, leaves: [u64; MOST_LEAVES]) -> ([u64; MOST_TRANSLATION], u32) {
    let [a, b, c, d, e, f] = leaves;
    match family {
        Family::V4 => ([a, b, 0, 0, 0], unpack(b)[1]),
        Family::V6 => ([a, b, c, d, e], unpack(f)[0]),
    }
}

/// Two numbers as they lie one behind the other.
fn pack(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn unpack(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use tollway_dataplane::id::LinkId;

    use super::*;
    use crate::page::coarse_ns;
    use crate::testkit::dice::Dice;

    const BUCKETS: u32 = 4;

    /// Slots in memory of a file, as in that of a map.
    fn slots(family: Family) -> Slots {
        let path = std::env::temp_dir().join(format!("slots-{}-{family:?}", std::process::id()));
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(u64::from(BUCKETS) * (WAYS * family.slot_words() * 8) as u64).unwrap();
        Slots::map(&file.into(), BUCKETS, Seeds::random(), family).unwrap()
    }

    fn address(dice: &mut Dice, family: Family) -> (IpAddr, u16) {
        let number = u128::from(dice.roll()) << 64 | u128::from(dice.roll());
        let address = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from(number as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(number)),
        };
        (address, dice.roll() as u16)
    }

    fn enter(slots: &Slots, taken: &Taken) -> bool {
        let (key, connection, _) = taken;
        let now_ns = coarse_ns();
        let tick = (now_ns >> TICK_SHIFT) as u16;
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
                let ends: [_; 4] = std::array::from_fn(|_| address(&mut dice, family));
                let protocol = if number % 2 == 0 { 17 } else { 6 };
                let link = LinkId(dice.roll() as u16);
                let key = ConnectionKey::new(link, protocol, ends[0], ends[1]).unwrap();
                let connection = Connection {
                    generation: 7,
                    treatment: Treatment::Forwarded(LinkId(dice.roll() as u16)),
                    translation: Translation { source: ends[2], destination: ends[3] },
                    mark: dice.roll() as u32,
                    track: (protocol == 6).then(|| Track::of_word(dice.roll() as u32)),
                };
                let taken = (key, connection, [0; 2]);
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
}
