//! Looks packets of a burst up, and puts new connections into the table once their packets have passed.

use super::super::binding::{BindingRange, Manip, NatRange};
use super::super::connection::{
    Connection, ConnectionField, ConnectionState, Direction, FlowConnection,
};
use super::super::flows::{Entry as _, FlowId, Side};
use super::table::{Confirmed, Found, NewConnection, Tracker};
use super::{DST_NAT, SRC_NAT};
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
    /// What rules want for connections of these packets.
    orders: Vec<(usize, NatRange)>,
}

/// Where a packet of a translated connection goes from, or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct NatEnd {
    pub(in super::super) address: u128,
    /// Of queries, the identifier.
    pub(in super::super) port: u16,
    /// Whether the packet is an error that quotes a packet of the other direction.
    pub(in super::super) is_error: bool,
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
        self.orders.clear();
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
            let confirmed = tracker.confirm(new, packet, now_ns);
            lost.put(lane, matches!(confirmed, Confirmed::Full | Confirmed::Clash));
        }
        lost
    }

    /// The packets that begin a connection.
    pub(in super::super) fn beginning(&self, lanes: Lanes) -> Lanes {
        let mut beginning = Lanes::NONE;
        for (lane, _) in &self.new {
            beginning.put(*lane, lanes.has(*lane));
        }
        beginning
    }

    /// Notes what a rule wants for the connection that a packet begins.
    pub(in super::super) fn order(&mut self, lane: usize, range: NatRange) {
        self.orders.push((lane, range));
    }

    /// Takes what rules want for a packet's connection, and how that leaves so far.
    pub(in super::super) fn take_order(
        &mut self,
        lane: usize,
    ) -> Option<(Option<NatRange>, FlowId)> {
        let (_, new) = self.new.iter().find(|(new, _)| *new == lane)?;
        let order = self.orders.iter().position(|(ordered, _)| *ordered == lane);
        let order = order.map(|at| self.orders.swap_remove(at).1);
        Some((order, *new.connection.leaves()))
    }

    /// Chooses the destination of the connection that a packet begins.
    pub(in super::super) fn bind_destination(
        &mut self,
        tracker: &Tracker,
        lane: usize,
        range: &BindingRange,
        now_ns: u64,
    ) {
        let Some(at) = self.new.iter().position(|(new, _)| *new == lane) else { return };
        let flow = *self.new[at].1.connection.flow();
        // Packets of one burst that begin the same connection go to the same place, unless rules dropped the first one.
        let before = self.new[..at]
            .iter()
            .find(|(_, new)| *new.connection.flow() == flow && new.connection.has_destination());
        let leaves = before.map(|(_, new)| *new.connection.leaves());
        let (_, new) = &mut self.new[at];
        match leaves {
            Some(leaves) => new.connection.bind(leaves, Manip::Destination),
            None => tracker.bind(&mut new.connection, range, Manip::Destination, now_ns),
        }
        if let Some(tracked) = self.all.get_mut(lane) {
            *tracked = new.tracked();
        }
    }

    /// Chooses the source of the connection that a packet begins, and puts it into the table. If that is not possible,
    /// returns the counter for it.
    pub(in super::super) fn confirm_bound(
        &mut self,
        tracker: &Tracker,
        lane: usize,
        range: &BindingRange,
        packet: (u8, &[u8]),
        now_ns: u64,
    ) -> Result<(), u32> {
        let Some(at) = self.new.iter().position(|(new, _)| *new == lane) else { return Ok(()) };
        let (_, new) = self.new.swap_remove(at);
        let leaves = *new.connection.leaves();
        let connection = match tracker.confirm_bound(&new, range, packet, now_ns) {
            Confirmed::Added(connection) => connection,
            Confirmed::Known(connection) => {
                let end = nat_end(&connection, &leaves, Manip::Destination);
                if end.is_some_and(|end| end.address != leaves.destination) {
                    // Another worker has sent it elsewhere.
                    return Err(tracker.clash());
                }
                connection
            }
            Confirmed::Full => return Err(tracker.full()),
            Confirmed::Clash => return Err(tracker.clash()),
        };
        if let Some(tracked) = self.all.get_mut(lane) {
            tracked.connection = connection;
        }
        Ok(())
    }

    /// Says whether a packet's connection is translated.
    pub(in super::super) fn is_translated(&self, lane: usize) -> bool {
        let connection = self.of(lane);
        connection.tracked().is_some_and(|one| one.status & (SRC_NAT | DST_NAT) != 0)
    }

    /// The destination with which a packet has come that its connection gives another one.
    pub(in super::super) fn destination_before(&self, lane: usize) -> Option<(u128, Option<u16>)> {
        let Tracked { connection, flow } = self.known(lane)?;
        let Connection { status, direction, original, .. } = *connection.tracked()?;
        let is_changed = status & DST_NAT != 0 && direction == Direction::Original;
        let port = flow.query.is_none().then_some(original.destination_port);
        is_changed.then_some((original.destination, port))
    }

    /// What a packet's source or destination becomes, if its connection is translated so.
    #[inline]
    pub(in super::super) fn nat_end(&self, lane: usize, manip: Manip) -> Option<NatEnd> {
        let Tracked { connection, flow } = self.known(lane)?;
        nat_end(connection, flow, manip)
    }
}

/// What destination and source of a packet become that the router itself has made.
pub(in super::super) fn ends_of_own(
    tracker: &Tracker,
    (version, packet): (u8, &[u8]),
    now_ns: u64,
) -> [Option<NatEnd>; 2] {
    match tracker.find(version, packet, now_ns) {
        Found::Known(connection, flow) => {
            [Manip::Destination, Manip::Source].map(|manip| nat_end(&connection, &flow, manip))
        }
        _ => [None; 2],
    }
}

/// What destination and source of an answer become to a packet that has left.
pub(in super::super) fn ends_of_answer(
    tracker: &Tracker,
    (version, packet): (u8, &[u8]),
    now_ns: u64,
) -> [Option<NatEnd>; 2] {
    match tracker.find_left(version, packet, now_ns) {
        Found::Known(connection, flow) => {
            [Manip::Destination, Manip::Source].map(|manip| nat_end(&connection, &flow, manip))
        }
        _ => [None; 2],
    }
}

/// What the source or destination of a packet becomes (`nf_nat_packet`).
#[inline]
fn nat_end(connection: &FlowConnection, flow: &FlowId, manip: Manip) -> Option<NatEnd> {
    let connection = connection.tracked()?;
    let Connection { status, direction, state, .. } = *connection;
    let bit = match (manip, direction) {
        (Manip::Source, Direction::Original) | (Manip::Destination, Direction::Reply) => SRC_NAT,
        (Manip::Destination, Direction::Original) | (Manip::Source, Direction::Reply) => DST_NAT,
    };
    if status & bit == 0 {
        return None;
    }
    let answers = match direction {
        Direction::Original => connection.reply,
        Direction::Reply => connection.original,
    };
    let (address, port) = match manip {
        Manip::Source => (answers.destination, answers.destination_port),
        Manip::Destination => (answers.source, answers.source_port),
    };
    // Of queries, the other one stands for type and code.
    let port = if flow.query.is_some() { answers.source_port } else { port };
    Some(NatEnd { address, port, is_error: state == ConnectionState::Related })
}

/// The bytes of a packet from layer 3 on.
#[inline]
pub(in super::super) fn packet<'a>(burst: &Burst, umem: &'a Umem, lane: usize) -> &'a [u8] {
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    frame.get(usize::from(burst.l3[lane])..).unwrap_or_default()
}
