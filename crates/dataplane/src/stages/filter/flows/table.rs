//! A table of flows, in parts with a lock each.

use std::hash::{BuildHasher, RandomState};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::id::{FlowId, Side};
use crate::memory::Apart;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard};

/// The end of a list.
pub(in super::super) const NONE: u32 = u32::MAX;

/// A free place of a part ends at this time.
const FREE: u64 = 0;

/// The most entries that one sweep removes.
const SWEPT: usize = 1024;

/// What a table knows of a flow.
pub(in super::super) trait Entry: Clone {
    /// What else a packet may look for.
    type Wanted: Copy;

    /// The flow.
    fn flow(&self) -> &FlowId;

    /// The direction of a packet of this flow, if it belongs here.
    #[inline]
    fn side_of(&self, flow: &FlowId) -> Option<Side> {
        self.flow().side_of(flow)
    }

    /// Says whether it is what a packet looks for, whose flow it is.
    fn is(&self, wanted: Self::Wanted) -> bool;
}

/// How large a table is.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Size {
    /// The most entries.
    pub(in super::super) most: usize,
    /// The number of parts.
    pub(in super::super) parts: usize,
    /// The number of lists in each part.
    pub(in super::super) lists: usize,
    /// The time between two sweeps of one part.
    pub(in super::super) sweep_ns: u64,
}

impl Size {
    /// The room of one part. Parts fill evenly, so all together have their most before one is full.
    const fn room(self) -> usize {
        self.most / self.parts * 5 / 4
    }
}

#[derive(Debug)]
pub(in super::super) struct Table<E> {
    seed: [u64; 2],
    size: Size,
    /// The number of entries.
    count: AtomicUsize,
    /// When room is given back next, and in which part.
    next_sweep_ns: AtomicU64,
    next_part: AtomicUsize,
    parts: Box<[Apart<Mutex<Part<E>>>]>,
}

/// A part of a table. Its memory is that of the entries that it has had at a time.
#[derive(Debug)]
pub(in super::super) struct Part<E> {
    heads: Box<[u32]>,
    /// When each entry ends, beside the entries: a sweep reads nothing else.
    expires_ns: Vec<u64>,
    next: Vec<u32>,
    entries: Vec<E>,
    free: u32,
    room: usize,
}

impl<E: Entry> Table<E> {
    pub(in super::super) fn new(size: Size, now_ns: u64) -> Self {
        let random = RandomState::new();
        Self {
            seed: [random.hash_one(1), random.hash_one(2)],
            size,
            count: AtomicUsize::new(0),
            next_sweep_ns: AtomicU64::new(now_ns.saturating_add(size.sweep_ns)),
            next_part: AtomicUsize::new(0),
            parts: (0..size.parts).map(|_| Apart(Mutex::new(Part::new(size)))).collect(),
        }
    }

    /// The seed of its hash.
    pub(in super::super) const fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// The part and the list of a flow.
    #[inline]
    pub(in super::super) fn place(&self, flow: &FlowId) -> (MutexGuard<'_, Part<E>>, usize) {
        let hash = flow.hash(self.seed) as usize;
        let parts = self.size.parts;
        (lock(&self.parts[hash % parts].0), hash / parts % self.size.lists)
    }

    /// Takes room for one more entry, if there is some.
    pub(in super::super) fn take_room(&self) -> bool {
        let has_room = self.count.fetch_add(1, Relaxed) < self.size.most;
        if !has_room {
            self.give_room();
        }
        has_room
    }

    /// Gives back the room of an entry.
    pub(in super::super) fn give_room(&self) {
        self.count.fetch_sub(1, Relaxed);
    }

    /// Says whether there is no room.
    pub(in super::super) fn is_full(&self) -> bool {
        self.count() >= self.size.most
    }

