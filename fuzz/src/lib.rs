//! Bodies of the fuzz targets, so that a plain test can drive them as well.

pub mod config;
pub mod path;
pub mod rules;
#[path = "../../dataplane/src/testkit/mod.rs"]
mod testkit;
