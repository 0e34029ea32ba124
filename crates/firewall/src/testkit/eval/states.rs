//! States of packets, in a plain list: what `sys/netpfil/ipfw/ip_fw_dynamic.c` does with them, written a second
//! time.

use std::collections::HashMap;

use super::Packet;
use crate::ir::{Field, Hook, PayloadBase, StateLimit, StateName, StateRule};

const S: u64 = 1_000_000_000;

const MOST_STATES: usize = 16_384;
const MOST_GROUPS: usize = 4096;

/// An address and a port.
type End = (u128, u16);

/// What identifies the packets of a flow: version, protocol, zone of link-local addresses, source, destination.
type Id = (u8, u8, Option<String>, End, End);

/// A packet, as states see it.
#[derive(Clone, Debug)]
pub struct FlowPacket {
    id: Id,
    flags: u8,
    ack: Option<u32>,
}

/// All states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// The newest is the last.
    all: Vec<State>,
    /// When states whose time is over are removed next; until then they count.
    next_sweep_ns: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    id: Id,
    name: StateName,
    state_rule: usize,
    /// What a limit counts it by.
    group: Option<Id>,
    expires_ns: u64,
    /// Flags of both sides.
    flags: [u8; 2],
    acks: [u32; 2],
    acked: [bool; 2],
}

/// Whether a packet got a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It has one.
    Yes,
    /// Its limit has been reached.
    OverLimit,
    /// There is no room.
    Full,
}

impl States {
    /// Removes states whose time is over, once a second.
    pub fn sweep(&mut self, now_ns: u64) {
        if self.next_sweep_ns.is_some_and(|next_ns| now_ns >= next_ns) {
            self.next_sweep_ns = Some(now_ns + S);
            self.all.retain(|state| state.expires_ns > now_ns);
        }
    }

    /// The rule that keeps the newest state of the packet with this name, or with any.
    pub fn check(
        &mut self,
        packet: &FlowPacket,
        name: Option<StateName>,
        now_ns: u64,
    ) -> Option<usize> {
        self.next_sweep_ns.get_or_insert(now_ns + S);
        self.find(packet, name, now_ns)
    }

    fn find(&mut self, packet: &FlowPacket, name: Option<StateName>, now_ns: u64) -> Option<usize> {
        let (version, protocol, zone, source, destination) = packet.id.clone();
        let back = (version, protocol, zone, destination, source);
        let fits = |state: &&mut State| {
            (state.id == packet.id || state.id == back)
                && name.is_none_or(|name| state.name == name)
                && state.expires_ns > now_ns
        };
        let state = self.all.iter_mut().rev().find(fits)?;
        let side = usize::from(state.id != packet.id);
        state.note(packet, side, now_ns);
        Some(state.state_rule)
    }

    /// Keeps a state of the packet for the rule of this number.
    pub fn keep(
        &mut self,
        packet: &FlowPacket,
        number: usize,
        state_rule: &StateRule,
        now_ns: u64,
    ) -> Kept {
        self.next_sweep_ns.get_or_insert(now_ns + S);
        let group = state_rule.limit.map(|limit| packet.group(&limit));
        if let (Some(limit), Some(_)) = (state_rule.limit, &group) {
            let mut counts: HashMap<_, u32> = HashMap::new();
            for state in self.all.iter().filter(|state| state.group.is_some()) {
                *counts.entry((state.state_rule, state.group.clone())).or_default() += 1;
            }
            match counts.get(&(number, group.clone())) {
                count if count.copied().unwrap_or(0) >= limit.most => return Kept::OverLimit,
                None if counts.len() >= MOST_GROUPS => return Kept::Full,
                _ => {}
            }
        }
        let name = StateName::of(&state_rule.name);
        if self.find(packet, Some(name), now_ns).is_some() {
            return Kept::Yes;
        }
        if self.all.len() >= MOST_STATES {
            return Kept::Full;
        }
        let mut state = State {
            id: packet.id.clone(),
            name,
            state_rule: number,
            group,
            expires_ns: now_ns + 20 * S,
            flags: [0; 2],
            acks: [0; 2],
            acked: [false; 2],
        };
        state.note(packet, 0, now_ns);
        self.all.push(state);
        Kept::Yes
    }

    /// The number of states.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl State {
    fn note(&mut self, packet: &FlowPacket, side: usize, now_ns: u64) {
        let lives = match packet.id.1 {
            6 => self.note_tcp(packet, side),
            17 | 136 => Some(10),
            _ => Some(5),
        };
        if let Some(seconds) = lives {
            self.expires_ns = now_ns + seconds * S;
        }
    }

    fn note_tcp(&mut self, packet: &FlowPacket, side: usize) -> Option<u64> {
        self.flags[side] |= packet.flags & 7;
        let [fin, syn, rst] = [1, 2, 4].map(|flag| self.flags.map(|flags| flags & flag != 0));
        match (fin, syn, rst) {
            ([false, false], [true, false], [false, false]) => Some(20),
            ([true, true], [true, true], [false, false]) => Some(1),
            (_, [true, true], [false, false]) => {
                let ack = packet.ack?;
                let last = self.acks[side];
                let is_old = last != 0 && (ack.wrapping_sub(last) as i32) < 0;
                if !is_old {
                    self.acks[side] = ack;
                }
                let other = 1 - side;
                if self.acked[other] && !is_old {
                    // The next one of the other side, together with this one, is again both.
                    self.acked = [side == 0, side == 1];
                    return Some(300);
                }
                self.acked[side] |= !is_old;
                None
            }
            _ => Some(1),
        }
    }
}

impl FlowPacket {
    fn group(&self, limit: &StateLimit) -> Id {
        let (version, protocol, zone, source, destination) = self.id.clone();
        let part = |end: End, address: bool, port: bool| {
            (if address { end.0 } else { 0 }, if port { end.1 } else { 0 })
        };
        let source = part(source, limit.source, limit.source_port);
        let destination = part(destination, limit.destination, limit.destination_port);
        (version, protocol, zone, source, destination)
    }
}

impl Packet<'_> {
    /// The packet as states see it at a hook; `None` if it is not of IP.
    #[must_use]
    pub fn flow(&self, hook: Hook) -> Option<FlowPacket> {
        let number = |field| self.number(field, hook);
        let four = number(Field::Source4).zip(number(Field::Destination4));
        let six = number(Field::Source6).zip(number(Field::Destination6));
        let (source, destination) = four.or(six)?;
        let protocol = number(Field::Protocol)? as u8;
        let port = |field| match protocol {
            6 | 17 | 132 | 136 => number(field).unwrap_or(0) as u16,
            _ => 0,
        };
        let ends = ((source, port(Field::SourcePort)), (destination, port(Field::DestinationPort)));
        let is_local = |address| self.version() == 6 && address & 0xffc0 << 112 == 0xfe80 << 112;
        let zone = is_local(source) || is_local(destination);
        let zone = zone.then(|| self.input.name.clone());
        let is_tcp = protocol == 6;
        let ack = Field::Payload { base: PayloadBase::Transport, offset: 8, bytes: 4 };
        Some(FlowPacket {
            id: (self.version(), protocol, zone, ends.0, ends.1),
            flags: if is_tcp { number(Field::TcpFlags).unwrap_or(0) as u8 } else { 0 },
            ack: number(ack).filter(|_| is_tcp).map(|ack| ack as u32),
        })
    }
}
