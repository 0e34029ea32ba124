//! Neighbours and their states: RFC 4861, 7.3, and RFC 826, with the kernel's timers
//! (`net/core/neighbour.c`; `net.ipv4.neigh.default.*`, the same for IPv6).
//!
//! Differences from Linux:
//!
//! - The path does not report when it uses a neighbour, so every entry counts as used. A STALE
//!   entry moves on to DELAY and PROBE by itself and is never collected (`gc_stale_time`).
//! - An entry that does not answer is removed; Linux keeps it as FAILED.
//! - The reachable time is its base; Linux draws a value between half and one and a half of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use super::Packet;
use crate::frame::FrameAddr;
use crate::id::LinkId;

const S: u64 = 1_000_000_000;

/// `base_reachable_time_ms`.
pub const REACHABLE_NS: u64 = 30 * S;
/// `delay_first_probe_time`.
pub const DELAY_NS: u64 = 5 * S;
/// `retrans_time_ms`.
pub const RETRANS_NS: u64 = S;
/// `mcast_solicit`: multicast or broadcast solicitations before a neighbour fails.
pub const MCAST_SOLICIT: u8 = 3;
/// `ucast_solicit`: unicast solicitations before a neighbour fails.
pub const UCAST_SOLICIT: u8 = 3;
/// `gc_thresh3`: the most neighbours of a family.
pub const MAX_ENTRIES: usize = 1024;
/// `unres_qlen`: the most packets that wait for one neighbour.
pub const QUEUE_PACKETS: usize = 101;
/// `unres_qlen_bytes`: the most bytes that wait for one neighbour.
pub const QUEUE_BYTES: usize = 212_992;
/// The most packets that wait for all neighbours together. Linux has no such limit; here the
/// packets occupy a port's chunks.
pub const QUEUE_TOTAL: usize = 4096;
/// `LOCKTIME`: how long ARP keeps an answer when a different one arrives.
pub const LOCKTIME_NS: u64 = S;

/// A neighbour's link and address.
pub(super) type Key = (LinkId, IpAddr);

/// The state of a neighbour (RFC 4861, 7.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Solicited; no address yet.
    Incomplete,
    /// An address without recent confirmation.
    Stale,
    /// As stale; a probe follows soon.
    Delay,
    /// An address that is being probed.
    Probe,
    /// A confirmed address.
    Reachable,
}

impl State {
    /// The state's name, as in `ip neigh`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Stale => "stale",
            Self::Delay => "delay",
            Self::Probe => "probe",
            Self::Reachable => "reachable",
        }
    }
}

/// Why a frame waits; this decides how it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Received and counted as held.
    Held,
    /// Received and counted as punted, since the host processed it.
    Forwarded,
    /// Made by the router.
    Made,
}

/// A neighbour.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    pub(super) mac: [u8; 6],
    /// When the address or the state last changed.
    pub(super) updated: u64,
    /// When the next step is due.
    pub(super) due: u64,
    /// Solicitations sent in this state.
    pub(super) probes: u8,
    /// Frames that wait for the address, with their TTL decremented.
    pub(super) queue: VecDeque<(Packet, Waiting)>,
    queue_bytes: usize,
}

impl Entry {
    fn new(now: u64) -> Self {
        Self {
            state: State::Incomplete,
            mac: [0; 6],
            updated: now,
            due: now,
            probes: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
        }
    }

    /// Takes out the waiting frames, in order.
    pub(super) fn take_queue(&mut self) -> VecDeque<(Packet, Waiting)> {
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Queues a frame (again) after the others.
    pub(super) fn put_back(&mut self, packet: Packet, waiting: Waiting) {
        self.queue_bytes += usize::from(packet.len);
        self.queue.push_back((packet, waiting));
    }

    /// Enters a state and sets the time when it ends.
    pub(super) fn enter(&mut self, state: State, now: u64) {
        if self.state != state {
            self.updated = now;
        }
        self.state = state;
        self.probes = 0;
        self.due = now
            + match state {
                State::Reachable => REACHABLE_NS,
                State::Delay => DELAY_NS,
                State::Incomplete | State::Stale | State::Probe => 0,
            };
    }
}

/// The action for a neighbour whose timer expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// No visible action.
    Nothing,
    /// Solicit all stations of the link.
    SolicitAll,
    /// Probe the neighbour itself.
    Probe([u8; 6]),
    /// It did not answer.
    Failed,
}

