//! The whole router, from port to port, compared with an independent library.

mod bursts;
mod kernel;
mod reasons;
#[path = "../../src/testkit/mod.rs"]
mod testkit;
mod translated;
mod whole;
mod workers;
mod xdp_path;
