//! The firewall: reads rules in their own languages, and compiles them for the fast path.
//!
//! A front end reads one language (nftables, iptables, ipfw) and produces the intermediate form ([`ir`]).
//! [`program`] compiles it. [`offload`] reports which rules the fast path executes. [`carry`] carries
//! counters over when rules change.
//!
//! The evaluator (`testkit/eval.rs`) defines the meaning of the intermediate form: it takes one packet
//! through the rules one by one, plainly and slowly. Tests compare everything else with it, and only tests
//! compile it.

mod aliases;
pub mod carry;
pub mod conntrack;
pub mod element;
pub mod hops;
pub mod ipfw;
pub mod iptables;
pub mod ir;
pub mod links;
pub mod listing;
pub mod log;
pub mod mistake;
mod names;
pub mod nft;
pub mod offload;
pub mod program;
#[doc(hidden)]
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod undone;
