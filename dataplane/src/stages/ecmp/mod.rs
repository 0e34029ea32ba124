//! ECMP: a packet whose route is a next-hop group gets one member, always the same for its flow.
//!
//! Kernel equivalent: `fib_select_path` (`net/ipv4/fib_semantics.c`) with `fib_multipath_hash`
//! (`net/ipv4/route.c`) and `rt6_multipath_hash` (`net/ipv6/route.c`), next-hop groups
//! (`net/ipv4/nexthop.c`); RFC 2992. [`Hash`](enum@Hash) is `fib_multipath_hash_policy`, of which there are
//! 0 and 1. Fragments are spread by addresses and protocol alone, so that all fragments of a packet go one
//! way.
//!
//! The hash and the bounds between members are the kernel's, so that with its `fib_multipath_hash_seed` no
//! flow changes its next hop when the kernel takes over.
//!
//! Not called while no group is configured.
//!
//! Limits: [`MOST_GROUPS`] groups of at most [`MOST_MEMBERS`] members. IPv6 extension headers are walked up
//! to [`MAX_EXTENSIONS`].

mod batch;
mod hash;
mod sip;
mod stage;
mod table;
#[cfg(test)]
mod tests;

pub use hash::Hash;
pub(crate) use hash::Multipath;
pub(crate) use stage::member;
pub use stage::run;
pub use table::{Groups, MOST_GROUPS, MOST_HASH, MOST_MEMBERS, Member};

/// Extension headers that are walked to find the ports (`MAX_FLOW_DISSECT_HDRS`, and the first).
pub const MAX_EXTENSIONS: usize = 16;
