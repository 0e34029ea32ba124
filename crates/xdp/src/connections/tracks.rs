//! The tracks of TCP connections: numbers of their windows, which the programs follow (`bpf/tcp_track.h`, byte for byte
//! as here).
//!
//! A track belongs to both directions of a connection; their entries refer to it. It stays while entries come and go, so
//! that a connection goes on where it was. If a connection has none left, the kernel's entry is all that is known of it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::{io, thread};

use tollway_dataplane::id::LinkId;

use super::key::{ConnectionKey, Family};
use crate::flows::{KEPT_TICKS, MOST_KEY, Seeds};
use crate::shared::Shared;

/// Tracks that a connection may have, by its hash.
const WAYS: usize = 8;
/// Tracks that are in use at first, 256 KB: as for entries (`sizes.rs`), their pages are few while connections are.
const FIRST_TRACKS: usize = 1 << 12;
/// Words of a track, a cache line.
const WORDS: usize = 16;
/// The word of the lock, and what is in it while somebody changes the track.
const LOCK: usize = 0;
const LOCKED: u32 = 1;
/// How often to look at a lock that somebody else has. A program has it for nanoseconds.
const LOCK_TURNS: usize = 1000;
/// Where in `struct tcp_track` the numbers are that user space knows.
const HAS_MISSED: usize = 37;
const FLAGS: usize = 38;
const LAST_WINDOW: usize = 52;
const RETRANSMISSIONS: usize = 55;
const TICK: usize = 56;
const VERSION: usize = 60;
const PHASE: usize = 62;
/// In a reference: the bits of the index, the versions above, and the bit for replies.
const INDEX_BITS: u32 = 22;
const VERSIONS: u16 = 511;
const REPLY: u32 = 1 << 31;
/// Values of `phase`, and the flag of a side that is never out of window.
const UNREAD: u8 = 255;
const CLOSED: u8 = 254;
const LIBERAL: u8 = 0x08;
const UNACKNOWLEDGED: u8 = 0x10;
/// The flag of a side whose packets have come since the track began.
const FOLLOWED: u8 = 0x80;

/// What names a connection of either family: the words of its original tuple, without a link. Zeros name none.
type Owner = [u64; MOST_KEY];

/// A reference to a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track(u32);

/// What a track says of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackState {
    /// Whether the kernel forwards its packets from now on: it has seen a SYN, FIN or RST.
    pub is_closed: bool,
    /// Whether a side waits for an acknowledgment.
    pub has_unacknowledged: bool,
    /// How often the last packet came in a row, besides the first time.
    pub retransmissions: u8,
    /// The window in the last packet, as it is there.
    pub last_window: u16,
    /// The tick of the last packet.
    pub tick: u32,
    /// A packet went past behind the last one, as it got no lock.
    pub has_missed: bool,
}

impl TrackState {
    /// Whether packets of the connection may have gone past the programs behind the last one that the track has seen
    /// (`judge` of `bpf/tcp_track.h`); `unserved_tick` is when some packets did.
    #[must_use]
    pub const fn may_have_missed(&self, unserved_tick: u32) -> bool {
        self.has_missed || unserved_tick.wrapping_sub(self.tick).cast_signed() >= 0
    }
}

impl Track {
    /// The word in the entry of a direction.
    pub(super) const fn word(self, is_reply: bool) -> u32 {
        if is_reply { self.0 | REPLY } else { self.0 }
    }

    /// The track of an entry's word, and whether the direction is that of replies.
    pub(super) const fn of_word(word: u32) -> (Self, bool) {
        (Self(word & !REPLY), word & REPLY != 0)
    }

    const fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    const fn version(self) -> u16 {
        (self.0 >> INDEX_BITS) as u16 & VERSIONS
    }
}

/// The tracks, and whose they are.
pub(super) struct Tracks {
    words: Shared<AtomicU32>,
    seeds: Seeds,
    /// Each track's connection.
    owners: Box<[Owner]>,
    versions: Box<[u16]>,
    /// Whether a connection has gone quiet is known for packets until this tick.
    told: Box<[u32]>,
    /// How many of them have a connection, or had one that has ended.
    taken: usize,
    /// How many tracks were in use one time after the other; the last number is that of today.
    used: Vec<usize>,
}

impl Tracks {
    /// The number of tracks for so many entries: each connection has two.
    pub(super) fn count(entries: usize) -> usize {
        (entries / 2).clamp(WAYS, 1 << INDEX_BITS)
    }

    /// Maps the memory of a map with so many tracks: a multiple of [`WAYS`].
    pub(super) fn map(map: &OwnedFd, count: usize, seeds: Seeds) -> io::Result<Self> {
        let words = Shared::map(map.as_fd(), count * WORDS)?;
        let owners = vec![[0; MOST_KEY]; count].into_boxed_slice();
        let versions = vec![0; count].into_boxed_slice();
        let told = vec![0; count].into_boxed_slice();
        Ok(Self {
            words,
            seeds,
            owners,
            versions,
            told,
            taken: 0,
            used: vec![count.min(FIRST_TRACKS)],
        })
    }

