//! The stages of the path, one folder each, in the order in which [`crate::path`] calls them.
//!
//! A stage takes the lanes that are still on the road and returns those that go on; the others it
//! has sent off with a verdict. The common case is one straight loop; what the loop finds odd is
//! looked at again, one packet at a time, by a cold function that says exactly what is wrong.

pub mod admit;
pub mod classify;
pub mod ecmp;
pub mod filter;
pub mod redirect;
pub mod rewrite;
pub mod route;
pub mod rule;
pub mod source;
pub mod transmit;
pub mod validate;
