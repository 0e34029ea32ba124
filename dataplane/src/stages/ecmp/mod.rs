//! ECMP: a packet whose route is a next-hop group gets one member, always the same for its flow.
//!
//! Kernel equivalent: `fib_select_path` (`net/ipv4/fib_semantics.c`) with `fib_multipath_hash`
//! (`net/ipv4/route.c`) and `rt6_multipath_hash` (`net/ipv6/route.c`), next-hop groups
//! (`net/ipv4/nexthop.c`); RFC 2992. [`Hash`](enum@Hash) is `fib_multipath_hash_policy`, of which there are
//! 0 and 1. Fragments are spread by addresses and protocol alone, so that all fragments of a packet go one
//! way.
//!
//! Not called while no group is configured.
//!
//! Limits: [`MOST_GROUPS`] groups of at most [`BUCKETS`] members; weights are rounded to
//! 1/[`BUCKETS`]. IPv6 extension headers are walked up to [`MAX_EXTENSIONS`].

mod hash;
mod stage;
mod table;
#[cfg(test)]
mod tests;

pub use hash::Hash;
pub(crate) use hash::Multipath;
pub(crate) use stage::member;
pub use stage::run;
pub use table::{BUCKETS, Groups, MOST_GROUPS, Member};

/// Extension headers that are walked to find the ports.
pub const MAX_EXTENSIONS: usize = 8;
