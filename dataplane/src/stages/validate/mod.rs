//! Validate: is the IP header one that may be forwarded?
//!
//! Kernel equivalent: `ip_rcv_core` (`net/ipv4/ip_input.c`) with the martian checks of
//! `ip_route_input_slow` (`net/ipv4/route.c`), and `ip6_rcv_core` (`net/ipv6/ip6_input.c`).
//! RFC 1812, 5.2.2 and 5.3.7; RFC 8200, 3 and 4; RFC 4291, 2.5 and 2.7.
//!
//! Destinations that can not be forwarded to (loopback, zero) are no matter of this stage: every
//! FIB has them as routes, so they cost nothing here.
//!
//! Limits: IPv4 options and IPv6 hop-by-hop headers go to the slow path. IPv6 jumbograms
//! (RFC 2675) are dropped there. Sources that are the router's own address or a subnet's broadcast
//! are not looked for here, but by [`crate::stages::source`], where that is asked for.

mod ipv4;
mod ipv6;
#[cfg(test)]
mod tests;

pub use ipv4::ipv4;
pub use ipv6::{Valid6, ipv6};
