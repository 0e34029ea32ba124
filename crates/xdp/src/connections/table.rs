//! The table of connections.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use tollway_dataplane::id::LinkId;

use crate::flows::{Flow4Key, Seeds};
use crate::page::coarse_ns;
use crate::shared::Shared;

/// Slots of a bucket, `FLOW_WAYS` of bpf/flows.h.
const WAYS: usize = 16;
/// Words of a slot, a cache line: key, head, translation, mark, use, bytes, and when to ask again.
const WORDS: usize = 8;
/// The place of each behind the two of the key.
const HEAD: usize = 2;
const TRANSLATION: usize = 3;
const MARK_RETRY: usize = 5;
const USED: usize = 6;
const BYTES: usize = 7;
/// As in a flow's slot: the bits of `used` that count packets, and the unit of the tick above them.
const PACKETS: u64 = (1 << TICK_AT) - 1;
const TICK_AT: u32 = 48;
const TICK_SHIFT: u32 = 26;
/// So many ticks ago, nobody has asked the kernel.
const UNASKED: u16 = 1 << 10;
/// An entry that was used within this many ticks (2 s) stays.
const KEPT_TICKS: u16 = 30;
/// Nanoseconds of the unit of `retry`, as a power of two.
const RETRY_SHIFT: u32 = 20;

/// What becomes of the packets of a connection's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// They are the kernel's. After so many units of 1.05 ms, the program asks again.
    Kernel {
        /// The pause.
        retry: u32,
    },
    /// Their addresses are known, but not yet what the rules say: the program has to find the link that they leave by.
    /// Nobody asks about that before so many units of 1.05 ms.
    Unruled {
        /// The pause.
        retry: u32,
    },
    /// They are forwarded if they leave by this link.
    Forwarded(LinkId),
    /// They are dropped by rules if they would leave by this link.
    Dropped(LinkId),
}

/// The addresses and ports that packets leave with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The source.
    pub source: (Ipv4Addr, u16),
    /// The destination.
    pub destination: (Ipv4Addr, u16),
}

/// An entry for one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The generation of [`State`](crate::State) that it was made in, by which it is active.
    pub generation: u32,
    /// What becomes of its packets.
    pub treatment: Treatment,
    /// How they leave.
    pub translation: Translation,
    /// The connection's mark; another one makes the entry end.
    pub mark: u32,
}

/// The part of `kind` in a slot's head.
const KERNEL: u8 = 1;
const UNRULED: u8 = 2;
const FORWARDED: u8 = 3;
const DROPPED: u8 = 4;

/// A slot's first word behind the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    generation: u32,
    output: u16,
    kind: u8,
    version: u8,
}

impl Head {
    fn of(word: u64) -> Self {
        let [a, b, c, d, e, f, kind, version] = word.to_ne_bytes();
        Self {
            generation: u32::from_ne_bytes([a, b, c, d]),
            output: u16::from_ne_bytes([e, f]),
            kind,
            version,
        }
    }

    fn word(self) -> u64 {
        let ([a, b, c, d], [e, f]) = (self.generation.to_ne_bytes(), self.output.to_ne_bytes());
        u64::from_ne_bytes([a, b, c, d, e, f, self.kind, self.version])
    }

    /// The head while the slot changes: inactive, with the next version, and never that of an unused slot.
    fn closed(self) -> Self {
        let version = self.version.checked_add(1).unwrap_or(1);
        Self { generation: 0, output: 0, kind: 0, version }
    }
}

impl Treatment {
    fn head(self, generation: u32, version: u8) -> Head {
        let (kind, output) = match self {
            Self::Kernel { .. } => (KERNEL, LinkId(0)),
            Self::Unruled { .. } => (UNRULED, LinkId(0)),
            Self::Forwarded(output) => (FORWARDED, output),
            Self::Dropped(output) => (DROPPED, output),
        };
        Head { generation, output: output.0, kind, version }
    }

    fn of(head: Head) -> Option<Self> {
        let output = LinkId(head.output);
        Some(match head.kind {
            KERNEL => Self::Kernel { retry: 0 },
            UNRULED => Self::Unruled { retry: 0 },
            FORWARDED => Self::Forwarded(output),
            DROPPED => Self::Dropped(output),
            _ => return None,
        })
    }
}

impl Translation {
    /// The addresses and ports of a key: nothing changes.
    #[must_use]
    pub fn none(key: &Flow4Key) -> Self {
        let [source, destination] = [key.src_be, key.dst_be].map(Ipv4Addr::from);
        let [sport, dport] = [key.sport_be, key.dport_be].map(u16::from_be_bytes);
        Self { source: (source, sport), destination: (destination, dport) }
    }

