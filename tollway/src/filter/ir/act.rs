//! What rules do.

use std::net::IpAddr;

use super::{ChainId, CounterId};

/// What a rule does without ending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Counts the packet and its bytes of layer 3.
    Count(CounterId),
    /// Makes the mark `mark & keep ^ flip`.
    Mark {
        /// Bits that stay.
        keep: u32,
        /// Bits that are turned over, of what stayed.
        flip: u32,
    },
    /// Writes the DSCP, 6 bits.
    Dscp(u8),
    /// Writes the packet to the log, rate limited.
    Log(Log),
    /// Keeps the packet out of connection tracking.
    NoTrack,
    /// Routes the packet to this address instead, whatever its own route is, where it is of the same
    /// version of IP; see [`crate::filter::hops`] (ipfw `fwd`). Not at hook ingress, where nft's `fwd`
    /// is another thing.
    Forward {
        /// The neighbour's address.
        via: IpAddr,
        /// The link it is on, where that was said.
        link: Option<String>,
    },
    /// Routes the packet by another VRF, by its number in the configuration, 0 being the main one; nothing
    /// once it has a route (ipfw `setfib`).
    Fib(u32),
}

impl Action {
    /// Sets the mark.
    #[must_use]
    pub const fn mark(mark: u32) -> Self {
        Self::Mark { keep: 0, flip: mark }
    }
}

/// Where a map's number goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The packet's mark.
    Mark,
    /// The DSCP.
    Dscp,
}

/// How a packet is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// What the line begins with.
    pub prefix: String,
    /// A group of listeners, where it does not go to the log but to a capture.
    pub group: Option<u16>,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on behind this base chain.
    Accept,
    /// Is dropped.
    Drop,
    /// Is dropped, and the sender told.
    Reject(Reject),
    /// Goes on with the next rule; out of a map, with the next step of the same one.
    Continue,
    /// Goes back to the chain that jumped here; in a base chain, the policy.
    Return,
    /// Goes through another chain and comes back.
    Jump(ChainId),
    /// Goes through another chain and comes back to where the last jump was.
    Goto(ChainId),
    /// Is left to the kernel, and why: what can not be done exactly.
    Unsupported(String),
}

/// What the sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reject {
    /// An ICMP destination unreachable of this code.
    Icmp(u8),
    /// An ICMPv6 destination unreachable of this code.
    Icmp6(u8),
    /// An ICMP or ICMPv6 error by nft's numbers for both (`icmpx`): 0 no route, 1 port, 2 host, 3
    /// prohibited.
    Icmpx(u8),
    /// A TCP reset.
    TcpReset,
}

/// A token bucket, full at first.
///
/// nft (`nft_limit.c`): a limit of packets holds its burst, 5 where it has none; one of bytes holds the bytes
/// of a period and its burst. iptables (`xt_limit.c`): one unit each `avg` ten-thousandths of a second, and
/// holds its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Units in each period.
    pub rate: u64,
    /// The period, ns.
    pub period_ns: u64,
    /// Units that it holds at most.
    pub burst: u64,
    /// What it counts.
    pub unit: LimitUnit,
}

/// What a [`Limit`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitUnit {
    /// Packets.
    Packets,
    /// Bytes of layer 3, as they are counted.
    Bytes,
}