    /// How many tracks are in use: the programs fetch one of these for a packet. A track that was taken while fewer were in
    /// use stays where it is, since entries refer to it; it is not the one that is fetched.
    pub(super) fn used(&self) -> usize {
        self.used[self.used.len() - 1]
    }

    /// Uses more tracks where an eighth is taken, so that few are where they were before.
    fn use_more(&mut self) {
        let used = self.used();
        if self.taken > used / 8 && used < self.owners.len() {
            self.used.push((16 * used).min(self.owners.len()));
        }
    }

    /// The track of a connection with an original tuple, whose link does not matter.
    pub(super) fn find(&self, original: &ConnectionKey) -> Option<Track> {
        self.place_of(owner(original)).map(|index| self.track(index))
    }

    /// The place of a connection's track, which may be from when fewer were in use.
    fn place_of(&self, owner: Owner) -> Option<usize> {
        let mut ways = self.used.iter().rev().flat_map(|used| self.ways_of(owner, *used));
        ways.find(|index| self.owners[*index] == owner)
    }

    /// Says whether a track is still the one that was referred to.
    pub(super) fn is_current(&self, track: Track) -> bool {
        self.versions.get(track.index()).is_some_and(|version| *version == track.version())
    }

    /// Says whether a connection without a packet since this tick is known to be quiet.
    pub(super) fn is_told(&self, track: Track, tick: u32) -> bool {
        self.told.get(track.index()).is_some_and(|told| tick.wrapping_sub(*told) as i32 <= 0)
    }

    /// Notes that a connection is known to be quiet, unless a packet has come since this tick began.
    pub(super) fn tell(&mut self, track: Track, now: u32) {
        if let Some(told) = self.told.get_mut(track.index()) {
            *told = now.wrapping_sub(1);
        }
    }

    /// Begins a connection's track: a packet makes the program read the kernel's numbers. If the kernel finds none of
    /// its packets out of window (`is_liberal`), so does the track. None if there is no room.
    pub(super) fn begin(
        &mut self,
        original: &ConnectionKey,
        is_liberal: bool,
        now: u32,
    ) -> Option<Track> {
        self.use_more();
        let owner = owner(original);
        let index = self.place(owner, now)?;
        let flags = if is_liberal { LIBERAL } else { 0 };
        self.write(index, owner, |bytes| {
            bytes[FLAGS..FLAGS + 2].fill(flags);
            bytes[TICK..TICK + 4].copy_from_slice(&now.to_ne_bytes());
            // No side has closed its window, as far as anybody knows.
            bytes[LAST_WINDOW..LAST_WINDOW + 2].fill(0xff);
            bytes[PHASE] = UNREAD;
        });
        let track = self.track(index);
        self.tell(track, now);
        Some(track)
    }

    /// Notes that packets of a connection go past its track: the next one that does not makes the track start over.
    pub(super) fn miss(&self, track: Track) {
        if !self.is_current(track) {
            return;
        }
        let words = self.words_of(track.index());
        if lock(&words[LOCK]) {
            let mut bytes = words[HAS_MISSED / 4].load(Relaxed).to_ne_bytes();
            bytes[HAS_MISSED % 4] = 1;
            words[HAS_MISSED / 4].store(u32::from_ne_bytes(bytes), Relaxed);
            words[LOCK].store(0, Release);
        }
    }

    /// Takes a connection's track away, if it has one: entries that refer to it do not count any more.
    pub(super) fn end(&mut self, original: &ConnectionKey) {
        if let Some(track) = self.find(original) {
            self.write(track.index(), [0; MOST_KEY], |bytes| bytes[PHASE] = CLOSED);
        }
    }

    /// Gives a track to a connection, with the next version.
    fn write(&mut self, index: usize, owner: Owner, fill: impl FnOnce(&mut [u8; WORDS * 4])) {
        // 0 is that of tracks that were never begun.
        let version = self.versions[index] % VERSIONS + 1;
        let mut bytes = [0; WORDS * 4];
        bytes[VERSION..VERSION + 2].copy_from_slice(&version.to_ne_bytes());
        fill(&mut bytes);
        change(self.words_of(index), bytes);
        self.taken -= usize::from(self.owners[index] != [0; MOST_KEY]);
        self.taken += usize::from(owner != [0; MOST_KEY]);
        self.owners[index] = owner;
        self.versions[index] = version;
    }

    fn words_of(&self, index: usize) -> &[AtomicU32] {
        &self.words[index * WORDS..(index + 1) * WORDS]
    }

