//! The form of the reports of the generator and of sinks.

use serde::Serialize;

/// The report of the generator and a sink.
pub type Report = crate::report::Report<Row>;

/// The frames of one thread.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The thread's name.
    pub name: String,
    /// Number of frames.
    pub sent_frames: u64,
    /// Million frames per second.
    pub mpps: f64,
}
