//! The tables of connections, one for each family.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tollway_dataplane::id::LinkId;

use super::blocks::Blocks;
use super::entry::{Connection, Treatment};
use super::key::{ConnectionKey, Family};
use super::sizes::Sizes;
use super::slots::{Slot, Slots};
use super::tracks::{Track, TrackState, Tracks};
use crate::flows::{Flow4Key, Flow6Key, MOST_KEY, Seeds};
use crate::maps::State;
use crate::page::coarse_ns;
use tollway_dataplane::clock::tick_of;

/// The entries, for any thread to read; cheap to clone.
#[derive(Clone)]
pub struct Connections(pub(super) Arc<Tables>);

/// The slots of both families.
pub(super) struct Tables {
    v4: Slots,
    v6: Slots,
}

impl Tables {
    fn of(&self, family: Family) -> &Slots {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// The number of slots that both have in large tables.
    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// The number of all slots.
    pub(super) fn all_len(&self) -> usize {
        self.v4.all_len() + self.v6.all_len()
    }

    /// The number of a family's first slot.
    fn first(&self, family: Family) -> usize {
        if family == Family::V4 { 0 } else { self.v4.all_len() }
    }

    /// A slot by its number: those of IPv4 come first.
    pub(super) fn slot(&self, index: usize) -> Slot<'_> {
        match index.checked_sub(self.v4.all_len()) {
            None => self.v4.slot(index),
            Some(index) => self.v6.slot(index),
        }
    }
}

impl Connections {
    /// The entry of a key, whether active or not, and the packets and bytes that it has forwarded.
    #[must_use]
    pub fn get(&self, key: &ConnectionKey) -> Option<(Connection, [u64; 2])> {
        let slot = self.0.of(key.family()).find(&key.words())?;
        slot.read().map(|(_, connection, used)| (connection, used))
    }

    /// The entries of connections by their packets' tuple, those that have ended, too; of those that differ in the link
    /// alone, one that forwards, with the packets of all. `generation` is the active one. It reads all slots, and takes some
    /// 60 bytes for each that was used, 90 for one of IPv6: for reports only.
    #[must_use]
    pub fn by_tuple(&self, generation: u32) -> ConnectionsByTuple {
        let mut known = ConnectionsByTuple::default();
        self.each(|key, connection, used| {
            if connection.treatment.is_untracked() {
                return;
            }
            let treatment = (connection.generation == generation).then_some(connection.treatment);
            known.note(key, Entry { treatment, link: key.link(), used });
        });
        known
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
                Treatment::Untracked(_) => tally.untracked += 1,
                Treatment::Dropped(_) => tally.dropped += 1,
            }
        });
        let counted = kernel.into_iter().enumerate().filter(|(_, count)| *count > 0);
        tally.kernel = counted.map(|(why, count)| (why as u8, count)).collect();
        tally
    }

    /// Calls `each` for every entry, whether active or not, or ended, with its packets and bytes.
    fn each(&self, mut each: impl FnMut(&ConnectionKey, &Connection, [u64; 2])) {
        for slots in [&self.0.v4, &self.0.v6] {
            for (key, connection, used) in slots.iter().filter_map(|slot| slot.read_last()) {
                each(&key, &connection, used);
            }
        }
    }
}

/// An entry of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What becomes of its packets; none if it is not active, so that only what it has counted matters.
    pub treatment: Option<Treatment>,
    /// The link that they arrive on.
    pub link: LinkId,
    /// The packets that it has forwarded or dropped, and their bytes from the IP header on.
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
    /// Those of packets that rules keep out of connection tracking, by which they forward.
    pub untracked: u64,
    /// Those of which the rules have not been evaluated yet.
    pub unruled: u64,
    /// Those whose packets are the kernel's, by the number of the reason.
    pub kernel: BTreeMap<u8, u64>,
}

/// Entries by the tuple of their packets as they arrive.
#[derive(Clone, Debug, Default)]
pub struct ConnectionsByTuple {
    v4: HashMap<Flow4Key, Entry>,
    v6: HashMap<Flow6Key, Entry>,
}

impl ConnectionsByTuple {
    /// A tuple's entry; none if it has none. The key's link does not matter.
    #[must_use]
    pub fn get(&self, key: &ConnectionKey) -> Option<Entry> {
        match key.on(LinkId(0)) {
            ConnectionKey::V4(key) => self.v4.get(&key).copied(),
            ConnectionKey::V6(key) => self.v6.get(&key).copied(),
        }
    }

    /// Adds the entry of a tuple, for tests of reports.
    pub fn insert(&mut self, key: &ConnectionKey, entry: Entry) {
        match key.on(LinkId(0)) {
            ConnectionKey::V4(key) => self.v4.insert(key, entry),
            ConnectionKey::V6(key) => self.v6.insert(key, entry),
        };
    }

    /// Adds an entry. Where there is one, its packets count further, and what it does stays, unless only this one forwards.
    fn note(&mut self, key: &ConnectionKey, mut entry: Entry) {
        if let Some(known) = self.get(key) {
            let used = [0, 1].map(|at| known.used[at] + entry.used[at]);
            let forwards = entry.treatment.is_some_and(Treatment::forwards);
            entry = if forwards || known.treatment.is_none() { entry } else { known };
            entry.used = used;
        }
        self.insert(key, entry);
    }
}

