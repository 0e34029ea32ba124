//! The sizes of the maps of connections.
//!
//! The maps have room for as many connections as the router may ever have, in pages of 4 KB. If a few hundred entries lay
//! anywhere there, each packet would wait for the address of its entry's page: that took 15 of 57 ns. So a family's map
//! has a small table as well, which is in use until a bucket has more entries than it has room for.

use super::tracks::Tracks;
use crate::flows::WAYS;

/// Buckets of the small table: 128 KB of entries of IPv4.
pub(super) const SMALL_BUCKETS: u32 = 128;

/// Buckets of the small table beside a large one of so many; 0 if that is no larger.
pub(super) const fn small_buckets(buckets: u32) -> u32 {
    if buckets > SMALL_BUCKETS { SMALL_BUCKETS } else { 0 }
}

/// Buckets of the large tables of IPv4 and IPv6, powers of two; the other sizes follow from these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) buckets: [u32; 2],
}

impl Sizes {
    /// The buckets of both families' maps: the small table lies behind the large one.
    pub(crate) fn buckets_of_maps(self) -> [u32; 2] {
        self.buckets.map(|buckets| buckets + small_buckets(buckets))
    }

    /// The places for flows that have no entry yet, a power of two. Four flows share a place, so there is room for twice as
    /// many as for entries: flows in turn that drive each other out are never asked about.
    pub(crate) fn newcomers(self) -> u32 {
        (self.buckets[0] + self.buckets[1]).next_power_of_two() * (WAYS / 2) as u32
    }

    /// The number of tracks.
    pub(crate) fn tracks(self) -> u32 {
        let slots = self.buckets.map(|buckets| buckets as usize * WAYS);
        Tracks::count(slots[0] + slots[1]) as u32
    }
}
