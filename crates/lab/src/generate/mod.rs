//! The traffic generator and its sink: frames with numbers and times, and what the sink receives.
//!
//! The generator builds the frames' heads ahead ([`plan`]). Per frame it writes only the number,
//! the time and the fields that depend on them ([`fill`]). It sends through a port, or a BPF
//! program does the same ([`xdp`]). A sink recognizes frames by their mark ([`mark`]) and tracks
//! their numbers ([`track`]).

pub mod address;
pub mod fill;
pub mod load;
pub mod mark;
mod pace;
pub mod plan;
pub mod port;
pub mod redirect;
pub mod replay;
mod report;
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
pub use report::{Report, Row};
pub use run::{SendMethod, Traffic, run};
pub use text::render;

/// A port and its frame memory.
pub type Opened = (Box<dyn Port>, Umem);

/// A run number that most likely differs from the last run's.
#[must_use]
pub fn any_run() -> u8 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| (since.as_micros() % 251) as u8)
}
