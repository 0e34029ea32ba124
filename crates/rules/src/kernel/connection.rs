//! What expressions load and set of a packet's connection (`enum nft_ct_keys`).

use super::condition::{Load, Location};
use tollway_firewall::ir::{ConnectionField, Direction, TupleField};

/// `NFT_CT_MARK`.
pub(super) const MARK: u32 = 3;

/// The property that a key of the kernel's stands for, and whether it is in host order; `None` if it is not known
/// here. `version` is that of the table's packets, which decides about addresses.
pub(super) fn load(key: u32, direction: Option<u8>, version: Option<u8>) -> Option<(Load, bool)> {
    let plain = match key {
        0 => ConnectionField::State,
        1 => ConnectionField::Direction,
        2 => ConnectionField::Status,
        MARK => ConnectionField::Mark,
        17 => ConnectionField::Zone,
        // The same in both directions.
        7 => return Some((of(ConnectionField::L3Protocol), false)),
        10 => return Some((of(ConnectionField::Protocol), false)),
        _ => return Some((of(tuple(key, direction?, version)?), false)),
    };
    direction.is_none().then(|| (of(plain), plain != ConnectionField::Direction))
}

fn tuple(key: u32, direction: u8, version: Option<u8>) -> Option<ConnectionField> {
    let direction = match direction {
        0 => Direction::Original,
        1 => Direction::Reply,
        _ => return None,
    };
    let part = match (key, version) {
        (8, Some(4)) | (19, _) => TupleField::Source4,
        (9, Some(4)) | (20, _) => TupleField::Destination4,
        (8, Some(6)) | (21, _) => TupleField::Source6,
        (9, Some(6)) | (22, _) => TupleField::Destination6,
        (11, _) => TupleField::SourcePort,
        (12, _) => TupleField::DestinationPort,
        _ => return None,
    };
    Some(ConnectionField::Tuple(direction, part))
}

/// All bytes of a property.
pub(super) const fn of(field: ConnectionField) -> Load {
    let bytes = match field {
        ConnectionField::Direction | ConnectionField::L3Protocol | ConnectionField::Protocol => 1,
        ConnectionField::Zone => 2,
        ConnectionField::State | ConnectionField::Status | ConnectionField::Mark => 4,
        ConnectionField::Tuple(_, part) => match part {
            TupleField::SourcePort | TupleField::DestinationPort => 2,
            TupleField::Source4 | TupleField::Destination4 => 4,
            TupleField::Source6 | TupleField::Destination6 => 16,
        },
    };
    Load::whole(Location::Connection(field), 0, bytes)
}
