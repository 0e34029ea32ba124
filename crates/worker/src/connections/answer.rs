//! What a direction of a connection gets as its entry.

use std::net::IpAddr;

use tollway_conntrack::{Connection, Reason, TcpState, Tuple};
use tollway_dataplane::id::LinkId;
use tollway_dataplane::stages::filter::{
    self, ConnectionState, Direction, Filter, FlowConnection, FlowKey, FlowReport, Point,
};
use tollway_xdp::connections::{ConnectionKey, Query, Translation, Treatment};

use super::reason::KernelReason;

/// How long nobody asks again, in units of 1.05 ms: where another packet may change the answer, and elsewhere.
const SOON: u32 = 8;
pub(super) const LATER: u32 = 1000;
/// The same where only packets of the other direction can change it, or there is no connection.
const UNANSWERED: u32 = 250;

/// The entry for a direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) treatment: Treatment,
    pub(super) translation: Translation,
    pub(super) mark: u32,
}

/// What the table has for a key before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// No entry.
    Nothing,
    /// An entry that something has voided.
    Voided,
    /// An entry that counts.
    Active(Treatment),
}

impl Before {
    /// Whether the programs forward the packets.
    pub(super) const fn forwards(self) -> bool {
        matches!(self, Self::Active(treatment) if treatment.forwards())
    }
}

/// The tuple of packets with a key.
pub(super) fn tuple_of(key: &ConnectionKey) -> Tuple {
    Tuple::with_ports(key.protocol(), key.source(), key.destination())
}

/// The key of a tuple's packets in the tables of the programs, on a link; none if the tuple has no ports.
#[must_use]
pub fn key_of(tuple: &Tuple, link: LinkId) -> Option<ConnectionKey> {
    let source = (tuple.source, tuple.source_port()?);
    let destination = (tuple.destination, tuple.destination_port()?);
    ConnectionKey::new(link, tuple.protocol, source, destination)
}

/// The answer to a query about a connection that the kernel has, or has not.
pub(super) fn answer(
    query: &Query,
    found: Option<&Connection>,
    filter: Option<&Filter>,
    before: Before,
) -> Answer {
    let key = &query.key;
    let refused = |retry, why: KernelReason| Answer {
        treatment: Treatment::Kernel { retry, why: why.number() },
        translation: Translation::none(key),
        mark: 0,
    };
    // The kernel's flowtable takes its packets before any rule.
    if found.is_some_and(Connection::is_offloaded) {
        return refused(LATER, KernelReason::Offload);
    }
    if let Some(untracked) = untracked(filter, query) {
        let forwarded = |output| Answer {
            treatment: Treatment::Untracked(output),
            translation: Translation::none(key),
            mark: 0,
        };
        return untracked.map_or_else(|why| refused(LATER, why), forwarded);
    }
    let Some(connection) = found else { return refused(UNANSWERED, KernelReason::NoConnection) };
    if let Err(reason) = connection.offload() {
        let retry = match may_end_soon(reason) {
            true if connection.status.has_seen_reply() => SOON,
            true => UNANSWERED,
            false => LATER,
        };
        return refused(retry, reason.into());
    }
    let Some((direction, leaves)) = direction(connection, &tuple_of(key)) else {
        return refused(LATER, KernelReason::OtherTuple);
    };
    let Some(translation) = translation(&leaves) else {
        return refused(LATER, KernelReason::OtherTuple);
    };
    let translates = |filter: &Filter| filter.translates(version_of(key));
    if translation != Translation::none(key) && !filter.is_some_and(translates) {
        return refused(LATER, KernelReason::NotTranslated);
    }
    let answer = |treatment| Answer { treatment, translation, mark: connection.mark };
    let has_other_source = translation.source.0 != key.source().0;
    if direction == Direction::Original && has_other_source && is_new_way(before, query.output) {
        return answer(Treatment::Unruled { retry: SOON });
    }
    // The program has looked up the destination of its entry, or else that of the packet.
    let has_entry = matches!(before, Before::Active(treatment) if !matches!(treatment, Treatment::Kernel { .. }));
    let keeps_destination = translation.destination.0 == key.destination().0;
    let Some(output) = query.output.filter(|_| has_entry || keeps_destination) else {
        // What stays as it is and leaves by no link is for the host itself.
        return if keeps_destination {
            refused(LATER, KernelReason::Local)
        } else {
            answer(Treatment::Unruled { retry: 0 })
        };
    };
    // For packets that leave by the link that they arrive on, the kernel may send redirects.
    if output == key.link() {
        return refused(LATER, KernelReason::SameLink);
    }
    // The programs follow both directions of TCP, or none.
    if connection.tcp.is_some() && treatment_of_other(filter, key, connection, output).is_none() {
        return refused(LATER, KernelReason::Rules);
    }
    treatment(filter, key, connection, output)
        .map_or_else(|| refused(LATER, KernelReason::Rules), answer)
}

