//! What several workers gain over one, and what they cost each other.

mod processors;
mod scaling;
mod side;
#[cfg(test)]
mod tests;
mod text;

use super::rates::Row;
use crate::report::Report;
use crate::sys;
pub(super) use text::render;

/// The name of all this in `--only`.
pub(super) const NAME: &str = "workers";

/// The figure for the number of processors that the process may use.
const PROCESSORS: &str = "workers_processors";

/// The figure that is 1 if the two processors are threads of one core.
const SHARED_CORE: &str = "workers_share_a_core";

/// Measures everything here. With fewer than two processors, [`PROCESSORS`] is the only figure.
pub(super) fn measure(report: &mut Report<Row>) -> Result<(), String> {
    let available = sys::processors();
    report.figures.insert(PROCESSORS.to_owned(), available.len() as f64);
    let Some(pair) = processors::pair(&available) else { return Ok(()) };
    let shared = if processors::share_a_core(pair) { 1.0 } else { 0.0 };
    report.figures.insert(SHARED_CORE.to_owned(), shared);
    scaling::measure(pair, report)
}
