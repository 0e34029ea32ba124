//! The VLAN tag (IEEE 802.1Q-2018, 9.6): control information and the ethertype after it; 4 bytes.

use super::be16;

/// Bytes of one tag.
pub const LEN: usize = 4;

/// A tag without its protocol: control information, next ethertype.
#[derive(Clone, Copy, Debug)]
pub struct TagView {
    /// Priority (3 bits), drop eligibility (1), VLAN identifier (12).
    pub control: u16,
    /// The ethertype after the tag.
    pub ethertype: u16,
}

impl TagView {
    /// A tag's four bytes.
    #[inline(always)]
    #[must_use]
    pub const fn new(bytes: &[u8; LEN]) -> Self {
        Self { control: be16(bytes, 0), ethertype: be16(bytes, 2) }
    }

    /// VLAN identifier, 12 bits; 0 is a priority tag.
    #[inline(always)]
    #[must_use]
    pub const fn vid(self) -> u16 {
        self.control & 0x0fff
    }
}
