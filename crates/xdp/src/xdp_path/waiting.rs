//! Flows that wait to enter the XDP path. A flow enters in a pause of its packets, so that none of
//! them overtakes those that still take the user path.
//!
//! XDP sends a packet within a microsecond; a packet through a socket takes ten to fifty. So a flow
//! that enters while its packets follow each other closely is reordered. It waits here until a pause
//! in its packets, with its port's queues empty. After 50 ms, a flow enters even without a pause.
//! If more packets arrive than user space can send, all flows enter at once, for losing packets is
//! worse.
//!
//! If several workers serve a port's queues, each has flows that wait by itself. A flow's packets are in one queue,
//! so only the queues of the port that this worker serves matter, and only those are what `idle` and `busy` are
//! about. Packets are reordered if a card moves a flow to another queue meanwhile (`ethtool -X`); the kernel
//! reorders them then, too.
//!
//! Limit: if the egress port belongs to another worker, a packet also waits in the ring to it
//! (`tollway_dataplane::hand_over`). It leaves within the pause unless that worker gets no processor; then the
//! flow's first packets on the XDP path overtake it.

use tollway_dataplane::id::PortId;

use super::entry::Key;
use super::flow_stats::FlowHash;
use crate::flows::Flow;

/// The most waiting flows. When two share a place, the older one enters at once.
const PLACES: usize = 1024;
/// The length of a pause: several times what a packet takes through user space.
const PAUSE_NS: u64 = 100_000;
/// The longest wait of a flow.
const LONGEST_NS: u64 = 50_000_000;
/// The interval between checks for flows that must enter.
const CHECK_NS: u64 = 500_000;
/// A port whose queues are not empty for this long receives more than user space can send. A worker
/// that lost its processor for a moment has caught up by then.
const BEHIND_NS: u64 = 5_000_000;

/// A waiting flow.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    hash: FlowHash,
    port: PortId,
    key: Key,
    flow: Flow,
    since_ns: u64,
    /// The time of its last packet.
    last_ns: u64,
}

/// The waiting flows.
pub(super) struct WaitingRoom {
    places: Box<[Option<Waiting>]>,
    /// The occupied places.
    occupied: Vec<u16>,
    /// When the worker last found each port's queues empty.
    idle_ns: Vec<u64>,
    /// When the next check for flows that must enter is due.
    check_ns: u64,
}

fn place_of(hash: FlowHash) -> usize {
    hash.bits() as usize % PLACES
}

impl WaitingRoom {
    pub(super) fn new() -> Self {
        let (occupied, idle_ns) = (Vec::with_capacity(PLACES), Vec::new());
        Self { places: vec![None; PLACES].into_boxed_slice(), occupied, idle_ns, check_ns: 0 }
    }

