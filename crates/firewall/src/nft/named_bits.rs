//! What nft has names for (`src/proto.c`, `src/meta.c`): fields, and bits of fields.

use crate::ir::{ConnectionField, Direction, Field, Key, PayloadBase, TupleField};

/// What the values of named bits mean, which decides which names they may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Plain,
    Ip4,
    Ip6,
    Mac,
    Protocol,
    EtherType,
    Dscp,
    Ecn,
    IcmpType,
    IcmpCode,
    Icmp6Type,
    Icmp6Code,
    IcmpxCode,
    IgmpType,
    DccpType,
    TcpFlags,
    Nfproto,
    /// `NFPROTO_*`, by which connection tracking tells versions of IP apart.
    L3Protocol,
    CtState,
    CtStatus,
    CtDirection,
    Link,
}

/// What nft has a name for: bits of a field, and their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NamedBits {
    /// The field, and which of its bits.
    pub(super) key: Key,
    /// Number of bits of the field below them.
    pub(super) shift: u32,
    /// Number of bits.
    pub(super) width: u32,
    /// What their number means.
    pub(super) kind: Kind,
}

impl NamedBits {
    pub(super) fn whole(field: Field, kind: Kind) -> Self {
        Self { key: field.into(), shift: 0, width: field.bits(), kind }
    }

    const fn part(field: Field, shift: u32, width: u32, kind: Kind) -> Self {
        let key = Key::masked(field, ((1 << width) - 1) << shift);
        Self { key, shift, width, kind }
    }

    /// Bits of a header, from `offset` on; `None` if they are more than a field can hold.
    pub(super) fn of_header(
        base: PayloadBase,
        offset: u64,
        width: u64,
        kind: Kind,
    ) -> Option<Self> {
        let end = offset.checked_add(width)?;
        let (first, last) = (offset / 8, end.div_ceil(8));
        let bytes = u8::try_from(last - first).ok().filter(|bytes| (1..=16).contains(bytes))?;
        let width = u32::try_from(width).ok().filter(|width| (1..=128).contains(width))?;
        let field = Field::Payload { base, offset: u8::try_from(first).ok()?, bytes };
        let shift = u32::try_from(last * 8 - end).ok()?;
        let mask = u128::MAX >> (128 - width) << shift;
        Some(Self { key: Key::masked(field, mask), shift, width, kind })
    }

    /// Says whether a list of values means any of these bits, without an operator `==` or `!=`.
    pub(super) const fn are_flags(&self) -> bool {
        matches!(self.kind, Kind::TcpFlags | Kind::CtState | Kind::CtStatus)
    }

    /// Those of them that are in a mask of their number.
    pub(super) fn masked(mut self, mask: u128) -> Self {
        self.key.mask &= mask.checked_shl(self.shift).unwrap_or(0);
        self
    }
}

/// A field of a header, by protocol and name.
pub(super) fn payload(protocol: &str, field: &str) -> Option<NamedBits> {
    match protocol {
        "ether" => ether(field),
        "vlan" => vlan(field),
        "ip" => ip(field),
        "ip6" => ip6(field),
        "icmp" | "icmpv6" => icmp(protocol == "icmpv6", field),
        _ => transport(protocol, field),
    }
}

/// Bits of a network header that may be invalid.
pub(super) fn unchecked(offset: u32, bits: u32, kind: Kind) -> NamedBits {
    let (offset, bytes) = ((offset / 8) as u8, (bits / 8) as u8);
    NamedBits::whole(Field::Payload { base: PayloadBase::Network, offset, bytes }, kind)
}

/// The number of a transport protocol that has fields here.
pub(super) fn protocol(name: &str) -> Option<u128> {
    Some(match name {
        "icmp" => 1,
        "igmp" => 2,
        "tcp" => 6,
        "udp" => 17,
        "dccp" => 33,
        "esp" => 50,
        "ah" => 51,
        "icmpv6" => 58,
        "comp" => 108,
        "sctp" => 132,
        "udplite" => 136,
        _ => return None,
    })
}

/// The types of ICMP or ICMPv6 that have this field.
pub(super) fn icmp_types(protocol: &str, field: &str) -> &'static [u128] {
    match (protocol, field) {
        ("icmp", "id" | "sequence") => &[0, 8],
        ("icmp", "gateway") => &[5],
        ("icmp", "mtu") => &[3],
        ("icmpv6", "id" | "sequence") => &[128, 129],
        ("icmpv6", "mtu") => &[2],
        ("icmpv6", "parameter-problem") => &[4],
        ("icmpv6", "max-delay") => &[130],
        _ => &[],
    }
}

