//! The table of connections.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use tollway_dataplane::id::LinkId;

use super::query::NO_LINK;
use super::tracks::{Track, TrackState, Tracks};
use super::translation::Translation;
use crate::flows::{Flow4Key, KEPT_TICKS, PACKETS, Seeds, TICK_AT, TICK_SHIFT, WAYS};
use crate::page::coarse_ns;
use crate::shared::Shared;

/// Words of a slot, a cache line: key, head, translation, mark, use, bytes, and when to ask again.
const WORDS: usize = 8;
/// The place of each behind the two of the key.
const HEAD: usize = 2;
const TRANSLATION: usize = 3;
const MARK_RETRY: usize = 5;
const USED: usize = 6;
const BYTES: usize = 7;
/// So many ticks ago, nobody has asked the kernel.
const UNASKED: u16 = 1 << 10;
/// Nanoseconds of the unit of `retry`, as a power of two.
const RETRY_SHIFT: u32 = 20;

/// What becomes of the packets of a connection's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// They are the kernel's. After so many units of 1.05 ms, the program asks again.
    Kernel {
        /// The pause.
        retry: u32,
        /// Why, as a number of whoever writes the table.
        why: u8,
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
    /// They are forwarded if they leave by this link, and so are packets of TCP that are out of window: rules accept
    /// them. The kernel does not translate these.
    ForwardedInvalid(LinkId),
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
    /// Of TCP that is not the kernel's: the track, and whether the direction is that of replies.
    pub track: Option<(Track, bool)>,
}

/// The part of `kind` in a slot's head.
const KERNEL: u8 = 1;
const UNRULED: u8 = 2;
const FORWARDED: u8 = 3;
const DROPPED: u8 = 4;
const FORWARDED_INVALID: u8 = 5;

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
    /// Whether the programs forward the packets.
    #[must_use]
    pub const fn forwards(self) -> bool {
        matches!(self, Self::Forwarded(_) | Self::ForwardedInvalid(_))
    }

    /// The link that packets leave by, or would leave by.
    #[must_use]
    pub const fn output(self) -> Option<LinkId> {
        match self {
            Self::Kernel { .. } | Self::Unruled { .. } => None,
            Self::Forwarded(output) | Self::Dropped(output) | Self::ForwardedInvalid(output) => {
                Some(output)
            }
        }
    }

    fn head(self, generation: u32, version: u8) -> Head {
        let (kind, output) = match self {
            // No program reads the link of such an entry.
            Self::Kernel { why, .. } => (KERNEL, why.into()),
            Self::Unruled { .. } => (UNRULED, NO_LINK),
            Self::Forwarded(output) => (FORWARDED, output.0),
            Self::Dropped(output) => (DROPPED, output.0),
            Self::ForwardedInvalid(output) => (FORWARDED_INVALID, output.0),
        };
        Head { generation, output, kind, version }
    }

    fn of(head: Head) -> Option<Self> {
        let output = LinkId(head.output);
        Some(match head.kind {
            KERNEL => Self::Kernel { retry: 0, why: head.output as u8 },
            UNRULED => Self::Unruled { retry: 0 },
            FORWARDED => Self::Forwarded(output),
            DROPPED => Self::Dropped(output),
            FORWARDED_INVALID => Self::ForwardedInvalid(output),
            _ => return None,
        })
    }
}

/// The entries, for any thread to read; cheap to clone.
#[derive(Clone)]
pub struct Connections(pub(super) Arc<Slots>);

pub(super) struct Slots {
    words: Shared<AtomicU64>,
    seeds: Seeds,
    mask: usize,
}

impl Slots {
    /// The number of slots, a power of two.
    pub(super) fn len(&self) -> usize {
        self.words.len() / WORDS
    }

    pub(super) fn slot(&self, index: usize) -> &[AtomicU64] {
        &self.words[index * WORDS..(index + 1) * WORDS]
    }

    /// The slots of a key's bucket, in the order of search.
    fn ways(&self, key: [u64; 2]) -> impl Iterator<Item = &[AtomicU64]> {
        let hash = self.seeds.hash(&key);
        let (bucket, first) = ((hash >> 32) as usize & self.mask, (hash >> 60) as usize);
        (0..WAYS).map(move |way| self.slot(bucket * WAYS + (first + way) % WAYS))
    }
}

fn head_of(slot: &[AtomicU64]) -> Head {
    Head::of(slot[HEAD].load(Acquire))
}

