//! A Tollway that follows its kernel's configuration, as `tollway run DEVICE...` does.

use super::super::program::{self, Tollway};
use super::super::topology::Topology;

/// Where the row's traffic would be, if Tollway has its program on no device.
pub(super) const NOT_ATTACHED: &str = "Tollway attaches to no device: the kernel forwards";

/// A running Tollway.
pub(super) struct Follower<'a> {
    topology: &'a Topology,
    tollway: Tollway,
    is_attached: bool,
}

/// The engine where the devices stand in for network cards.
pub(super) const AS_CARDS: [&str; 2] = ["--engine", "xdp"];

impl<'a> Follower<'a> {
    /// Starts it, and waits until it forwards. With processors of its own it avoids the generator's.
    pub(super) fn start(
        topology: &'a Topology,
        more: &[&str],
        own_processors: bool,
    ) -> Result<Self, String> {
        let arguments = [&["run", "r0", "r1"], more].concat();
        let mut tollway = Tollway::launch(topology, &arguments, own_processors)?;
        let start = tollway.until_forwarding()?;
        let is_idle = |line: &&String| line.contains(", not attached");
        // One line for each port.
        let is_attached = start.iter().filter(is_idle).count() < 2;
        Ok(Self { topology, tollway, is_attached })
    }

    /// A note, if it has attached its program to neither device.
    pub(super) fn note(&self) -> Option<String> {
        (!self.is_attached).then(|| NOT_ATTACHED.to_owned())
    }

    /// Ends it, and removes what it left in the kernel.
    pub(super) fn stop(self) -> Result<(), String> {
        self.tollway.stop()?;
        program::clear(self.topology)
    }
}
