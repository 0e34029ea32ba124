//! A port as the steering program needs to know it, and its places in the maps.

use tollway_dataplane::id::{LinkId, PortId, Vid};

use super::{SteerError, strips_tags};
use crate::model::{Left, Mac, VlanProtocol};

/// Flags of bpf/maps.h.
const LINK_EXISTS: u32 = 1 << 31;
const LINK_LEFT4: u32 = 1 << 30;
const LINK_LEFT6: u32 = 1 << 29;
const LINK_FRAGMENTS4: u32 = 1 << 28;
const LINK_FRAGMENTS6: u32 = 1 << 27;

/// A port as the steering program needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// What of it is the kernel's.
    pub left: Left,
}

impl SteerLink {
    /// Its value in the map `links`.
    pub(super) fn value(&self) -> u32 {
        let flag = |is_left: bool, flag| if is_left { flag } else { 0 };
        let left = flag(self.left.v4, LINK_LEFT4) | flag(self.left.v6, LINK_LEFT6);
        let fragments = flag(self.left.fragments4, LINK_FRAGMENTS4)
            | flag(self.left.fragments6, LINK_FRAGMENTS6);
        LINK_EXISTS | left | fragments | u32::from(self.link.0)
    }
}

/// Ports at most.
pub const MOST_PORTS: usize = 64;
/// Receive queues of a port at most.
pub const MOST_QUEUES: u32 = 128;

/// Whether the maps have room for a port.
pub(super) fn has_room(port: &SteerPort) -> Result<(), SteerError> {
    if usize::from(port.port.0) >= MOST_PORTS || port.queues > MOST_QUEUES {
        return Err(SteerError::TooMany { device: port.device.clone() });
    }
    Ok(())
}

/// Where the map `links` has a link.
pub(super) fn slot(port: PortId, link: &SteerLink) -> u32 {
    let (kind, vid) = match link.tag {
        None => (0, 0),
        Some((VlanProtocol::Dot1q, vid)) => (0, vid.get()),
        Some((VlanProtocol::Dot1ad, vid)) => (1, vid.get()),
    };
    (u32::from(port.0) * 2 + kind) * 4096 + u32::from(vid)
}

/// Where the map `xsks` has a queue's socket.
pub(super) fn socket_slot(port: PortId, queue: u32) -> u32 {
    u32::from(port.0) * MOST_QUEUES + queue
}

/// What a user should know of a device that has VLAN links.
pub(super) fn note(port: &SteerPort) -> Option<String> {
    let device = &port.device;
    let has_tags = port.links.iter().any(|link| link.tag.is_some());
    (has_tags && strips_tags(device).unwrap_or(false)).then(|| {
        format!(
            "{device} may take VLAN tags off before XDP sees them, and their frames are then taken \
             for untagged ones; run `ethtool -K {device} rxvlan off rx-vlan-stag-hw-parse off`, for a veth \
             also `ethtool -K PEER txvlan off tx-vlan-stag-hw-insert off` at its peer"
        )
    })
}
