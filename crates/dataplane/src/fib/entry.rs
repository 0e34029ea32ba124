//! One word of a FIB: a next hop, or a pointer to a node below.

use crate::id::NextHopId;

/// Either a next hop (23 bits) and how deep within its level its prefix ends (5 bits), or a node's
/// number (30 bits) and whether the pointer to it leaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u32);

impl Entry {
    const NODE: u32 = 1 << 31;
    const LEAPS: u32 = 1 << 30;
    /// The number of a node.
    pub(super) const NUMBER: u32 = Self::LEAPS - 1;
    const DEPTH_SHIFT: u32 = 23;

    /// A next hop whose prefix ends `depth` bits below the beginning of its level; 0 if the level above
    /// set it.
    pub(super) const fn leaf(depth: u8, next: NextHopId) -> Self {
        Self((depth as u32) << Self::DEPTH_SHIFT | next.0)
    }

    /// A pointer to a node. `leaps` means that there may be bits between the pointer's slot and the
    /// node, which a lookup has to compare.
    pub(super) const fn of_node(node: u32, leaps: bool) -> Self {
        Self(Self::NODE | if leaps { Self::LEAPS } else { 0 } | node)
    }

    /// The same pointer to another number.
    pub(super) const fn moved_to(self, node: u32) -> Self {
        Self(self.0 & !Self::NUMBER | node)
    }

    /// The same pointer from a slot above, which leaps.
    pub(super) const fn leaping(self) -> Self {
        Self(self.0 | Self::LEAPS)
    }

    /// Says whether it points to a node.
    #[inline(always)]
    #[must_use]
    pub const fn is_node(self) -> bool {
        self.0 & Self::NODE != 0
    }

    /// Says whether it points to a node that begins at the bit at which the pointer's slot ends.
    #[inline(always)]
    pub(crate) const fn is_step(self) -> bool {
        self.0 & (Self::NODE | Self::LEAPS) == Self::NODE
    }

    /// Says whether it points to a node and leaps.
    pub(super) const fn leaps(self) -> bool {
        self.0 & (Self::NODE | Self::LEAPS) == Self::NODE | Self::LEAPS
    }

    /// The node that it points to.
    #[inline(always)]
    pub(super) const fn node(self) -> Option<usize> {
        if self.0 & Self::NODE == 0 { None } else { Some((self.0 & Self::NUMBER) as usize) }
    }

    /// The next hop, if it points to no node.
    #[inline(always)]
    pub(crate) const fn next(self) -> NextHopId {
        NextHopId(self.0 & NextHopId::MASK)
    }

    /// Bits of its prefix below the level's beginning, if it points to no node.
    pub(super) const fn depth(self) -> u8 {
        (self.0 >> Self::DEPTH_SHIFT) as u8
    }
}
