//! Connection tracking for the rules of a file, behind which there is no kernel that tracks.
//!
//! Kernel equivalent: `nf_conntrack_in` and `__nf_conntrack_confirm` (`net/netfilter/nf_conntrack_core.c`, Linux 6.18),
//! and its functions for each protocol.
//!
//! - A packet is looked up once, before the rules of hook prerouting behind priority -200 (`stage.rs`), as
//!   in the kernel. Rules of earlier chains may keep it out (`notrack`).
//! - A connection enters the table when its first packet has passed all rules: a dropped one leaves no entry.
//! - TCP: states, windows with SACK and scaling, resets by RFC 5961, and lives by the kernel's defaults (`tcp/`). UDP: 30 s,
//!   120 s for a stream of more than two seconds. Queries of ICMP and ICMPv6: 30 s. GRE: 30 s, 180 s with answers. All
//!   others: 600 s, by addresses (SCTP: also by ports).
//! - Errors of ICMP and ICMPv6 are related by the packet that they quote.
//! - Wrong checksums of the transport header are invalid, as with `nf_conntrack_checksum`.
//!
//! Limits: [`MOST_CONNECTIONS`]. Beyond, a new connection takes the place of one near it that is not assured; if there is
//! none, its packet is dropped and counted (`early_drop`). Fragments are not put together: they belong to no connection, and are
//! invalid. No helpers, no expected connections, zones or labels. SCTP has no states. Packets of one burst
//! see the table as it was before the burst, as packets on several processors do in the kernel. What rules of
//! hook egress drop leaves no entry, since all rules behind the route lookup are one list.
//! Connections for the router itself do not enter the table, unless their destination is translated (`nat/`).

mod answers;
mod connection;
mod packet;
mod stage;
mod table;
mod tcp;
#[cfg(test)]
mod tests;
mod translated;

pub(super) use stage::{Connections, Lookup, NatEnd, ends_of_answer, ends_of_own, packet};
pub use table::{ConnectionReport, Tracker};
pub use tcp::TcpConnectionState;

use super::Count;

/// The most connections (`nf_conntrack_max` of a machine with more than 4 GB).
pub const MOST_CONNECTIONS: usize = 262_144;

const S: u64 = 1_000_000_000;

/// Bits of `enum ip_conntrack_status`.
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const CONFIRMED: u32 = 1 << 3;
const SRC_NAT: u32 = 1 << 4;
const DST_NAT: u32 = 1 << 5;
const SRC_NAT_DONE: u32 = 1 << 7;
const DST_NAT_DONE: u32 = 1 << 8;
const DYING: u32 = 1 << 9;

/// What a packet is to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Valid,
    Invalid,
    /// It belongs to the connection, which is over.
    Ends,
    /// The connection is over, and the packet may begin another one.
    Reopens,
}
