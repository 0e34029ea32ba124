//! The firewall: rules as their own languages write them, and what becomes of them.
//!
//! A front end reads one language (nftables, iptables, ipfw) and produces the intermediate form ([`ir`]).
//! [`eval`] defines what that form means: it takes one packet through the rules one by one, plainly and
//! slowly. Everything else is tested against it. [`source`] reads files of rules. [`offload`] says which
//! rules the fast path takes. [`carry`] says which counters carry over when rules change.

pub mod carry;
pub mod element;
pub mod eval;
pub mod flatten;
pub mod hops;
pub mod ipfw;
pub mod iptables;
pub mod ir;
pub mod listing;
pub mod log;
mod names;
pub mod nft;
pub mod offload;
pub mod source;
mod undone;
