//! Admit: is the frame for this router, and what does it carry?
//!
//! Kernel equivalent: `eth_type_trans` (`net/ethernet/eth.c`). Frames to the port's own MAC address
//! continue as IPv4, IPv6 or tagged. ARP and group addresses are for the router itself. Other stations'
//! frames and other ethertypes are dropped.
//!
//! Limits: LLC frames (a length in place of the ethertype) are dropped as `unhandled_proto`.

mod stage;
#[cfg(test)]
mod tests;

pub use stage::{Admitted, explain, run, sort};
