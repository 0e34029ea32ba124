//! What the tests of the path share: packets built by an independent library, a network to send
//! them through, and the path driven burst by burst.
//!
//! The unit tests have it as a module of the crate, the integration tests by its path.

#![allow(dead_code, reason = "each test binary takes what it needs")]

pub mod dice;
pub mod linux;
pub mod mixed;
pub mod net;
pub mod packet;
pub mod road;
pub mod wires;
