//! The bodies of the fuzz targets, as functions so that a plain test can run them too.

pub mod config;
pub mod path;
pub mod rules;
#[path = "../../crates/dataplane/src/testkit/mod.rs"]
mod testkit;
