//! Which conditions depend on more than the key of a flow.

use super::{Condition, Field, Rules};

/// Some condition of the rule depends on more than a flow's key.
pub(super) const VARIES: u8 = 1;
/// Some condition of the rule depends on more than a key without ports.
pub(super) const VARIES_BY_PORT: u8 = 2;

/// Some condition of the rule depends on more than a key without a connection.
pub(super) const VARIES_BY_CONNECTION: u8 = 4;

/// Whether a condition on a field depends on more than a flow's key; `any_sees_df` is the result of
/// that function for the rules.
pub(super) const fn of(field: Field, any_sees_df: bool) -> u8 {
    match field {
        Field::SourcePort | Field::DestinationPort => VARIES_BY_PORT,
        Field::Connection(_) => VARIES_BY_CONNECTION,
        Field::Fragment if any_sees_df => VARIES,
        field if is_key(field) => 0,
        _ => VARIES,
    }
}

/// Says whether a condition on the fragment field sees IPv4's DF, which differs from packet to packet.
pub(super) fn sees_df(condition: &Condition, version: u8) -> bool {
    version == 4 && condition.mask & 0x4000 != 0
}

/// Says whether some rule matches on IPv4's DF.
pub(super) fn any_sees_df(rules: &Rules, version: u8) -> bool {
    let conditions = rules.rules.iter().flat_map(|rule| &rule.conditions);
    conditions.filter(|one| one.field == Field::Fragment).any(|one| sees_df(one, version))
}

/// Says whether all packets of a flow share a field.
const fn is_key(field: Field) -> bool {
    matches!(
        field,
        Field::IpVersion
            | Field::EtherType
            | Field::Source4
            | Field::Destination4
            | Field::Source6
            | Field::Destination6
            | Field::Protocol
            | Field::NextHeader6
            | Field::SourcePort
            | Field::DestinationPort
            | Field::Fragment
            | Field::FragmentOffset
            | Field::Input
            | Field::Output
            | Field::Mark
            // A change of a set is counted as a change, so that earlier results for flows become void.
            | Field::InSet { .. }
    )
}
