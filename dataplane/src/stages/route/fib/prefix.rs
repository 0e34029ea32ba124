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

    pub(super) const fn new(bits: u128, len: u8) -> Self {
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
