//! The mappings of all instances, in parts with a lock each.

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

use super::super::flows::{NONE, lock, mix};
use super::super::{Count, TcpConnectionState};
use super::config::AliasEnd;
use super::lifetime::{Lifetime, TcpSide};
use super::{MOST_MAPPINGS, S};
use crate::memory::Apart;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard};
use crate::wire::l4;

const PARTS: usize = 16;
const LISTS: usize = 4096;

/// The time between two sweeps of one part, and the most mappings that one removes.
const SWEEP_NS: u64 = S / PARTS as u64;
const SWEPT: usize = 1024;

/// The end of a list.
const FREE: u64 = 0;

/// A protocol, or the fragments of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(u16);

impl Kind {
    pub(super) const FRAGMENTS: Self = Self(256);

    pub(super) const fn of(protocol: u8) -> Self {
        Self(protocol as u16)
    }
}

/// What packets of one direction are looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) instance: u64,
    pub(super) kind: Kind,
    /// The inside end of packets that leave, the alias of those that come.
    pub(super) near: AliasEnd,
    pub(super) remote: AliasEnd,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Leaves,
    Comes,
}

/// A mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) instance: u64,
    pub(super) kind: Kind,
    pub(super) inside: AliasEnd,
    pub(super) remote: AliasEnd,
    pub(super) alias: AliasEnd,
    /// The direction of its first packet.
    pub(super) first: Way,
    pub(super) lifetime: Lifetime,
    /// By [`Way`].
    pub(super) counts: [Count; 2],
}

/// A mapping, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingReport {
    /// The transport protocol.
    pub protocol: u8,
    /// The address and port inside.
    pub inside: (Ipv4Addr, u16),
    /// Those of the other side.
    pub remote: (Ipv4Addr, u16),
    /// Those that the other side sees.
    pub alias: (Ipv4Addr, u16),
    /// Whether the first packet has left.
    pub is_outgoing: bool,
    /// What is known of a connection of TCP.
    pub tcp: Option<TcpConnectionState>,
    /// How long it lives without further packets.
    pub expires_in_ns: u64,
    /// Packets and bytes in the direction of the first packet, and in the other.
    pub counts: [Count; 2],
}

#[derive(Debug)]
pub(super) struct Table {
    random: RandomState,
    seed: [u64; 2],
    count: AtomicUsize,
    /// The number of ports that have been drawn.
    drawn: AtomicU64,
    next_sweep_ns: AtomicU64,
    next_part: AtomicUsize,
    parts: Box<[Apart<Mutex<Part>>]>,
}

/// A part. Its memory is that of the mappings that it has had at a time.
#[derive(Debug)]
struct Part {
    /// The newest mapping of each list, by [`Way`].
    heads: [Box<[u32]>; 2],
    next: [Vec<u32>; 2],
    /// When each mapping ends, beside the mappings: a sweep reads nothing else.
    expires_ns: Vec<u64>,
    mappings: Vec<Mapping>,
    free: u32,
}

/// The part of a remote end, locked.
pub(super) struct Locked<'a> {
    table: &'a Table,
    part: MutexGuard<'a, Part>,
    now_ns: u64,
}

impl Table {
    pub(super) fn new(now_ns: u64) -> Self {
        let random = RandomState::new();
        Self {
            seed: [random.hash_one(1), random.hash_one(2)],
            random,
            count: AtomicUsize::new(0),
            drawn: AtomicU64::new(3),
            next_sweep_ns: AtomicU64::new(now_ns.saturating_add(SWEEP_NS)),
            next_part: AtomicUsize::new(0),
            parts: (0..PARTS).map(|_| Apart(Mutex::new(Part::new()))).collect(),
        }
    }