    /// Words of `struct translation` of bpf/header.h, for packets with a key.
    fn words(&self, key: &Flow4Key) -> [u64; 2] {
        let before = Self::none(key);
        let addresses = [before, *self].map(|one| [one.source.0, one.destination.0]);
        let ports = [before, *self].map(|one| [one.source.1, one.destination.1]);
        let changes = *self != before;
        let address_sum =
            (0..2).filter(|at| addresses[0][*at] != addresses[1][*at]).fold(0, |sum, at| {
                let [old, new] = [addresses[0][at], addresses[1][at]].map(halves);
                [!old[0], !old[1], new[0], new[1]].into_iter().fold(sum, add)
            });
        let l4_sum = ports[0]
            .iter()
            .zip(ports[1])
            .fold(address_sum, |sum, (old, new)| add(add(sum, !old), new));
        // The sum is over words as they are in memory.
        let sums = [address_sum, l4_sum]
            .map(|sum| if changes { nonzero(sum).to_be_bytes() } else { [0; 2] });
        let [a, b] = self.source.1.to_be_bytes();
        let [c, d] = self.destination.1.to_be_bytes();
        let [[e, f], [g, h]] = sums;
        let [src, dst] = addresses[1].map(|address| address.octets());
        let [i, j, k, l] = src;
        let [m, n, o, p] = dst;
        [[i, j, k, l, m, n, o, p], [a, b, c, d, e, f, g, h]].map(u64::from_ne_bytes)
    }

    fn of(words: [u64; 2]) -> Self {
        let [[i, j, k, l, m, n, o, p], [a, b, c, d, ..]] = words.map(u64::to_ne_bytes);
        Self {
            source: (Ipv4Addr::new(i, j, k, l), u16::from_be_bytes([a, b])),
            destination: (Ipv4Addr::new(m, n, o, p), u16::from_be_bytes([c, d])),
        }
    }
}

