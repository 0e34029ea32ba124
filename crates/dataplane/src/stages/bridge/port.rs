//! A port of a bridge, as far as frames are forwarded from it and to it.

use crate::id::{BridgeId, Domain};

/// A port of a bridge from which known unicast is forwarded, and to which (`struct net_bridge_port` in state forwarding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgePort {
    /// Its bridge: no frame is forwarded to a port of another one.
    pub bridge: BridgeId,
    /// Where its frames' addresses are looked up.
    pub domain: Domain,
    /// The address of the bridge itself.
    pub mac: [u8; 6],
    /// The longest packet that leaves by the port, in bytes behind the Ethernet header.
    pub mtu: u32,
    /// The time after which the kernel sees a frame of a sender again, in ticks of 67 ms: a fraction of the ageing time, so that
    /// the bridge does not forget a sender that goes on.
    pub refresh_ticks: u32,
    /// What decides whether the sender of a frame may be there.
    pub source: SourceRule,
    /// Whether nothing is forwarded to another isolated port (`BR_ISOLATED`).
    pub is_isolated: bool,
    /// What becomes of IPv4 packets, and of those of IPv6.
    pub ip: [BridgedIp; 2],
    /// What becomes of tagged frames.
    pub tagged: Tagged,
    /// Whether the bridge may answer neighbour discovery for others (`BR_NEIGH_SUPPRESS`).
    pub suppresses_nd: bool,
}

/// What decides whether the sender of a frame may be at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRule {
    /// The forwarding database: the port learns, or is locked.
    Known,
    /// Nothing: the port does not learn.
    Any,
}

/// What becomes of the packets of an IP version that a bridge forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgedIp {
    /// They are frames as all others.
    Plain,
    /// Those that `br_netfilter` would drop or cut off take the kernel path (`br_validate_ipv4`, `br_validate_ipv6`).
    Validated,
    /// They take the kernel path: it has rules for them.
    Kernel,
}

/// What becomes of tagged frames at a port of a bridge without VLANs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagged {
    /// They are frames as all others.
    Plain,
    /// They take the kernel path: they belong to VLAN devices on top of the port, or it has rules for them.
    Kernel,
}