fn key_of(slot: &[AtomicU64]) -> [u64; 2] {
    [0, 1].map(|at: usize| slot[at].load(Relaxed))
}

/// A slot's connection and the packets and bytes that took it; none if it has none, or is changed meanwhile.
pub(super) fn read(slot: &[AtomicU64]) -> Option<(Flow4Key, Connection, [u64; 2])> {
    let head = head_of(slot);
    let words: [u64; WORDS] = std::array::from_fn(|at| slot[at].load(Relaxed));
    fence(Acquire);
    let is_same = slot[HEAD].load(Relaxed) == head.word();
    let treatment = Treatment::of(head).filter(|_| is_same && head.generation != 0)?;
    let key = Flow4Key::of_bytes(&words[0].to_ne_bytes(), &words[1].to_ne_bytes());
    let [mark, track] = unpack(words[MARK_RETRY]);
    let connection = Connection {
        generation: head.generation,
        treatment,
        translation: Translation::of([words[TRANSLATION], words[TRANSLATION + 1]]),
        mark,
        track: has_track(&key, treatment).then(|| Track::of_word(track)),
    };
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

    /// The active entries by their packets' tuple; of those that differ in the link alone, one that forwards. `generation`
    /// is the active one. It reads all slots, and takes some 60 bytes for each active one: for reports only.
    #[must_use]
    pub fn by_tuple(&self, generation: u32) -> ConnectionsByTuple {
        let mut known: HashMap<_, Entry> = HashMap::new();
        self.each(|key, connection, used| {
            if connection.generation != generation {
                return;
            }
            let entry = Entry { treatment: connection.treatment, link: LinkId(key.link), used };
            let before = known.entry(Flow4Key { link: 0, ..*key }.two_words()).or_insert(entry);
            if entry.treatment.forwards() {
                *before = entry;
            }
        });
        ConnectionsByTuple(known)
    }

    /// Counts the active entries; as [`Connections::by_tuple`], without memory for each.
    #[must_use]
    pub fn tally(&self, generation: u32) -> Tally {
        let mut tally = Tally { slots: self.0.len() as u64, ..Tally::default() };
        let mut kernel = [0; 256];
        self.each(|_, connection, _| {
            if connection.generation != generation {
                return;
            }
            match connection.treatment {
                Treatment::Kernel { why, .. } => kernel[usize::from(why)] += 1,
                Treatment::Unruled { .. } => tally.unruled += 1,
                Treatment::Forwarded(_) | Treatment::ForwardedInvalid(_) => tally.forwarded += 1,
                Treatment::Dropped(_) => tally.dropped += 1,
            }
        });
        let counted = kernel.into_iter().enumerate().filter(|(_, count)| *count > 0);
        tally.kernel = counted.map(|(why, count)| (why as u8, count)).collect();
        tally
    }

    /// Calls `each` for every entry, whether active or not, with its packets and bytes.
    fn each(&self, mut each: impl FnMut(&Flow4Key, &Connection, [u64; 2])) {
        for slot in self.0.words.chunks_exact(WORDS) {
            if let Some((key, connection, used)) = read(slot) {
                each(&key, &connection, used);
            }
        }
    }
}

/// An active entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What becomes of its packets.
    pub treatment: Treatment,
    /// The link that they arrive on.
    pub link: LinkId,
    /// The packets that it has forwarded or dropped, and their bytes from the Ethernet header on.
    pub used: [u64; 2],
}

/// The numbers of active entries, each of which is a direction of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The entries that there is room for.
    pub slots: u64,
    /// Those by which the programs forward.
    pub forwarded: u64,
    /// Those by which they drop.
    pub dropped: u64,
    /// Those of which the rules have not been evaluated yet.
    pub unruled: u64,
    /// Those whose packets are the kernel's, by the number of the reason.
    pub kernel: BTreeMap<u8, u64>,
}

/// Active entries by the tuple of their packets as they arrive.
#[derive(Clone, Debug, Default)]
pub struct ConnectionsByTuple(HashMap<[u64; 2], Entry>);

impl ConnectionsByTuple {
    /// A tuple's entry; none if it has none. The key's link does not matter.
    #[must_use]
    pub fn get(&self, key: &Flow4Key) -> Option<Entry> {
        self.0.get(&Flow4Key { link: 0, ..*key }.two_words()).copied()
    }

    /// Adds the entry of a tuple, for tests of reports.
    pub fn insert(&mut self, key: &Flow4Key, entry: Entry) {
        self.0.insert(Flow4Key { link: 0, ..*key }.two_words(), entry);
    }
}