/// The tables of entries, for the thread that writes them.
pub struct ConnectionTable {
    pub(super) connections: Connections,
    pub(super) tracks: Tracks,
    pub(super) blocks: Blocks,
    state: State,
}

impl ConnectionTable {
    /// Maps the memory of the maps of IPv4 and IPv6, which are so large. The programs of `state` use them.
    pub(crate) fn map(
        ([v4, v6], tracks): ([&OwnedFd; 2], &OwnedFd),
        sizes: Sizes,
        seeds: Seeds,
        state: State,
    ) -> io::Result<Self> {
        let [buckets4, buckets6] = sizes.buckets;
        let tables = Tables {
            v4: Slots::map(v4, buckets4, seeds, Family::V4)?,
            v6: Slots::map(v6, buckets6, seeds, Family::V6)?,
        };
        let tracks = Tracks::map(tracks, sizes.tracks() as usize, seeds)?;
        let blocks = Blocks::new(tables.all_len());
        let connections = Connections(Arc::new(tables));
        let table = Self { connections, tracks, blocks, state };
        table.tell();
        Ok(table)
    }

    /// The entries, for other threads.
    #[must_use]
    pub const fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The track of a TCP connection, by its original tuple, whose link does not matter.
    #[must_use]
    pub fn track(&self, original: &ConnectionKey) -> Option<Track> {
        self.tracks.find(original)
    }

    /// What a track says.
    #[must_use]
    pub fn track_state(&self, track: Track) -> TrackState {
        self.tracks.read(track)
    }

    /// Begins the track of a TCP connection, in the place of the one that it has. The programs begin with what the kernel
    /// knows then; packets are never out of window if the kernel finds none so (`is_liberal`). None if there is no room.
    pub fn begin_track(&mut self, original: &ConnectionKey, is_liberal: bool) -> Option<Track> {
        let used = self.tracks.used();
        let track = self.tracks.begin(original, is_liberal, tick_of(coarse_ns()));
        if self.tracks.used() != used {
            self.tell();
        }
        track
    }

    /// Takes the track of a TCP connection away: its entries do not count any more.
    pub fn end_track(&mut self, original: &ConnectionKey) {
        self.tracks.end(original);
    }

    /// Makes or replaces an entry; returns false if there is no room, or packets would leave with addresses of another
    /// family. `generation` is the active one, by which other entries count.
    pub fn insert(
        &mut self,
        key: &ConnectionKey,
        connection: &Connection,
        generation: u32,
    ) -> bool {
        let Some(translation) = connection.translation.words(key) else { return false };
        let (words, now_ns) = (key.words(), coarse_ns());
        let is_kernels = matches!(connection.treatment, Treatment::Kernel { .. });
        let (family, now) = (key.family(), (generation, tick_of(now_ns) as u16));
        let mut place = self.connections.0.of(family).place(&words, now, is_kernels);
        if self.connections.0.of(family).may_grow() && self.would_lose(place, &words, now.1) {
            self.grow(family);
            place = self.connections.0.of(family).place(&words, now, is_kernels);
        }
        let Some(place) = place else { return false };
        if connection.track.is_some() {
            let tables = &self.connections.0;
            let first_way = tables.of(family).ways(&words).next();
            first_way.into_iter().for_each(|way| self.blocks.note(tables.first(family) + way));
        }
        // Its packets go past the track from now on.
        if let Some((track, _)) = lost(place, &words).and_then(|lost| lost.track) {
            self.tracks.miss(track);
        }
        place.write(&words, connection, translation, now_ns);
        true
    }

    /// Says whether a place is none, or that of an entry of another key that still matters.
    fn would_lose(&self, place: Option<Slot<'_>>, words: &[u64; MOST_KEY], tick: u16) -> bool {
        /// After such a pause, the next packet is the kernel's (`MOST_PAUSE` of bpf/connections.h).
        const MOST_PAUSE: u16 = 372;
        let Some(place) = place else { return true };
        lost(place, words).is_some_and(|lost| match lost.track {
            Some((track, _)) => self.tracks.is_current(track) && !self.tracks.read(track).is_closed,
            None => place.idle(tick) <= MOST_PAUSE,
        })
    }

    fn grow(&mut self, family: Family) {
        let tables = &self.connections.0;
        let moved = tables.of(family).grow(|| self.tell());
        let first = tables.first(family);
        moved.into_iter().for_each(|slot| self.blocks.note(first + slot));
    }

    /// Tells the programs what is in use.
    fn tell(&self) {
        let tables = &self.connections.0;
        let buckets = [&tables.v4, &tables.v6].map(Slots::used_word);
        self.state.set_connections_in_use(buckets, self.tracks.used() as u32);
    }
}

/// The entry of another key that loses its slot.
fn lost(place: Slot<'_>, words: &[u64; MOST_KEY]) -> Option<Connection> {
    let (key, connection, _) = place.read()?;
    (key.words() != *words).then_some(connection)
}
