//! The table of states, in parts with a lock each.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::flow::{FlowId, Side, StatePacket};
use super::parents::{NONE, Parents, Taken};
use super::tcp::{self, Tcp};
use super::{Count, Known, MOST_STATES, S, SHARDS, StateName, StateRefusal};
use crate::memory::Apart;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard};

/// The room of one part. Parts fill evenly, so all together have their most before one is full.
const ROOM: usize = MOST_STATES / SHARDS * 5 / 4;

/// The number of lists of one part.
const LISTS: usize = 1024;

/// A free slot of a part ends at this time.
const FREE: u64 = 0;

#[derive(Debug)]
pub(super) struct Table {
    seed: [u64; 2],
    /// The number of states.
    count: AtomicUsize,
    /// When room is given back next.
    next_sweep_ns: AtomicU64,
    shards: Box<[Apart<Mutex<Shard>>]>,
    /// Locked behind a part, never before it.
    parents: Mutex<Parents>,
}

#[derive(Debug)]
struct Shard {
    heads: Box<[u32]>,
    /// When each state ends, beside the slots: a sweep reads nothing else.
    expires_ns: Box<[u64]>,
    slots: Box<[Slot]>,
    free: u32,
}

/// A state.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    flow: FlowId,
    name: Option<StateName>,
    /// The rule that keeps it, and its number among the rules that looked it up last.
    state_rule: u64,
    hint: u32,
    /// The group that its rule's limit counts it in.
    parent: u32,
    next: u32,
    tcp: Tcp,
    /// By [`Side`].
    counts: [Count; 2],
}

/// A state, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateReport {
    /// The transport protocol.
    pub protocol: u8,
    /// Source address and port of its first packet.
    pub source: (IpAddr, u16),
    /// Destination address and port of its first packet.
    pub destination: (IpAddr, u16),
    /// FIN, SYN and RST of TCP that have been seen in the direction of the first packet, and in the other.
    pub tcp_flags: [u8; 2],
    /// How long it lives without further packets.
    pub expires_in_ns: u64,
    /// Packets and bytes in the direction of the first packet, and in the other.
    pub counts: [Count; 2],
}

impl Table {
    pub(super) fn new(now_ns: u64) -> Self {
        // Nobody can choose packets that share a list.
        let random = RandomState::new();
        let seed = [random.hash_one(1), random.hash_one(2)];
        Self {
            seed,
            count: AtomicUsize::new(0),
            next_sweep_ns: AtomicU64::new(now_ns.saturating_add(S)),
            shards: (0..SHARDS).map(|_| Apart(Mutex::new(Shard::new()))).collect(),
            parents: Mutex::new(Parents::new(seed)),
        }
    }

    /// The part and list of a flow.
    #[inline]
    fn place(&self, flow: &FlowId) -> (MutexGuard<'_, Shard>, usize) {
        let hash = flow.hash(self.seed) as usize;
        (lock(&self.shards[hash % SHARDS].0), hash / SHARDS % LISTS)
    }

    /// The number of the rule that keeps the packet's state, see [`super::States::check`].
    pub(super) fn check(
        &self,
        packet: &StatePacket,
        name: Option<StateName>,
        known: &[Known],
        now_ns: u64,
    ) -> Option<usize> {
        let (mut shard, list) = self.place(&packet.flow);
        let (at, side) = shard.find(list, &packet.flow, name, now_ns)?;
        let number = shard.slots.get_mut(at)?.state_rule_among(known)?;
        shard.note(at, packet, side, now_ns);
        Some(number)
    }

    /// Keeps a state of the packet, see [`super::States::keep`].
    pub(super) fn keep(
        &self,
        packet: &StatePacket,
        number: usize,
        known: &[Known],
        now_ns: u64,
    ) -> Result<(), StateRefusal> {
        let Some(state_rule) = known.get(number) else { return Err(StateRefusal::Full) };
        let mut state = Slot {
            flow: packet.flow,
            name: Some(state_rule.name),
            state_rule: state_rule.identity,
            hint: number as u32,
            parent: NONE,
            ..Slot::default()
        };
        if let Some(limit) = &state_rule.limit {
            let group = packet.flow.group(limit);
            state.parent = match lock(&self.parents).take(state_rule.identity, &group, limit.most) {
                Taken::Yes(parent) => parent,
                Taken::OverLimit => return Err(StateRefusal::OverLimit),
                Taken::Full => return Err(StateRefusal::Full),
            };
        }
        let is_new = self.insert(state, packet, known, now_ns);
        if is_new != Ok(true) {
            // It counts already, or there is none.
            self.give_back(state.parent);
        }
        is_new.map(|_| ())
    }

    /// Says whether the state is new.
    fn insert(
        &self,
        state: Slot,
        packet: &StatePacket,
        known: &[Known],
        now_ns: u64,
    ) -> Result<bool, StateRefusal> {
        let (mut shard, list) = self.place(&packet.flow);
        if let Some((at, side)) = shard.find(list, &packet.flow, state.name, now_ns)
            && shard.slots[at].state_rule_among(known).is_some()
        {
            shard.note(at, packet, side, now_ns);
            return Ok(false);
        }
        let before = self.count.fetch_add(1, Relaxed);
        let at = if before < MOST_STATES { shard.add(list, state, now_ns) } else { None };
        let Some(at) = at else {
            self.count.fetch_sub(1, Relaxed);
            return Err(StateRefusal::Full);
        };
        shard.note(at, packet, Side::Forward, now_ns);
        Ok(true)
    }

    fn give_back(&self, parent: u32) {
        if parent != NONE {
            lock(&self.parents).give_back(parent);
        }
    }

