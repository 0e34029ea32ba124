//! The IPv6 header (RFC 8200, 3); 40 bytes.

use super::{be16, be32};

/// Bytes of the fixed header.
pub const LEN: usize = 40;

/// The fixed header of an IPv6 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6View<'a>(pub &'a [u8; LEN]);

impl Ipv6View<'_> {
    /// Version, 4 bits.
    #[inline(always)]
    #[must_use]
    pub const fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Bytes after the fixed header, extension headers included.
    #[inline(always)]
    #[must_use]
    pub const fn payload_len(self) -> u16 {
        be16(self.0, 4)
    }

    /// What follows the fixed header.
    #[inline(always)]
    #[must_use]
    pub const fn next_header(self) -> u8 {
        self.0[6]
    }

    /// Hops left.
    #[inline(always)]
    #[must_use]
    pub const fn hop_limit(self) -> u8 {
        self.0[7]
    }

    /// Source address.
    #[inline(always)]
    #[must_use]
    pub const fn src(self) -> u128 {
        join([be32(self.0, 8), be32(self.0, 12), be32(self.0, 16), be32(self.0, 20)])
    }

    /// Destination address.
    #[inline(always)]
    #[must_use]
    pub const fn dst(self) -> u128 {
        join([be32(self.0, 24), be32(self.0, 28), be32(self.0, 32), be32(self.0, 36)])
    }
}

/// Whether an address is valid only on its link: `fe80::/10` (RFC 4291, 2.5.6).
#[inline(always)]
#[must_use]
pub const fn is_link_local(address: u128) -> bool {
    address >> 118 == 0xfe80 >> 6
}

const fn join(words: [u32; 4]) -> u128 {
    (words[0] as u128) << 96
        | (words[1] as u128) << 64
        | (words[2] as u128) << 32
        | words[3] as u128
}
