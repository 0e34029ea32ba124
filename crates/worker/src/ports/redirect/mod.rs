//! Watches which devices accept frames that an XDP program on another device redirects to them.
//!
//! Not every device accepts them, and that may change: a veth does while its peer has XDP or GRO. A
//! device that does not accept them drops them silently, so the XDP path has to know. The kernel
//! reports it by generic netlink, family `netdev` (`Documentation/netlink/specs/netdev.yaml`, Linux
//! 6.3).
//!
//! A device may behave differently from what it reports. If one refuses frames
//! ([`xdp::refusals`](tollway_xdp::refusals)), the router probes it again after a second, with a
//! frame of its own. After each further refusal the pause doubles.
//!
//! If the router cannot notice refusals, devices with zero-copy get no frames. Their drivers may
//! report that they accept frames, and drop all of them while a socket has the queue.
//!
//! A tc program needs none of this, but it must not send to devices that are down or gone, so the same
//! thread says which devices are up.
//!
//! Limits: a kernel before 6.3 does not report this. There, no device gets frames from an XDP program, and
//! the thread checks every half second which devices are up.

mod netdev;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollway_dataplane::id::PortId;

use super::interface;
use super::interface::Facts;
use tollway_linux::mailbox::{WakeReceiver, Waker};
use tollway_linux::pace::{self, POLL};
use tollway_linux::sys;
use tollway_xdp::ProbeTarget;
use tollway_xdp::refusals::{Cause, Refusals};
use tollway_xdp::xdp_path::{Exit, Ports};

use netdev::Netdev;

/// The longest time between two full checks, in case a notification was lost.
const PERIOD: Duration = POLL.saturating_mul(6);
/// The first and the longest pause before a device that refuses is tried again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(256);

/// `NETDEV_XDP_ACT_NDO_XMIT`: accepts redirected frames.
const NDO_XMIT: u64 = 1 << 2;
/// `NETDEV_XDP_ACT_NDO_XMIT_SG`: also accepts those in several pieces.
const NDO_XMIT_SG: u64 = 1 << 6;
/// `NETDEV_XDP_ACT_XSK_ZEROCOPY`: supports zero-copy AF_XDP sockets.
const XSK_ZEROCOPY: u64 = 1 << 3;

