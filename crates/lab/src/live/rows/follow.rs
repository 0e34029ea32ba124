//! A Tollway that follows its kernel's configuration, as `tollway run DEVICE...` does.

use super::super::program::{self, Tollway};
use super::super::topology::Topology;

/// Where the row's traffic would be, if Tollway has its program on no device.
pub(super) const NOT_ATTACHED: &str = "Tollway attaches to no device: the kernel forwards";

/// A running Tollway.
pub(super) struct Follower<'a> {
    topology: &'a Topology,
    tollway: Tollway,
}

impl<'a> Follower<'a> {
    /// Starts it, and waits until it forwards. With processors of its own it avoids the generator's.
    pub(super) fn start(
        topology: &'a Topology,
        more: &[&str],
        own_processors: bool,
    ) -> Result<Self, String> {
        let arguments = [&["run", "r0", "r1"], more].concat();
        let mut tollway = Tollway::launch(topology, &arguments, own_processors)?;
        tollway.until_forwarding()?;
        Ok(Self { topology, tollway })
    }

    /// A note, if it has its program on neither device.
    pub(super) fn note(&self) -> Result<Option<String>, String> {
        for port in ["r0", "r1"] {
            let link = self.topology.r.sh(&format!("ip -json link show dev {port}"))?;
            if link.contains("\"xdp\"") {
                return Ok(None);
            }
        }
        Ok(Some(NOT_ATTACHED.to_owned()))
    }

    /// Ends it, and removes what it left in the kernel.
    pub(super) fn stop(self) -> Result<(), String> {
        self.tollway.stop()?;
        program::clear(self.topology)
    }
}
