//! The connections of a filter.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use super::super::connection::{ConnectionState, FlowConnection};
use super::super::flows::{Entry as _, FlowId, Part, Side, Size, Table, address};
use super::answers::Translated;
use super::connection::TrackedConnection;
use super::packet::{Kind, Packet};
use super::tcp::TcpConnectionState;
use super::{Count, MOST_CONNECTIONS, S, Verdict};
use crate::sync::MutexGuard;

/// How large the table is.
pub(super) const SIZE: Size =
    Size { most: MOST_CONNECTIONS, parts: 64, lists: 4096, sweep_ns: S / 64 };

/// How many lists a new connection looks through for one to replace (`NF_CT_EVICTION_RANGE`).
const REPLACED_WITHIN: usize = 8;

/// The connections of a filter, and what counts packets without one.
#[derive(Debug, Default)]
pub struct Tracker {
    /// The table, from the first use on: until then, that of earlier rules can take its place.
    table: OnceLock<Arc<Table<TrackedConnection>>>,
    /// Counts packets that are invalid.
    invalid: u32,
    /// Counts packets that are dropped, since there is no room for their connection.
    full: u32,
    /// Whether an op says when packets are looked up, and not the stage.
    /// Of IPv4 and IPv6.
    is_by_op: [bool; 2],
    /// Whether connections are translated, of IPv4 and IPv6.
    translates: [bool; 2],
    /// Counts packets that are dropped, since no port is free for the translation of their connection.
    clash: u32,
    /// What is known of translated connections, from the first one on.
    pub(super) translated: OnceLock<Arc<Translated>>,
}

/// A connection, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    /// The transport protocol.
    pub protocol: u8,
    /// Source address and port of its first packet; of ICMP, the port is the identifier.
    pub source: (IpAddr, u16),
    /// Destination address and port of its first packet.
    pub destination: (IpAddr, u16),
    /// Source address and port of answers as they arrive.
    pub reply_source: (IpAddr, u16),
    /// Destination address and port of answers as they arrive.
    pub reply_destination: (IpAddr, u16),
    /// Type and code of ICMP of the first packet, and of its answer.
    pub icmp: Option<[(u8, u8); 2]>,
    /// The state of TCP.
    pub tcp: Option<TcpConnectionState>,
    /// Bits of `enum ip_conntrack_status`.
    pub status: u32,
    /// Its mark.
    pub mark: u32,
    /// How long it lives without further packets.
    pub expires_in_ns: u64,
    /// Packets and bytes in the direction of the first packet, and in the other.
    pub counts: [Count; 2],
}

/// What tracking finds of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Invalid,
    Untracked,
    /// It belongs to a connection of this flow.
    Known(FlowConnection, FlowId),
    /// It begins a connection.
    New(Box<NewConnection>),
    /// There is no room for its connection.
    Full,
}

/// What became of a connection whose first packet has passed all rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Confirmed {
    /// It is in the table, as rules see it.
    Added(FlowConnection),
    /// It was there already.
    Known(FlowConnection),
    /// There is no room for it.
    Full,
    /// Its answers would be taken for those of another one.
    Clash,
}

/// A connection that is not in the table yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewConnection {
    pub(super) connection: TrackedConnection,
    pub(super) expires_ns: u64,
}

impl Tracker {
    /// A tracker with these counters, for packets of no connection, and for those without room. `is_by_op` says of
    /// IPv4 and IPv6 whether an op looks packets up.
    #[must_use]
    pub const fn new((invalid, full): (u32, u32), is_by_op: [bool; 2]) -> Self {
        Self {
            table: OnceLock::new(),
            invalid,
            full,
            is_by_op,
            translates: [false; 2],
            clash: 0,
            translated: OnceLock::new(),
        }
    }

    /// Lets it translate connections of IPv4 and IPv6. The counter counts packets for whose connection no port is free.
    #[must_use]
    pub const fn translating(mut self, versions: [bool; 2], clash: u32) -> Self {
        (self.translates, self.clash) = (versions, clash);
        self
    }

    #[cfg(test)]
    pub(super) fn of_size(size: Size) -> Self {
        let tracker = Self::default();
        _ = tracker.table.set(Arc::new(Table::new(size, 0)));
        tracker
    }

    /// Takes over the connections of the active rules, or makes a table, unless packets have come to these already.
    pub(crate) fn prepare(&self, before: Option<&Self>) {
        let shared = before.and_then(|before| before.table.get());
        let table = shared.map_or_else(|| Arc::new(Table::new(SIZE, 0)), Arc::clone);
        _ = self.table.set(table);
        let shared = before.and_then(|before| before.translated.get());
        let translated = match (shared, self.translates) {
            (Some(shared), _) => Arc::clone(shared),
            (None, [false, false]) => return,
            (None, _) => Arc::new(Translated::new(SIZE, 0)),
        };
        _ = self.translated.set(translated);
    }

