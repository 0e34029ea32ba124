//! The commands of Tollway, and the control socket that they ask.
//!
//! [`control`] answers `tollway show`, and [`cli`] has the commands. [`reload`] installs a changed
//! configuration file. [`replay`] runs the packet path between capture files in virtual time.

// These macros panic on a closed pipe; `cli` has functions that print without panicking.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod control;
pub mod reload;
pub mod replay;
