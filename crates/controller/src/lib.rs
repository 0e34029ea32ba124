//! The controller: reads what the kernel is configured to forward, and programs the router's tables with it.

// These macros panic on a closed pipe. Only `tollway-commands` prints, by functions that do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod begin;
mod bridges;
pub mod devices;
pub mod effect;
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
mod run;
mod seed;
pub mod sysctl;

pub use begin::{Settings, Startup, StartupError};
pub use run::ControllerThread;
