//! Reports as text.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use tollway_dataplane::stages::Stage;

use crate::report::{Report, Row};

/// Columns of a terminal that does not know its own, as a serial line.
const USUAL: u16 = 80;

/// A report as text: the machine, the rows, and the time by stage.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = heading(report);
    if report.rows.is_empty() {
        return text;
    }
    text += &tolls(report);
    text += "\n\n";
    text += &by_stage(report.rows.iter());
    text
}

/// The time of `rows` by stage.
pub(crate) fn by_stage<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> String {
    format!("clocks a packet by stage, as sampled meanwhile:\n{}\n", stages(rows))
}

/// The machine, and compiler and commit of the build.
pub(crate) fn heading<R>(report: &Report<R>) -> String {
    let machine = &report.machine;
    format!(
        "{}, kernel {}, TSC {:.0} MHz, path {}\n{}, commit {}\n\n",
        machine.cpu, machine.kernel, machine.tsc_mhz, machine.level, report.compiler, report.commit
    )
}

fn tolls(report: &Report) -> String {
    let mut table = plain_table(&["row", "clocks", "min", "max", "ns", "+floor", "what"]);
    let floor = report.rows.iter().find(|row| row.name == "floor");
    let floor = floor.map(|row| row.clocks_per_packet.median);
    for row in &report.rows {
        let clocks = row.clocks_per_packet;
        table.add_row([
            row.name.to_owned(),
            format!("{:.1}", clocks.median),
            format!("{:.1}", clocks.min),
            format!("{:.1}", clocks.max),
            format!("{:.2}", row.ns_per_packet.median),
            floor.map_or_else(String::new, |floor| format!("{:+.1}", clocks.median - floor)),
            row.title.to_owned(),
        ]);
    }
    align(&mut table, 1..=5);
    let table = trimmed(&table);
    let repeats = report.rows.first().map_or(0, |row| row.clocks_per_packet.repeats);
    format!("TSC clocks and ns a packet, median of {repeats}:\n{table}")
}

fn stages<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> String {
    let is_used = |stage: &Stage| rows.clone().any(|row| row.stages.contains_key(stage.name()));
    let used: Vec<Stage> = Stage::ALL.iter().copied().filter(is_used).collect();
    let mut header = vec!["row"];
    header.extend(used.iter().map(|stage| stage.name()));
    let mut table = plain_table(&header);
    for row in rows.filter(|row| !row.stages.is_empty()) {
        let mut cells = vec![row.name.to_owned()];
        for stage in &used {
            let toll = row.stages.get(stage.name());
            cells.push(toll.map_or_else(|| "-".to_owned(), |clocks| format!("{clocks:.1}")));
        }
        table.add_row(cells);
    }
    align(&mut table, 1..=used.len());
    trimmed(&table)
}

pub(crate) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if table.width() == Some(0) {
        table.set_width(USUAL);
    }
    table.set_header(header);
    table
}

/// A table's lines without trailing blanks.
pub(crate) fn trimmed(table: &Table) -> String {
    let text = table.to_string();
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

pub(crate) fn align(table: &mut Table, columns: std::ops::RangeInclusive<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Words in lines of at most so many characters.
pub(crate) fn filled(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if !line.is_empty() && line.len() + 1 + word.len() <= width => {
                *line += " ";
                *line += word;
            }
            Some(line) if line.is_empty() => *line += word,
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// A figure for people: large ones whole with separators, others with two decimals.
#[must_use]
pub fn figure(value: f64) -> String {
    // Two decimals would round 999.996 to 1000.00.
    if value.abs() < 999.995 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", &*digits), |rest| ("-", rest));
    let mut text = sign.to_owned();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{figure, filled};

    #[test]
    fn words_are_filled_into_lines() {
        assert_eq!(filled("a bb  ccc dd", 4), "a bb\nccc\ndd");
        assert_eq!(filled("too-long a b", 3), "too-long\na b");
        assert_eq!(filled("", 3), "");
    }

    #[test]
    fn figures_have_separators_where_they_are_large() {
        for (value, text) in [
            (0.0, "0.00"),
            (-3.456, "-3.46"),
            (999.99, "999.99"),
            (999.999, "1,000"),
            (1000.0, "1,000"),
            (-12_345.6, "-12,346"),
            (123_456.0, "123,456"),
            (1_234_567.0, "1,234,567"),
            (30_000_000.0, "30,000,000"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
