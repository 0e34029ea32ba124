//! What rules write: marks and the DSCP.

use super::super::condition::{Load, Location, MARK};
use super::super::connection;
use super::super::expression::{Expression, Register};
use super::{Act, RuleReader, Value, host_number};
use tollway_firewall::ir::{ConnectionField, MarkOf, MarkUpdate, PayloadBase};

impl RuleReader<'_> {
    /// The mark that an expression sets to the content of a register.
    pub(super) fn mark_set(&self, to: Register, expression: &Expression) -> Option<MarkOf> {
        match expression {
            Expression::MetaSet { from, key: MARK } if *from == to => Some(MarkOf::Packet),
            Expression::ConnectionSet { from, key: connection::MARK, direction: None }
                if *from == to =>
            {
                self.connections().map(|()| MarkOf::Connection)
            }
            _ => None,
        }
    }

    /// The action that sets a mark to the content of a register.
    pub(super) fn mark(&self, from: Register, target: MarkOf) -> Option<Act> {
        let of_connection = connection::of(ConnectionField::Mark).location;
        let (packet, connection, flip) = match self.value(from)? {
            Value::Number(data) => (0, None, host_number(data, 4)? as u32),
            Value::Load { load, flip, is_host: true, shift: 0 } => {
                let bits = load.mask as u32;
                match load.location {
                    Location::Meta(MARK) => (bits, None, *flip as u32),
                    location if location == of_connection => (0, Some(bits), *flip as u32),
                    _ => return None,
                }
            }
            Value::Load { .. } => return None,
        };
        Some(match (target, connection) {
            (MarkOf::Packet, None) => Act::Mark { keep: packet, flip },
            _ => Act::UpdateMark(MarkUpdate { target, packet, connection, flip }),
        })
    }

    /// The action for a write into the bytes that contain the DSCP.
    pub(super) fn dscp(&self, from: Register, written: Load) -> Option<Act> {
        const NETWORK: Location = Location::Payload(PayloadBase::Network);
        let Value::Load { load, flip, is_host: false, shift: 0 } = *self.value(from)? else {
            return None;
        };
        if Load::whole(load.location, load.offset, load.bytes) != written {
            return None;
        }
        let (version, shift) = match (written.location, written.offset, written.bytes, load.mask) {
            (NETWORK, 0, 2, 0xff03) | (NETWORK, 1, 1, 0x03) => (4, 2),
            (NETWORK, 0, 2, 0xf03f) => (6, 6),
            _ => return None,
        };
        let dscp = flip >> shift;
        (dscp < 64 && dscp << shift == flip).then_some(Act::Dscp { version, dscp: dscp as u8 })
    }
}
