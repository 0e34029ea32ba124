//! Actions and verdicts of rules.

use std::net::IpAddr;

use super::{ChainId, CounterId, MarkUpdate, NatRange};

/// What a rule does without ending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Counts the packet and its bytes from layer 3 on.
    Count(CounterId),
    /// Sets the mark to `mark & keep ^ flip`.
    Mark {
        /// Bits to keep.
        keep: u32,
        /// Bits to invert afterwards.
        flip: u32,
    },
    /// Sets the connection's mark, or the packet's by it.
    UpdateMark(MarkUpdate),
    /// Writes the DSCP, 6 bits.
    Dscp(u8),
    /// Logs the packet, rate limited.
    Log(Log),
    /// Keeps the packet out of connection tracking.
    NoTrack,
    /// Routes the packet to this address instead of by its own route (ipfw `fwd`), if both are of the same
    /// version of IP; see [`crate::hops`]. Not at hook ingress, where nft's `fwd` means something else.
    Forward {
        /// The neighbour's address.
        via: IpAddr,
        /// The link to the neighbour, if the rule names one.
        link: Option<String>,
    },
    /// Routes the packet by another VRF, given by its number in the configuration; 0 is the main one. No
    /// effect once the packet has a route (ipfw `setfib`).
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
    /// The mark of its connection.
    ConnectionMark,
    /// The DSCP.
    Dscp,
}

/// How a packet is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// What the line begins with.
    pub prefix: String,
    /// The netlink group that receives the packet, if it goes to a capture instead of the log.
    pub group: Option<u16>,
}

/// A decision on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet passes this base chain and goes on behind it.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and its sender receives an error.
    Reject(Reject),
    /// The next rule follows; from a map, the next step of the same rule.
    Continue,
    /// The packet returns to the chain that jumped here; in a base chain, the policy applies.
    Return,
    /// The packet goes through another chain and comes back.
    Jump(ChainId),
    /// The packet goes through another chain and comes back to where the last jump was.
    Goto(ChainId),
    /// The connection that the packet begins is translated, and the packet goes on behind all chains of type nat of the
    /// hook.
    Nat(NatVerdict),
    /// The kernel forwards the packet, since Tollway cannot do this exactly; and why.
    Unsupported(String),
}

/// How a rule translates a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatVerdict {
    /// The version of IP of its addresses; for other packets, the next rule follows. None for both.
    pub version: Option<u8>,
    /// Addresses and ports.
    pub range: NatRange,
}

/// The error that the sender receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reject {
    /// An ICMP destination unreachable with this code.
    Icmp(u8),
    /// An ICMPv6 destination unreachable with this code.
    Icmp6(u8),
    /// An ICMP or ICMPv6 error by nft's common numbers (`icmpx`): 0 no route, 1 port, 2 host, 3 prohibited.
    Icmpx(u8),
    /// A TCP reset.
    TcpReset,
}

/// A token bucket, full at first.
///
/// In nft (`nft_limit.c`), a limit of packets holds its burst, 5 by default. A limit of bytes holds the
/// bytes of one period plus its burst. In iptables (`xt_limit.c`), a limit gains one unit every `avg`
/// ten-thousandths of a second and holds its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Units per period.
    pub rate: u64,
    /// The period in ns.
    pub period_ns: u64,
    /// Capacity in units.
    pub burst: u64,
    /// What it counts.
    pub unit: LimitUnit,
}

/// What a [`Limit`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitUnit {
    /// Packets.
    Packets,
    /// Bytes from layer 3 on, as in counters.
    Bytes,
}