fn halves(address: Ipv4Addr) -> [u16; 2] {
    let [a, b, c, d] = address.octets();
    [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
}

/// Adds in ones' complement (RFC 1071).
fn add(sum: u16, more: u16) -> u16 {
    let (sum, carry) = sum.overflowing_add(more);
    sum + u16::from(carry)
}

/// The other form of 0, which says that something changes.
fn nonzero(sum: u16) -> u16 {
    if sum == 0 { u16::MAX } else { sum }
}

/// The entries, for any thread to read; cheap to clone.
#[derive(Clone)]
pub struct Connections(Arc<Slots>);

struct Slots {
    words: Shared<AtomicU64>,
    seeds: Seeds,
    mask: usize,
}

impl Slots {
    /// The slots of a key's bucket, in the order of search.
    fn ways(&self, key: [u64; 2]) -> impl Iterator<Item = &[AtomicU64]> {
        let hash = self.seeds.hash(&key);
        let (bucket, first) = ((hash >> 32) as usize & self.mask, (hash >> 60) as usize);
        (0..WAYS).map(move |way| {
            let slot = bucket * WAYS + (first + way) % WAYS;
            &self.words[slot * WORDS..(slot + 1) * WORDS]
        })
    }
}

fn head_of(slot: &[AtomicU64]) -> Head {
    Head::of(slot[HEAD].load(Acquire))
}

fn key_of(slot: &[AtomicU64]) -> [u64; 2] {
    [0, 1].map(|at: usize| slot[at].load(Relaxed))
}

/// A slot's connection and the packets and bytes that took it; none if it has none, or is changed meanwhile.
fn read(slot: &[AtomicU64]) -> Option<(Flow4Key, Connection, [u64; 2])> {
    let head = head_of(slot);
    let words: [u64; WORDS] = std::array::from_fn(|at| slot[at].load(Relaxed));
    fence(Acquire);
    let is_same = slot[HEAD].load(Relaxed) == head.word();
    let treatment = Treatment::of(head).filter(|_| is_same && head.generation != 0)?;
    let connection = Connection {
        generation: head.generation,
        treatment,
        translation: Translation::of([words[TRANSLATION], words[TRANSLATION + 1]]),
        mark: words[MARK_RETRY] as u32,
    };
    let key = Flow4Key::of_bytes(&words[0].to_ne_bytes(), &words[1].to_ne_bytes());
    Some((key, connection, [words[USED] & PACKETS, words[BYTES] & PACKETS]))
}

impl Connections {
    /// The entry of a key, whether active or not, and the packets and bytes that it has forwarded.
    #[must_use]
    pub fn get(&self, key: &Flow4Key) -> Option<(Connection, [u64; 2])> {
        let words = key.two_words();
        let slot = self.0.ways(words).find(|slot| key_of(slot) == words)?;
        read(slot).map(|(_, connection, used)| (connection, used))
    }

    /// The active entries by their packets' tuple, whatever link these arrive on; `generation` is the active one. It reads
    /// all slots, and takes some 30 bytes for each active one: for reports only.
    #[must_use]
    pub fn by_tuple(&self, generation: u32) -> ConnectionsByTuple {
        let mut known = HashMap::new();
        self.each(|key, connection, used| {
            let forwards = matches!(connection.treatment, Treatment::Forwarded(_));
            if forwards && connection.generation == generation {
                known.insert(Flow4Key { link: 0, ..*key }.two_words(), used);
            }
        });
        ConnectionsByTuple(known)
    }

    /// Calls `each` for every entry, whether active or not, with its packets and bytes. It reads all slots: for reports
    /// only.
    pub fn each(&self, mut each: impl FnMut(&Flow4Key, &Connection, [u64; 2])) {
        for slot in self.0.words.chunks_exact(WORDS) {
            if let Some((key, connection, used)) = read(slot) {
                each(&key, &connection, used);
            }
        }
    }
}

/// What active entries have forwarded, by the tuple of their packets as they arrive.
#[derive(Clone, Debug, Default)]
pub struct ConnectionsByTuple(HashMap<[u64; 2], [u64; 2]>);

impl ConnectionsByTuple {
    /// Packets and bytes, from the Ethernet header on, of a tuple's entry; none if it has none. The key's link does not
    /// matter.
    #[must_use]
    pub fn get(&self, key: &Flow4Key) -> Option<[u64; 2]> {
        self.0.get(&Flow4Key { link: 0, ..*key }.two_words()).copied()
    }
}

/// The table of entries, for the thread that writes it.
pub struct ConnectionTable(Connections);

impl ConnectionTable {
    /// Maps the memory of the map, which has so many buckets.
    pub(crate) fn map(map: &OwnedFd, buckets: u32, seeds: Seeds) -> io::Result<Self> {
        let words = Shared::map(map.as_fd(), buckets as usize * WAYS * WORDS)?;
        Ok(Self(Connections(Arc::new(Slots { words, seeds, mask: buckets as usize - 1 }))))
    }

    /// The entries, for other threads.
    #[must_use]
    pub fn connections(&self) -> Connections {
        self.0.clone()
    }

    /// Makes or replaces an entry; returns false if there is no room. `generation` is the active one, by which other
    /// entries count.
    pub fn insert(&mut self, key: &Flow4Key, connection: &Connection, generation: u32) -> bool {
        let now_ns = coarse_ns();
        let (words, tick) = (key.two_words(), (now_ns >> TICK_SHIFT) as u16);
        let is_kernels = matches!(connection.treatment, Treatment::Kernel { .. });
        let Some(slot) = place(&self.0.0, words, (generation, tick), is_kernels) else {
            return false;
        };
        let is_known = key_of(slot) == words;
        let head = head_of(slot);
        let closed = head.closed();
        slot[HEAD].store(closed.word(), Relaxed);
        fence(Release);
        slot.iter().zip(words).for_each(|(place, word)| place.store(word, Relaxed));
        let translation = connection.translation.words(key);
        slot[TRANSLATION..]
            .iter()
            .zip(translation)
            .for_each(|(place, word)| place.store(word, Relaxed));
        let retry = match connection.treatment {
            Treatment::Kernel { retry } | Treatment::Unruled { retry } => retry,
            _ => 0,
        };
        let retry_at = ((now_ns >> RETRY_SHIFT) as u32).wrapping_add(retry);
        slot[MARK_RETRY].store(pack(connection.mark, retry_at), Relaxed);
        if !is_known {
            slot[BYTES].store(0, Relaxed);
            slot[USED].store(0, Relaxed);
        }
        let [packets, bytes] = [USED, BYTES].map(|at: usize| slot[at].load(Relaxed) & PACKETS);
        // The next packet makes the program ask the kernel.
        let asked = u64::from(tick.wrapping_sub(UNASKED)) << TICK_AT;
        slot[BYTES].store(bytes | asked, Relaxed);
        slot[USED].store(packets | u64::from(tick) << TICK_AT, Relaxed);
        slot[HEAD].store(
            connection.treatment.head(connection.generation, closed.version).word(),
            Release,
        );
        true
    }

    /// Ends an entry.
    pub fn remove(&mut self, key: &Flow4Key) {
        let words = key.two_words();
        if let Some(slot) = self.0.0.ways(words).find(|slot| key_of(slot) == words) {
            slot[HEAD].store(head_of(slot).closed().word(), Release);
        }
    }
}

/// The mark and the time, in the order of `struct connection4`.
fn pack(mark: u32, retry_at: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (mark.to_ne_bytes(), retry_at.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The slot with a key, or else one whose entry is not active, or was not used for the longest time. What the kernel
/// forwards gives way to what it does not.
fn place(
    slots: &Slots,
    key: [u64; 2],
    (generation, tick): (u32, u16),
    is_kernels: bool,
) -> Option<&[AtomicU64]> {
    let (mut longest, mut best) = (KEPT_TICKS, None);
    for slot in slots.ways(key) {
        let head = head_of(slot);
        if key_of(slot) == key && head.word() != 0 {
            return Some(slot);
        }
        let idle = if head.generation == 0 || head.generation != generation {
            u16::MAX
        } else {
            let idle = tick.wrapping_sub((slot[USED].load(Relaxed) >> TICK_AT) as u16);
            let gives_way = head.kind == KERNEL && !is_kernels;
            if gives_way { idle.saturating_add(KEPT_TICKS + 1) } else { idle }
        };
        if idle > longest {
            (longest, best) = (idle, Some(slot));
        }
        // The search for an entry ends at a slot that was never used.
        if head.word() == 0 {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::dice::Dice;

    /// The sum of RFC 1071 over words.
    fn sum(words: impl IntoIterator<Item = u16>) -> u16 {
        words.into_iter().fold(0, add)
    }

    fn words(translation: &Translation) -> [u16; 6] {
        let [[a, b], [c, d]] = [translation.source.0, translation.destination.0].map(halves);
        [a, b, c, d, translation.source.1, translation.destination.1]
    }

    #[test]
    fn the_sums_of_a_translation_make_up_for_its_changes() {
        let mut dice = Dice(5);
        for _ in 0..10_000 {
            let mut address = || (Ipv4Addr::from(dice.roll() as u32), dice.roll() as u16);
            let (before, after) = ((address(), address()), (address(), address()));
            let key = Flow4Key::new(LinkId(3), 17, before.0, before.1);
            let translation = match dice.below(4) {
                0 => Translation { source: after.0, destination: before.1 },
                1 => Translation { source: before.0, destination: after.1 },
                2 => Translation { source: after.0, destination: after.1 },
                _ => Translation { source: (before.0.0, after.0.1), destination: before.1 },
            };
            let written = translation.words(&key);
            assert_eq!(Translation::of(written), translation);
            let [.., a, b, c, d] = written[1].to_ne_bytes();
            let [ip, l4] = [[a, b], [c, d]].map(u16::from_be_bytes);
            assert!(ip != 0 && l4 != 0, "they say that something changes");
            // A checksum is the complement of a sum, which grows by what is added to its words.
            let old = words(&Translation::none(&key));
            let new = words(&translation);
            for (sum_of_change, count) in [(ip, 4), (l4, 6)] {
                let changed = add(sum(old[..count].iter().copied()), sum_of_change);
                let difference = add(changed, !sum(new[..count].iter().copied()));
                assert!(matches!(difference, 0 | u16::MAX), "{translation:?}");
            }
        }
        let key = Flow4Key::new(LinkId(3), 17, (Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::LOCALHOST, 2));
        let nothing = Translation::none(&key).words(&key)[1].to_ne_bytes();
        assert_eq!(nothing[4..], [0; 4], "nothing changes");
    }

    #[test]
    fn a_head_is_what_the_programs_read() {
        for treatment in [
            Treatment::Kernel { retry: 0 },
            Treatment::Unruled { retry: 0 },
            Treatment::Forwarded(LinkId(7)),
            Treatment::Dropped(LinkId(65_535)),
        ] {
            let head = treatment.head(0x0102_0304, 9);
            assert_eq!(Head::of(head.word()), head);
            assert_eq!(Treatment::of(head), Some(treatment));
            assert_eq!((head.closed().generation, head.closed().version), (0, 10));
        }
        let last = Head { generation: 1, output: 2, kind: 3, version: 255 };
        assert_eq!(last.closed().version, 1, "a slot that was used never looks unused");
    }
}