/// A thread that updates the XDP path with the devices that it can send to.
pub struct Watch {
    /// Dropping it ends the thread.
    waker: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Checks the devices of some ports, whose ifindexes `device_of` returns: once before this
    /// returns, and then whenever a device changes. `has_xdp`: some of the ports have the XDP path.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub fn start(
        watched: Vec<PortId>,
        device_of: impl Fn(PortId) -> Option<u32> + Send + 'static,
        (ports, has_xdp): (Arc<Ports>, bool),
    ) -> io::Result<Self> {
        let netdev = match Netdev::open() {
            Ok(netdev) => Some(netdev),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if netdev.is_none() && has_xdp {
            tracing::warn!(
                "no XDP path: this kernel does not report which devices take redirected \
                 frames (Linux 6.3 does)"
            );
        }
        let mut exits = Exits::new(netdev, has_xdp)?;
        exits.look(&watched, &device_of, &ports);
        exits.check_refusals(&ports);
        let (waker, wakes) = Waker::pair()?;
        let thread = std::thread::Builder::new().name("redirect".to_owned()).spawn(move || {
            let mut looked = Instant::now();
            while let Some(has_changed) = exits.wait(&wakes) {
                exits.check_refusals(&ports);
                if has_changed || looked.elapsed() >= PERIOD {
                    exits.look(&watched, &device_of, &ports);
                    looked = Instant::now();
                }
            }
        })?;
        Ok(Self { waker: Some(waker), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.waker = None;
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// Whether a device accepts redirected frames; false if the kernel does not report it.
#[must_use]
pub fn takes_redirected(device: &str) -> bool {
    features(device) & NDO_XMIT != 0
}

/// Whether a device supports zero-copy AF_XDP sockets; false if the kernel does not report it.
pub(super) fn has_zero_copy(device: &str) -> bool {
    features(device) & XSK_ZEROCOPY != 0
}

/// The XDP features that a device reports; none if the kernel does not report them.
fn features(device: &str) -> u64 {
    let (Ok(netdev), Ok(control)) = (Netdev::open(), UnixDatagram::unbound()) else { return 0 };
    let facts = interface::query_any(control.as_fd(), device).ok();
    let index = facts.and_then(|facts| NonZeroU32::new(facts.index as u32));
    index.map_or(0, |index| netdev.features(index))
}

/// A device that is up.
struct UpDevice {
    name: String,
    ifindex: NonZeroU32,
    mtu: u16,
}

/// The devices by which packets may leave, as far as they are known.
struct Exits {
    /// None before Linux 6.3.
    netdev: Option<Netdev>,
    /// Some port has the XDP path.
    has_xdp: bool,
    /// The socket for interface requests.
    control: UnixDatagram,
    /// The names of the ports' devices, and whether the devices report that they accept redirected
    /// frames.
    reported: BTreeMap<PortId, (String, bool)>,
    doubts: BTreeMap<PortId, Doubt>,
    /// When devices that got no frames yet are trusted.
    believe_at: Instant,
}

/// A device that got no frames for this long is trusted, because checking each frame has a cost.
const UNPROVEN_FOR: Duration = Duration::from_secs(60);

/// A device that has refused frames, although it reports that it accepts them.
#[derive(Debug)]
struct Doubt {
    /// The device gets no frames before this time.
    until: Instant,
    pause: Duration,
    /// The device gets frames again.
    tries: bool,
    /// Since when it accepts them.
    takes: Option<Instant>,
}

impl Doubt {
    /// The doubt after a refusal; `before` is the doubt of an earlier one.
    fn after(before: Option<&Self>, now: Instant) -> Self {
        let pause = before.map_or(FIRST_PAUSE, |before| (before.pause * 2).min(LONGEST_PAUSE));
        Self { until: now + pause, pause, tries: false, takes: None }
    }

    /// Whether the doubt remains: until the device has accepted frames for longer than its pause.
    fn lasts(&mut self, takes: bool, now: Instant) -> bool {
        self.takes = (self.tries && takes).then(|| self.takes.unwrap_or(now));
        self.takes.is_none_or(|since| now < since + self.pause)
    }
}

impl Exits {
    fn new(netdev: Option<Netdev>, has_xdp: bool) -> io::Result<Self> {
        Ok(Self {
            netdev,
            has_xdp,
            control: UnixDatagram::unbound()?,
            reported: BTreeMap::new(),
            doubts: BTreeMap::new(),
            believe_at: Instant::now() + UNPROVEN_FOR,
        })
    }

    /// Sleeps until the next check, and returns whether a device has changed; `None` at the end of
    /// the watch.
    fn wait(&self, wakes: &WakeReceiver) -> Option<bool> {
        /// No file: poll(2) ignores it.
        const NO_FILE: RawFd = -1;
        let changes = self.netdev.as_ref().map_or(NO_FILE, Netdev::changes);
        let mut fds = [wakes.as_fd().as_raw_fd(), changes].map(sys::readable);
        // Waking too early does no harm.
        let _ = sys::wait_for(&mut fds, pace::until_next(POLL));
        if let Some(netdev) = &self.netdev {
            netdev.skip_changes();
        }
        (fds[0].revents == 0).then_some(fds[1].revents != 0)
    }

    /// Checks for devices that refuse frames.
    fn check_refusals(&mut self, ports: &Ports) {
        let Some(refusals) = ports.refusals() else { return };
        refusals.end_idle_check();
        let now = Instant::now();
        for (port, (name, takes)) in &self.reported {
            let doubt = self.doubts.get(port);
            let cause = match refusals.cause(*port) {
                Some(Cause::Unprobed) if *takes => self.probe(*port, name, refusals),
                known => known,
            };
            match cause {
                Some(Cause::Unprobed) => {}
                Some(cause) if doubt.is_none_or(|doubt| doubt.tries) => {
                    let doubt = Doubt::after(doubt, now);
                    ports.set_exit(*port, None);
                    log_refusal(name, cause, doubt.pause);
                    self.doubts.insert(*port, doubt);
                }
                None if doubt.is_none() && self.believe_at <= now => refusals.believe(*port),
                _ => {}
            }
        }
        self.doubts.retain(|port, doubt| doubt.lasts(refusals.takes(*port), now));
    }

    /// Probes a device that has yet to be proven, if it still exists and is up.
    fn probe(&self, port: PortId, device: &str, refusals: &Refusals) -> Option<Cause> {
        let facts =
            interface::query_any(self.control.as_fd(), device).ok().filter(|facts| facts.up);
        let Some(Facts { index, mac, .. }) = facts else { return Some(Cause::Unprobed) };
        refusals.probe(&ProbeTarget { port, ifindex: index.cast_unsigned(), mac })
    }

    /// Whether a device may get frames of the XDP path, as far as is known.
    fn is_trusted(&mut self, port: PortId, refusals: Option<&Refusals>) -> bool {
        let Some(doubt) = self.doubts.get_mut(&port).filter(|doubt| !doubt.tries) else {
            return true;
        };
        if Instant::now() < doubt.until {
            return false;
        }
        doubt.tries = true;
        if let Some(refusals) = refusals {
            refusals.forgive(port);
        }
        true
    }

    /// Updates the XDP path with what each port's device can do now.
    fn look(
        &mut self,
        watched: &[PortId],
        device_of: &impl Fn(PortId) -> Option<u32>,
        ports: &Ports,
    ) {
        for port in watched {
            let device = device_of(*port).and_then(|index| self.identify(index));
            ports.set_device(*port, device.as_ref().map(|device| device.ifindex));
            let Some(netdev) = &self.netdev else { continue };
            // A device that is down drops its frames; the path counts those.
            let Some(UpDevice { name, ifindex, mtu }) = device else {
                ports.set_exit(*port, None);
                // Another device may come back.
                if self.doubts.remove(port).is_some()
                    && let Some(refusals) = ports.refusals()
                {
                    refusals.forgive(*port);
                }
                continue;
            };
            let features = netdev.features(ifindex);
            let takes_pieces = features & NDO_XMIT_SG != 0;
            let exit = may_exit(features, ports.refusals().is_some()).then_some(Exit {
                ifindex,
                mtu,
                takes_pieces,
            });
            let trusted = self.is_trusted(*port, ports.refusals());
            ports.set_exit(*port, exit.filter(|_| trusted));
            let before = self.reported.insert(*port, (name.clone(), exit.is_some()));
            if before.is_some_and(|(_, before)| before == exit.is_some()) {
                continue;
            }
            self.believe_at = Instant::now() + UNPROVEN_FOR;
            if !self.has_xdp || ports.is_left_to_kernel(*port) {
                tracing::debug!("{name} gets no frames of the XDP path");
            } else if exit.is_some() {
                tracing::debug!("{name} takes frames of the XDP path");
            } else if features & NDO_XMIT != 0 {
                tracing::info!(
                    "{name} has zero-copy, and Tollway cannot watch which frames it refuses, so packets that \
                     leave there take the user path"
                );
            } else {
                tracing::info!(
                    "{name} takes no redirected frames, so what leaves there keeps out of the \
                     XDP path; a veth takes them while its peer has XDP or `gro on`"
                );
            }
        }
    }

    /// A device, if it is up. After a rename meanwhile, the next check finds it.
    fn identify(&self, index: u32) -> Option<UpDevice> {
        let socket = self.control.as_fd();
        let name = interface::name(socket, index.cast_signed()).ok()?;
        let facts = interface::query_any(socket, &name).ok()?;
        let is_same = facts.index == index.cast_signed();
        let ifindex = NonZeroU32::new(index).filter(|_| is_same && facts.up)?;
        Some(UpDevice { name, ifindex, mtu: facts.mtu })
    }
}

/// Whether a device with these features may get frames of the XDP path.
const fn may_exit(features: u64, is_watched: bool) -> bool {
    features & NDO_XMIT != 0 && (is_watched || features & XSK_ZEROCOPY == 0)
}

/// Logs that a device refuses frames.
fn log_refusal(device: &str, cause: Cause, pause: Duration) {
    // The port itself reports a device that has just gone down.
    if cause == Cause::Error(libc::ENETDOWN) {
        return;
    }
    tracing::warn!(
        "{device} refuses the frames of the XDP path ({cause}), so what leaves there keeps out of it; it \
         is tried again in {} s. Packets that were lost are counted as dropped, dev_tx_failed",
        pause.as_secs()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_copy_is_an_exit_only_where_refusals_are_noticed() {
        for (features, is_watched, may) in [
            (NDO_XMIT, false, true),
            (NDO_XMIT | XSK_ZEROCOPY, true, true),
            (NDO_XMIT | XSK_ZEROCOPY, false, false),
            (XSK_ZEROCOPY, true, false),
            (0, true, false),
        ] {
            assert_eq!(may_exit(features, is_watched), may, "{features:b}, {is_watched}");
        }
    }

    #[test]
    fn a_device_that_goes_on_refusing_is_tried_less_often() {
        let start = Instant::now();
        let first = Doubt::after(None, start);
        assert_eq!(
            (first.pause, first.until, first.tries),
            (FIRST_PAUSE, start + FIRST_PAUSE, false)
        );
        let mut second = Doubt::after(Some(&first), first.until);
        assert_eq!(second.pause, 2 * FIRST_PAUSE);
        // The device gets nothing, accepts some, refuses all, and at last accepts frames for long
        // enough.
        let late = second.until + LONGEST_PAUSE;
        assert!(second.lasts(true, late), "not tried yet");
        second.tries = true;
        for (takes, after, lasts) in
            [(false, 0, true), (true, 0, true), (false, 2, true), (true, 3, true), (true, 5, false)]
        {
            let now = late + after * FIRST_PAUSE;
            assert_eq!(second.lasts(takes, now), lasts, "after {after} s");
        }
        let last = (0..20).fold(first, |doubt, _| Doubt::after(Some(&doubt), doubt.until));
        assert_eq!(last.pause, LONGEST_PAUSE);
    }
}
