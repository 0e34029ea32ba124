//! Streams to the queues of a router between interfaces.

use super::super::generator::{Flows, Generator, Place, Stream};
use super::super::program::Setup;
use super::super::topology::Topology;

/// The router: all frames go through user space.
pub(super) const SETUP: Setup = Setup {
    kind: "af_xdp",
    xdp_path: false,
    features: false,
    own_processors: false,
    xdp_flows: None,
};

/// Starts a stream of 256 flows on each of these processors. A veth hands frames to the queue with the number of the
/// processor that sends them, and there the kernel handles them, too.
pub(super) fn start(
    topology: &Topology,
    processors: &[usize],
    rate: Option<u32>,
) -> Result<Vec<Generator>, String> {
    let stream = Stream { flows: Flows::InTurn(256), vid: None, rate };
    let places = (0..).zip(processors);
    let places = places.map(|(stream, &processor)| Place::OneOfTwo { stream, processor });
    places.map(|place| Generator::start_at(&topology.a, stream.clone(), place)).collect()
}
