//! The shared kit of the path's tests: packets built by an independent library, a network to send them
//! through, and the path run burst by burst.
//!
//! The unit tests include it as a module of the crate, the integration tests by its file path.

#![allow(dead_code, reason = "each test binary takes what it needs")]

pub mod dice;
#[cfg(not(loom))]
pub mod lender;
pub mod linux;
pub mod mixed;
pub mod net;
pub mod packet;
pub mod path_bench;
pub mod wires;
