//! What happens to a router and to its devices.

use std::time::Duration;

use super::plug;
use crate::namespaces::{sh, until};
use crate::running::Router;
use crate::variants::PathVariant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing happens.
    Quiet,
    /// The router is stopped for a while and goes on.
    Stop,
    /// Another router takes its ports over.
    Replace,
    /// A link goes down and up.
    Link,
    /// A device has another MTU for a moment.
    Mtu,
    /// A device has two queues, where it can, and then one.
    MoreQueues,
    FewerQueues,
    /// A driver loses its device and has it again.
    Rebind,
    /// The router is killed.
    Kill,
}

/// A device of this driver that has an XDP program, whoever's, is never unregistered: `unregister_netdevice: waiting
/// for ... to become free`. The driver takes back the queues that it gave the program while the device goes, and the
/// kernel then keeps their entries in sysfs, which hold the device (seen with Linux 6.12 and 7.3).
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
/// So long is the router stopped; four times as long does nothing happen.
const WHILE: Duration = Duration::from_millis(500);

impl Event {
    /// All that can happen to the kernel alone, or to a router that forwards in that way, whose end comes last. It is
    /// brief where it can be tried often: then what takes longest happens once, or not at all.
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

    /// How often it may happen until no more is lost than may be.
    pub fn tries(self) -> usize {
        if self == Self::Kill { 1 } else { 3 }
    }

    /// Has it happen; why it cannot.
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
                // The kernel forgets what it had of a link that was down.
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

/// Gives the second near end so many queues.
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
