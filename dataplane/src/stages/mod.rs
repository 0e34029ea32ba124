//! The stages of the path, one folder each, in the order in which [`crate::path`] calls them.
//!
//! A stage receives the packet lanes that are still on the path and returns those that continue. The
//! others exit with a verdict. The common case is one straight loop. The loop only marks unusual
//! packets; a cold function then examines them one by one and finds the exact reason.

pub mod admit;
pub mod classify;
pub mod ecmp;
pub mod filter;
pub mod icmp_redirect;
pub mod rewrite;
pub mod route;
pub mod rule;
pub mod source_check;
pub mod transmit;
pub mod validate;
