//! The rows as text.

use comfy_table::ColumnConstraint;

use super::{Rates, Row};
use crate::text::{align, plain_table, trimmed};

/// The units of the rows' rates, and what they are of.
const UNITS: [(&str, &str); 3] = [
    ("Mpps", "Mpps of small packets"),
    ("Gbit/s", "Gbit/s of TCP"),
    ("k/s", "Thousand TCP connections a second"),
];

/// A table for each unit with a line for each row, then the rows' notes.
pub(in crate::live) fn render(rows: &[Row]) -> String {
    let pairs = rows.iter().find_map(|row| row.rates).map_or(0, |rates| rates.ratio.repeats);
    let mut text = String::new();
    for (unit, title) in UNITS {
        let rows: Vec<_> = rows.iter().filter(|row| row.unit == unit).collect();
        if !rows.is_empty() {
            text += &format!("{title}, in turn, median of {pairs} pairs:\n{}\n\n", table(&rows));
        }
    }
    for (row, note) in rows.iter().filter_map(|row| Some((row, row.note.as_ref()?))) {
        text += &format!("{}: {note}\n", row.name);
    }
    format!("{}\n", text.trim_end())
}

/// The rows of one unit.
fn table(rows: &[&Row]) -> String {
    let mut table = plain_table(&["row", "kernel", "Tollway", "ratio", "min", "max", "what"]);
    for row in rows {
        let mut cells = vec![row.name.to_owned()];
        cells.extend(figures(row));
        cells.push(row.title.to_owned());
        table.add_row(cells);
    }
    align(&mut table, 1..=5);
    // On a narrow terminal, only the last column has several lines.
    for column in table.column_iter_mut().take(6) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    trimmed(&table)
}

/// What is between a row's name and its title.
fn figures(row: &Row) -> [String; 5] {
    let Some(Rates { kernel, tollway, ratio }) = row.rates else {
        return ["-"; 5].map(str::to_owned);
    };
    let decimals = if row.ratio_unit.is_empty() { 2 } else { 0 };
    let [median, min, max] = [ratio.median, ratio.min, ratio.max]
        .map(|value| format!("{value:.decimals$}{}", row.ratio_unit));
    [format!("{:.3}", kernel.median), format!("{:.3}", tollway.median), median, min, max]
}