/// What becomes of the packets of a connection's direction that leave by a link; none if the kernel has to forward them.
fn treatment(
    filter: Option<&Filter>,
    key: &ConnectionKey,
    connection: &Connection,
    output: LinkId,
) -> Option<Treatment> {
    let invalid = match connection.tcp {
        Some(_) => invalid(filter, key, connection, output)?,
        None => Invalid::Dropped,
    };
    match (verdict(filter, key, connection, output)?, invalid) {
        (true, Invalid::Accepted) => Some(Treatment::ForwardedInvalid(output)),
        (true, _) => Some(Treatment::Forwarded(output)),
        (false, Invalid::Dropped | Invalid::Local) => Some(Treatment::Dropped(output)),
        (false, Invalid::Accepted) => None,
    }
}

/// The same of the other direction, whose packets come in where those of this one leave, if they leave where these come in.
pub(super) fn treatment_of_other(
    filter: Option<&Filter>,
    key: &ConnectionKey,
    connection: &Connection,
    output: LinkId,
) -> Option<Treatment> {
    let (tuple, _) = other_side(connection, key)?;
    treatment(filter, &key_of(&tuple, output)?, connection, key.link())
}

/// How packets leave that come from the other side of a connection.
pub(super) fn other_side(
    connection: &Connection,
    key: &ConnectionKey,
) -> Option<(Tuple, Translation)> {
    let (direction, _) = direction(connection, &tuple_of(key))?;
    let (other, leaves) = match direction {
        Direction::Original => (connection.reply, connection.original),
        Direction::Reply => (connection.original, connection.reply),
    };
    Some((other, translation(&leaves.swapped()?)?))
}

/// The direction of packets that arrive with a tuple, and the tuple with which they leave: that of packets that answer
/// them, the other way round.
pub(super) fn direction(connection: &Connection, tuple: &Tuple) -> Option<(Direction, Tuple)> {
    if *tuple == connection.original {
        return Some((Direction::Original, connection.reply.swapped()?));
    }
    (*tuple == connection.reply)
        .then(|| connection.original.swapped())
        .flatten()
        .map(|leaves| (Direction::Reply, leaves))
}

/// Rules may keep packets out of connection tracking. Returns the link by which such packets leave, or why the kernel forwards
/// them; none if the rules track them.
fn untracked(filter: Option<&Filter>, query: &Query) -> Option<Result<LinkId, KernelReason>> {
    let filter =
        filter.filter(|filter| filter.connections().is_some_and(|rules| rules.untracks()))?;
    let flow = FlowKey { connection: Some(FlowConnection::Untracked), ..flow_of(&query.key, None) };
    let before_route = report(filter, &flow).filter(|report| report.is_untracked)?;
    let Some(output) = query.output else { return Some(Err(KernelReason::Local)) };
    if output == query.key.link() {
        return Some(Err(KernelReason::SameLink));
    }
    let whole = report(filter, &FlowKey { output: Some(output), ..flow });
    let accepts = |report: FlowReport| report.mark == 0 && report.dropped_at.is_none();
    let is_forwarded = accepts(before_route) && whole.is_some_and(accepts);
    Some(is_forwarded.then_some(output).ok_or(KernelReason::Rules))
}

/// Says whether another packet may end the reason.
const fn may_end_soon(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NotConfirmed
            | Reason::NatClash
            | Reason::NotAssured
            | Reason::TcpState(TcpState::SynSent | TcpState::SynSent2 | TcpState::SynRecv)
    )
}