    /// The number of entries, whose time may be over.
    pub(in super::super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Gives back the room of entries whose time is over, if it is time for that: one part after the other. Returns
    /// the removed ones.
    #[inline]
    pub(in super::super) fn sweep(&self, now_ns: u64) -> Vec<E> {
        let due_ns = self.next_sweep_ns.load(Relaxed);
        if now_ns < due_ns { Vec::new() } else { self.sweep_next(due_ns, now_ns) }
    }

    #[cold]
    fn sweep_next(&self, due_ns: u64, now_ns: u64) -> Vec<E> {
        // After a pause, sweeps follow closely until each part has had one.
        let behind_ns = self.size.sweep_ns.saturating_mul(self.size.parts as u64);
        let next_ns =
            due_ns.max(now_ns.saturating_sub(behind_ns)).saturating_add(self.size.sweep_ns);
        if self.next_sweep_ns.compare_exchange(due_ns, next_ns, Relaxed, Relaxed).is_err() {
            // Another worker does it.
            return Vec::new();
        }
        let number = self.next_part.fetch_add(1, Relaxed) % self.size.parts;
        let removed = self.sweep_part(number, now_ns);
        if removed.len() == SWEPT {
            // There may be more.
            self.next_part.fetch_sub(1, Relaxed);
        }
        removed
    }

    fn sweep_part(&self, number: usize, now_ns: u64) -> Vec<E> {
        let mut part = lock(&self.parts[number].0);
        let mut removed = Vec::new();
        for at in 0..part.entries.len() {
            let expires_ns = part.expires_ns[at];
            if expires_ns != FREE && expires_ns <= now_ns {
                removed.push(self.remove(&mut part, at));
                if removed.len() == SWEPT {
                    break;
                }
            }
        }
        removed
    }

    /// Gives back the room of all entries whose time is over. Returns these.
    pub(in super::super) fn sweep_all(&self, now_ns: u64) -> Vec<E> {
        self.remove_if(|expires_ns, _| expires_ns <= now_ns)
    }

    /// Says whether it is time for [`Table::sweep_all`], to one caller.
    #[inline]
    pub(in super::super) fn is_time(&self, now_ns: u64) -> bool {
        let due_ns = self.next_sweep_ns.load(Relaxed);
        now_ns >= due_ns && {
            let next_ns = now_ns.saturating_add(self.size.sweep_ns);
            self.next_sweep_ns.compare_exchange(due_ns, next_ns, Relaxed, Relaxed).is_ok()
        }
    }

    /// Removes entries. Returns them.
    pub(in super::super) fn remove_if(&self, is_one: impl Fn(u64, &E) -> bool) -> Vec<E> {
        let mut removed = Vec::new();
        for part in &self.parts {
            let mut part = lock(&part.0);
            for at in 0..part.entries.len() {
                let expires_ns = part.expires_ns[at];
                if expires_ns != FREE && is_one(expires_ns, &part.entries[at]) {
                    removed.push(self.remove(&mut part, at));
                }
            }
        }
        removed
    }

    /// Removes an entry from its part.
    pub(in super::super) fn remove(&self, part: &mut Part<E>, at: usize) -> E {
        let entry = part.entries[at].clone();
        let hash = entry.flow().hash(self.seed) as usize;
        part.remove(hash / self.size.parts % self.size.lists, at as u32);
        self.give_room();
        entry
    }

    /// All entries whose time is not over, and when it is.
    pub(in super::super) fn list(&self, now_ns: u64) -> Vec<(E, u64)> {
        let mut all = Vec::new();
        for part in &self.parts {
            let part = lock(&part.0);
            let entries = part.entries.iter().zip(&part.expires_ns);
            let lives = entries.filter(|(_, expires_ns)| **expires_ns > now_ns);
            all.extend(lives.map(|(entry, expires_ns)| (entry.clone(), *expires_ns)));
        }
        all
    }
}

impl<E: Entry> Part<E> {
    fn new(size: Size) -> Self {
        let room = size.room();
        Self {
            heads: vec![NONE; size.lists].into(),
            expires_ns: Vec::with_capacity(room),
            next: Vec::with_capacity(room),
            entries: Vec::with_capacity(room),
            free: NONE,
            room,
        }
    }

    /// The newest entry of a flow whose time is not over, if it is what is wanted.
    #[inline]
    pub(in super::super) fn find(
        &self,
        list: usize,
        flow: &FlowId,
        wanted: E::Wanted,
        now_ns: u64,
    ) -> Option<(usize, Side)> {
        let mut at = self.heads[list] as usize;
        while let Some(entry) = self.entries.get(at) {
            if self.expires_ns[at] > now_ns
                && entry.is(wanted)
                && let Some(side) = entry.side_of(flow)
            {
                return Some((at, side));
            }
            at = self.next[at] as usize;
        }
        None
    }

    /// An entry, and when it ends.
    #[inline]
    pub(in super::super) fn get_mut(&mut self, at: usize) -> Option<(&mut E, &mut u64)> {
        self.entries.get_mut(at).zip(self.expires_ns.get_mut(at))
    }

    /// An entry.
    pub(in super::super) fn get(&self, at: usize) -> Option<&E> {
        self.entries.get(at)
    }

    /// The places of the entries in a list.
    pub(in super::super) fn listed(&self, list: usize) -> impl Iterator<Item = usize> + '_ {
        let first = self.heads[list % self.heads.len()];
        let places = std::iter::successors(Some(first), |at| self.next.get(*at as usize).copied());
        places.take_while(|at| *at != NONE).map(|at| at as usize)
    }

    /// Says when an entry ends.
    pub(in super::super) fn expires_ns(&self, at: usize) -> u64 {
        self.expires_ns.get(at).copied().unwrap_or(FREE)
    }

    /// Adds an entry; none if there is no room.
    pub(in super::super) fn add(
        &mut self,
        list: usize,
        entry: E,
        expires_ns: u64,
    ) -> Option<usize> {
        let head = self.heads[list];
        let at = match self.next.get(self.free as usize) {
            Some(next) => {
                let at = self.free as usize;
                self.free = *next;
                self.entries[at] = entry;
                self.expires_ns[at] = expires_ns;
                self.next[at] = head;
                at
            }
            None if self.entries.len() < self.room => {
                self.entries.push(entry);
                self.expires_ns.push(expires_ns);
                self.next.push(head);
                self.entries.len() - 1
            }
            None => return None,
        };
        self.heads[list] = at as u32;
        Some(at)
    }

    fn remove(&mut self, list: usize, at: u32) {
        let next = self.next[at as usize];
        let (mut before, mut here) = (NONE, self.heads[list]);
        while here != at {
            let Some(following) = self.next.get(here as usize) else { return };
            (before, here) = (here, *following);
        }
        match self.next.get_mut(before as usize) {
            Some(link) => *link = next,
            None => self.heads[list] = next,
        }
        self.next[at as usize] = self.free;
        self.expires_ns[at as usize] = FREE;
        self.free = at;
    }
}

/// The tables are whole whenever the lock is free, so a panic elsewhere cannot have damaged them.
pub(in super::super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
