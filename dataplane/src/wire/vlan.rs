//! The VLAN tag (IEEE 802.1Q-2018, 9.6): control information and the ethertype behind it; 4 bytes.

use super::be16;

/// Bytes of one tag.
pub const LEN: usize = 4;

/// A tag without its protocol: control information, next ethertype.
#[derive(Clone, Copy, Debug)]
pub struct TagView<'a>(pub &'a [u8; 4]);

impl TagView<'_> {
    /// VLAN identifier, 12 bits; 0 is a priority tag.
    #[inline(always)]
    #[must_use]
    pub const fn vid(self) -> u16 {
        be16(self.0, 0) & 0x0fff
    }

    /// The ethertype behind the tag.
    #[inline(always)]
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        be16(self.0, 2)
    }
}
