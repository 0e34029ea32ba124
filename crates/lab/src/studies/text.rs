//! A study's result as text.

use super::report::{Outcome, Row};
use crate::text::{align, figure, heading, plain_table, trimmed};

/// The rows, each with its difference from another and the published figure.
#[must_use]
pub fn render(of: &Outcome) -> String {
    let mut text = heading(&of.report);
    text += &format!("{}: {}\n", of.study, of.question);
    for note in &of.notes {
        text += &format!("note: {note}\n");
    }
    text += &format!(
        "ns a packet, median of {} processes in {:.0} s; intervals at 95%\n",
        of.processes, of.seconds
    );
    for group in groups(&of.report.rows) {
        text += &format!("\n{group}\n{}\n", section(of, group));
    }
    if !of.report.figures.is_empty() {
        text += "\n";
    }
    for (name, value) in &of.report.figures {
        text += &format!("{name:<44} {:>14}\n", figure(*value));
    }
    text
}

/// The groups' names, in the rows' order.
pub(super) fn groups(rows: &[Row]) -> Vec<&str> {
    let mut groups: Vec<&str> = Vec::new();
    for row in rows {
        if !groups.contains(&row.group.as_str()) {
            groups.push(&row.group);
        }
    }
    groups
}

fn section(of: &Outcome, group: &str) -> String {
    let header = [
        "row",
        "ns",
        "from",
        "to",
        "Mpps",
        "differs by, ns",
        "from",
        "to",
        "pps",
        "",
        "published",
        "what",
    ];
    let mut table = plain_table(&header);
    for row in of.report.rows.iter().filter(|row| row.group == group) {
        let [low, high] = row.median_interval_ns;
        let mut cells = vec![row.name.clone()];
        cells.extend(
            [row.ns_per_packet.median, low, high, row.mpps].map(|value| format!("{value:.2}")),
        );
        match &row.contrast {
            Some(contrast) => {
                let [low, high] = contrast.interval_ns;
                let ns = [contrast.difference_ns, low, high];
                cells.extend(ns.map(|value| format!("{value:+.2}")));
                cells.push(format!("{:+.1}%", contrast.rate_percent));
                cells.push(contrast.verdict.words().to_owned());
            }
            None => cells.extend(std::iter::repeat_n(String::new(), 5)),
        }
        cells.push(row.published.clone().unwrap_or_default());
        cells.push(row.title.clone());
        table.add_row(cells);
    }
    align(&mut table, 1..=8);
    trimmed(&table)
}
