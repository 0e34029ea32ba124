//! Random conditions on connections, and random connections that may meet them.

use tollway_dataplane::stages::filter::{
    Connection, ConnectionState, FlowConnection, FlowKey, Tuple,
};

use super::frames::{ADDRESSES, PORTS, six};
use crate::ir::*;
use crate::testkit::dice::Dice;

/// Marks of connections.
const MARKS: [u32; 4] = [0, 1, 2, 0xf1];

/// A step that tests or sets something of a connection.
pub(super) fn step(dice: &mut Dice) -> Step {
    if dice.one_in(8) {
        return Step::Do(Action::NoTrack);
    }
    if dice.one_in(4) {
        let mut bits = || dice.pick(&[0, 0xf0, 0x0f, u32::MAX]);
        let (packet, connection) = (bits(), bits());
        return Step::Do(Action::UpdateMark(MarkUpdate {
            target: dice.pick(&[MarkOf::Packet, MarkOf::Connection]),
            packet,
            connection: dice.pick(&[None, Some(connection), Some(connection)]),
            flip: dice.pick(&[0, 0, 1, 2]),
        }));
    }
    let field = field(dice);
    let number = number(field, dice);
    let max = Field::Connection(field).max();
    let mask = dice.pick(&[max, max, max, number, max << 2 & max]);
    let last = number.saturating_add(dice.pick(&[0, 0, 1, 5])).min(max);
    let key = Key::masked(Field::Connection(field), mask);
    let one = Match::in_ranges(key, [Range::new(number & mask, last.max(number & mask))]);
    Step::Match(if dice.one_in(3) { one.negated() } else { one })
}

fn field(dice: &mut Dice) -> ConnectionField {
    use ConnectionField::{L3Protocol, Mark, Protocol, State, Status, Zone};
    let part = dice.pick(&[
        TupleField::Source4,
        TupleField::Destination4,
        TupleField::Source6,
        TupleField::Destination6,
        TupleField::SourcePort,
        TupleField::DestinationPort,
    ]);
    let direction = dice.pick(&[Direction::Original, Direction::Reply]);
    let (direction, side) = (ConnectionField::Tuple(direction, part), ConnectionField::Direction);
    dice.pick(&[State, State, side, Status, Mark, Zone, L3Protocol, Protocol, direction, direction])
}

/// A number that connections may have.
fn number(field: ConnectionField, dice: &mut Dice) -> u128 {
    match field {
        ConnectionField::State => dice.pick(&[1, 2, 2, 4, 6, 8, 64]),
        ConnectionField::Direction => dice.pick(&[0, 1]),
        ConnectionField::Status => dice.pick(&[0x0e, 0x10, 0x20, 0x18e, 0x40]),
        ConnectionField::Mark => dice.pick(&MARKS).into(),
        ConnectionField::Zone => dice.below(3) as u128,
        ConnectionField::L3Protocol => dice.pick(&[2, 10]),
        ConnectionField::Protocol => dice.pick(&[6, 17, 1, 58]),
        ConnectionField::Tuple(_, TupleField::SourcePort | TupleField::DestinationPort) => {
            dice.pick(&PORTS).into()
        }
        ConnectionField::Tuple(_, part) if part.version() == Some(6) => six(dice.pick(&ADDRESSES)),
        ConnectionField::Tuple(..) => dice.pick(&ADDRESSES).into(),
    }
}

/// The connection of a flow, perhaps with translated addresses.
pub(super) fn of_flow(flow: &FlowKey, dice: &mut Dice) -> FlowConnection {
    match dice.below(12) {
        0 => return FlowConnection::Invalid,
        1 => return FlowConnection::Untracked,
        _ => {}
    }
    let (source_port, destination_port) = flow.ports.unwrap_or((7, 0x0800));
    let own =
        Tuple { source: flow.source, destination: flow.destination, source_port, destination_port };
    let wide = |address| if flow.version == 6 { six(address) } else { address.into() };
    let back = match dice.below(2) {
        0 => Tuple {
            source: own.destination,
            destination: own.source,
            source_port: own.destination_port,
            destination_port: own.source_port,
        },
        _ => Tuple {
            source: wide(dice.pick(&ADDRESSES)),
            destination: wide(dice.pick(&ADDRESSES)),
            source_port: dice.pick(&PORTS),
            destination_port: dice.pick(&PORTS),
        },
    };
    let direction = dice.pick(&[Direction::Original, Direction::Reply]);
    let (original, reply) = match direction {
        Direction::Original => (own, back),
        Direction::Reply => (back, own),
    };
    let established = ConnectionState::Established;
    FlowConnection::Tracked(Connection {
        state: dice.pick(&[established, established, ConnectionState::Related]),
        direction,
        status: dice.pick(&[0x0e, 0x19e, 0x2ae]),
        mark: dice.pick(&MARKS),
        zone: dice.below(3) as u16,
        original,
        reply,
    })
}