    /// Locks the part of a remote end.
    pub(super) fn lock(&self, remote: AliasEnd, now_ns: u64) -> Locked<'_> {
        let hash = mix(number(remote) ^ self.seed[0], self.seed[1]) as usize;
        Locked { table: self, part: lock(&self.parts[hash % PARTS].0), now_ns }
    }

    /// A number that nobody outside can foresee.
    pub(super) fn draw(&self) -> u64 {
        self.random.hash_one(self.drawn.fetch_add(1, Relaxed))
    }

    /// Gives back the room of mappings whose time is over, if it is time for that: one part after the other.
    #[inline]
    pub(super) fn sweep(&self, now_ns: u64) {
        let due_ns = self.next_sweep_ns.load(Relaxed);
        if now_ns >= due_ns {
            self.sweep_next(due_ns, now_ns);
        }
    }

    #[cold]
    fn sweep_next(&self, due_ns: u64, now_ns: u64) {
        // After a pause, sweeps follow closely until each part has had one.
        let behind_ns = SWEEP_NS * PARTS as u64;
        let next_ns = due_ns.max(now_ns.saturating_sub(behind_ns)).saturating_add(SWEEP_NS);
        if self.next_sweep_ns.compare_exchange(due_ns, next_ns, Relaxed, Relaxed).is_err() {
            // Another worker does it.
            return;
        }
        let number = self.next_part.fetch_add(1, Relaxed) % PARTS;
        let is_over = |expires_ns: u64, _: &Mapping| expires_ns <= now_ns;
        if self.remove_from(number, SWEPT, is_over) == SWEPT {
            // There may be more.
            self.next_part.fetch_sub(1, Relaxed);
        }
    }

    /// Removes the mappings of other instances than these.
    pub(super) fn retain(&self, instances: &[u64]) {
        let is_of_others = |_, mapping: &Mapping| !instances.contains(&mapping.instance);
        for number in 0..PARTS {
            self.remove_from(number, usize::MAX, is_of_others);
        }
    }

    /// Removes mappings of a part, up to a number; returns how many.
    fn remove_from(&self, part: usize, most: usize, is: impl Fn(u64, &Mapping) -> bool) -> usize {
        let mut part = lock(&self.parts[part].0);
        let mut removed = 0;
        for at in 0..part.mappings.len() {
            let expires_ns = part.expires_ns[at];
            if removed < most && expires_ns != FREE && is(expires_ns, &part.mappings[at]) {
                part.remove(self.seed, at);
                self.count.fetch_sub(1, Relaxed);
                removed += 1;
            }
        }
        removed
    }

    /// All mappings whose time is not over, each with the identity of its instance.
    pub(super) fn list(&self, now_ns: u64) -> Vec<(u64, MappingReport)> {
        let mut all = Vec::new();
        for part in &self.parts {
            let part = lock(&part.0);
            for (mapping, expires_ns) in part.mappings.iter().zip(&part.expires_ns) {
                if *expires_ns > now_ns && mapping.kind != Kind::FRAGMENTS {
                    all.push((mapping.instance, mapping.report(expires_ns - now_ns)));
                }
            }
        }
        all
    }

    /// The number of mappings, whose time may be over.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }
}

impl Locked<'_> {
    /// The newest mapping of a direction's packets.
    pub(super) fn find(&self, way: Way, key: &Key) -> Option<usize> {
        let part = &self.part;
        let mut at = part.heads[way as usize][list(self.table.seed, key)] as usize;
        while let Some(mapping) = part.mappings.get(at) {
            if part.expires_ns[at] > self.now_ns && mapping.key(way) == *key {
                return Some(at);
            }
            at = part.next[way as usize][at] as usize;
        }
        None
    }

    /// Adds a mapping; none if there is no room.
    pub(super) fn add(&mut self, mapping: Mapping) -> Option<usize> {
        if self.table.count.fetch_add(1, Relaxed) >= MOST_MAPPINGS {
            self.table.count.fetch_sub(1, Relaxed);
            return None;
        }
        let expires_ns = self.now_ns.saturating_add(mapping.lifetime.ns());
        Some(self.part.add(self.table.seed, mapping, expires_ns))
    }

    /// Notes a packet; returns its mapping.
    pub(super) fn note(&mut self, at: usize, way: Way, bytes: u64, tcp_flags: u8) -> Mapping {
        let part = &mut *self.part;
        let mapping = &mut part.mappings[at];
        if mapping.kind == Kind::of(l4::TCP) {
            mapping.lifetime.note(way as usize, tcp_flags);
        }
        let count = &mut mapping.counts[way as usize];
        count.packets += 1;
        count.bytes += bytes;
        part.expires_ns[at] = self.now_ns.saturating_add(mapping.lifetime.ns());
        *mapping
    }

    /// A mapping, without a packet.
    pub(super) fn mapping(&mut self, at: usize) -> &mut Mapping {
        &mut self.part.mappings[at]
    }
}

