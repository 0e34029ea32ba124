//! The kernel as control plane: what it is configured to forward, in the router's tables.

mod begin;
pub mod coverage;
pub mod devices;
pub mod event;
mod exceptions;
pub mod fill;
pub mod handle;
mod keep;
pub mod kernel;
mod known;
mod locals;
pub mod netlink;
mod own;
mod policies;
mod ports;
pub mod rib;
pub mod rules;
mod seed;
mod shape;
pub mod sysctl;
pub mod take;
pub mod views;

pub use begin::{Keep, Mirror, MirrorError, Settings};
