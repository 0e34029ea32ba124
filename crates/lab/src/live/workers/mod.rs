//! What several workers gain over one, and what they cost each other.

mod hung;
mod overload;
mod processors;
mod scaling;
mod side;
mod streams;
#[cfg(test)]
mod tests;
mod text;
mod veth;

use super::Options;
use super::rows::Row;
use crate::report::Report;
use crate::sys;
pub(super) use text::render;

/// The name of all this in `--only`.
const NAME: &str = "workers";

/// The names of parts of it in `--only`.
const VETH: &str = "workers-veth";
const HUNG: &str = "workers-hung";
const OVERLOAD: &str = "workers-overload";

/// All names in `--only`.
pub(super) const NAMES: [&str; 4] = [NAME, VETH, HUNG, OVERLOAD];

/// The figure for the number of processors that the process may use.
const PROCESSORS: &str = "workers_processors";

/// The figure that is 1 if the two processors are threads of one core.
const SHARED_CORE: &str = "workers_share_a_core";

/// Measures what is selected. With fewer than two processors, [`PROCESSORS`] is the only figure, and without root's
/// rights, nothing between interfaces is measured.
pub(super) fn measure(options: &Options, report: &mut Report<Row>) -> Result<(), String> {
    let available = sys::processors();
    report.figures.insert(PROCESSORS.to_owned(), available.len() as f64);
    let Some(pair) = processors::pair(&available) else { return Ok(()) };
    let shared = if processors::share_a_core(pair) { 1.0 } else { 0.0 };
    report.figures.insert(SHARED_CORE.to_owned(), shared);
    if options.wants(NAME) {
        scaling::measure(pair, report)?;
    }
    if sys::is_root() { between_interfaces(&available, options, report) } else { Ok(()) }
}

/// Measures what needs interfaces.
fn between_interfaces(
    available: &[usize],
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    let selected = |part: &str| options.wants(NAME) || options.wants(part);
    if let Some(pair) = processors::of_queues(available) {
        if selected(VETH) {
            veth::measure(pair, report).map_err(|error| format!("{VETH}: {error}"))?;
        }
        if selected(HUNG) {
            hung::measure(pair, options, report).map_err(|error| format!("{HUNG}: {error}"))?;
        }
    }
    let first = available.first();
    // Of the two queues, one is for the flood.
    let other = available.iter().find(|other| first.is_some_and(|first| (*other - first) % 2 == 1));
    if let Some(&processor) = other.filter(|_| selected(OVERLOAD)) {
        overload::measure(processor, report).map_err(|error| format!("{OVERLOAD}: {error}"))?;
    }
    Ok(())
}
