//! Source: may a packet that comes by this link have this IPv4 source address?
//!
//! Kernel equivalent: `fib_validate_source` and `__fib_validate_source` (`net/ipv4/fib_frontend.c`), called
//! by `__mkroute_input` (`net/ipv4/route.c`) for packets whose route is a unicast one, before anything is
//! asked of their TTL or length. Without `rp_filter` the source must be none of the router's own addresses
//! (`accept_local`). With it, or where rules or local routes make addresses local that are nobody's own, the
//! route to the source is looked up, as if the packet went back: it must be a unicast route, and with
//! `rp_filter` it must be there ([`Rpf::Loose`]) or lead to the link ([`Rpf::Strict`]). RFC 3704.
//!
//! Not called while no link asks for it. IPv6 has no such check.
//!
//! Limits: what the tables can not say is left to the kernel ([`PuntReason::KernelSource`]): sources with a route
//! that is the kernel's own or local for another reason than an address, broadcast addresses where nothing
//! is looked up, and routes back that depend on the link to go out by, or on rules about devices where there is
//! a VRF. A source that the kernel has found
//! good is not asked again for the next packets to the same destination, if the driver hands them up
//! together (`ip_route_use_hint`); here every packet is asked.
//!
//! [`PuntReason::KernelSource`]: crate::verdict::PuntReason::KernelSource

mod stage;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use stage::{run, tell};
pub(crate) use table::Sources;
pub use table::{Rpf, SourceCheck, SourceLookup};
