//! What rules look at.

use super::SetId;

/// A part of a packet, as a number in host order.
///
/// A packet may lack it; then no match on it holds, negated or not (nft: the expression breaks off).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Selector {
    /// 4 or 6, 0 for what is neither; never lacking.
    IpVersion,
    /// The ethertype behind the tags that the links took off, 16 bits; never lacking.
    EtherType,
    /// Source MAC address, 48 bits.
    EtherSource,
    /// Destination MAC address, 48 bits.
    EtherDestination,
    /// VLAN identifier of the outermost tag as received, 12 bits; lacking without a tag. Front ends use
    /// it only at hooks where their kernel still has the tag.
    VlanId,
    /// Priority of the outermost tag, 3 bits; lacking without a tag.
    VlanPriority,
    /// IPv4 source, 32 bits; lacking in other packets, as are all that are of one version.
    Source4,
    /// IPv4 destination, 32 bits.
    Destination4,
    /// IPv6 source, 128 bits.
    Source6,
    /// IPv6 destination, 128 bits.
    Destination6,
    /// The transport protocol, behind IPv6 extension headers, 8 bits; lacking where the chain of these
    /// is broken. Of a later fragment it is what its fragment header says.
    Protocol,
    /// What follows the fixed IPv6 header, 8 bits.
    NextHeader6,
    /// The first two bytes behind the IP headers, whatever the protocol. Lacking, as are all of the
    /// transport header, in later fragments and in packets that end before it.
    SourcePort,
    /// The third and fourth byte of the transport header.
    DestinationPort,
    /// TCP's flags, the 14th byte of the transport header.
    TcpFlags,
    /// ICMP's type, the first byte of the transport header.
    IcmpType,
    /// ICMP's code, the second byte of the transport header.
    IcmpCode,
    /// Bytes behind the IP headers, 16 bits; lacking in later fragments.
    TransportLength,
    /// IPv4 type of service or IPv6 traffic class, 8 bits: DSCP is the upper six.
    TrafficClass,
    /// Bytes of the IP packet with all headers, 16 bits.
    Length,
    /// Time to live or hop limit, 8 bits; from hook forward on, one less than received.
    Ttl,
    /// Where it belongs in the whole: DF 0x4000, MF 0x2000, offset in units of 8 bytes 0x1fff. IPv6 has no
    /// DF; lacking in IPv6 packets without a fragment header.
    Fragment,
    /// Offset of a fragment, in units of 8 bytes; 0 for the first and for whole packets, never lacking in
    /// an IP packet whose headers can be walked.
    FragmentOffset,
    /// The link that it arrived on; see [`Test::Link`].
    Input,
    /// The link that it leaves by; lacking before the route is known.
    Output,
    /// The packet's mark, 32 bits; 0 at first.
    Mark,
    /// Bytes of a header, as one number, the first byte at the upper end.
    Payload {
        /// What the offset counts from.
        base: Base,
        /// Bytes before it.
        offset: u8,
        /// How many, 1 to 16.
        bytes: u8,
    },
}

/// What the offset of a [`Selector::Payload`] counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// The Ethernet header, as if without tags.
    Link,
    /// The IP header.
    Network,
    /// What is behind the IP headers; lacking in later fragments.
    Transport,
}

impl Selector {
    /// How many bits its number has at most.
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

    /// Its greatest number.
    #[must_use]
    pub const fn max(self) -> u128 {
        match self.bits() {
            0 => 0,
            bits => u128::MAX >> (128 - bits),
        }
    }

    /// Says if it is a link, which is not compared as a number.
    #[must_use]
    pub const fn is_link(self) -> bool {
        matches!(self, Self::Input | Self::Output)
    }
}

/// A selector, and which of its bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The part of the packet.
    pub selector: Selector,
    /// Bits that count; the others are taken for 0.
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

/// Numbers from `first` to `last`, both included.
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

    /// Says if a number lies in it.
    #[must_use]
    pub const fn has(self, number: u128) -> bool {
        self.first <= number && number <= self.last
    }
}

/// Links by what people call them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkPattern {
    /// The one of this name.
    Name(String),
    /// Those whose names begin so (`eth*`).
    Prefix(String),
    /// Those of a VRF.
    Vrf(String),
}

/// A condition on one part of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// What is looked at; several for a concatenation, which only [`Test::Set`] takes.
    pub keys: Vec<Key>,
    /// What has to hold.
    pub test: Test,
    /// Whether it must not hold instead. A packet that lacks a key does not match either way.
    pub negate: bool,
}

/// What has to hold of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// It is in one of these.
    Ranges(Vec<Range>),
    /// The link is one of these.
    Link(Vec<LinkPattern>),
    /// The set has it.
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

    /// The set has the key.
    #[must_use]
    pub fn in_set(key: impl Into<Key>, set: SetId) -> Self {
        Self { keys: vec![key.into()], test: Test::Set(set), negate: false }
    }

    /// The link is this one.
    #[must_use]
    pub fn link(selector: Selector, pattern: LinkPattern) -> Self {
        Self { keys: vec![selector.into()], test: Test::Link(vec![pattern]), negate: false }
    }

    /// The same, if not.
    #[must_use]
    pub fn negated(mut self) -> Self {
        self.negate = !self.negate;
        self
    }
}
