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
pub mod controller;
pub mod filter;
pub mod installer;
pub mod mistake;
pub mod model;
pub mod neighbours;
mod netlink;
pub mod ports;
mod priority;
pub mod privileges;
mod programs;
pub mod reload;
pub mod replay;
pub mod service;
mod sync;
#[cfg(test)]
#[path = "../../dataplane/src/testkit/mod.rs"]
mod testkit;
pub mod worker;
pub mod xdp;
pub mod xdp_path;
