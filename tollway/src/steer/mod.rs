//! Steering: the XDP program on each port, which sends to user space what the path takes, repeats
//! in the express lane what the path has decided, and leaves the rest to the kernel.

#[expect(dead_code, unused_imports, reason = "as below")]
pub mod maps;
#[expect(dead_code, reason = "the loader, which comes next, uses the rest")]
mod sys;

use tollway_dataplane::id::{LinkId, PortId, Vid};

use crate::model::{Mac, VlanProtocol};

/// A port as the steering program needs to know it.
#[derive(Clone, Debug)]
pub struct SteerPort {
    /// Its number, below [`MOST_PORTS`].
    pub port: PortId,
    /// The device's name, for people.
    pub device: String,
    /// The device.
    pub ifindex: u32,
    /// The Ethernet address that packets to be routed are sent to.
    pub mac: Mac,
    /// Its receive queues, at most [`MOST_QUEUES`].
    pub queues: u32,
    /// The links on it, the port's own included.
    pub links: Vec<SteerLink>,
}

/// A link as the steering program needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteerLink {
    /// The outermost tag of its frames; none for untagged ones.
    pub tag: Option<(VlanProtocol, Vid)>,
    /// Its number in the router's tables.
    pub link: LinkId,
}

/// Ports at most.
pub const MOST_PORTS: usize = 64;
/// Receive queues of a port at most.
pub const MOST_QUEUES: u32 = 128;

/// What is decided for all ports when the maps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// IPv4 flows that the express lane holds at most, some 140 bytes each.
    pub flows4: u32,
    /// IPv6 flows that the express lane holds at most, some 160 bytes each.
    pub flows6: u32,
    /// Takes ports over from a Tollway that still serves them.
    pub replace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { flows4: 1 << 17, flows6: 1 << 17, replace: false }
    }
}

/// Where on a device the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// Behind the driver, in the kernel's own receive function: any device has it, slower.
    Generic,
}
