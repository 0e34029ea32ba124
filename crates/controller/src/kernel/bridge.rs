//! Bridges and their ports (ip-link(8), bridge(8)).

use std::fmt;
use std::time::Duration;

use super::{Ifindex, NexthopId};

/// The settings of a bridge (`IFLA_BR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeSettings {
    /// How long a learned address stays in the forwarding database without a frame from it. 0 learns nothing.
    pub ageing_time: Duration,
    /// How long a port listens, and how long it learns, before it forwards.
    pub forward_delay: Duration,
    /// Who runs the spanning tree protocol.
    pub stp: Stp,
    /// Whether frames are kept apart by their VLAN.
    pub vlan_filtering: bool,
    /// The EtherType of the bridge's VLAN tags, in host order.
    pub vlan_protocol: u16,
    /// Whether frames of IPv4 pass the hooks of IPv4 (`br_netfilter`), whatever the sysctl says.
    pub nf_call_iptables: bool,
    /// The same for IPv6.
    pub nf_call_ip6tables: bool,
    /// Further settings, one bit each (`enum br_boolopt_id`).
    pub bool_options: u32,
}

impl BridgeSettings {
    /// The settings that change only with a notification.
    ///
    /// The kernel's spanning tree protocol sets a short ageing time during a change of the topology
    /// (`__br_set_topology_change`), and takes the forward delay from the root bridge
    /// (`br_record_config_timeout_values`), both silently.
    #[must_use]
    pub const fn notified(self) -> Self {
        match self.stp {
            Stp::Kernel => {
                Self { ageing_time: Duration::ZERO, forward_delay: Duration::ZERO, ..self }
            }
            Stp::Off | Stp::User => self,
        }
    }
}

/// The settings of a new bridge.
impl Default for BridgeSettings {
    fn default() -> Self {
        Self {
            ageing_time: Duration::from_secs(300),
            forward_delay: Duration::from_secs(15),
            stp: Stp::Off,
            vlan_filtering: false,
            vlan_protocol: 0x8100,
            nf_call_iptables: false,
            nf_call_ip6tables: false,
            bool_options: 0,
        }
    }
}

/// Who runs a bridge's spanning tree protocol (`IFLA_BR_STP_STATE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stp {
    /// Nobody.
    Off,
    /// The kernel.
    Kernel,
    /// A program.
    User,
}

/// A device that belongs to a bridge (`IFLA_BRPORT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgePort {
    /// The port's part in the spanning tree.
    pub state: BridgePortState,
    /// Settings that are on or off.
    pub flags: BridgePortFlags,
    /// The port of the same bridge that sends instead while this one has no carrier.
    pub backup_port: Option<Ifindex>,
    /// The next-hop object that goes with frames to the backup port.
    pub backup_nexthop: Option<NexthopId>,
}

/// The state of a bridge's port (`BR_STATE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BridgePortState {
    /// Nothing passes: device or bridge is down, or the device has no carrier.
    Disabled,
    /// Nothing passes but the spanning tree protocol.
    Listening,
    /// Addresses are learned, and frames are dropped.
    Learning,
    /// Frames are forwarded.
    Forwarding,
    /// Nothing passes, so that the spanning tree has no loop.
    Blocking,
    /// A state unknown to Tollway.
    Other(u8),
}

/// As bridge(8) writes it.
impl fmt::Display for BridgePortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Disabled => "disabled",
            Self::Listening => "listening",
            Self::Learning => "learning",
            Self::Forwarding => "forwarding",
            Self::Blocking => "blocking",
            Self::Other(number) => return write!(f, "in state {number}"),
        };
        f.write_str(name)
    }
}

/// A setting of a bridge's port that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgePortFlag {
    /// Frames may leave by the port by which they came.
    Hairpin,
    /// Source addresses are learned.
    Learning,
    /// Frames to unknown addresses are sent.
    UnicastFlood,
    /// The bridge answers ARP requests for addresses of other ports.
    ProxyArp,
    /// The same, as wireless networks need it (IEEE 802.11).
    ProxyArpWifi,
    /// VLANs become identifiers of tunnels.
    VlanTunnel,
    /// The bridge answers ARP and neighbour discovery for this port.
    NeighSuppress,
    /// The same for single VLANs (Linux 6.4).
    NeighVlanSuppress,
    /// Frames pass only between this port and ports that are not isolated.
    Isolated,
    /// Frames pass only from known addresses.
    Locked,
    /// Addresses that a locked port does not know are learned as locked (Linux 6.2).
    Mab,
}

impl BridgePortFlag {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Hairpin,
        Self::Learning,
        Self::UnicastFlood,
        Self::ProxyArp,
        Self::ProxyArpWifi,
        Self::VlanTunnel,
        Self::NeighSuppress,
        Self::NeighVlanSuppress,
        Self::Isolated,
        Self::Locked,
        Self::Mab,
    ];
}

/// The settings of a bridge's port that are on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BridgePortFlags(u16);

impl BridgePortFlags {
    /// Says whether a setting is on.
    #[must_use]
    pub const fn has(self, flag: BridgePortFlag) -> bool {
        self.0 & Self::bit(flag) != 0
    }

    /// The settings with one switched on or off.
    #[must_use]
    pub const fn with(self, flag: BridgePortFlag, on: bool) -> Self {
        let others = self.0 & !Self::bit(flag);
        Self(if on { others | Self::bit(flag) } else { others })
    }

    const fn bit(flag: BridgePortFlag) -> u16 {
        1 << flag as u16
    }
}

/// The settings of a new port (`new_nbp`).
impl Default for BridgePortFlags {
    fn default() -> Self {
        Self(Self::bit(BridgePortFlag::Learning) | Self::bit(BridgePortFlag::UnicastFlood))
    }
}

impl fmt::Debug for BridgePortFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = BridgePortFlag::ALL.into_iter().filter(|flag| self.has(*flag));
        f.debug_set().entries(on).finish()
    }
}
