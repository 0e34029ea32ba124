//! The generator and its sink: frames with numbers and times, and what became of them.
//!
//! Frames' heads are made ahead ([`plan`]); per frame only its number, its time and what depends on
//! them are written ([`fill`]). They leave through a port, or are written by a BPF program that does the
//! same ([`xdp`]). A sink knows them by their mark ([`mark`]) and follows their numbers ([`track`]).

pub mod address;
pub mod fill;
pub mod load;
pub mod mark;
mod pace;
pub mod plan;
pub mod port;
pub mod redirect;
pub mod replay;
mod run;
pub mod search;
pub mod sink;
mod text;
pub mod throughput;
pub mod track;
pub mod xdp;

use tollway_dataplane::frame::Umem;
use tollway_dataplane::port::Port;

pub use crate::error::Error;
pub use run::{Row, Traffic, Way, run};
pub use text::render;

/// What the generator and a sink report.
pub type Report = crate::report::Report<Row>;

/// A port, and the memory of its frames.
pub type Opened = (Box<dyn Port>, Umem);

/// A number for a run that is hardly the last one's.
#[must_use]
pub fn any_run() -> u8 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| (since.as_micros() % 251) as u8)
}
