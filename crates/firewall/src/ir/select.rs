//! Selectors, keys and matches: the fields of packets that rules test, and the tests.

use super::SetId;

/// A field of a packet, as a number in host order.
///
/// A packet may lack it. Then no match on it holds, negated or not (in nft: the expression breaks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Selector {
    /// 4 or 6; 0 for any other packet. Never lacking.
    IpVersion,
    /// The ethertype behind the tags that the links removed, 16 bits. Never lacking.
    EtherType,
    /// Source MAC address, 48 bits.
    EtherSource,
    /// Destination MAC address, 48 bits.
    EtherDestination,
    /// VLAN identifier of the outermost tag as received, 12 bits; lacking without a tag. Front ends use it
    /// only at hooks where their kernel still has the tag.
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
    /// The transport protocol, behind IPv6 extension headers, 8 bits; lacking if the chain of these is
    /// broken. For a later fragment it is what its fragment header says.
    Protocol,
    /// The next header field of the fixed IPv6 header, 8 bits.
    NextHeader6,
    /// The first two bytes behind the IP headers, for any protocol. As with all fields of the transport
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
    /// Number of bytes behind the IP headers, 16 bits; lacking in later fragments.
    TransportLength,
    /// IPv4 type of service or IPv6 traffic class, 8 bits: DSCP is the upper six.
    TrafficClass,
    /// Length of the IP packet with all headers, in bytes, 16 bits.
    Length,
    /// TTL or hop limit, 8 bits; from hook forward on, one less than received.
    Ttl,
    /// Fragment flags and offset: DF 0x4000, MF 0x2000, offset in units of 8 bytes 0x1fff. IPv6 has no DF;
    /// lacking in IPv6 packets without a fragment header.
    Fragment,
    /// Fragment offset, in units of 8 bytes; 0 for the first fragment and for whole packets. Never lacking in
    /// an IP packet whose headers can be walked.
    FragmentOffset,
    /// The ingress link; see [`Test::Link`].
    Input,
    /// The egress link; lacking before the route is known.
    Output,
    /// The packet's mark, 32 bits; 0 at first.
    Mark,
    /// Bytes of a header as one number, the first byte being the most significant.
    Payload {
        /// What the offset counts from.
        base: Base,
        /// Offset in bytes.
        offset: u8,
        /// Length in bytes, 1 to 16.
        bytes: u8,
    },
}

/// What the offset of a [`Selector::Payload`] counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// The Ethernet header as it is without tags.
    Link,
    /// The IP header.
    Network,
    /// The header behind the IP headers; lacking in later fragments.
    Transport,
}

impl Selector {
    /// The width of its number in bits, at most.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
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
            Self::Payload { bytes, .. } => bytes as u32 * 8,
        }
    }

    /// The greatest number it can have.
    #[must_use]
    pub const fn max(self) -> u128 {
        match self.bits() {
            0 => 0,
            bits => u128::MAX >> (128 - bits),
        }
    }

    /// Says whether it is a link, which is not compared as a number.
    #[must_use]
    pub const fn is_link(self) -> bool {
        matches!(self, Self::Input | Self::Output)
    }
}

/// A selector and the bits of it that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The field of the packet.
    pub selector: Selector,
    /// Bits that matter; the others count as 0.
    pub mask: u128,
}

impl Key {
    /// Some bits of a selector.
    #[must_use]
    pub const fn masked(selector: Selector, mask: u128) -> Self {
        Self { selector, mask }
    }
}

impl From<Selector> for Key {
    fn from(selector: Selector) -> Self {
        Self { selector, mask: selector.max() }
    }
}

/// The numbers from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    /// The least.
    pub first: u128,
    /// The greatest.
    pub last: u128,
}

impl Range {
    /// From one to another.
    #[must_use]
    pub const fn new(first: u128, last: u128) -> Self {
        Self { first, last }
    }

    /// A single number.
    #[must_use]
    pub const fn one(number: u128) -> Self {
        Self { first: number, last: number }
    }

    /// The numbers of `bits` bits that begin as `number` does for `len` bits.
    #[must_use]
    pub const fn prefix(number: u128, len: u32, bits: u32) -> Self {
        let open = bits.saturating_sub(len);
        let below = if open >= 128 { u128::MAX } else { (1 << open) - 1 };
        Self { first: number & !below, last: number | below }
    }

    /// Says whether the range contains a number.
    #[must_use]
    pub const fn has(self, number: u128) -> bool {
        self.first <= number && number <= self.last
    }
}

/// Links by name, prefix or VRF.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkPattern {
    /// The link of this name.
    Name(String),
    /// Links whose names begin with this (`eth*`).
    Prefix(String),
    /// Links of this VRF.
    Vrf(String),
}

/// A condition on one field of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The fields; several for a concatenation, which only [`Test::Set`] takes.
    pub keys: Vec<Key>,
    /// The test.
    pub test: Test,
    /// Whether the test must fail instead. A packet that lacks a key does not match either way.
    pub negate: bool,
}

/// A test of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The key is in one of these.
    Ranges(Vec<Range>),
    /// The link is one of these.
    Link(Vec<LinkPattern>),
    /// The set contains the key.
    Set(SetId),
}

impl Match {
    /// The key is this number.
    #[must_use]
    pub fn is(key: impl Into<Key>, number: u128) -> Self {
        Self::in_ranges(key, [Range::one(number)])
    }

    /// The key is in one of these.
    #[must_use]
    pub fn in_ranges(key: impl Into<Key>, ranges: impl Into<Vec<Range>>) -> Self {
        Self { keys: vec![key.into()], test: Test::Ranges(ranges.into()), negate: false }
    }

    /// The set contains the key.
    #[must_use]
    pub fn in_set(key: impl Into<Key>, set: SetId) -> Self {
        Self { keys: vec![key.into()], test: Test::Set(set), negate: false }
    }

    /// The link is this one.
    #[must_use]
    pub fn link(selector: Selector, pattern: LinkPattern) -> Self {
        Self { keys: vec![selector.into()], test: Test::Link(vec![pattern]), negate: false }
    }

    /// The same match, negated.
    #[must_use]
    pub fn negated(mut self) -> Self {
        self.negate = !self.negate;
        self
    }
}
