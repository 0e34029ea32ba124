//! The program around the packet's path: configuration, ports, the worker loop and the commands.
//!
//! A file ([`config`]) becomes plain data ([`model`]), which [`mod@compile`] turns into what the
//! path reads; [`worker`] drives the path between live [`ports`], [`replay`] drives it between
//! capture files in virtual time. [`cli`] is what a user sees of it.

// A closed pipe makes these panic; `cli` has what prints.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod compile;
pub mod config;
pub mod control;
pub mod express;
pub mod filter;
pub mod force;
pub mod kernel;
pub mod mirror;
pub mod mistake;
pub mod model;
mod netlink;
pub mod ports;
mod priority;
pub mod privileges;
mod programs;
pub mod reload;
pub mod replay;
pub mod service;
pub mod steer;
mod sync;
#[cfg(test)]
#[path = "../../dataplane/src/testkit/mod.rs"]
mod testkit;
pub mod worker;
