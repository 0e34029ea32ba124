//! One word of a FIB: a next hop, or the way to a node below.

use crate::id::NextHopId;

/// A next hop (23 bits) with how deep within its level the prefix that put it there ends (5 bits), or
/// a node's number (30 bits)
/// and if the way to it leaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u32);

impl Entry {
    const NODE: u32 = 1 << 31;
    const LEAPS: u32 = 1 << 30;
    /// The number of a node.
    pub(super) const NUMBER: u32 = Self::LEAPS - 1;
    const DEPTH_SHIFT: u32 = 23;

    /// A next hop whose prefix ends `depth` bits below its level's beginning; 0 for one from above.
    pub(super) const fn leaf(depth: u8, next: NextHopId) -> Self {
        Self((depth as u32) << Self::DEPTH_SHIFT | next.0)
    }

    /// The way to a node; `leaps` where there may be bits between the slot that leads there and the
    /// node, which are to be compared.
    pub(super) const fn of_node(node: u32, leaps: bool) -> Self {
        Self(Self::NODE | if leaps { Self::LEAPS } else { 0 } | node)
    }

    /// The same way from a slot above, which leaps.
    pub(super) const fn leaping(self) -> Self {
        Self(self.0 | Self::LEAPS)
    }

    /// Says if it leads to a node.
    #[inline(always)]
    #[must_use]
    pub const fn is_node(self) -> bool {
        self.0 & Self::NODE != 0
    }

    /// Says if it leads to a node that begins at the bit where the slot ends that has it.
    #[inline(always)]
    pub(in crate::stages::route) const fn is_step(self) -> bool {
        self.0 & (Self::NODE | Self::LEAPS) == Self::NODE
    }

    /// Says if it leads to a node and leaps.
    pub(super) const fn leaps(self) -> bool {
        self.0 & (Self::NODE | Self::LEAPS) == Self::NODE | Self::LEAPS
    }

    /// The node that it leads to.
    #[inline(always)]
    pub(super) const fn node(self) -> Option<usize> {
        if self.0 & Self::NODE == 0 { None } else { Some((self.0 & Self::NUMBER) as usize) }
    }

    /// The next hop of one that leads to no node.
    #[inline(always)]
    pub(in crate::stages::route) const fn next(self) -> NextHopId {
        NextHopId(self.0 & NextHopId::MASK)
    }

    /// Bits of its prefix below the level's beginning, of one that leads to no node.
    pub(super) const fn depth(self) -> u8 {
        (self.0 >> Self::DEPTH_SHIFT) as u8
    }
}
