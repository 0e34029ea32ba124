//! The slots of one family's table, in memory that the programs share (`struct connection` of `bpf/connections.h`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use super::entry::{Connection, Head, KERNEL, Treatment};
use super::key::{ConnectionKey, Family};
use super::sizes::small_buckets;
use super::tracks::Track;
use super::translation::{MOST_TRANSLATION, Translation};
use crate::flows::{KEPT_TICKS, MOST_KEY, PACKETS, Seeds, TICK_AT, WAYS};
use crate::shared::Shared;
use tollway_dataplane::clock::tick_of;

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
    /// Buckets of the large table.
    buckets: u32,
    /// The buckets in use.
    used: AtomicU64,
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
    /// Maps the memory of a family's map, whose large table has so many buckets. The map is fresh: the small table
    /// is in use, if there is one.
    pub(super) fn map(
        map: &OwnedFd,
        buckets: u32,
        seeds: Seeds,
        family: Family,
    ) -> io::Result<Self> {
        let small = small_buckets(buckets);
        let all = (buckets + small) as usize;
        let words = Shared::map(map.as_fd(), all * WAYS * family.slot_words())?;
        let (count, first) = if small == 0 { (buckets, 0) } else { (small, buckets) };
        let used = AtomicU64::new(buckets_word(count, first));
        Ok(Self { words, seeds, buckets, used, family })
    }

    /// The number of slots of the large table, a power of two.
    pub(super) fn len(&self) -> usize {
        self.buckets as usize * WAYS
    }

    /// The number of slots of both tables.
    pub(super) fn all_len(&self) -> usize {
        self.words.len() / self.family.slot_words()
    }

    /// The buckets in use, as the programs read them.
    pub(super) fn used_word(&self) -> u64 {
        self.used.load(Acquire)
    }

    /// The first slot in use, and their number.
    pub(super) fn used(&self) -> (usize, usize) {
        let (mask, first) = parts(self.used_word());
        (first as usize * WAYS, (mask as usize + 1) * WAYS)
    }

    /// Whether the small table is in use.
    pub(super) fn may_grow(&self) -> bool {
        self.used().0 != 0
    }

    /// Copies all entries to the large table, which is in use then; `tell` makes the programs use it. Returns the slots that
    /// have got entries. What a program has done to an original until it is closed becomes of the copy; who found it before
    /// and ends it later ends nothing, and another packet asks the kernel about the copy soon.
    pub(super) fn grow(&self, tell: impl FnOnce()) -> Vec<usize> {
        let (first, count) = self.used();
        let moved: Vec<_> = (first..first + count).filter_map(|slot| self.copy_up(slot)).collect();
        self.used.store(buckets_word(self.buckets, 0), Release);
        tell();
        for (from, to, head) in &moved {
            let original = self.slot(*from);
            if !original.replaces_head(*head, head.closed()) {
                self.slot(*to).replaces_head(*head, original.head());
            }
        }
        moved.into_iter().map(|(_, to, _)| to).collect()
    }

    /// Copies what takes a slot to the large table, if anything does. Returns both slots, and the head.
    fn copy_up(&self, from: usize) -> Option<(usize, usize, Head)> {
        /// A program may end the entry once, or void it.
        const TRIES: usize = 3;
        let slot = self.slot(from);
        let mut key = [0; MOST_KEY];
        key.iter_mut().zip(slot.key).for_each(|(to, word)| *to = word.load(Relaxed));
        (0..TRIES).find_map(|_| {
            let head = slot.head();
            Treatment::of(head)?;
            let to = self
                .ways_in(&key, buckets_word(self.buckets, 0))
                .find(|to| self.slot(*to).head().word() == 0)?;
            self.slot(to).copy(slot, head).then_some((from, to, head))
        })
    }

    pub(super) fn slot(&self, index: usize) -> Slot<'_> {
        let words = self.family.slot_words();
        let slot = &self.words[index * words..(index + 1) * words];
        let (key, rest) = slot.split_at(self.family.key_words());
        Slot { family: self.family, key, rest }
    }

    /// All slots in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = Slot<'_>> {
        let (first, count) = self.used();
        (first..first + count).map(|index| self.slot(index))
    }

    /// The slots of a key's bucket, in the order of search.
    pub(super) fn ways(&self, key: &[u64; MOST_KEY]) -> impl Iterator<Item = usize> {
        self.ways_in(key, self.used_word())
    }

    /// The same while these buckets are in use.
    fn ways_in(&self, key: &[u64; MOST_KEY], used: u64) -> impl Iterator<Item = usize> {
        let hash = self.seeds.hash(&key[..self.family.key_words()]);
        let (mask, first) = parts(used);
        let bucket = ((hash >> 32) as u32 & mask) as usize + first as usize;
        (0..WAYS).map(move |way| bucket * WAYS + ((hash >> 60) as usize + way) % WAYS)
    }

    /// The slot with a key.
    pub(super) fn find(&self, key: &[u64; MOST_KEY]) -> Option<Slot<'_>> {
        self.ways(key).map(|way| self.slot(way)).find(|slot| slot.has_key(key))
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
        for slot in self.ways(key).map(|way| self.slot(way)) {
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
        let tick = tick_of(now_ns) as u16;
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
        self.replaces_head(head, head.ended());
    }

    /// Gives the slot another head, unless it has changed since it had this one.
    fn replaces_head(&self, head: Head, next: Head) -> bool {
        self.rest[HEAD].compare_exchange(head.word(), next.word(), Release, Relaxed).is_ok()
    }

    /// Makes an unused slot a copy of one with this head. Returns false if that has another one by now.
    fn copy(&self, from: Slot<'_>, head: Head) -> bool {
        let words = self.key.iter().chain(&self.rest[HEAD + 1..]);
        for (to, word) in words.zip(from.key.iter().chain(&from.rest[HEAD + 1..])) {
            to.store(word.load(Relaxed), Relaxed);
        }
        fence(Acquire);
        let is_same = from.rest[HEAD].load(Relaxed) == head.word();
        if is_same {
            self.rest[HEAD].store(head.word(), Release);
        } else {
            // It was never used, as before.
            self.key.iter().for_each(|word| word.store(0, Relaxed));
        }
        is_same
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

/// The buckets in use, of which there are so many, a power of two.
fn buckets_word(count: u32, first: u32) -> u64 {
    u64::from(first) << 32 | u64::from(count - 1)
}

/// The number of buckets in use, minus one, and the first one.
const fn parts(used: u64) -> (u32, u32) {
    (used as u32, (used >> 32) as u32)
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
mod tests;
