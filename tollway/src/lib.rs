//! The program around the packet's path: configuration, ports, the worker loop and the commands.
//!
//! A file ([`config`]) becomes plain data ([`model`]), which [`compile`] turns into what the path
//! reads.

pub mod compile;
pub mod config;
pub mod model;
