//! Source check: may a packet that arrives on this link have this IPv4 source address?
//!
//! Kernel equivalent: `fib_validate_source` and `__fib_validate_source` (`net/ipv4/fib_frontend.c`).
//! `__mkroute_input` (`net/ipv4/route.c`) calls them for packets with a unicast route, before any check
//! of TTL or length. Without `rp_filter`, the source must not be one of the router's own addresses
//! (`accept_local`).
//!
//! With `rp_filter`, or if rules or local routes make addresses local that do not belong to the router,
//! the stage looks up the route to the source, as if the packet went back. It must be a unicast route.
//! With `rp_filter` it must exist ([`Rpf::Loose`]) or lead to the link ([`Rpf::Strict`]). RFC 3704.
//!
//! The path skips this stage while no link requires it. IPv6 has no such check.
//!
//! Limits: where the tables cannot decide, the packet takes the kernel path
//! ([`PuntReason::KernelSource`]):
//!
//! - sources with a kernel-path route, or with a local route that does not come from an address;
//! - broadcast addresses, if the route back is not looked up;
//! - routes back that depend on the egress link, or on rules about devices if there is a VRF.
//!
//! If the driver delivers packets together, the kernel does not check a valid source again for the next
//! packets to the same destination (`ip_route_use_hint`). This stage checks every packet.
//!
//! [`PuntReason::KernelSource`]: crate::verdict::PuntReason::KernelSource

mod stage;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use stage::{punt_martians, run};
pub(crate) use table::{Check, Sources};
pub use table::{Rpf, SourceCheck, SourceLookup};