/// The table of entries, for the thread that writes it.
pub struct ConnectionTable {
    pub(super) connections: Connections,
    pub(super) tracks: Tracks,
    /// The slot that the next call of [`ConnectionTable::sweep`] begins with.
    pub(super) swept: usize,
}

impl ConnectionTable {
    /// Maps the memory of the map, which has so many buckets.
    pub(crate) fn map(
        (map, tracks): (&OwnedFd, OwnedFd),
        buckets: u32,
        seeds: Seeds,
    ) -> io::Result<Self> {
        let slots = buckets as usize * WAYS;
        let words = Shared::map(map.as_fd(), slots * WORDS)?;
        let slots = Slots { words, seeds, mask: buckets as usize - 1 };
        let tracks = Tracks::new(tracks, Self::tracks(buckets) as usize, seeds);
        Ok(Self { connections: Connections(Arc::new(slots)), tracks, swept: 0 })
    }

    /// The number of tracks for so many buckets of entries.
    pub(crate) fn tracks(buckets: u32) -> u32 {
        Tracks::count(buckets as usize * WAYS) as u32
    }

    /// The entries, for other threads.
    #[must_use]
    pub const fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The track of a TCP connection, by its original tuple, whose link does not matter.
    #[must_use]
    pub fn track(&self, original: &Flow4Key) -> Option<Track> {
        self.tracks.find(original)
    }

    /// What a track says.
    ///
    /// # Errors
    /// The system refused.
    pub fn track_state(&self, track: Track) -> io::Result<TrackState> {
        self.tracks.read(track)
    }

    /// Begins the track of a TCP connection, in the place of the one that it has. The programs begin with what the kernel
    /// knows then; packets are never out of window if the kernel finds none so (`is_liberal`). None if there is no room.
    ///
    /// # Errors
    /// The system refused.
    pub fn begin_track(
        &mut self,
        original: &Flow4Key,
        is_liberal: bool,
    ) -> io::Result<Option<Track>> {
        self.tracks.begin(original, is_liberal, (coarse_ns() >> TICK_SHIFT) as u32)
    }

    /// Takes the track of a TCP connection away: its entries do not count any more.
    ///
    /// # Errors
    /// The system refused.
    pub fn end_track(&mut self, original: &Flow4Key) -> io::Result<()> {
        self.tracks.end(original)
    }

    /// Makes or replaces an entry; returns false if there is no room. `generation` is the active one, by which other
    /// entries count.
    pub fn insert(&mut self, key: &Flow4Key, connection: &Connection, generation: u32) -> bool {
        let now_ns = coarse_ns();
        let (words, tick) = (key.two_words(), (now_ns >> TICK_SHIFT) as u16);
        let is_kernels = matches!(connection.treatment, Treatment::Kernel { .. });
        let Some(slot) = place(&self.connections.0, words, (generation, tick), is_kernels) else {
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
        slot[MARK_RETRY].store(pack(connection.mark, last_word(connection, now_ns)), Relaxed);
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
}

/// The ticks since an entry's last packet; they start over after 73 minutes.
pub(super) fn idle(slot: &[AtomicU64], tick: u16) -> u16 {
    tick.wrapping_sub((slot[USED].load(Relaxed) >> TICK_AT) as u16)
}

/// Ends an entry.
pub(super) fn end(slot: &[AtomicU64]) {
    let head = head_of(slot);
    let _ = slot[HEAD].compare_exchange(head.word(), head.closed().word(), Release, Relaxed);
}

/// Says whether entries of a key have a track in the place of the time when to ask again.
fn has_track(key: &Flow4Key, treatment: Treatment) -> bool {
    i32::from(key.protocol) == libc::IPPROTO_TCP && !matches!(treatment, Treatment::Kernel { .. })
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

/// The mark and the time, in the order of `struct connection4`.
fn pack(mark: u32, retry_at: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (mark.to_ne_bytes(), retry_at.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn unpack(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
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
            let idle = idle(slot, tick);
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

    #[test]
    fn a_head_is_what_the_programs_read() {
        for treatment in [
            Treatment::Kernel { retry: 0, why: 7 },
            Treatment::Unruled { retry: 0 },
            Treatment::Forwarded(LinkId(7)),
            Treatment::Dropped(LinkId(65_535)),
            Treatment::ForwardedInvalid(LinkId(1)),
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
