//! The fields that a program reads, by their numbers in `bpf/rules.h`.

use super::super::{Address, Field};

/// The number of a field; none if no program reads it.
pub(super) const fn number(field: Field) -> Option<u32> {
    Some(match field {
        Field::Source4 | Field::Source6 => 0,
        Field::Destination4 | Field::Destination6 => 1,
        Field::Protocol => 2,
        Field::SourcePort => 3,
        Field::DestinationPort => 4,
        Field::TcpFlags => 5,
        Field::IcmpType => 6,
        Field::IcmpCode => 7,
        Field::TransportLength => 8,
        Field::TrafficClass => 9,
        Field::Length => 10,
        Field::Ttl => 11,
        Field::Fragment => 12,
        Field::FragmentOffset => 13,
        Field::Input => 14,
        Field::Output => 15,
        Field::NextHeader6 => 16,
        // The address that the program looks up in the set.
        Field::InSet { of: Address::Source, .. } => 0,
        Field::InSet { of: Address::Destination, .. } => 1,
        _ => return None,
    })
}

/// The value that a field has in all packets of a version, if the version alone decides: `Some(None)` if they lack it.
pub(super) fn of_version(field: Field, version: u8) -> Option<Option<u128>> {
    use crate::wire::eth::ethertype;
    match (field, version) {
        (Field::IpVersion, _) => Some(Some(version.into())),
        (Field::EtherType, 4) => Some(Some(ethertype::IPV4.into())),
        (Field::EtherType, _) => Some(Some(ethertype::IPV6.into())),
        (Field::Source4 | Field::Destination4, 6)
        | (Field::Source6 | Field::Destination6 | Field::NextHeader6, 4) => Some(None),
        _ => None,
    }
}
