//! Looks packets of a burst up, and puts new connections into the table once their packets have passed.

use super::super::connection::{ConnectionField, ConnectionState, FlowConnection};
use super::super::flows::{Entry as _, FlowId, Side};
use super::table::{Found, NewConnection, Tracker};
use crate::burst::{BURST, Burst, Lanes};
use crate::frame::Umem;

/// The connections of a burst's packets.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Connections {
    /// The packets that are looked up. Before, rules see them as invalid.
    tracked: Lanes,
    /// Empty without tracking.
    all: Vec<Tracked>,
    /// Connections of these packets that are not in the table yet.
    new: Vec<(usize, NewConnection)>,
}

/// What tracking knows of a packet.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    connection: FlowConnection,
    /// That of the connection's first packet.
    flow: FlowId,
}

/// What follows from looking a packet up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Lookup {
    Found,
    Invalid,
    Full,
}

impl NewConnection {
    fn tracked(&self) -> Tracked {
        let seen = self.connection.seen(ConnectionState::New, Side::Forward);
        let flow = *self.connection.flow();
        Tracked { connection: FlowConnection::Tracked(seen), flow }
    }
}

impl Connections {
    /// Starts over for a burst.
    #[inline]
    pub(in super::super) fn begin(&mut self) {
        self.tracked = Lanes::NONE;
        self.new.clear();
        if self.all.is_empty() {
            let none = Tracked { connection: FlowConnection::Invalid, flow: FlowId::default() };
            self.all = vec![none; BURST];
        }
    }

    /// The packets that are not looked up yet.
    #[inline]
    pub(in super::super) fn untracked(&self, lanes: Lanes) -> Lanes {
        lanes.without(self.tracked)
    }

    /// Looks a packet up, unless it is.
    #[inline]
    pub(in super::super) fn track(
        &mut self,
        tracker: &Tracker,
        (version, packet): (u8, &[u8]),
        lane: usize,
        now_ns: u64,
    ) -> Lookup {
        if self.tracked.has(lane) {
            return Lookup::Found;
        }
        self.tracked.put(lane, true);
        let Some(tracked) = self.all.get_mut(lane) else { return Lookup::Full };
        tracked.connection = FlowConnection::Invalid;
        match tracker.find(version, packet, now_ns) {
            Found::Known(connection, flow) => *tracked = Tracked { connection, flow },
            Found::New(new) => {
                *tracked = new.tracked();
                self.new.push((lane, *new));
            }
            Found::Untracked => tracked.connection = FlowConnection::Untracked,
            Found::Invalid => return Lookup::Invalid,
            Found::Full => return Lookup::Full,
        }
        Lookup::Found
    }

    /// Keeps a packet out of tracking, unless it belongs to a connection already (`nft_notrack_eval`).
    pub(in super::super) fn notrack(&mut self, lane: usize) {
        if self.of(lane).tracked().is_none()
            && let Some(tracked) = self.all.get_mut(lane)
        {
            tracked.connection = FlowConnection::Untracked;
            self.tracked.put(lane, true);
        }
    }

    /// The connection of a packet.
    #[inline]
    pub(in super::super) fn of(&self, lane: usize) -> FlowConnection {
        self.known(lane).map_or(FlowConnection::Invalid, |known| known.connection)
    }

    #[inline]
    fn known(&self, lane: usize) -> Option<&Tracked> {
        self.all.get(lane).filter(|_| self.tracked.has(lane))
    }

    /// A property of a packet's connection.
    #[inline]
    pub(in super::super) fn number(&self, lane: usize, field: ConnectionField) -> Option<u128> {
        let Some(known) = self.known(lane) else {
            return FlowConnection::Invalid.number(field, 0, 0);
        };
        known.connection.number(field, known.flow.version, known.flow.protocol)
    }

    /// Sets the mark of a packet's connection.
    pub(in super::super) fn set_mark(
        &mut self,
        tracker: &Tracker,
        lane: usize,
        mark: u32,
        now_ns: u64,
    ) {
        if self.of(lane).tracked().is_none() {
            return;
        }
        let Some(Tracked { flow, .. }) = self.all.get(lane).copied() else { return };
        match self.new.iter_mut().find(|(new, _)| *new == lane) {
            Some((_, new)) => new.connection.mark = mark,
            None => tracker.set_mark(&flow, mark, now_ns),
        }
        for lane in self.tracked {
            if let Some(Tracked { connection: FlowConnection::Tracked(one), flow: own }) =
                self.all.get_mut(lane)
                && *own == flow
            {
                one.mark = mark;
            }
        }
    }

    /// Says whether a packet of the burst begins a connection.
    #[inline]
    pub(in super::super) fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// Puts the new connections of these packets into the table. Returns those for which there was no room.
    #[cold]
    pub(in super::super) fn confirm(
        &mut self,
        tracker: &Tracker,
        (burst, umem): (&Burst, &Umem),
        passed: [Lanes; 2],
        now_ns: u64,
    ) -> Lanes {
        let mut lost = Lanes::NONE;
        for (lane, new) in std::mem::take(&mut self.new) {
            let version = match passed {
                [ip4, _] if ip4.has(lane) => 4,
                [_, ip6] if ip6.has(lane) => 6,
                _ => continue,
            };
            let packet = (version, packet(burst, umem, lane));
            lost.put(lane, !tracker.confirm(new, packet, now_ns));
        }
        lost
    }
}

/// The bytes of a packet from layer 3 on.
#[inline]
pub(in super::super) fn packet<'a>(burst: &Burst, umem: &'a Umem, lane: usize) -> &'a [u8] {
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    frame.get(usize::from(burst.l3[lane])..).unwrap_or_default()
}
