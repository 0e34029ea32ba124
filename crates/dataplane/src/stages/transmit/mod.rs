//! Transmit: groups packets by egress port, in order, so that the port takes them at once.
//!
//! Kernel equivalent: `dev_queue_xmit` (`net/core/dev.c`) with its bulk dequeue.

mod stage;
#[cfg(test)]
mod tests;

pub use stage::{Copies, Egress, run};