    /// What a track says. Words may be of different packets: who reads them looks for tracks that no packet changes.
    pub(super) fn read(&self, track: Track) -> TrackState {
        let mut bytes = [0; WORDS * 4];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.words_of(track.index()))
        {
            *to = word.load(Relaxed).to_ne_bytes();
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|at: usize| bytes[TICK + at]);
        // While the kernel still forwards the packets of a side, only the kernel knows what these acknowledge.
        let (any, both) = (bytes[FLAGS] | bytes[FLAGS + 1], bytes[FLAGS] & bytes[FLAGS + 1]);
        let has_unacknowledged = any & UNACKNOWLEDGED != 0 && both & FOLLOWED != 0;
        TrackState {
            is_closed: bytes[PHASE] == CLOSED,
            has_unacknowledged,
            retransmissions: bytes[RETRANSMISSIONS],
            last_window: u16::from_ne_bytes([bytes[LAST_WINDOW], bytes[LAST_WINDOW + 1]]),
            tick: u32::from_ne_bytes([a, b, c, d]),
            has_missed: bytes[HAS_MISSED] != 0,
        }
    }

    fn track(&self, index: usize) -> Track {
        Track(index as u32 | u32::from(self.versions[index]) << INDEX_BITS)
    }

    /// The indexes where a connection's track may be: the first one is where the programs expect it, which then fetch it
    /// from memory together with the entry.
    fn ways(&self, owner: Owner) -> impl Iterator<Item = usize> {
        self.ways_of(owner, self.used())
    }

    /// The same while so many tracks were in use.
    fn ways_of(&self, owner: Owner, used: usize) -> impl Iterator<Item = usize> + use<> {
        let home = home(self.seeds.hash(key_of(&owner)), used);
        (0..WAYS).map(move |way| home / WAYS * WAYS + (home + way) % WAYS)
    }

    /// The track that a connection has, or else a free one, or a closed one, or that which was not used for the longest time.
    fn place(&self, owner: Owner, now: u32) -> Option<usize> {
        let free = || self.ways(owner).find(|at| self.owners[*at] == [0; MOST_KEY]);
        if let Some(index) = self.place_of(owner).or_else(free) {
            return Some(index);
        }
        let (mut longest, mut best) = (u32::from(KEPT_TICKS), None);
        for index in self.ways(owner) {
            let state = self.read(self.track(index));
            if state.is_closed {
                return Some(index);
            }
            let idle = now.wrapping_sub(state.tick);
            if idle > longest && idle < u32::MAX / 2 {
                (longest, best) = (idle, Some(index));
            }
        }
        best
    }
}

/// Gives a track these bytes.
fn change(words: &[AtomicU32], mut bytes: [u8; WORDS * 4]) {
    // Who has the lock for so long may have died, or will change something when it goes on.
    if !lock(&words[LOCK]) {
        bytes[HAS_MISSED] = 1;
    }
    let (values, _) = bytes.as_chunks::<4>();
    for (word, value) in words.iter().zip(values).skip(LOCK + 1) {
        word.store(u32::from_ne_bytes(*value), Relaxed);
    }
    words[LOCK].store(0, Release);
}

/// Takes a lock; false if somebody else keeps it.
fn lock(word: &AtomicU32) -> bool {
    (0..LOCK_TURNS).any(|turn| {
        if turn > 0 {
            thread::yield_now();
        }
        word.compare_exchange(0, LOCKED, Acquire, Relaxed).is_ok()
    })
}

fn owner(original: &ConnectionKey) -> Owner {
    original.on(LinkId(0)).words()
}

/// The words of the key in an owner: those of IPv4 are fewer, and no last word of a key is 0.
fn key_of(owner: &Owner) -> &[u64] {
    let family = if owner[MOST_KEY - 1] == 0 { Family::V4 } else { Family::V6 };
    &owner[..family.key_words()]
}

/// One of so many tracks, by the upper half of a hash (`home_of` of bpf/tcp_track.h): the lower bits depend on few of the
/// key's.
fn home(hash: u64, tracks: usize) -> usize {
    (((hash >> 32) * tracks as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU32> {
        (0..WORDS).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn a_change_gives_a_track_its_bytes_and_the_lock_back() {
        let words = words();
        change(&words, std::array::from_fn(|at| at as u8));
        assert_eq!(words[LOCK].load(Relaxed), 0);
        assert_eq!(words[PHASE / 4].load(Relaxed).to_ne_bytes(), [60, 61, 62, 63]);
    }

    #[test]
    fn a_track_whose_lock_nobody_gives_back_starts_over() {
        let words = words();
        words[LOCK].store(LOCKED, Relaxed);
        change(&words, [0; WORDS * 4]);
        assert_eq!(words[LOCK].load(Relaxed), 0);
        assert_eq!(words[HAS_MISSED / 4].load(Relaxed).to_ne_bytes()[HAS_MISSED % 4], 1);
    }

    #[test]
    fn a_hash_may_lead_to_each_track() {
        // With the default sizes of both families, the number of tracks is no power of two.
        let tracks = Tracks::count(3 << 17);
        let mut counts = vec![0_u32; tracks];
        let step = u64::MAX / (4 * tracks as u64);
        for number in 0..4 * tracks as u64 {
            counts[home(number * step, tracks)] += 1;
        }
        assert!(counts.iter().all(|count| (3..=5).contains(count)));
        assert_eq!(home(u64::MAX, tracks), tracks - 1);
    }
}
