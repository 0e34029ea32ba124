//! A Tollway that follows its kernel's configuration, as `tollway run DEVICE...` does.

use std::time::Duration;

use super::super::program::{self, Tollway};
use super::super::topology::Topology;
use super::pairs::{Side, in_turn};
use super::{Bench, Outcome};

/// Where the row's traffic would be, if Tollway has its program on no device.
pub(super) const NOT_ATTACHED: &str = "Tollway attaches to no device: the kernel forwards";

/// How Tollway starts.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    /// Arguments after the devices.
    pub(super) arguments: &'a [&'a str],
    /// Whether it avoids the generator's processor.
    pub(super) own_processors: bool,
    /// Whether its process is stopped while the kernel is measured. Where sockets use all processors, each of its
    /// wake-ups would delay what passes through the kernel too, and the row would not show that.
    pub(super) stops_for_kernel: bool,
}

/// Where the devices stand in for network cards, and the generator has a processor.
pub(super) const AS_CARDS: Launch<'static> =
    Launch { arguments: &["--engine", "xdp"], own_processors: true, stops_for_kernel: false };
/// Where everything is as the kernel and Tollway choose it.
pub(super) const BY_DEFAULT: Launch<'static> =
    Launch { arguments: &[], own_processors: false, stops_for_kernel: true };
/// How long a process that goes on installs what has changed meanwhile, at most.
const RESUMED: Duration = Duration::from_millis(300);

/// A running Tollway.
pub(super) struct Follower<'a> {
    topology: &'a Topology,
    tollway: Tollway,
    is_attached: bool,
}

/// Starts Tollway on a topology, warms it up, measures the kernel and Tollway in turn, and ends it.
pub(super) fn measure(
    bench: &Bench<'_>,
    topology: &Topology,
    launch: Launch<'_>,
    [kernel, tollway]: [&dyn Side; 2],
) -> Result<Outcome, String> {
    let follower = Follower::start(topology, launch)?;
    tollway.warm_up()?;
    let alone = Alone { kernel, follower: &follower };
    let kernel = if launch.stops_for_kernel { &alone } else { kernel };
    let pairs = in_turn(kernel, tollway, bench.pairs, bench.step)?;
    let note = follower.note();
    follower.stop()?;
    Ok(Outcome::Measured { pairs, note })
}

/// The kernel while Tollway's process is stopped.
struct Alone<'a> {
    kernel: &'a dyn Side,
    follower: &'a Follower<'a>,
}

impl Side for Alone<'_> {
    fn rate(&self) -> Result<f64, String> {
        let tollway = &self.follower.tollway;
        tollway.signal(libc::SIGSTOP)?;
        let rate = self.kernel.rate();
        tollway.signal(libc::SIGCONT)?;
        std::thread::sleep(RESUMED);
        rate
    }

    fn processor_ns(&self) -> Option<[f64; 2]> {
        self.kernel.processor_ns()
    }
}

impl<'a> Follower<'a> {
    /// Starts it, and waits until it forwards.
    pub(super) fn start(topology: &'a Topology, launch: Launch<'_>) -> Result<Self, String> {
        let arguments = [&["run", "r0", "r1"], launch.arguments].concat();
        let mut tollway = Tollway::launch(topology, &arguments, launch.own_processors)?;
        let start = tollway.until_forwarding()?;
        let is_idle = |line: &&String| line.contains(", not attached");
        // One line for each port.
        let is_attached = start.iter().filter(is_idle).count() < 2;
        Ok(Self { topology, tollway, is_attached })
    }

    /// A note, if it has attached its program to neither device.
    fn note(&self) -> Option<String> {
        (!self.is_attached).then(|| NOT_ATTACHED.to_owned())
    }

    /// Ends it, and removes what it left in the kernel.
    pub(super) fn stop(self) -> Result<(), String> {
        self.tollway.stop()?;
        program::clear(self.topology)
    }
}
