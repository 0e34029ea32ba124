//! A picture of the cost by number of rules.

use std::path::Path;

use super::growth::{DPDK, SIZES, STYLES, name};
use crate::plot::{Growth, Line};
use crate::report::Report;

/// Writes the report's growth as SVG.
///
/// # Errors
/// A message, if the report has no growth or the file cannot be written.
pub fn write(report: &Report, path: &Path) -> Result<(), String> {
    growth(report).write(path)
}

fn growth(report: &Report) -> Growth<'_> {
    let line = |(style, title): (&str, &'static str)| -> Line {
        let figure = |size| report.figures.get(&name(style, size)).map(|y| (size as f64, *y));
        (title, SIZES.into_iter().filter_map(figure).collect())
    };
    let lines = STYLES.into_iter().chain(DPDK).map(line);
    Growth {
        caption: "Forwarding as the rules grow",
        x: "rules",
        cpu: &report.machine.cpu,
        lines: lines.filter(|(_, points)| !points.is_empty()).collect(),
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
            for (style, _) in STYLES {
                report.figures.insert(name(style, size), 20.0);
            }
        }
        let text = growth(&report).draw().unwrap();
        for part in ["mixed shapes", "style", "rules", "10k", "</svg>"] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("DPDK"), "it is not installed");
        report.figures.insert(name(DPDK[0].0, 10), 90.0);
        assert_eq!(growth(&report).lines.len(), 3);
        let text = growth(&report).draw().unwrap();
        assert!(text.contains("DPDK rte_acl") && text.contains("\n60\n"), "by even steps");
        report.figures.insert(name(STYLES[0].0, 10_000), 1000.0);
        let text = growth(&report).draw().unwrap();
        assert!(text.contains("\n1000\n") && !text.contains("\n500\n"), "by powers");
    }
}
