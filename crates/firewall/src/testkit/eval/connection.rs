//! What the evaluator knows of a packet's connection, by the kernel's `nft_ct_get_eval`.

use tollway_dataplane::stages::filter::{Connection, ConnectionState, FlowConnection, Tuple};

use super::Packet;
use crate::ir::{ConnectionField, Direction, TupleField};

/// `NF_CT_STATE_UNTRACKED_BIT`.
const UNTRACKED: u128 = 1 << 6;

impl Packet<'_> {
    /// The mark of the packet's connection; `None` if it has none.
    pub(super) fn connection_mark(&self) -> Option<u32> {
        self.tracked().map(|connection| connection.mark)
    }

    /// Sets the mark of the packet's connection, if it has one.
    pub(super) fn set_connection_mark(&mut self, mark: u32) {
        if let Some(FlowConnection::Tracked(connection)) = &mut self.connection {
            connection.mark = mark;
        }
    }

    /// A property of the packet's connection; `None` if it lacks it.
    pub(super) fn of_connection(&self, field: ConnectionField) -> Option<u128> {
        use ConnectionField::{Direction, L3Protocol, Mark, Protocol, State, Status, Tuple, Zone};
        match (field, self.connection?) {
            (State, FlowConnection::Invalid) => Some(1),
            (State, FlowConnection::Untracked) => Some(UNTRACKED),
            (State, FlowConnection::Tracked(connection)) => Some(match connection.state {
                ConnectionState::Established => 1 << 1,
                ConnectionState::Related => 1 << 2,
                ConnectionState::New => 1 << 3,
            }),
            (_, FlowConnection::Invalid | FlowConnection::Untracked) => None,
            (Direction, FlowConnection::Tracked(connection)) => Some(is_reply(&connection)),
            (Status, FlowConnection::Tracked(connection)) => Some(connection.status.into()),
            (Mark, FlowConnection::Tracked(connection)) => Some(connection.mark.into()),
            (Zone, FlowConnection::Tracked(connection)) => Some(connection.zone.into()),
            (L3Protocol, FlowConnection::Tracked(_)) => Some([2, 10][self.is_6()]),
            (Protocol, FlowConnection::Tracked(_)) => {
                self.parsed().transport.map(|(protocol, _)| protocol.into())
            }
            (Tuple(direction, field), FlowConnection::Tracked(connection)) => {
                let tuples = [connection.original, connection.reply];
                part(tuples[direction as usize], field, self.is_6() == 1)
            }
        }
    }

    fn tracked(&self) -> Option<Connection> {
        match self.connection {
            Some(FlowConnection::Tracked(connection)) => Some(connection),
            _ => None,
        }
    }

    fn is_6(&self) -> usize {
        usize::from(self.version() == 6)
    }
}

fn is_reply(connection: &Connection) -> u128 {
    (connection.direction == Direction::Reply).into()
}

fn part(tuple: Tuple, field: TupleField, is_6: bool) -> Option<u128> {
    match (field, is_6) {
        (TupleField::Source4, false) | (TupleField::Source6, true) => Some(tuple.source),
        (TupleField::Destination4, false) | (TupleField::Destination6, true) => {
            Some(tuple.destination)
        }
        (TupleField::SourcePort, _) => Some(tuple.source_port.into()),
        (TupleField::DestinationPort, _) => Some(tuple.destination_port.into()),
        _ => None,
    }
}