/// A field of the packet's metadata.
pub(super) fn meta(key: &str) -> Option<NamedBits> {
    Some(match key {
        "length" => NamedBits { width: 32, ..NamedBits::whole(Field::Length, Kind::Plain) },
        "protocol" => NamedBits::whole(Field::EtherType, Kind::EtherType),
        "nfproto" => NamedBits::whole(Field::IpVersion, Kind::Nfproto),
        "l4proto" => NamedBits::whole(Field::Protocol, Kind::Protocol),
        "mark" => NamedBits::whole(Field::Mark, Kind::Plain),
        "iif" | "iifname" => NamedBits::whole(Field::Input, Kind::Link),
        "oif" | "oifname" => NamedBits::whole(Field::Output, Kind::Link),
        _ => return None,
    })
}

/// A property of the packet's connection. `family` is that of the addresses, if the key does not tell.
pub(super) fn connection(key: &str, direction: &str, family: Option<u8>) -> Option<NamedBits> {
    let of = |field, kind| NamedBits::whole(Field::Connection(field), kind);
    let plain = match key {
        // The kernel has numbers of 32 bits.
        "state" => NamedBits { width: 32, ..of(ConnectionField::State, Kind::CtState) },
        "direction" => of(ConnectionField::Direction, Kind::CtDirection),
        "status" => of(ConnectionField::Status, Kind::CtStatus),
        "mark" => of(ConnectionField::Mark, Kind::Plain),
        "zone" => of(ConnectionField::Zone, Kind::Plain),
        // The same in both directions.
        "l3proto" => return Some(of(ConnectionField::L3Protocol, Kind::L3Protocol)),
        "protocol" => return Some(of(ConnectionField::Protocol, Kind::Protocol)),
        _ => return tuple(key, direction, family),
    };
    direction.is_empty().then_some(plain)
}

/// A part of a connection's tuple.
fn tuple(key: &str, direction: &str, family: Option<u8>) -> Option<NamedBits> {
    let direction = match direction {
        "original" => Direction::Original,
        "reply" => Direction::Reply,
        _ => return None,
    };
    let (field, kind) = match (key, family) {
        ("ip saddr", _) | ("saddr", Some(4)) => (TupleField::Source4, Kind::Ip4),
        ("ip daddr", _) | ("daddr", Some(4)) => (TupleField::Destination4, Kind::Ip4),
        ("ip6 saddr", _) | ("saddr", Some(6)) => (TupleField::Source6, Kind::Ip6),
        ("ip6 daddr", _) | ("daddr", Some(6)) => (TupleField::Destination6, Kind::Ip6),
        ("proto-src", _) => (TupleField::SourcePort, Kind::Plain),
        ("proto-dst", _) => (TupleField::DestinationPort, Kind::Plain),
        _ => return None,
    };
    Some(NamedBits::whole(Field::Connection(ConnectionField::Tuple(direction, field)), kind))
}

/// A field of the IPv6 fragment header.
pub(super) fn fragment(field: &str) -> Option<NamedBits> {
    match field {
        "frag-off" => Some(NamedBits::part(Field::Fragment, 0, 13, Kind::Plain)),
        "more-fragments" => Some(NamedBits::part(Field::Fragment, 13, 1, Kind::Plain)),
        _ => None,
    }
}

fn ether(field: &str) -> Option<NamedBits> {
    Some(match field {
        "saddr" => NamedBits::whole(Field::EtherSource, Kind::Mac),
        "daddr" => NamedBits::whole(Field::EtherDestination, Kind::Mac),
        "type" => NamedBits::whole(Field::EtherType, Kind::EtherType),
        _ => return None,
    })
}

fn vlan(field: &str) -> Option<NamedBits> {
    Some(match field {
        "id" => NamedBits::whole(Field::VlanId, Kind::Plain),
        "pcp" => NamedBits::whole(Field::VlanPriority, Kind::Plain),
        _ => return None,
    })
}

fn network(offset: u64, bits: u64) -> Option<NamedBits> {
    NamedBits::of_header(PayloadBase::Network, offset, bits, Kind::Plain)
}

fn ip(field: &str) -> Option<NamedBits> {
    Some(match field {
        "version" => return network(0, 4),
        "hdrlength" => return network(4, 4),
        "dscp" => NamedBits::part(Field::TrafficClass, 2, 6, Kind::Dscp),
        "ecn" => NamedBits::part(Field::TrafficClass, 0, 2, Kind::Ecn),
        "length" => NamedBits::whole(Field::Length, Kind::Plain),
        "id" => return network(32, 16),
        "frag-off" => return network(48, 16),
        "ttl" => NamedBits::whole(Field::Ttl, Kind::Plain),
        "protocol" => NamedBits::whole(Field::Protocol, Kind::Protocol),
        "checksum" => return network(80, 16),
        "saddr" => NamedBits::whole(Field::Source4, Kind::Ip4),
        "daddr" => NamedBits::whole(Field::Destination4, Kind::Ip4),
        _ => return None,
    })
}

