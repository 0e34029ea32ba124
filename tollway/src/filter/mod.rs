//! The firewall: rules as their own languages write them, and what becomes of them.
//!
//! A front end reads one language (nftables, iptables, ipfw) and fills the intermediate form ([`ir`]).
//! What that form means is defined by [`eval`], which takes one packet through it rule by rule, plainly
//! and slowly; everything else is held against it. [`source`] reads files of rules; [`coverage`] says
//! which rules the fast road takes, and [`carry`] which counts go on when rules change.

pub mod carry;
pub mod coverage;
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
pub mod source;
mod undone;