impl Part {
    fn new() -> Self {
        Self {
            heads: [vec![NONE; LISTS].into(), vec![NONE; LISTS].into()],
            next: [Vec::new(), Vec::new()],
            expires_ns: Vec::new(),
            mappings: Vec::new(),
            free: NONE,
        }
    }

    fn add(&mut self, seed: [u64; 2], mapping: Mapping, expires_ns: u64) -> usize {
        let at = self.free as usize;
        let at = if at < self.mappings.len() {
            self.free = self.next[0][at];
            self.mappings[at] = mapping;
            self.expires_ns[at] = expires_ns;
            at
        } else {
            self.mappings.push(mapping);
            self.expires_ns.push(expires_ns);
            self.next.iter_mut().for_each(|next| next.push(NONE));
            self.mappings.len() - 1
        };
        for way in [Way::Leaves, Way::Comes] {
            let head = &mut self.heads[way as usize][list(seed, &mapping.key(way))];
            self.next[way as usize][at] = std::mem::replace(head, at as u32);
        }
        at
    }

    fn remove(&mut self, seed: [u64; 2], at: usize) {
        for way in [Way::Leaves, Way::Comes] {
            let list = list(seed, &self.mappings[at].key(way));
            let next = &mut self.next[way as usize];
            let (head, following) = (&mut self.heads[way as usize][list], next[at]);
            if *head as usize == at {
                *head = following;
                continue;
            }
            let mut before = *head as usize;
            while next.get(before).is_some_and(|next| *next as usize != at) {
                before = next[before] as usize;
            }
            if let Some(before) = next.get_mut(before) {
                *before = following;
            }
        }
        self.expires_ns[at] = FREE;
        self.next[0][at] = self.free;
        self.free = at as u32;
    }
}

impl Mapping {
    /// What its packets of a direction are looked up by.
    fn key(&self, way: Way) -> Key {
        let near = match way {
            Way::Leaves => self.inside,
            Way::Comes => self.alias,
        };
        Key { instance: self.instance, kind: self.kind, near, remote: self.remote }
    }

    fn report(&self, expires_in_ns: u64) -> MappingReport {
        let end = |end: AliasEnd| (Ipv4Addr::from_bits(end.address), end.port);
        let is_outgoing = self.first == Way::Leaves;
        let [leaves, comes] = self.counts;
        let is_tcp = self.kind == Kind::of(l4::TCP);
        MappingReport {
            protocol: self.kind.0 as u8,
            inside: end(self.inside),
            remote: end(self.remote),
            alias: end(self.alias),
            is_outgoing,
            tcp: is_tcp.then(|| tcp_state(self.lifetime.sides)),
            expires_in_ns,
            counts: if is_outgoing { [leaves, comes] } else { [comes, leaves] },
        }
    }
}

/// What both sides of TCP are to connection tracking.
const fn tcp_state(sides: [TcpSide; 2]) -> TcpConnectionState {
    match sides {
        [TcpSide::NotConnected, TcpSide::NotConnected] => TcpConnectionState::None,
        [TcpSide::NotConnected, TcpSide::Connected]
        | [TcpSide::Connected, TcpSide::NotConnected] => TcpConnectionState::SynSent,
        [TcpSide::Connected, TcpSide::Connected] => TcpConnectionState::Established,
        [TcpSide::Disconnected, TcpSide::Connected]
        | [TcpSide::Connected, TcpSide::Disconnected] => TcpConnectionState::FinWait,
        _ => TcpConnectionState::Close,
    }
}

const fn number(end: AliasEnd) -> u64 {
    (end.address as u64) << 16 | end.port as u64
}

/// The list of a key.
fn list(seed: [u64; 2], key: &Key) -> usize {
    let ends = mix(number(key.near) ^ seed[0], number(key.remote) ^ seed[1]);
    mix(ends ^ key.instance ^ u64::from(key.kind.0), seed[0]) as usize % LISTS
}
