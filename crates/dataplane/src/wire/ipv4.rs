//! The IPv4 header (RFC 791, 3.1) without options; 20 bytes.

use super::{be16, be32};

/// Bytes without options.
pub const LEN: usize = 20;

/// Version 4 and a header of five words: the first byte of a header without options.
pub const VERSION_IHL_PLAIN: u8 = 0x45;

/// The first 20 bytes of an IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<'a>(pub &'a [u8; LEN]);

impl Ipv4View<'_> {
    /// Version and header length, one byte.
    #[inline(always)]
    #[must_use]
    pub const fn version_ihl(self) -> u8 {
        self.0[0]
    }

    /// Header length, bytes (0 to 60; under 20 is malformed).
    #[inline(always)]
    #[must_use]
    pub const fn header_len(self) -> usize {
        (self.0[0] & 0x0f) as usize * 4
    }

    /// Length of header and payload, bytes.
    #[inline(always)]
    #[must_use]
    pub const fn total_len(self) -> u16 {
        be16(self.0, 2)
    }

    /// Says whether this is a fragment: more follow, or it is not the first.
    #[inline(always)]
    #[must_use]
    pub const fn is_fragment(self) -> bool {
        be16(self.0, 6) & 0x3fff != 0
    }

    /// Says whether this is a fragment other than the first.
    #[inline(always)]
    #[must_use]
    pub const fn is_later_fragment(self) -> bool {
        be16(self.0, 6) & 0x1fff != 0
    }

    /// Time to live.
    #[inline(always)]
    #[must_use]
    pub const fn ttl(self) -> u8 {
        self.0[8]
    }

    /// Protocol number of the payload.
    #[inline(always)]
    #[must_use]
    pub const fn protocol(self) -> u8 {
        self.0[9]
    }

    /// Source address.
    #[inline(always)]
    #[must_use]
    pub const fn src(self) -> u32 {
        be32(self.0, 12)
    }

    /// Destination address.
    #[inline(always)]
    #[must_use]
    pub const fn dst(self) -> u32 {
        be32(self.0, 16)
    }
}