    #[inline]
    pub(super) fn table(&self, now_ns: u64) -> &Table<TrackedConnection> {
        self.table.get_or_init(|| Arc::new(Table::new(SIZE, now_ns)))
    }

    /// What counts packets of no connection.
    pub(in super::super) const fn invalid(&self) -> u32 {
        self.invalid
    }

    /// What counts packets without room for their connection.
    pub(in super::super) const fn full(&self) -> u32 {
        self.full
    }

    /// What counts packets for whose connection no port is free.
    pub(in super::super) const fn clash(&self) -> u32 {
        self.clash
    }

    /// Whether it translates connections of a version of IP.
    #[inline]
    pub(in super::super) const fn translates(&self, version: u8) -> bool {
        self.translates[(version == 6) as usize]
    }

    /// Whether it translates any connections.
    #[inline]
    pub(in super::super) const fn translates_some(&self) -> bool {
        self.translates[0] || self.translates[1]
    }

    /// Whether an op says when packets of a version of IP are looked up, and not the stage.
    pub(in super::super) const fn is_by_op(&self, version: u8) -> bool {
        self.is_by_op[(version == 6) as usize]
    }

    /// Gives back the room of connections whose time is over, bit by bit.
    #[inline]
    pub(in super::super) fn sweep(&self, now_ns: u64) {
        if let Some(table) = self.table.get() {
            for swept in table.sweep(now_ns) {
                self.forget(&swept);
            }
        }
    }

    /// The connection of a packet, which follows it (`nf_conntrack_in`).
    #[inline]
    pub(super) fn find(&self, version: u8, packet: &[u8], now_ns: u64) -> Found {
        match Kind::of(version, packet) {
            Kind::Invalid => Found::Invalid,
            Kind::Untracked => Found::Untracked,
            Kind::Packet(packet) => self.packet(&packet, now_ns),
            Kind::Error(flow, destination) => self.error(&flow, destination, now_ns),
        }
    }

    /// The connection of a packet as it has left.
    pub(super) fn find_left(&self, version: u8, packet: &[u8], now_ns: u64) -> Found {
        match Kind::of(version, packet) {
            Kind::Packet(packet) => self.error(&packet.flow.reversed(), packet.flow.source, now_ns),
            _ => Found::Invalid,
        }
    }

    #[inline]
    fn packet(&self, packet: &Packet<'_>, now_ns: u64) -> Found {
        let table = self.table(now_ns);
        let (mut part, list) = table.place(&packet.flow);
        if let Some((at, side)) = part.find(list, &packet.flow, (), now_ns) {
            return self.follow(part, (at, side), packet, now_ns);
        }
        if self.translated.get().is_some() {
            drop(part);
            if let Some((part, at)) = self.find_answered(table, &packet.flow, now_ns) {
                return self.follow(part, (at, Side::Reverse), packet, now_ns);
            }
            (part, _) = table.place(&packet.flow);
        }
        self.begin(&mut part, list, packet, now_ns)
    }

    /// Follows a packet of a known connection.
    #[inline]
    fn follow(
        &self,
        mut part: MutexGuard<'_, Part<TrackedConnection>>,
        (at, side): (usize, Side),
        packet: &Packet<'_>,
        now_ns: u64,
    ) -> Found {
        let Some((connection, expires_ns)) = part.get_mut(at) else { return Found::Invalid };
        let state = connection.state(side);
        let verdict = connection.follow(packet, side, now_ns, expires_ns);
        let seen = FlowConnection::Tracked(connection.seen(state, side));
        let flow = *connection.flow();
        match verdict {
            Verdict::Valid => Found::Known(seen, flow),
            Verdict::Invalid => Found::Invalid,
            Verdict::Ends => {
                self.forget(&self.table(now_ns).remove(&mut part, at));
                Found::Known(seen, flow)
            }
            Verdict::Reopens => {
                self.forget(&self.table(now_ns).remove(&mut part, at));
                drop(part);
                let (mut part, list) = self.table(now_ns).place(&packet.flow);
                self.begin(&mut part, list, packet, now_ns)
            }
        }
    }

    /// The connection that an error is about (`nf_conntrack_inet_error`).
    fn error(&self, flow: &FlowId, destination: u128, now_ns: u64) -> Found {
        let table = self.table(now_ns);
        let (mut part, list) = table.place(flow);
        let mut found = part.find(list, flow, (), now_ns);
        if found.is_none() && self.translated.get().is_some() {
            drop(part);
            let Some((answered, at)) = self.find_answered(table, flow, now_ns) else {
                return Found::Invalid;
            };
            (part, found) = (answered, Some((at, Side::Reverse)));
        }
        let Some((at, side)) = found.filter(|_| flow.destination == destination) else {
            return Found::Invalid;
        };
        let Some((connection, _)) = part.get_mut(at) else { return Found::Invalid };
        let seen = FlowConnection::Tracked(connection.seen(ConnectionState::Related, side));
        Found::Known(seen, *connection.flow())
    }

