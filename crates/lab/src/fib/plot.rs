//! A picture of the cost by table size.

use std::path::Path;

use super::growth::{SIZES, name};
use super::scene::Family;
use crate::plot::Growth;
use crate::report::Report;

/// Writes the report's growth as SVG.
///
/// # Errors
/// A message, if the report has no growth or the file cannot be written.
pub fn write(report: &Report, path: &Path) -> Result<(), String> {
    growth(report).write(path)
}

fn growth(report: &Report) -> Growth<'_> {
    let points = |family| -> Vec<(f64, f64)> {
        let figure = |size| report.figures.get(&name(family, size)).map(|y| (size as f64, *y));
        SIZES.into_iter().filter_map(figure).collect()
    };
    Growth {
        caption: "Forwarding as the table grows",
        x: "prefixes in the table",
        cpu: &report.machine.cpu,
        lines: vec![("IPv4", points(Family::V4)), ("IPv6", points(Family::V6))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn a_plot_has_both_lines_and_needs_figures() {
        let mut report = Report::new(Machine::probe(), Vec::new());
        assert!(growth(&report).draw().unwrap_err().contains("nothing to plot"));
        for size in SIZES {
            report.figures.insert(name(Family::V4, size), 20.0);
            report.figures.insert(name(Family::V6, size), 30.0);
        }
        let text = growth(&report).draw().unwrap();
        assert!(text.starts_with("<svg"), "{text}");
        for part in ["IPv4", "IPv6", "prefixes in the table", "100k", "</svg>"] {
            assert!(text.contains(part), "{part}");
        }
        assert_eq!(text.matches("<circle").count(), 12);
    }
}
