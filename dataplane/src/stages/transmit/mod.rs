//! Transmit: packets that are ready are grouped by port, in order, for the port to take at once.
//!
//! Kernel equivalent: `dev_queue_xmit` (`net/core/dev.c`) with its bulk dequeue.

mod stage;
#[cfg(test)]
mod tests;

pub use stage::{Egress, run};
