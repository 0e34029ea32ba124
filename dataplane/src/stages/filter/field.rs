//! The parts of a packet that rules match on.

/// A part of a packet, as a number in host order. A packet may lack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// The ethertype behind all tags.
    EtherType,
    /// Source MAC address.
    EtherSource,
    /// Destination MAC address.
    EtherDestination,
    /// VLAN identifier of the outermost tag.
    VlanId,
    /// Priority of the outermost tag.
    VlanPriority,
    /// Source address, of 32 or 128 bits.
    Source,
    /// Destination address.
    Destination,
    /// Transport protocol, behind IPv6 extension headers.
    Protocol,
    /// The header that follows the fixed IPv6 header.
    NextHeader6,
    /// The first two bytes of the transport header; later fragments lack it, like all of that header.
    SourcePort,
    /// Its third and fourth byte.
    DestinationPort,
    /// Its 14th byte.
    TcpFlags,
    /// Its first byte.
    IcmpType,
    /// Its second byte.
    IcmpCode,
    /// Bytes behind the IP headers.
    TransportLength,
    /// IPv4 type of service, IPv6 traffic class.
    TrafficClass,
    /// Bytes of the IP packet.
    Length,
    /// Time to live or hop limit; one less at [`Point::Forward`](super::Point::Forward).
    Ttl,
    /// DF, MF and offset; IPv6 packets without a fragment header lack it.
    Fragment,
    /// Offset of a fragment, in units of 8 bytes.
    FragmentOffset,
    /// The number of the link that it arrived on.
    Input,
    /// The number of the egress link.
    Output,
    /// The mark.
    Mark,
    /// Says whether a live set has an address: 1 or 0.
    InSet {
        /// The set's number in the filter.
        set: u16,
        /// The address to look up.
        of: Address,
    },
    /// Bytes of a header, the first one most significant.
    Payload {
        /// The start of the offset.
        base: HeaderBase,
        /// The offset, in bytes.
        offset: u8,
        /// The number of bytes, 1 to 16.
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
    /// The field of the address itself.
    #[must_use]
    pub const fn field(self) -> Field {
        match self {
            Self::Source => Field::Source,
            Self::Destination => Field::Destination,
        }
    }
}

/// The start of the offset of a [`Field::Payload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HeaderBase {
    /// The Ethernet header, as if it had no tags.
    Link,
    /// The IP header.
    Network,
    /// The bytes behind the IP headers.
    Transport,
}

impl Field {
    /// The maximum number of bits of its value.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::InSet { .. } => 1,
            Self::VlanPriority => 3,
            Self::Protocol
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
            Self::Mark => 32,
            Self::EtherSource | Self::EtherDestination => 48,
            Self::Source | Self::Destination => 128,
            Self::Payload { bytes, .. } => bytes as u32 * 8,
        }
    }

    /// Its greatest value.
    #[must_use]
    pub const fn max(self) -> u128 {
        match self.bits() {
            0 => 0,
            bits if bits > 128 => u128::MAX,
            bits => u128::MAX >> (128 - bits),
        }
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

/// The number of bits of a field in packets of a version of IP.
pub(super) const fn bits_of(field: Field, version: u8) -> u32 {
    match field {
        Field::Source | Field::Destination if version == 4 => 32,
        field => field.bits(),
    }
}
