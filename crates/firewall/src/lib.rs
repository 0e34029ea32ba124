//! The firewall: reads rules in their own languages, and compiles them for the fast path.
//!
//! A front end reads one language (nftables, iptables, ipfw) and produces the intermediate form ([`ir`]).
//! [`eval`] defines the meaning of that form: it takes one packet through the rules one by one, plainly and
//! slowly. Tests compare everything else with it. [`offload`] reports which rules the fast path executes.
//! [`carry`] carries counters over when rules change.

pub mod carry;
pub mod element;
pub mod eval;
pub mod hops;
pub mod ipfw;
pub mod iptables;
pub mod ir;
pub mod listing;
pub mod log;
pub mod mistake;
mod names;
pub mod nft;
pub mod offload;
pub mod program;
mod undone;
