//! Formats numbers and tables for people.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use ratatui::crossterm::terminal;

/// The width to assume for terminals that do not report it.
const USUAL: u16 = 80;

/// Formats a number with separators between thousands.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number in few characters: 999, 1.23k, 45.6M.
pub(super) fn si(number: f64) -> String {
    let mut scaled = number;
    for unit in ["", "k", "M", "G", "T"] {
        if scaled < 999.5 || unit == "T" {
            let digits = match scaled {
                _ if unit.is_empty() && (scaled >= 9.95 || scaled == 0.0) => 0,
                ..9.995 if !unit.is_empty() => 2,
                ..99.95 => 1,
                _ => 0,
            };
            return format!("{scaled:.digits$}{unit}");
        }
        scaled /= 1000.0;
    }
    String::new()
}

/// The word, in the plural unless the count is one.
pub(super) fn plural(count: u64, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// A table without lines. It is as readable in a pipe as in a terminal, and fits 80 columns.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

/// Aligns the first column to the left and all others to the right.
pub(super) fn align(table: &mut Table) {
    for (index, column) in table.column_iter_mut().enumerate() {
        let side = if index == 0 { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(side);
        column.set_padding((0, 2));
    }
}

/// The lines of a table without trailing spaces.
pub(super) fn trimmed(table: &Table) -> String {
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Appends a table below the others, unless it is empty.
pub(super) fn section(out: &mut String, mut table: Table) {
    if table.row_count() > 0 {
        align(&mut table);
        // Writing to a `String` cannot fail.
        let _ = write!(out, "\n{}\n", trimmed(&table));
    }
}

/// Formats a table with an alignment for each column, `l` or `r`. Breaks lines to fit `width`, or
/// else the terminal if there is one.
pub(super) fn arranged(mut table: Table, sides: &str, width: Option<u16>) -> String {
    for (column, side) in table.column_iter_mut().zip(sides.chars()) {
        let side = if side == 'l' { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(side);
        column.set_padding((0, 2));
    }
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(width) = width.or_else(default_width) {
        table.set_width(width);
    }
    format!("{}\n", trimmed(&table))
}

/// Replaces line ends and other control characters, so that a text stays one line.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The width of lines, if stdout is a terminal.
pub(super) fn width() -> Option<usize> {
    columns().map(|columns| usize::from(if columns == 0 { USUAL } else { columns }))
}

/// The width for a terminal that does not report its own. In a width of 0 only single letters would
/// fit.
fn default_width() -> Option<u16> {
    columns().filter(|columns| *columns == 0).map(|_| USUAL)
}

/// The width that the terminal reports, if there is one; 0 if it does not know it, as a serial
/// line.
fn columns() -> Option<u16> {
    let size = io::stdout().is_terminal().then(terminal::size)?;
    Some(size.map_or(0, |(columns, _)| columns))
}

/// Cuts the end of a line that is wider than `width`.
pub(super) fn cut(line: &str, width: Option<usize>) -> String {
    let line = line.trim_end();
    match width {
        Some(width) if line.chars().nth(width).is_some() => {
            let kept: String = line.chars().take(width.saturating_sub(1)).collect();
            format!("{}\u{2026}", kept.trim_end())
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut() {
        assert_eq!(cut("12345  ", Some(5)), "12345");
        assert_eq!(cut("123456", Some(5)), "1234\u{2026}");
        assert_eq!(cut("12 456", Some(4)), "12\u{2026}");
        assert_eq!(cut("123456", None), "123456");
    }

    #[test]
    fn thousands_are_set_apart() {
        let numbers = [0, 7, 999, 1000, 12_345, 123_456, 1_234_567, u64::MAX];
        let shown = numbers.map(thousands).join(" ");
        assert_eq!(shown, "0 7 999 1,000 12,345 123,456 1,234,567 18,446,744,073,709,551,615");
    }
}
