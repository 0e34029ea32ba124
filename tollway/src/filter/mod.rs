//! The firewall: rules as their own languages write them, and what becomes of them.
//!
//! A front end reads one language (nftables, iptables, ipfw) and fills the intermediate form ([`ir`]).
//! What that form means is defined by [`eval`], which takes one packet through it rule by rule, plainly
//! and slowly; everything else is held against it.

pub mod element;
pub mod eval;
pub mod flatten;
pub mod ipfw;
pub mod iptables;
pub mod ir;
pub mod nft;