    /// Puts a connection into the table, whose first packet has passed all rules (`__nf_conntrack_confirm`).
    pub(super) fn confirm(
        &self,
        new: NewConnection,
        (version, packet): (u8, &[u8]),
        now_ns: u64,
    ) -> Confirmed {
        let table = self.table(now_ns);
        let NewConnection { mut connection, expires_ns } = new;
        let flow = *connection.flow();
        let (mut part, list) = table.place(&flow);
        if let Some((at, side)) = part.find(list, &flow, (), now_ns)
            && let Some((known, expires_ns)) = part.get_mut(at)
        {
            // Another packet of the burst, or another worker, has begun it too.
            if let Kind::Packet(packet) = Kind::of(version, packet) {
                known.follow(&packet, side, now_ns, expires_ns);
            }
            return Confirmed::Known(FlowConnection::Tracked(
                known.seen(ConnectionState::New, side),
            ));
        }
        // The room that was found when the packet was looked up may be taken.
        let has_room =
            table.take_room() || self.make_room(&mut part, list, now_ns) && table.take_room();
        if !has_room {
            return Confirmed::Full;
        }
        if !self.note_answers(&mut connection, now_ns) {
            table.give_room();
            return Confirmed::Clash;
        }
        connection.confirm();
        let seen = FlowConnection::Tracked(connection.seen(ConnectionState::New, Side::Forward));
        match part.add(list, connection.clone(), expires_ns) {
            Some(_) => Confirmed::Added(seen),
            None => {
                table.give_room();
                self.forget(&connection);
                Confirmed::Full
            }
        }
    }

    /// The connection that a packet begins, if there may be one more.
    fn begin(
        &self,
        part: &mut Part<TrackedConnection>,
        list: usize,
        packet: &Packet<'_>,
        now_ns: u64,
    ) -> Found {
        if self.table(now_ns).is_full() && !self.make_room(part, list, now_ns) {
            return Found::Full;
        }
        match TrackedConnection::begin(packet, now_ns) {
            Some((connection, expires_ns)) => {
                Found::New(Box::new(NewConnection { connection, expires_ns }))
            }
            None => Found::Invalid,
        }
    }

    /// Removes a connection near a list that is over or not assured (`early_drop`).
    #[cold]
    fn make_room(&self, part: &mut Part<TrackedConnection>, list: usize, now_ns: u64) -> bool {
        let lists = list..list + REPLACED_WITHIN;
        let found = lists.flat_map(|list| part.listed(list)).find(|at| part.may_go(*at, now_ns));
        let Some(at) = found else { return false };
        self.forget(&self.table(now_ns).remove(part, at));
        true
    }

    /// Sets a connection's mark.
    pub(super) fn set_mark(&self, flow: &FlowId, mark: u32, now_ns: u64) {
        let (mut part, list) = self.table(now_ns).place(flow);
        if let Some((at, _)) = part.find(list, flow, (), now_ns)
            && let Some((connection, _)) = part.get_mut(at)
        {
            connection.mark = mark;
        }
    }

    /// All connections whose time is not over.
    #[must_use]
    pub fn list(&self, now_ns: u64) -> Vec<ConnectionReport> {
        let Some(table) = self.table.get() else { return Vec::new() };
        let listed = table.list(now_ns).into_iter();
        listed.map(|(one, expires_ns)| report(&one, expires_ns.saturating_sub(now_ns))).collect()
    }

    /// The number of connections, whose time may be over.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.get().map_or(0, |table| table.count())
    }
}

impl Part<TrackedConnection> {
    fn may_go(&self, at: usize, now_ns: u64) -> bool {
        self.expires_ns(at) <= now_ns || self.get(at).is_some_and(|one| !one.is_assured())
    }
}

fn report(connection: &TrackedConnection, expires_in_ns: u64) -> ConnectionReport {
    let (flow, leaves) = (connection.flow(), connection.leaves());
    let seen = connection.seen(ConnectionState::New, Side::Forward);
    let icmp = |port: u16| ((port >> 8) as u8, port as u8);
    ConnectionReport {
        protocol: flow.protocol,
        source: (address(flow.version, flow.source), flow.source_port),
        destination: (address(flow.version, flow.destination), flow.destination_port),
        reply_source: (address(flow.version, leaves.destination), leaves.destination_port),
        reply_destination: (address(flow.version, leaves.source), leaves.source_port),
        icmp: flow
            .query
            .map(|_| [icmp(seen.original.destination_port), icmp(seen.reply.destination_port)]),
        tcp: connection.tcp_state(),
        status: connection.status(),
        mark: connection.mark,
        expires_in_ns,
        counts: connection.counts(),
    }
}
