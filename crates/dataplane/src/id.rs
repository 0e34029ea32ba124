//! Numbers that must not be mixed up: ports, links, VRFs, bridges, VLAN ids, next hops.

/// A port's position in [`crate::tables::ForwardingState::ports`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

impl PortId {
    /// The lowest of the numbers that stand for bridges. No port has so high a number.
    const FIRST_BRIDGE: u16 = 1 << 15;

    /// The number that stands for any port of a bridge, in the place of the port that a link is on.
    #[must_use]
    pub const fn of_bridge(bridge: BridgeId) -> Self {
        Self(Self::FIRST_BRIDGE | bridge.0)
    }

    /// The bridge that the number stands for, if it is no port's.
    #[must_use]
    pub const fn bridge(self) -> Option<BridgeId> {
        if self.0 < Self::FIRST_BRIDGE {
            None
        } else {
            Some(BridgeId(self.0 & !Self::FIRST_BRIDGE))
        }
    }
}

/// A logical link's position in [`crate::links::Links`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u16);

/// A VRF's position in [`crate::stages::rule::RouteTables::vrfs`]; 0 is the main one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VrfId(pub u16);

/// A VLAN identifier that can name a VLAN: 1 to 4094 (802.1Q-2018, 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vid(u16);

impl Vid {
    /// Creates an identifier; none for 0 (priority tag), 4095 (reserved) and numbers of more than 12
    /// bits.
    #[must_use]
    pub const fn new(vid: u16) -> Option<Self> {
        if vid >= 1 && vid <= 4094 { Some(Self(vid)) } else { None }
    }

    /// The 12-bit number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A bridge's position among those of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BridgeId(pub u16);

/// A (bridge, VID) pair in use, within which MAC addresses are learned: 1 to 65,535. A bridge that does not filter VLANs
/// is one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain(u16);

impl Domain {
    /// The domain of a bridge that does not filter VLANs; none for the last number.
    #[must_use]
    pub const fn of_bridge(bridge: BridgeId) -> Option<Self> {
        Self::new(bridge.0.wrapping_add(1))
    }

    /// Creates a number; none for 0, which no domain has, so that no [key](crate::stages::bridge::FdbKey) is 0.
    #[must_use]
    pub const fn new(domain: u16) -> Option<Self> {
        if domain == 0 { None } else { Some(Self(domain)) }
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The result of a FIB lookup: a next hop, or (with [`NextHopId::GROUP`]) a next-hop group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHopId(pub u32);

impl NextHopId {
    /// Set in the number of a group: the other bits are its index in [`crate::stages::ecmp::Groups`].
    pub const GROUP: u32 = 1 << 22;
    /// The bits of a FIB entry that hold the number, including the group bit.
    pub const MASK: u32 = (1 << 23) - 1;
    /// The next hop of every address that no route covers.
    pub const NO_ROUTE: Self = Self(0);

    /// Says whether this is a group.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0 & Self::GROUP != 0
    }
}

/// The number of a [`Record`](crate::next_hops::Record), or (with [`NextHopId::GROUP`]) of a group.
///
/// It is valid until the next burst boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordId(pub u32);

impl RecordId {
    /// The number of the group, if it is one.
    #[inline(always)]
    #[must_use]
    pub const fn group(self) -> Option<NextHopId> {
        if self.0 & NextHopId::GROUP != 0 { Some(NextHopId(self.0)) } else { None }
    }
}
