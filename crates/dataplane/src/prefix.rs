//! Prefixes of addresses.

use std::net::IpAddr;

/// A prefix of either family, left-aligned; host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    bits: u128,
    len: u8,
}

impl Prefix {
    /// An IPv4 prefix; host bits are cleared, a length over 32 counts as 32.
    #[must_use]
    pub const fn v4(address: u32, len: u8) -> Self {
        Self::new((address as u128) << 96, if len > 32 { 32 } else { len })
    }

    /// An IPv6 prefix; host bits are cleared, a length over 128 counts as 128.
    #[must_use]
    pub const fn v6(address: u128, len: u8) -> Self {
        Self::new(address, if len > 128 { 128 } else { len })
    }

    pub(crate) const fn new(bits: u128, len: u8) -> Self {
        Self { bits: bits & mask(len), len }
    }

    /// A prefix of the same length at another address, whose host bits are cleared.
    #[must_use]
    pub const fn with_bits(self, bits: u128) -> Self {
        Self::new(bits, self.len)
    }

    /// Length, bits.
    #[must_use]
    pub const fn len(self) -> u8 {
        self.len
    }

    /// Says whether this is the default route's prefix.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Says whether the prefix covers an address, which is left-aligned.
    #[must_use]
    pub const fn contains(self, bits: u128) -> bool {
        bits & mask(self.len) == self.bits
    }

    /// The address, left-aligned.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.bits
    }
}

const fn mask(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - len as u32) }
}

/// A prefix with its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoutePrefix {
    /// IPv4.
    V4(Prefix),
    /// IPv6.
    V6(Prefix),
}

impl RoutePrefix {
    /// The prefix of `len` bits around an address; host bits are cleared.
    #[must_use]
    pub const fn new(address: IpAddr, len: u8) -> Self {
        match address {
            IpAddr::V4(v4) => Self::V4(Prefix::v4(v4.to_bits(), len)),
            IpAddr::V6(v6) => Self::V6(Prefix::v6(v6.to_bits(), len)),
        }
    }

    /// The prefix that covers every address of a family.
    #[must_use]
    pub const fn all(is_ipv4: bool) -> Self {
        if is_ipv4 { Self::V4(Prefix::v4(0, 0)) } else { Self::V6(Prefix::v6(0, 0)) }
    }

    /// The prefix that covers one address and no other.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        Self::new(address, 128)
    }
}
