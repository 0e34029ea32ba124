//! The result of a study.

use serde::Serialize;

use crate::report::Report;
use crate::stats::Summary;
use crate::verdict::Verdict;

/// A study's result. As JSON it is one object in the common form of reports.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The study's name.
    pub study: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// Number of processes that measured each row.
    pub processes: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// Notes on this run, such as a missing compiler.
    pub notes: Vec<String>,
    /// Machine, compiler, commit, rows and figures.
    #[serde(flatten)]
    pub report: Report<Row>,
    /// Whether the picture shows differences instead of times.
    #[serde(skip)]
    pub(super) by_difference: bool,
}

/// One way to do it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The group of rows that it is shown in.
    pub group: String,
    /// A description in words.
    pub title: String,
    /// Nanoseconds per packet, over the processes.
    pub ns_per_packet: Summary,
    /// The 95% interval of the median.
    pub median_interval_ns: [f64; 2],
    /// Million packets per second, from the median.
    pub mpps: f64,
    /// The published figure.
    pub published: Option<String>,
    /// The difference from another row.
    #[serde(flatten)]
    pub contrast: Option<Contrast>,
}

/// The difference of a row from another.
#[derive(Clone, Debug, Serialize)]
pub struct Contrast {
    /// The row that it is compared with.
    pub base: String,
    /// The verdict by the rules of `tollway lab compare`, for all contrasts of the study together.
    pub verdict: Verdict,
    /// The additional time per packet, ns.
    pub difference_ns: f64,
    /// The same as a percentage of the base.
    pub difference_percent: f64,
    /// The 95% interval, by the paired bootstrap.
    pub interval_ns: [f64; 2],
    /// The difference in packets per second, percent.
    pub rate_percent: f64,
    /// The smallest difference that 9 of 10 such runs would report; `None` if there are too few
    /// processes for any.
    pub smallest_detectable_ns: Option<f64>,
}