/// All neighbours that are not static.
#[derive(Debug, Default)]
pub(super) struct Neighs {
    entries: BTreeMap<Key, Entry>,
    statics: BTreeSet<Key>,
    /// Entries by family: IPv4, IPv6.
    count: [usize; 2],
    /// Frames in all queues.
    waiting: usize,
}

impl Neighs {
    pub(super) fn set_static(&mut self, key: Key) {
        self.statics.insert(key);
    }

    pub(super) fn is_static(&self, key: Key) -> bool {
        self.statics.contains(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.get_mut(&key)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Entry> {
        self.entries.get(&key)
    }

    /// Neighbours of both families.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Frames in all queues.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Frames in all queues that do not count as held.
    pub(super) fn made_waiting(&self) -> usize {
        let queued = self.entries.values().flat_map(|entry| &entry.queue);
        queued.filter(|(_, waiting)| *waiting != Waiting::Held).count()
    }

    /// The frames in all queues.
    pub(super) fn frames(&self) -> impl Iterator<Item = FrameAddr> {
        let queued = self.entries.values().flat_map(|entry| &entry.queue);
        queued.map(|(packet, _)| packet.addr)
    }

    /// Adds an entry without an address; there is none yet and there is room.
    pub(super) fn add(&mut self, key: Key, now: u64) {
        if self.entries.insert(key, Entry::new(now)).is_none() {
            self.count[family(key)] += 1;
        }
    }

    /// Adds an entry from another table, with all frames that wait for it.
    pub(super) fn put(&mut self, key: Key, entry: Entry) {
        self.remove(key);
        self.count[family(key)] += 1;
        self.waiting += entry.queue.len();
        self.entries.insert(key, entry);
    }

    /// Takes out all entries.
    pub(super) fn take_entries(&mut self) -> BTreeMap<Key, Entry> {
        (self.count, self.waiting) = ([0; 2], 0);
        std::mem::take(&mut self.entries)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.count[family(key)] -= 1;
        self.waiting -= entry.queue.len();
        Some(entry)
    }

    pub(super) fn is_full(&self, key: Key) -> bool {
        self.count[family(key)] >= MAX_ENTRIES
    }

    /// The entry to evict for `key`: entries without an address first, then the oldest; never a
    /// reachable one.
    pub(super) fn victim(&self, key: Key) -> Option<Key> {
        let of_family = self.entries.iter().filter(|(other, _)| family(**other) == family(key));
        let loose = of_family.filter(|(_, entry)| entry.state != State::Reachable);
        let rank = |entry: &Entry| (entry.state != State::Incomplete, entry.updated);
        loose.min_by_key(|(_, entry)| rank(entry)).map(|(other, _)| *other)
    }

    /// Queues a frame for a neighbour with an entry; returns the frames that had to make room.
    pub(super) fn enqueue(
        &mut self,
        key: Key,
        packet: Packet,
        waiting: Waiting,
    ) -> Vec<(Packet, Waiting)> {
        let Some(entry) = self.entries.get_mut(&key) else { return vec![(packet, waiting)] };
        let mut out = Vec::new();
        let bytes = usize::from(packet.len);
        while entry.queue.len() >= QUEUE_PACKETS || entry.queue_bytes + bytes > QUEUE_BYTES {
            let Some((oldest, kind)) = entry.queue.pop_front() else { break };
            entry.queue_bytes -= usize::from(oldest.len);
            out.push((oldest, kind));
        }
        entry.put_back(packet, waiting);
        self.waiting = self.waiting + 1 - out.len();
        out
    }

    /// Takes out the frames that wait for a neighbour, in order.
    pub(super) fn take_queue(&mut self, key: Key) -> VecDeque<(Packet, Waiting)> {
        let Some(entry) = self.entries.get_mut(&key) else { return VecDeque::new() };
        let queue = entry.take_queue();
        self.waiting -= queue.len();
        queue
    }

    /// The neighbours without an address.
    pub(super) fn incomplete(&self) -> Vec<Key> {
        let all = self.entries.iter();
        all.filter(|(_, entry)| entry.state == State::Incomplete).map(|(key, _)| *key).collect()
    }

    /// The neighbours whose timers expired.
    pub(super) fn due(&self, now: u64) -> Vec<Key> {
        let due = self.entries.iter().filter(|(_, entry)| entry.due <= now);
        due.map(|(key, _)| *key).collect()
    }

    /// Takes a neighbour with an expired timer one step on (`neigh_timer_handler`).
    pub(super) fn step(&mut self, key: Key, now: u64) -> Due {
        let Some(entry) = self.entries.get_mut(&key) else { return Due::Nothing };
        match entry.state {
            State::Reachable | State::Stale => {
                entry.enter(State::Delay, now);
                return Due::Nothing;
            }
            State::Delay => entry.enter(State::Probe, now),
            State::Incomplete | State::Probe => {}
        }
        let (most, query) = match entry.state {
            State::Incomplete => (MCAST_SOLICIT, Due::SolicitAll),
            _ => (UCAST_SOLICIT, Due::Probe(entry.mac)),
        };
        if entry.probes >= most {
            return Due::Failed;
        }
        entry.probes += 1;
        entry.due = now + RETRANS_NS;
        query
    }
}

const fn family(key: Key) -> usize {
    key.1.is_ipv6() as usize
}

/// News about a neighbour: the content of its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct News {
    pub(super) mac: Option<[u8; 6]>,
    /// It answers the router, so the neighbour is reachable.
    pub(super) solicited: bool,
    /// It may replace a known address.
    pub(super) overrides: bool,
    /// If it does not replace the known address, that becomes doubtful
    /// (`NEIGH_UPDATE_F_WEAK_OVERRIDE`).
    pub(super) weak: bool,
}

/// The effect of a neighbour's message on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// The entry's state or times changed.
    Noted,
    /// The entry has a new address, or its first.
    Moved,
}

