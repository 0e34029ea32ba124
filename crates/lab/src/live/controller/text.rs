//! The controller bench's report as text.

use super::Row;
use crate::report::Report;
use crate::text::{align, figure, heading, plain_table, trimmed};

/// The rows, each with its highest acceptable value.
#[must_use]
pub fn render(report: &Report<Row>) -> String {
    let mut table = plain_table(&["row", "median", "min", "max", "bar", "unit", "what"]);
    for row in &report.rows {
        table.add_row([
            row.name.to_owned(),
            figure(row.value.median),
            figure(row.value.min),
            figure(row.value.max),
            figure(row.bar),
            row.unit.to_owned(),
            row.title.clone(),
        ]);
    }
    align(&mut table, 1..=4);
    let mut text = format!("{}{}\n", heading(report), trimmed(&table));
    let figures = report.figures.iter().filter(|(name, _)| *name != "routes");
    for (number, (name, value)) in figures.enumerate() {
        text += if number == 0 { "\n" } else { ", " };
        text += &format!("{name} {}", figure(*value));
    }
    text + "\n"
}
