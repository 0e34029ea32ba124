//! The records of the tables: ports, links, VRFs, next hops.

use std::net::IpAddr;

use super::HEADER_ROOM;
use crate::fib::{FibError, Root};
use crate::id::{LinkId, PortId, Vid, VrfId};
use crate::stages::classify::VlanTable;
use crate::verdict::{DropReason, PuntReason};
use crate::wire::eth::MacWord;

/// What a next hop does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Forwards it: the neighbour is known, the header is prepared.
    Forward,
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

/// A next hop with its header prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The Ethernet header, tags and ethertype included, right-aligned in the array.
    pub header: [u8; HEADER_ROOM],
    /// Largest packet in bytes; 0 unless the action is to forward.
    pub mtu: u16,
    /// The egress port.
    pub port: PortId,
    /// Significant bytes of the header: 14, 18 or 22.
    pub header_len: u8,
    /// What happens to a packet.
    pub action: Action,
    /// The egress link.
    pub link: LinkId,
    /// The neighbour that it leads to, if the action is to forward or to resolve.
    pub neigh: Option<IpAddr>,
}

impl NextHop {
    pub(super) const fn inert(action: Action) -> Self {
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
    pub(super) fn header_mac(&self) -> Option<[u8; 6]> {
        let start = HEADER_ROOM.checked_sub(usize::from(self.header_len))?;
        self.header.get(start..)?.first_chunk().copied()
    }
}

/// The next hop with number 0.
pub(super) const NO_ROUTE: NextHop = NextHop::inert(Action::Punt(PuntReason::NoRoute));

/// A port as the path reads it.
#[derive(Clone, Debug, Default)]
pub struct PortRecord {
    /// The destination address of frames for this router.
    pub mac: MacWord,
    /// The link for untagged frames.
    pub link: LinkId,
    /// FIB root of that link, IPv4.
    pub root4: u32,
    /// FIB root of that link, IPv6.
    pub root6: u32,
    /// VLAN links on top of it.
    pub vlans: VlanTable,
}

/// A link as the path reads it.
#[derive(Clone, Debug, Default)]
pub struct LinkRecord {
    /// Its address.
    pub mac: MacWord,
    /// FIB root of its VRF, IPv4.
    pub root4: u32,
    /// FIB root of its VRF, IPv6.
    pub root6: u32,
    /// The port below it.
    pub port: PortId,
    /// Its VRF.
    pub vrf: VrfId,
    /// Largest packet, bytes.
    pub mtu: u16,
    /// Largest IPv6 packet, bytes.
    pub mtu6: u16,
    /// Its address as bytes.
    pub mac_bytes: [u8; 6],
    /// Tags of frames sent on it, outermost first: protocol and VLAN identifier.
    pub tags: Vec<(u16, Vid)>,
}

/// A VRF: one FIB for each family.
#[derive(Clone, Copy, Debug, Default)]
pub struct VrfRecord {
    /// Root of its IPv4 FIB.
    pub root4: Root,
    /// Root of its IPv6 FIB.
    pub root6: Root,
}

/// Why a change of the tables failed; the tables are then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablesError {
    /// No port, link, VRF or next hop has this number.
    Unknown,
    /// All numbers for ports, links, VRFs, next hops or groups are used.
    Full,
    /// More tags than [`super::MAX_STACKED_TAGS`].
    TooManyTags,
    /// A group has no member or too many.
    GroupSize,
    /// A VRF would fall back to itself.
    Loop,
    /// The FIB could not take a route.
    Fib(FibError),
}

impl From<FibError> for TablesError {
    fn from(error: FibError) -> Self {
        Self::Fib(error)
    }
}
