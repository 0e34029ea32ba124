//! One next hop.

use std::net::IpAddr;

use crate::id::{LinkId, PortId};
use crate::verdict::{DropReason, PuntReason};

/// Room for a prepared Ethernet header in bytes: 14 and two tags, rounded up for the copy.
pub const HEADER_ROOM: usize = 24;

/// What a next hop does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Forwards it: the neighbour is known, the header is prepared.
    Forward,
    /// Forwards it by the port of a bridge behind which the neighbour is. Only BPF programs do, by the bridge's forwarding
    /// database; the user path leaves it to the kernel ([`PuntReason::KernelExit`]).
    Bridge,
    /// Queues it until the neighbour's address is resolved.
    Resolve,
    /// Queues it until the destination itself, which is on the link, is resolved.
    Glean,
    /// Delivers it to the router itself.
    Local,
    /// Drops it.
    Drop(DropReason),
    /// Hands it to the slow path, which has to answer the sender.
    Punt(PuntReason),
}

impl Action {
    /// Says whether the neighbour is known.
    #[must_use]
    pub const fn has_neighbour(self) -> bool {
        matches!(self, Self::Forward | Self::Bridge)
    }
}

/// A next hop with its header prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The Ethernet header, tags and ethertype included, right-aligned in the array.
    pub header: [u8; HEADER_ROOM],
    /// Largest packet in bytes; 0 unless the action is to forward.
    pub mtu: u16,
    /// The egress port, or the number of a bridge among them ([`PortId::of_bridge`]).
    pub port: PortId,
    /// Significant bytes of the header: 14, 18 or 22, and 0 if it leaves by a layer-3 device.
    pub header_len: u8,
    /// What happens to a packet.
    pub action: Action,
    /// The egress link.
    pub link: LinkId,
    /// The neighbour that it leads to, if the action is to forward or to resolve.
    pub neigh: Option<IpAddr>,
}

impl NextHop {
    pub(crate) const fn inert(action: Action) -> Self {
        Self {
            header: [0; HEADER_ROOM],
            mtu: 0,
            port: PortId(0),
            header_len: 0,
            action,
            link: LinkId(0),
            neigh: None,
        }
    }

    /// The destination address in its header.
    pub(crate) fn header_mac(&self) -> Option<[u8; 6]> {
        let start = HEADER_ROOM.checked_sub(usize::from(self.header_len))?;
        self.header.get(start..)?.first_chunk().copied()
    }
}

/// The next hop with number 0.
pub(super) const NO_ROUTE: NextHop = NextHop::inert(Action::Punt(PuntReason::NoRoute));