fn ip6(field: &str) -> Option<NamedBits> {
    Some(match field {
        "version" => return network(0, 4),
        "dscp" => NamedBits::part(Field::TrafficClass, 2, 6, Kind::Dscp),
        "ecn" => NamedBits::part(Field::TrafficClass, 0, 2, Kind::Ecn),
        "flowlabel" => return network(12, 20),
        "length" => return network(32, 16),
        "nexthdr" => NamedBits::whole(Field::NextHeader6, Kind::Protocol),
        "hoplimit" => NamedBits::whole(Field::Ttl, Kind::Plain),
        "saddr" => NamedBits::whole(Field::Source6, Kind::Ip6),
        "daddr" => NamedBits::whole(Field::Destination6, Kind::Ip6),
        _ => return None,
    })
}

fn icmp(six: bool, field: &str) -> Option<NamedBits> {
    let (types, codes) = match six {
        true => (Kind::Icmp6Type, Kind::Icmp6Code),
        false => (Kind::IcmpType, Kind::IcmpCode),
    };
    let (offset, bits) = match (field, six) {
        ("type", _) => return Some(NamedBits::whole(Field::IcmpType, types)),
        ("code", _) => return Some(NamedBits::whole(Field::IcmpCode, codes)),
        ("checksum", _) => (16, 16),
        ("id", _) | ("max-delay", true) => (32, 16),
        ("sequence", _) => (48, 16),
        ("gateway", false) | ("mtu" | "parameter-problem", true) => (32, 32),
        ("mtu", false) => (48, 16),
        _ => return None,
    };
    NamedBits::of_header(PayloadBase::Transport, offset, bits, Kind::Plain)
}

fn transport(protocol: &str, field: &str) -> Option<NamedBits> {
    let ports = matches!(protocol, "tcp" | "udp" | "udplite" | "dccp" | "sctp" | "th");
    match field {
        "sport" if ports => return Some(NamedBits::whole(Field::SourcePort, Kind::Plain)),
        "dport" if ports => return Some(NamedBits::whole(Field::DestinationPort, Kind::Plain)),
        "flags" if protocol == "tcp" => {
            return Some(NamedBits::whole(Field::TcpFlags, Kind::TcpFlags));
        }
        _ => {}
    }
    let (offset, bits, kind) = match (protocol, field) {
        ("tcp", "sequence") => (32, 32, Kind::Plain),
        ("tcp", "ackseq") => (64, 32, Kind::Plain),
        ("tcp", "doff") => (96, 4, Kind::Plain),
        ("tcp", "reserved") => (100, 4, Kind::Plain),
        ("tcp", "window") => (112, 16, Kind::Plain),
        ("tcp", "checksum") => (128, 16, Kind::Plain),
        ("tcp", "urgptr") => (144, 16, Kind::Plain),
        ("udp", "length") | ("udplite", "csumcov") => (32, 16, Kind::Plain),
        ("udp" | "udplite", "checksum") => (48, 16, Kind::Plain),
        ("dccp", "type") => (67, 4, Kind::DccpType),
        ("sctp", "vtag") => (32, 32, Kind::Plain),
        ("sctp", "checksum") => (64, 32, Kind::Plain),
        ("igmp", "type") => (0, 8, Kind::IgmpType),
        ("igmp", "mrt") => (8, 8, Kind::Plain),
        ("igmp", "checksum") => (16, 16, Kind::Plain),
        ("igmp", "group") => (32, 32, Kind::Ip4),
        ("ah", "nexthdr") => (0, 8, Kind::Protocol),
        ("ah", "hdrlength") => (8, 8, Kind::Plain),
        ("ah", "reserved") => (16, 16, Kind::Plain),
        ("ah", "spi") | ("esp", "sequence") => (32, 32, Kind::Plain),
        ("ah", "sequence") => (64, 32, Kind::Plain),
        ("esp", "spi") => (0, 32, Kind::Plain),
        ("comp", "nexthdr") => (0, 8, Kind::Protocol),
        ("comp", "flags") => (8, 8, Kind::Plain),
        ("comp", "cpi") => (16, 16, Kind::Plain),
        _ => return None,
    };
    NamedBits::of_header(PayloadBase::Transport, offset, bits, kind)
}
