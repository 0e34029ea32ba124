//! The Tollway program: everything around the packet path, from the configuration to the commands.
//!
//! [`config`] reads a configuration file into plain data ([`model`]). [`mod@compile`] turns the
//! model into the tables that the path reads. [`worker`] runs the path between live [`ports`];
//! [`replay`] runs it between capture files in virtual time. [`cli`] has the commands.

// These macros panic on a closed pipe; `cli` has functions that print without panicking.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod compile;
pub mod config;
pub mod control;
pub mod controller;
pub mod installer;
pub mod model;
pub mod names;
pub mod neighbours;
pub mod ports;
pub mod reload;
pub mod replay;
pub mod rule_files;
pub mod service;
#[cfg(test)]
#[path = "../../dataplane/src/testkit/mod.rs"]
mod testkit;
pub mod worker;