/// Says whether packets may leave by another link than before. If their source is translated, the kernel gets one first,
/// and some time for it: it deletes a connection that has the address of another device (`nf_nat_oif_changed`). Of
/// connections without an entry, it has just had one (`LEAST_AGE` of `bpf/connections.h`).
fn is_new_way(before: Before, output: Option<LinkId>) -> bool {
    match before {
        Before::Nothing | Before::Active(Treatment::Unruled { .. }) => false,
        Before::Voided | Before::Active(Treatment::Kernel { .. }) => true,
        Before::Active(before) => before.output() != output,
    }
}

/// Whether the rules let all packets of a direction pass, or drop all of them; none if that depends on more, or is not
/// all that they do.
fn verdict(
    filter: Option<&Filter>,
    key: &ConnectionKey,
    connection: &Connection,
    output: LinkId,
) -> Option<bool> {
    let Some(filter) = filter else { return Some(true) };
    let (direction, _) = direction(connection, &tuple_of(key))?;
    let flow = FlowKey {
        connection: Some(FlowConnection::Tracked(filter::Connection {
            // What is assured has seen packets in both directions.
            state: ConnectionState::Established,
            direction,
            status: connection.status.0,
            mark: connection.mark,
            zone: connection.zone,
            original: flow_tuple(&connection.original)?,
            reply: flow_tuple(&connection.reply)?,
        })),
        ..flow_of(key, Some(output))
    };
    // The programs look up the route of packets without a mark, and give them none.
    let before_route = report(filter, &FlowKey { output: None, ..flow })?;
    let report = report(filter, &flow)?;
    if before_route.mark != 0 || report.mark != 0 {
        return None;
    }
    match report.dropped_at {
        None => Some(true),
        // What is dropped before, the kernel does not see as a packet of the connection.
        Some(Point::Forward) => Some(false),
        Some(_) => None,
    }
}

/// What becomes of the packets of a direction that are out of window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalid {
    Dropped,
    Accepted,
    /// The kernel does not translate them, so they are for the router itself, and the kernel's.
    Local,
}

fn invalid(
    filter: Option<&Filter>,
    key: &ConnectionKey,
    connection: &Connection,
    output: LinkId,
) -> Option<Invalid> {
    let arrives = tuple_of(key);
    let (_, leaves) = direction(connection, &arrives)?;
    if leaves.destination != arrives.destination {
        return Some(Invalid::Local);
    }
    let Some(filter) = filter else { return Some(Invalid::Accepted) };
    let connection = Some(FlowConnection::Invalid);
    let report = report(filter, &FlowKey { connection, ..flow_of(key, Some(output)) })?;
    match report.dropped_at {
        Some(_) => Some(Invalid::Dropped),
        None => (report.mark == 0).then_some(Invalid::Accepted),
    }
}

/// What the rules for packets of connections do with a flow.
fn report(filter: &Filter, flow: &FlowKey) -> Option<FlowReport> {
    match filter.connections() {
        Some(rules) => rules.of_flow(flow),
        None => filter.of_flow(flow),
    }
}

/// The flow of a key, whose connection is not known.
fn flow_of(key: &ConnectionKey, output: Option<LinkId>) -> FlowKey {
    let ((source, sport), (destination, dport)) = (key.source(), key.destination());
    FlowKey {
        version: version_of(key),
        source: number(source),
        destination: number(destination),
        protocol: key.protocol(),
        ports: Some((sport, dport)),
        input: key.link(),
        output,
        connection: None,
    }
}

/// The version of IP.
const fn version_of(key: &ConnectionKey) -> u8 {
    match key {
        ConnectionKey::V4(_) => 4,
        ConnectionKey::V6(_) => 6,
    }
}

/// An address as a number.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

fn flow_tuple(tuple: &Tuple) -> Option<filter::Tuple> {
    Some(filter::Tuple {
        source: number(tuple.source),
        destination: number(tuple.destination),
        source_port: tuple.source_port()?,
        destination_port: tuple.destination_port()?,
    })
}

fn translation(tuple: &Tuple) -> Option<Translation> {
    Some(Translation {
        source: (tuple.source, tuple.source_port()?),
        destination: (tuple.destination, tuple.destination_port()?),
    })
}
