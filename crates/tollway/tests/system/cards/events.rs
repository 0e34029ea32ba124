//! Events that happen to a router and to its devices.

use std::time::Duration;

use super::plug;
use crate::namespaces::{sh, until};
use crate::running::Router;
use crate::variants::PathVariant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing happens, for comparison.
    Quiet,
    /// The router is stopped for a while and goes on.
    Stop,
    /// Another router takes over its ports.
    Replace,
    /// A link goes down and up.
    Link,
    /// A device has another MTU for a short time.
    Mtu,
    /// A device gets two queues, if it can, and later one.
    MoreQueues,
    FewerQueues,
    /// A driver is unbound from its device and bound again.
    Rebind,
    /// The router is killed.
    Kill,
}

/// A device of this driver that has an XDP program, of any owner, is never unregistered:
/// `unregister_netdevice: waiting for ... to become free`. While the device goes, the driver takes
/// back the queues that it gave the program. The kernel then keeps their entries in sysfs, which
/// hold the device (seen with Linux 6.12 and 7.3).
const LEAKS: &str = "virtio_net";
const ALL: [Event; 9] = [
    Event::Quiet,
    Event::Stop,
    Event::Replace,
    Event::Link,
    Event::Mtu,
    Event::MoreQueues,
    Event::FewerQueues,
    Event::Rebind,
    Event::Kill,
];
/// The router is stopped for this time. `Quiet` takes four times as long.
const WHILE: Duration = Duration::from_millis(500);

impl Event {
    /// Returns all events that can happen to the kernel alone, or to a router of this variant. The
    /// router's end comes last. A brief run, which can be repeated often, has the slowest events
    /// once or not at all.
    pub fn all(variant: Option<PathVariant>, is_thorough: bool) -> Vec<Self> {
        let is_rare = |event: &&Self| match event {
            Self::MoreQueues | Self::FewerQueues => true,
            Self::Replace | Self::Rebind => variant != Some(PathVariant::Path),
            _ => false,
        };
        let is_possible = |event: &&Self| {
            variant.is_some() || !matches!(event, Self::Stop | Self::Replace | Self::Kill)
        };
        let possible = ALL.iter().filter(is_possible);
        possible.filter(|event| is_thorough || !is_rare(event)).copied().collect()
    }

    /// Returns how often an event may be tried until the losses are within the limit.
    pub fn tries(self) -> usize {
        if self == Self::Kill { 1 } else { 3 }
    }

    /// Makes the event happen. Returns an error if it cannot.
    pub fn happen(self, router: &mut Option<Router>) -> Result<(), String> {
        match self {
            Self::Quiet => std::thread::sleep(4 * WHILE),
            Self::Stop => {
                let id = router.as_ref().unwrap().process.0.id();
                sh(&format!("kill -STOP {id}"));
                std::thread::sleep(WHILE);
                sh(&format!("kill -CONT {id}"));
            }
            Self::Replace => *router = router.take().map(Router::replace),
            Self::Link => {
                ["down", "up"].iter().for_each(|to| drop(sh(&format!("ip link set rb {to}"))));
                // The kernel has removed the IPv6 address of a link that was down.
                sh("ip -6 address replace fd00:2::1/64 dev rb nodad");
            }
            Self::Mtu => {
                [1400, 1500].iter().for_each(|mtu| drop(sh(&format!("ip link set rb mtu {mtu}"))));
            }
            Self::MoreQueues => return queues(2),
            Self::FewerQueues => return queues(1),
            Self::Rebind => {
                if router.is_some() && plug::driver().ends_with(LEAKS) {
                    return Err(format!("{LEAKS} with an XDP program never lets its device go"));
                }
                let backs = |router: &Router| router.read("stderr").matches("is back").count();
                let before = router.as_ref().map_or(0, backs);
                plug::rebind();
                if let Some(router) = router {
                    until("the port to be back", || backs(router) > before);
                }
            }
            Self::Kill => {
                let mut router = router.take().unwrap();
                sh(&format!("kill -KILL {}", router.process.0.id()));
                let _ = router.process.0.wait();
            }
        }
        Ok(())
    }
}

/// Gives the near end of the second cable a number of queues.
fn queues(count: u8) -> Result<(), String> {
    let output = std::process::Command::new("ethtool")
        .args(["-L", "rb", "combined", &count.to_string()])
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
