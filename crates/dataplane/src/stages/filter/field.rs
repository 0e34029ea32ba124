//! The fields of packets, as rules of every language and the classifier name them.

use super::ConnectionField;

/// A field of a packet, as a number in host order.
///
/// A packet may lack it. Then no condition on it holds, negated or not (in nft: the expression breaks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// 4 or 6; 0 for any other packet. Never lacking.
    IpVersion,
    /// The ethertype after the tags that the links removed, 16 bits. Never lacking.
    EtherType,
    /// Source MAC address, 48 bits.
    EtherSource,
    /// Destination MAC address, 48 bits.
    EtherDestination,
    /// VLAN identifier of the outermost tag as received, 12 bits; lacking without a tag. Readers of rules
    /// use it only at hooks where their kernel still has the tag.
    VlanId,
    /// Priority of the outermost tag, 3 bits; lacking without a tag.
    VlanPriority,
    /// IPv4 source, 32 bits. IPv6 packets lack it; the same goes for every field of one version.
    Source4,
    /// IPv4 destination, 32 bits.
    Destination4,
    /// IPv6 source, 128 bits.
    Source6,
    /// IPv6 destination, 128 bits.
    Destination6,
    /// The transport protocol, after IPv6 extension headers, 8 bits; lacking if the chain of these is
    /// broken. For a later fragment it is what its fragment header says.
    Protocol,
    /// The next header field of the fixed IPv6 header, 8 bits.
    NextHeader6,
    /// The first two bytes after the IP headers, for any protocol. As with all fields of the transport
    /// header, later fragments and packets that end before it lack it.
    SourcePort,
    /// The third and fourth byte of the transport header.
    DestinationPort,
    /// TCP flags, the 14th byte of the transport header.
    TcpFlags,
    /// ICMP type, the first byte of the transport header.
    IcmpType,
    /// ICMP code, the second byte of the transport header.
    IcmpCode,
    /// Number of bytes after the IP headers, 16 bits; lacking in later fragments.
    TransportLength,
    /// IPv4 type of service or IPv6 traffic class, 8 bits: DSCP is the upper six.
    TrafficClass,
    /// Length of the IP packet with all headers, in bytes, 16 bits.
    Length,
    /// TTL or hop limit, 8 bits; from hook forward ([`Point::Forward`](super::Point::Forward)) on, one
    /// less than received.
    Ttl,
    /// Fragment flags and offset: DF 0x4000, MF 0x2000, offset in units of 8 bytes 0x1fff. IPv6 has no DF;
    /// lacking in IPv6 packets without a fragment header.
    Fragment,
    /// Fragment offset, in units of 8 bytes; 0 for the first fragment and for whole packets. Never lacking
    /// in an IP packet whose headers can be walked.
    FragmentOffset,
    /// The ingress link, by its number; rules name it instead.
    Input,
    /// The egress link, likewise; lacking before the route is known.
    Output,
    /// The packet's mark, 32 bits; 0 at first.
    Mark,
    /// A property of the packet's connection: see [`ConnectionField`]. Only rules for flows, and rules of a filter that
    /// tracks connections, have it.
    Connection(ConnectionField),
    /// Says whether a live set has an address: 1 or 0. Only compiled rules have it.
    InSet {
        /// The set's number in the filter.
        set: u16,
        /// The address to look up.
        of: Address,
    },
    /// Bytes of a header as one number, the first byte being the most significant.
    Payload {
        /// What the offset counts from.
        base: PayloadBase,
        /// Offset in bytes.
        offset: u8,
        /// Length in bytes, 1 to 16.
        bytes: u8,
    },
}

/// An address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

impl Address {
    /// The field of the address itself, in packets of a version of IP.
    #[must_use]
    pub const fn field(self, version: u8) -> Field {
        match (self, version) {
            (Self::Source, 6) => Field::Source6,
            (Self::Destination, 6) => Field::Destination6,
            (Self::Source, _) => Field::Source4,
            (Self::Destination, _) => Field::Destination4,
        }
    }
}

/// What the offset of a [`Field::Payload`] counts from (`enum nft_payload_bases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PayloadBase {
    /// The Ethernet header as it is without tags.
    Link,
    /// The IP header.
    Network,
    /// The header after the IP headers; lacking in later fragments.
    Transport,
}

impl Field {
    /// The width of its number in bits, at most.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::InSet { .. } => 1,
            Self::VlanPriority => 3,
            Self::IpVersion
            | Self::Protocol
            | Self::NextHeader6
            | Self::TcpFlags
            | Self::IcmpType
            | Self::IcmpCode
            | Self::TrafficClass
            | Self::Ttl => 8,
            Self::VlanId => 12,
            Self::FragmentOffset => 13,
            Self::EtherType
            | Self::SourcePort
            | Self::DestinationPort
            | Self::TransportLength
            | Self::Length
            | Self::Fragment
            | Self::Input
            | Self::Output => 16,
            Self::Source4 | Self::Destination4 | Self::Mark => 32,
            Self::EtherSource | Self::EtherDestination => 48,
            Self::Source6 | Self::Destination6 => 128,
            Self::Connection(field) => field.bits(),
            Self::Payload { bytes, .. } => bytes as u32 * 8,
        }
    }

    /// The greatest number it can have.
    #[must_use]
    pub const fn max(self) -> u128 {
        match self.bits() {
            0 => 0,
            bits if bits > 128 => u128::MAX,
            bits => u128::MAX >> (128 - bits),
        }
    }

    /// Says whether it is a link, which rules do not compare as a number.
    #[must_use]
    pub const fn is_link(self) -> bool {
        matches!(self, Self::Input | Self::Output)
    }

    /// Says whether it is an address of the IP header.
    pub(super) const fn is_address(self) -> bool {
        matches!(self, Self::Source4 | Self::Destination4 | Self::Source6 | Self::Destination6)
    }

    /// The bytes of the transport header up to the field's end; 0 for a field elsewhere.
    pub(super) const fn transport_bytes(self) -> u16 {
        match self {
            Self::SourcePort | Self::IcmpCode => 2,
            Self::DestinationPort => 4,
            Self::TcpFlags => 14,
            Self::IcmpType => 1,
            _ => 0,
        }
    }
}
