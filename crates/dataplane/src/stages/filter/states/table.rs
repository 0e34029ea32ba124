//! The states of a filter's rules.

use std::net::IpAddr;

use super::super::flows::{self, Entry, FlowId, NONE, Part, Side, address, lock};
use super::packet::{StatePacket, group};
use super::parents::{Parents, Taken};
use super::tcp::{self, Tcp};
use super::{Count, Known, SIZE, StateName, StateRefusal};
use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct Table {
    states: flows::Table<State>,
    /// Locked behind a part, never before it.
    parents: Mutex<Parents>,
}

/// A state.
#[derive(Clone, Copy, Debug)]
struct State {
    flow: FlowId,
    name: StateName,
    /// The rule that keeps it, and its number among the rules that looked it up last.
    state_rule: u64,
    hint: u32,
    /// The group that its rule's limit counts it in.
    parent: u32,
    tcp: Tcp,
    /// By [`Side`].
    counts: [Count; 2],
}

impl Entry for State {
    /// The name, if it matters.
    type Wanted = Option<StateName>;

    #[inline]
    fn flow(&self) -> &FlowId {
        &self.flow
    }

    #[inline]
    fn is(&self, name: Option<StateName>) -> bool {
        name.is_none_or(|name| name == self.name)
    }
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
        let states = flows::Table::new(SIZE, now_ns);
        Self { parents: Mutex::new(Parents::new(states.seed())), states }
    }

    /// The number of the rule that keeps the packet's state, see [`super::States::check`].
    pub(super) fn check(
        &self,
        packet: &StatePacket,
        name: Option<StateName>,
        known: &[Known],
        now_ns: u64,
    ) -> Option<usize> {
        let (mut part, list) = self.states.place(&packet.flow);
        let (at, side) = part.find(list, &packet.flow, name, now_ns)?;
        let number = part.get_mut(at)?.0.state_rule_among(known)?;
        note(&mut part, at, packet, side, now_ns);
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
        let mut state = State {
            flow: packet.flow,
            name: state_rule.name,
            state_rule: state_rule.identity,
            hint: number as u32,
            parent: NONE,
            tcp: Tcp::default(),
            counts: [Count::default(); 2],
        };
        if let Some(limit) = &state_rule.limit {
            let group = group(&packet.flow, limit);
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
        state: State,
        packet: &StatePacket,
        known: &[Known],
        now_ns: u64,
    ) -> Result<bool, StateRefusal> {
        let (mut part, list) = self.states.place(&packet.flow);
        if let Some((at, side)) = part.find(list, &packet.flow, Some(state.name), now_ns)
            && part.get_mut(at).is_some_and(|(state, _)| state.state_rule_among(known).is_some())
        {
            note(&mut part, at, packet, side, now_ns);
            return Ok(false);
        }
        if !self.states.take_room() {
            return Err(StateRefusal::Full);
        }
        let Some(at) = part.add(list, state, tcp::begins_ns(now_ns)) else {
            self.states.give_room();
            return Err(StateRefusal::Full);
        };
        note(&mut part, at, packet, Side::Forward, now_ns);
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
        if self.states.is_time(now_ns) {
            self.sweep_now(now_ns);
        }
    }

    #[cold]
    fn sweep_now(&self, now_ns: u64) {
        self.states.sweep_all(now_ns).iter().for_each(|state| self.give_back(state.parent));
    }

    /// Removes the states of other rules than these.
    pub(super) fn retain(&self, known: &[Known]) {
        let is_of_others =
            |_, state: &State| known.iter().all(|known| known.identity != state.state_rule);
        self.states.remove_if(is_of_others).iter().for_each(|state| self.give_back(state.parent));
    }

    /// All states whose time is not over, each with the identity of its rule.
    pub(super) fn list(&self, now_ns: u64) -> Vec<(u64, StateReport)> {
        let listed = self.states.list(now_ns).into_iter().map(|(state, expires_ns)| {
            (state.state_rule, state.report(expires_ns.saturating_sub(now_ns)))
        });
        listed.collect()
    }

    /// The number of states, whose time may be over.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.states.count()
    }

    /// The numbers of states of all groups.
    #[cfg(test)]
    pub(super) fn group_counts(&self) -> Vec<u32> {
        lock(&self.parents).counts()
    }
}

/// Notes a packet of a state.
#[inline]
fn note(part: &mut Part<State>, at: usize, packet: &StatePacket, side: Side, now_ns: u64) {
    let Some((state, ends_ns)) = part.get_mut(at) else { return };
    let count = &mut state.counts[side as usize];
    count.packets += 1;
    count.bytes += packet.bytes;
    if let Some(expires_ns) = tcp::expires_ns(&mut state.tcp, packet, side, now_ns) {
        *ends_ns = expires_ns;
    }
}

impl State {
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
        let FlowId { source, destination, source_port, destination_port, .. } = self.flow;
        let version = self.flow.version;
        StateReport {
            protocol: self.flow.protocol,
            source: (address(version, source), source_port),
            destination: (address(version, destination), destination_port),
            tcp_flags: self.tcp.flags(),
            expires_in_ns,
            counts: self.counts,
        }
    }
}