    /// Gives back the room of states whose time is over, once a second (`dyn_tick`).
    #[inline]
    pub(super) fn sweep(&self, now_ns: u64) {
        let due_ns = self.next_sweep_ns.load(Relaxed);
        if now_ns >= due_ns {
            self.sweep_now(due_ns, now_ns);
        }
    }

    #[cold]
    fn sweep_now(&self, due_ns: u64, now_ns: u64) {
        let next_ns = now_ns.saturating_add(S);
        if self.next_sweep_ns.compare_exchange(due_ns, next_ns, Relaxed, Relaxed).is_err() {
            // Another worker does it.
            return;
        }
        self.remove_if(|expires_ns, _| expires_ns <= now_ns);
    }

    /// Removes the states of other rules than these.
    pub(super) fn retain(&self, known: &[Known]) {
        self.remove_if(|_, slot| known.iter().all(|known| known.identity != slot.state_rule));
    }

    fn remove_if(&self, is_one: impl Fn(u64, &Slot) -> bool) {
        for shard in &self.shards {
            let mut shard = lock(&shard.0);
            for at in 0..ROOM {
                let expires_ns = shard.expires_ns[at];
                if expires_ns != FREE && is_one(expires_ns, &shard.slots[at]) {
                    let slot = shard.slots[at];
                    shard.remove(slot.flow.hash(self.seed) as usize / SHARDS % LISTS, at as u32);
                    self.give_back(slot.parent);
                    self.count.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// All states whose time is not over, each with the identity of its rule.
    pub(super) fn list(&self, now_ns: u64) -> Vec<(u64, StateReport)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = lock(&shard.0);
            let lives = shard.expires_ns.iter().zip(&shard.slots);
            let lives = lives.filter(|(expires_ns, _)| **expires_ns > now_ns);
            all.extend(lives.map(|(expires_ns, slot)| {
                (slot.state_rule, slot.report(expires_ns.saturating_sub(now_ns)))
            }));
        }
        all
    }

    /// The number of states, whose time may be over.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// The numbers of states of all groups.
    #[cfg(test)]
    pub(super) fn group_counts(&self) -> Vec<u32> {
        lock(&self.parents).counts()
    }
}

impl Shard {
    fn new() -> Self {
        let slot = |next: usize| Slot {
            next: if next < ROOM { next as u32 } else { NONE },
            ..Slot::default()
        };
        Self {
            heads: vec![NONE; LISTS].into(),
            expires_ns: vec![FREE; ROOM].into(),
            slots: (1..=ROOM).map(slot).collect(),
            free: 0,
        }
    }

    /// The newest state of the flow whose time is not over, with this name, or any.
    #[inline]
    fn find(
        &self,
        list: usize,
        flow: &FlowId,
        name: Option<StateName>,
        now_ns: u64,
    ) -> Option<(usize, Side)> {
        let mut at = self.heads[list] as usize;
        while let Some(slot) = self.slots.get(at) {
            if (name.is_none() || slot.name == name)
                && self.expires_ns[at] > now_ns
                && let Some(side) = slot.flow.side_of(flow)
            {
                return Some((at, side));
            }
            at = slot.next as usize;
        }
        None
    }

    /// Notes a packet of a state.
    #[inline]
    fn note(&mut self, at: usize, packet: &StatePacket, side: Side, now_ns: u64) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        let count = &mut slot.counts[side as usize];
        count.packets += 1;
        count.bytes += packet.bytes;
        if let Some(expires_ns) = tcp::expires_ns(&mut slot.tcp, packet, side, now_ns) {
            self.expires_ns[at] = expires_ns;
        }
    }

    fn add(&mut self, list: usize, state: Slot, now_ns: u64) -> Option<usize> {
        let at = self.free as usize;
        let slot = self.slots.get_mut(at)?;
        self.free = slot.next;
        *slot = Slot { next: self.heads[list], ..state };
        self.heads[list] = at as u32;
        self.expires_ns[at] = tcp::begins_ns(now_ns);
        Some(at)
    }

    fn remove(&mut self, list: usize, at: u32) {
        let next = self.slots[at as usize].next;
        let (mut before, mut here) = (NONE, self.heads[list]);
        while here != at {
            let Some(slot) = self.slots.get(here as usize) else { return };
            (before, here) = (here, slot.next);
        }
        match self.slots.get_mut(before as usize) {
            Some(slot) => slot.next = next,
            None => self.heads[list] = next,
        }
        self.slots[at as usize].next = self.free;
        self.expires_ns[at as usize] = FREE;
        self.free = at;
    }
}

impl Slot {
    /// The number of its rule among these, if it is there.
    #[inline]
    fn state_rule_among(&mut self, known: &[Known]) -> Option<usize> {
        let is_it = |known: &Known| known.identity == self.state_rule;
        if !known.get(self.hint as usize).is_some_and(is_it) {
            // Other rules have been read.
            self.hint = known.iter().position(is_it)? as u32;
        }
        Some(self.hint as usize)
    }

    fn report(&self, expires_in_ns: u64) -> StateReport {
        let FlowId {
            source, destination, source_port, destination_port, protocol, version, ..
        } = self.flow;
        let address = |address: u128| match version {
            4 => IpAddr::from((address as u32).to_be_bytes()),
            _ => IpAddr::from(address.to_be_bytes()),
        };
        StateReport {
            protocol,
            source: (address(source), source_port),
            destination: (address(destination), destination_port),
            tcp_flags: self.tcp.flags(),
            expires_in_ns,
            counts: self.counts,
        }
    }
}

/// The tables are whole whenever the lock is free, so a panic elsewhere cannot have damaged them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