impl Entry {
    /// Applies a neighbour's message (`__neigh_update`, RFC 4861, 7.2.5).
    pub(super) fn update(&mut self, news: News, now: u64) -> Effect {
        let fresh = self.state == State::Incomplete;
        let Some(mac) = news.mac.or((!fresh).then_some(self.mac)) else { return Effect::None };
        let moved = fresh || mac != self.mac;
        if moved && !fresh && !news.overrides {
            if news.weak && self.state == State::Reachable {
                self.enter(State::Stale, now);
                return Effect::Noted;
            }
            return Effect::None;
        }
        if moved {
            (self.mac, self.updated) = (mac, now);
        }
        match (news.solicited, moved) {
            (true, _) => self.enter(State::Reachable, now),
            (false, true) => self.enter(State::Stale, now),
            (false, false) => return Effect::None,
        }
        if moved { Effect::Moved } else { Effect::Noted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

    fn key(number: u32) -> Key {
        (LinkId(0), IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    fn news(mac: [u8; 6], solicited: bool, overrides: bool) -> News {
        News { mac: Some(mac), solicited, overrides, weak: true }
    }

    #[test]
    fn states_follow_the_clock() {
        let mut neighs = Neighs::default();
        neighs.add(key(1), 0);
        assert_eq!(neighs.step(key(1), 0), Due::SolicitAll);
        assert_eq!(neighs.due(S - 1), vec![]);
        assert_eq!(neighs.due(S), vec![key(1)]);
        assert_eq!(neighs.step(key(1), S), Due::SolicitAll);
        assert_eq!(neighs.step(key(1), 2 * S), Due::SolicitAll);
        assert_eq!(neighs.step(key(1), 3 * S), Due::Failed);

        let entry = neighs.get_mut(key(1)).unwrap();
        assert_eq!(entry.update(news(A, true, false), 3 * S), Effect::Moved);
        assert_eq!(neighs.due(33 * S - 1), vec![]);
        assert_eq!(neighs.step(key(1), 33 * S), Due::Nothing);
        assert_eq!(neighs.get(key(1)).unwrap().state, State::Delay);
        assert_eq!(neighs.due(38 * S - 1), vec![]);
        assert_eq!(neighs.step(key(1), 38 * S), Due::Probe(A));
        assert_eq!(neighs.step(key(1), 39 * S), Due::Probe(A));
        assert_eq!(neighs.step(key(1), 40 * S), Due::Probe(A));
        assert_eq!(neighs.step(key(1), 41 * S), Due::Failed);
        assert_eq!(neighs.remove(key(1)).unwrap().state, State::Probe);
        assert_eq!((neighs.len(), neighs.waiting()), (0, 0));
    }

    #[test]
    fn advertisements_update_as_in_the_rfc() {
        let mut entry = Entry::new(0);
        let nothing = News { mac: None, ..news(A, true, true) };
        assert_eq!(entry.update(nothing, 0), Effect::None);
        assert_eq!(entry.update(news(A, false, false), 0), Effect::Moved);
        assert_eq!(entry.state, State::Stale);
        assert_eq!(entry.update(nothing, 1), Effect::Noted);
        assert_eq!(entry.state, State::Reachable);
        // Another address without the override flag only makes the known one doubtful.
        assert_eq!(entry.update(news(B, true, false), 2), Effect::Noted);
        assert_eq!((entry.state, entry.mac), (State::Stale, A));
        assert_eq!(entry.update(news(B, true, false), 3), Effect::None);
        assert_eq!(entry.update(news(A, false, true), 3), Effect::None);
        // Without `weak` (ARP), nothing changes.
        let strong = News { weak: false, ..news(B, true, false) };
        assert_eq!(entry.update(news(A, true, true), 3), Effect::Noted);
        assert_eq!(entry.update(strong, 3), Effect::None);
        assert_eq!((entry.state, entry.mac), (State::Reachable, A));
        assert_eq!(entry.update(news(B, false, true), 4), Effect::Moved);
        assert_eq!((entry.state, entry.mac), (State::Stale, B));
        assert_eq!(entry.update(news(A, true, true), 5), Effect::Moved);
        assert_eq!((entry.state, entry.mac), (State::Reachable, A));
    }

    #[test]
    fn a_full_queue_lets_its_oldest_go() {
        let packet = |n: u32, len| Packet {
            addr: FrameAddr(n),
            len,
            l3: 14,
            link: LinkId(0),
            policy_route: crate::stages::filter::PolicyRoute::Not,
        };
        let mut neighs = Neighs::default();
        neighs.add(key(1), 0);
        for n in 0..101 {
            assert!(neighs.enqueue(key(1), packet(n, 100), Waiting::Held).is_empty());
        }
        let out = neighs.enqueue(key(1), packet(101, 100), Waiting::Made);
        assert_eq!(out, vec![(packet(0, 100), Waiting::Held)]);
        assert_eq!((neighs.waiting(), neighs.made_waiting()), (101, 1));
        // Frames of 100 bytes, so a large one evicts more than one.
        for n in 0..3 {
            neighs.enqueue(key(1), packet(200 + n, 65_000), Waiting::Held);
        }
        let out = neighs.enqueue(key(1), packet(300, 65_000), Waiting::Held);
        assert_eq!(out.len(), 99);
        let queue = neighs.take_queue(key(1));
        let last = queue.iter().map(|(packet, _)| packet.addr.0).collect::<Vec<_>>();
        assert_eq!(last, [201, 202, 300]);
        assert_eq!(neighs.waiting(), 0);
    }

    #[test]
    fn reachable_entries_are_no_victims() {
        let mut neighs = Neighs::default();
        for number in 0..MAX_ENTRIES as u32 {
            neighs.add(key(number), u64::from(number));
            let entry = neighs.get_mut(key(number)).unwrap();
            entry.update(news(A, number != 7 && number != 9, true), u64::from(number));
        }
        assert!(neighs.is_full(key(9999)));
        assert_eq!(neighs.victim(key(9999)), Some(key(7)));
        neighs.remove(key(7));
        assert_eq!(neighs.victim(key(9999)), Some(key(9)));
        neighs.remove(key(9));
        assert_eq!(neighs.victim(key(9999)), None);
        neighs.add(key(7), 5000);
        assert_eq!(neighs.victim(key(9999)), Some(key(7)));
    }
}