    /// Whether no flow waits.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.occupied.is_empty()
    }

    /// Notes a packet of a flow that may be waiting.
    #[inline]
    pub(super) fn touch(&mut self, hash: FlowHash, now_ns: u64) {
        if let Some(Some(waiting)) = self.places.get_mut(place_of(hash))
            && waiting.hash == hash
        {
            waiting.last_ns = now_ns;
        }
    }

    /// Queues a flow; returns the flow that it displaces, which must enter now.
    pub(super) fn put(
        &mut self,
        (hash, port): (FlowHash, PortId),
        (key, flow): (Key, Flow),
        now_ns: u64,
    ) -> Option<(Key, Flow)> {
        let place = place_of(hash);
        let waiting = Waiting { hash, port, key, flow, since_ns: now_ns, last_ns: now_ns };
        match self.places[place].replace(waiting) {
            None => {
                if self.occupied.is_empty() {
                    // While no flow waits, `idle` is not called, so the time may be old.
                    self.note_idle(port, now_ns);
                }
                self.occupied.push(place as u16);
                None
            }
            // The tables have changed since the flow's earlier entry was made.
            Some(before) if before.hash == hash => {
                self.places[place] = Some(Waiting { since_ns: before.since_ns, ..waiting });
                None
            }
            Some(other) => Some((other.key, other.flow)),
        }
    }

    /// Called if a port received nothing: calls `enter` for the flows that may enter.
    pub(super) fn idle(&mut self, port: PortId, now_ns: u64, enter: impl FnMut(Key, Flow)) {
        self.note_idle(port, now_ns);
        self.enter_where(enter, |waiting| {
            waiting.port == port && now_ns.saturating_sub(waiting.last_ns) >= PAUSE_NS
        });
    }

    /// Called if a port received packets; `is_behind` says whether its queues may hold more. Calls
    /// `enter` for the flows that must enter without a pause.
    pub(super) fn busy(
        &mut self,
        (port, is_behind): (PortId, bool),
        now_ns: u64,
        enter: impl FnMut(Key, Flow),
    ) {
        if !is_behind {
            self.note_idle(port, now_ns);
        }
        if now_ns < self.check_ns {
            return;
        }
        self.check_ns = now_ns + CHECK_NS;
        let idle_ns = self.idle_ns.get(usize::from(port.0)).copied().unwrap_or(0);
        let is_late = now_ns.saturating_sub(idle_ns) >= BEHIND_NS;
        self.enter_where(enter, |waiting| {
            waiting.port == port && is_late || now_ns.saturating_sub(waiting.since_ns) >= LONGEST_NS
        });
    }

    fn note_idle(&mut self, port: PortId, now_ns: u64) {
        let index = usize::from(port.0);
        if index >= self.idle_ns.len() {
            self.idle_ns.resize(index + 1, now_ns);
        }
        self.idle_ns[index] = now_ns;
    }

    fn enter_where(
        &mut self,
        mut enter: impl FnMut(Key, Flow),
        may_enter: impl Fn(&Waiting) -> bool,
    ) {
        let Self { places, occupied, .. } = self;
        occupied.retain(|place| {
            let place = &mut places[usize::from(*place)];
            let Some(waiting) = place.take_if(|waiting| may_enter(waiting)) else { return true };
            enter(waiting.key, waiting.flow);
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::Flow4Key;

    const PORT: PortId = PortId(1);

    fn key(number: u8) -> Key {
        let (src_be, dst_be) = ([10, 0, 0, number], [10, 0, 1, number]);
        let (sport_be, dport_be) = ([0, 1], [0, 2]);
        Key::V4(Flow4Key { src_be, dst_be, sport_be, dport_be, protocol: 17, link: 0 })
    }

    fn put(room: &mut WaitingRoom, number: u8, now_ns: u64) -> Option<Key> {
        let at = (FlowHash::from_bits(number.into()), PORT);
        room.put(at, (key(number), Flow::default()), now_ns).map(|(key, _)| key)
    }

    fn idle(room: &mut WaitingRoom, port: PortId, now_ns: u64) -> Vec<Key> {
        let mut entered = Vec::new();
        room.idle(port, now_ns, |key, _| entered.push(key));
        entered
    }

    fn busy(room: &mut WaitingRoom, is_behind: bool, now_ns: u64) -> Vec<Key> {
        let mut entered = Vec::new();
        room.busy((PORT, is_behind), now_ns, |key, _| entered.push(key));
        entered
    }

    #[test]
    fn a_flow_enters_in_a_pause_of_its_own() {
        let mut room = WaitingRoom::new();
        assert_eq!((put(&mut room, 1, 0), put(&mut room, 2, 0)), (None, None));
        room.touch(FlowHash::from_bits(2), PAUSE_NS / 2);
        assert_eq!(idle(&mut room, PortId(0), PAUSE_NS), [], "another port's");
        assert_eq!(idle(&mut room, PORT, PAUSE_NS - 1), []);
        assert_eq!(idle(&mut room, PORT, PAUSE_NS), [key(1)]);
        assert_eq!(idle(&mut room, PORT, 2 * PAUSE_NS), [key(2)]);
        assert!(room.is_empty());
    }

    #[test]
    fn a_flow_without_a_pause_enters_at_last() {
        let mut room = WaitingRoom::new();
        put(&mut room, 1, 0);
        for now_ns in (CHECK_NS..LONGEST_NS).step_by(CHECK_NS as usize) {
            assert_eq!(busy(&mut room, false, now_ns), [], "{now_ns}");
            // The tables have changed, and the flow keeps waiting.
            assert_eq!(put(&mut room, 1, now_ns), None);
        }
        assert_eq!(busy(&mut room, false, LONGEST_NS), [key(1)]);
    }

    #[test]
    fn all_flows_enter_if_more_packets_arrive_than_leave() {
        let mut room = WaitingRoom::new();
        put(&mut room, 1, 0);
        put(&mut room, 2, 0);
        assert_eq!(busy(&mut room, true, BEHIND_NS - 1), []);
        assert_eq!(busy(&mut room, true, 2 * BEHIND_NS), [key(1), key(2)]);
    }

    #[test]
    fn the_older_of_two_flows_in_one_place_enters() {
        let mut room = WaitingRoom::new();
        put(&mut room, 1, 0);
        let at = (FlowHash::from_bits(1 + PLACES as u64), PORT);
        let other = room.put(at, (key(9), Flow::default()), 0);
        assert_eq!(other.map(|(key, _)| key), Some(key(1)));
        assert_eq!(idle(&mut room, PORT, PAUSE_NS), [key(9)]);
    }
}
