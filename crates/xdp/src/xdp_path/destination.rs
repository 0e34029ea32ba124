//! Where flow entries go.

use std::io;

use crate::State;
use crate::flows::{Flow, Flow4Key, Flow6Key, FlowMaps};

/// The destination of flow entries: the maps of the XDP program, or a test's.
pub trait Flows: Send {
    /// The XDP path's generation. A flow is active under the sum of this and its regions'
    /// generations ([`Flow::generation`]).
    fn generation(&self) -> u32;

    /// Gives the XDP path its next generation, which deactivates all earlier entries.
    fn bump_generation(&self);

    /// Deactivates all earlier entries of flows, but no connections.
    fn bump_flows(&self) {
        self.bump_generation();
    }

    /// The generation of a region.
    fn region_generation(&self, region: u32) -> u32;

    /// How many times generations of regions have changed.
    fn region_changes(&self) -> u32;

    /// Counts the change, then gives regions their next generation.
    fn bump_regions(&self, regions: &[u32]);

    /// Enters IPv4 flows, `flows[i]` for `keys[i]`; returns for how many there was room.
    fn enter4(&mut self, keys: &[Flow4Key], flows: &[Flow]) -> usize;

    /// Enters IPv6 flows, `flows[i]` for `keys[i]`; returns for how many there was room.
    fn enter6(&mut self, keys: &[Flow6Key], flows: &[Flow]) -> usize;

    /// Packets and layer-3 bytes that flows with this tally have counted in all.
    ///
    /// # Errors
    /// The system refused.
    fn tally(&self, number: u16) -> io::Result<(u64, u64)>;
}

impl Flows for (State, FlowMaps) {
    fn generation(&self) -> u32 {
        self.0.generation()
    }

    fn bump_generation(&self) {
        self.0.bump_generation();
    }

    fn bump_flows(&self) {
        self.0.bump_flows();
    }

    fn region_generation(&self, region: u32) -> u32 {
        self.0.region_generation(region)
    }

    fn region_changes(&self) -> u32 {
        self.0.region_changes()
    }

    fn bump_regions(&self, regions: &[u32]) {
        self.0.bump_regions(regions.iter().copied());
    }

    fn enter4(&mut self, keys: &[Flow4Key], flows: &[Flow]) -> usize {
        self.1.insert4(keys, flows)
    }

    fn enter6(&mut self, keys: &[Flow6Key], flows: &[Flow]) -> usize {
        self.1.insert6(keys, flows)
    }

    fn tally(&self, number: u16) -> io::Result<(u64, u64)> {
        self.1.tally(number)
    }
}
