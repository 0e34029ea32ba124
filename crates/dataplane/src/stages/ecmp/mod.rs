//! ECMP: selects a member for packets whose route is a next-hop group, always the same for a flow.
//!
//! Kernel equivalent: `fib_select_path` (`net/ipv4/fib_semantics.c`) with `fib_multipath_hash`
//! (`net/ipv4/route.c`) and `rt6_multipath_hash` (`net/ipv6/route.c`), next-hop groups
//! (`net/ipv4/nexthop.c`); RFC 2992. [`Hash`](enum@Hash) is `fib_multipath_hash_policy`, of which 0 and
//! 1 are supported. For fragments the hash covers only addresses and protocol, so that all fragments of
//! a packet take one path.
//!
//! The hash and the bounds between members equal the kernel's. With the kernel's
//! `fib_multipath_hash_seed`, no flow changes its next hop when the kernel takes over.
//!
//! The path skips this stage while no group is configured.
//!
//! Limits: [`MOST_GROUPS`] groups of at most [`MOST_MEMBERS`] members. The stage walks up to
//! [`MAX_EXTENSIONS`] IPv6 extension headers.

mod batch;
mod hash;
mod sip;
mod stage;
mod table;
#[cfg(test)]
mod tests;

pub use hash::Hash;
pub(crate) use hash::{Multipath, WORDS_OF_ALL as MULTIPATH_WORDS};
pub(crate) use stage::{member, run};
pub use table::{Groups, MOST_GROUPS, MOST_HASH, MOST_MEMBERS, Member};

/// The maximum number of extension headers walked to find the ports (`MAX_FLOW_DISSECT_HDRS`, and the
/// first).
pub const MAX_EXTENSIONS: usize = 16;
