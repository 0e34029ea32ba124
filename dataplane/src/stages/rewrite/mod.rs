//! Rewrite: the next hop's Ethernet header in front, TTL or hop limit down by one.
//!
//! Kernel equivalent: `ip_forward` (`net/ipv4/ip_forward.c`), `ip6_forward`
//! (`net/ipv6/ip6_output.c`), `neigh_hh_output` (`include/net/neighbour.h`), with the VLAN tags of
//! `vlan_dev_hard_start_xmit`; RFC 1812, 5.3.1; RFC 1624.
//!
//! The header, tags included, is one byte string that the control side has made ready: a tag costs
//! no instruction. Packets that may not go this way (TTL, MTU, not a forwarding next hop) are left
//! as they came, for the slow path. What is behind the packet (Ethernet padding) is cut off, as
//! the kernel does.

mod stage;
#[cfg(test)]
mod tests;

pub use stage::{ipv4, ipv6};
