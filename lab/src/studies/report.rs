//! What a study says.

use serde::Serialize;

use crate::compare::Verdict;
use crate::report::Report;
use crate::stats::Summary;

/// A study's result; as JSON one object in the form of every report.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The study's name.
    pub study: &'static str,
    /// What it asks.
    pub question: &'static str,
    /// Processes that each row was measured by.
    pub processes: usize,
    /// Seconds that it took.
    pub seconds: f64,
    /// What is to be known of this run, such as a compiler that was missing.
    pub notes: Vec<String>,
    /// Machine, compiler, commit, rows and figures.
    #[serde(flatten)]
    pub report: Report<Row>,
    /// Whether the picture is of differences, instead of times.
    #[serde(skip)]
    pub(super) by_difference: bool,
}

/// One way to do it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What it is shown with.
    pub group: String,
    /// What it is, in words.
    pub title: String,
    /// Nanoseconds a packet, over the processes.
    pub ns_per_packet: Summary,
    /// Where the median lies at 95%.
    pub median_interval_ns: [f64; 2],
    /// Million packets a second, from the median.
    pub mpps: f64,
    /// What was published of it.
    pub published: Option<String>,
    /// What it differs by from another.
    #[serde(flatten)]
    pub contrast: Option<Contrast>,
}

/// What a row differs by.
#[derive(Clone, Debug, Serialize)]
pub struct Contrast {
    /// The row that it is compared with.
    pub base: String,
    /// What is told, by the rules of `tollway lab compare`, of all contrasts of the study together.
    pub verdict: Verdict,
    /// What a packet takes more, ns.
    pub difference_ns: f64,
    /// The same in per cent of the base.
    pub difference_percent: f64,
    /// Where it lies at 95%, by the paired bootstrap.
    pub interval_ns: [f64; 2],
    /// What that is in packets a second, per cent.
    pub rate_percent: f64,
    /// The least difference that 9 of 10 such runs would tell; none where processes are too few to tell any.
    pub smallest_detectable_ns: Option<f64>,
}
