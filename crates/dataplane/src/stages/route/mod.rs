//! Route: finds the longest prefix that covers the destination, in the FIB of the link's VRF.
//!
//! Kernel equivalent: `fib_table_lookup` (`net/ipv4/fib_trie.c`), `fib6_table_lookup`
//! (`net/ipv6/route.c`). The VRF device (`drivers/net/vrf.c`) costs nothing here, because each link has
//! its FIB's root. One function serves both families.
//!
//! Addresses that are never routed (0.0.0.0, 127/8, 224/4, `::1`, `ff00::/8`, ...) are entries of every
//! FIB, see [`crate::tables`]. The FIBs themselves are in [`crate::fib`].
//!
//! A VRF may fall back to another ([`Tables::set_fallback`](crate::tables::Tables::set_fallback)), as
//! the kernel's rules look up one table after the other (`fib_rules_lookup` in `net/core/fib_rules.c`).
//! Without any fallback, the path skips this step.
//!
//! Limits: none on prefixes; 4,194,303 next hops.

mod fallback;
mod stage;
#[cfg(test)]
mod tests;

pub(crate) use fallback::{Fallbacks, fall_back};
pub use stage::{Family, V4, V6, look_up, run};
