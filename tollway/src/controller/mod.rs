//! The controller: reads what the kernel is configured to forward, and programs the router's tables with it.

mod begin;
pub mod devices;
pub mod event;
mod exceptions;
pub mod fib_sync;
pub mod handle;
pub mod kernel;
mod kernel_state;
mod locals;
pub mod lookup_chains;
pub mod netlink;
pub mod offload;
mod own_devices;
mod plan;
mod policies;
mod ports;
pub mod rib;
pub mod rules;
mod run;
mod seed;
pub mod sysctl;
pub mod take;

pub use begin::{Settings, Startup, StartupError};
pub use run::ControllerThread;
