//! Validate: is the packet's IP header valid for forwarding?
//!
//! Kernel equivalent: `ip_rcv_core` (`net/ipv4/ip_input.c`) with the martian checks of
//! `ip_route_input_slow` (`net/ipv4/route.c`), and `ip6_rcv_core` (`net/ipv6/ip6_input.c`). RFC 1812,
//! 5.2.2 and 5.3.7; RFC 8200, 3 and 4; RFC 4291, 2.5 and 2.7.
//!
//! This stage does not check for destinations that cannot be forwarded to (loopback, zero): every FIB
//! has routes for them, so they cost nothing here.
//!
//! Limits: IPv4 options and IPv6 hop-by-hop headers go to the slow path. IPv6 jumbograms (RFC 2675) are
//! dropped there. This stage does not look for sources that are the router's own address or a subnet's
//! broadcast address; [`crate::stages::source_check`] does, if configured.

mod ipv4;
mod ipv6;
#[cfg(test)]
mod tests;

pub use ipv4::ipv4;
pub use ipv6::{Valid6, ipv6};
