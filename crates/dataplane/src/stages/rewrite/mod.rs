//! Rewrite: prepends the next hop's Ethernet header and decrements TTL or hop limit.
//!
//! Kernel equivalent: `ip_forward` (`net/ipv4/ip_forward.c`), `ip6_forward` (`net/ipv6/ip6_output.c`),
//! `neigh_hh_output` (`include/net/neighbour.h`), with the VLAN tags of `vlan_dev_hard_start_xmit`; RFC
//! 1812, 5.3.1; RFC 1624.
//!
//! The header, including tags, is one byte string that the controller has prepared: a tag costs no
//! instruction. Packets that cannot be forwarded here (TTL, MTU, a next hop that does not forward) stay
//! as they arrived, for the slow path. Bytes after the packet (Ethernet padding) are cut off, as in
//! the kernel.

mod stage;
#[cfg(test)]
mod tests;

pub use stage::{ipv4, ipv6};
