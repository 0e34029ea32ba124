//! Bindings: the addresses and ports with which the packets of a connection leave, unlike those of all others.
//!
//! Kernel equivalent: `get_unique_tuple` (`net/netfilter/nf_nat_core.c`, Linux 6.18), and where a rule names no
//! address, `nf_nat_masquerade.c` and `nf_nat_redirect.c` beside it.
//!
//! - A connection keeps its source port if answers to it are answers to no other connection. If not, it gets a random
//!   free port of the same class: below 512, below 1024, or above. The search ends after some 240 tries.
//! - Of several addresses, a hash of source and destination chooses one, or (`persistent`) of the source alone.
//!
//! Limits: ports of TCP, UDP and UDP-Lite, and identifiers of ICMP queries; of other protocols only addresses change
//! (SCTP, too). Another connection of the same source gets the same address of several only by the hash.

mod addresses;
mod choice;
mod hash;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use super::flows::FlowId;

pub use addresses::LinkAddress;
pub(super) use addresses::{Site, range_of};
pub(super) use choice::{Tuples, choose};

/// Which end of a connection changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manip {
    Source,
    Destination,
}

/// How a rule translates a connection (`struct nf_nat_range2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatRange {
    /// Which end changes, and into which addresses.
    pub target: NatTarget,
    /// First and last port; if none, the port changes only if it must.
    pub ports: Option<(u16, u16)>,
    /// Whether each connection gets a random port.
    pub is_random: bool,
    /// Whether the source alone says which address of several a connection gets.
    pub is_persistent: bool,
}

/// What a rule translates, and into which addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatTarget {
    /// The source (`snat`): first and last address; if none, the address stays.
    Source(Option<(u128, u128)>),
    /// The destination (`dnat`): first and last address; if none, the address stays.
    Destination(Option<(u128, u128)>),
    /// The source becomes an address of the egress link (`masquerade`).
    Masquerade,
    /// The destination becomes an address of the ingress link (`redirect`).
    Redirect,
    /// The network of the source changes (`snat prefix`, `NETMAP`): first and last address.
    SourceNetwork(u128, u128),
    /// The network of the destination changes: first and last address.
    DestinationNetwork(u128, u128),
}

impl NatTarget {
    /// Whether the source changes, and not the destination.
    #[must_use]
    pub const fn is_source(self) -> bool {
        matches!(self, Self::Source(_) | Self::Masquerade | Self::SourceNetwork(..))
    }
}

impl NatRange {
    /// A range without ports and flags.
    #[must_use]
    pub const fn new(target: NatTarget) -> Self {
        Self { target, ports: None, is_random: false, is_persistent: false }
    }
}

/// The addresses and ports that a connection may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BindingRange {
    /// First and last address; none to keep it.
    pub(super) addresses: Option<(u128, u128)>,
    pub(super) ports: Option<(u16, u16)>,
    pub(super) is_random: bool,
    pub(super) is_persistent: bool,
}

impl BindingRange {
    /// The range of a connection that no rule translates: its port changes only if it must.
    pub(super) const fn keeping(address: u128) -> Self {
        let addresses = Some((address, address));
        Self { addresses, ports: None, is_random: false, is_persistent: false }
    }
}

/// An address as a number.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl Manip {
    /// The address of a flow that changes.
    pub(super) const fn address(self, flow: &FlowId) -> u128 {
        match self {
            Self::Source => flow.source,
            Self::Destination => flow.destination,
        }
    }
}
