use super::against::{self, Against};
use super::{Group, Row, Tolls};
use crate::text::{align, by_stage, heading, plain_table, trimmed};

/// The table as text.
#[must_use]
pub fn render(tolls: &Tolls) -> String {
    let report = &tolls.report;
    let mut text = heading(report);
    if report.rows.is_empty() {
        return text;
    }
    text += &rows(&report.rows);
    text += "\n\n";
    text += &by_stage(report.rows.iter().map(|row| &row.row));
    if let Some(overhead) = report.figures.get("sampling_overhead_percent") {
        text += &format!("\nsampling the stages costs {overhead:+.2}% of ip4-one-flow\n");
    }
    if let Some(against) = &tolls.against {
        text += &changes(against);
    }
    text
}

/// The title of a group of rows.
pub(super) const fn title(group: Group) -> &'static str {
    match group {
        Group::Path => "the path",
        Group::Feature => "features",
        Group::Routes => "tables",
        Group::Rules => "rules",
        Group::Bursts => "bursts",
        Group::Workers => "workers",
        Group::All => "all at once",
    }
}

/// The least number of columns of a wide terminal.
const WIDE: u16 = 130;

fn rows(rows: &[Row]) -> String {
    let mut header = vec!["row", "clocks", "ns", "95%", "costs ns", "95%", "over"];
    // The description has no room on a narrow terminal.
    let is_wide = plain_table(&[]).width().is_none_or(|width| width >= WIDE);
    header.extend(is_wide.then_some("what"));
    let mut table = plain_table(&header);
    let mut group = None;
    for row in rows {
        let of = row.scenario.group;
        if group.replace(of) != Some(of) {
            table.add_row([title(of)]);
        }
        let range = |[low, high]: [f64; 2]| format!("{low:.2} .. {high:.2}");
        let (cost, interval, over) = match &row.cost {
            Some(cost) => {
                let [low, high] = cost.interval_ns;
                (format!("{:+.2}", cost.ns), format!("{low:+.2} .. {high:+.2}"), cost.over)
            }
            None => (String::new(), String::new(), ""),
        };
        let mut cells = vec![
            format!("  {}", row.row.name),
            format!("{:.1}", row.row.clocks_per_packet.median),
            format!("{:.2}", row.row.ns_per_packet.median),
            range(row.interval_ns),
            cost,
            interval,
            over.to_owned(),
        ];
        cells.extend(is_wide.then(|| row.row.title.to_owned()));
        table.add_row(cells);
    }
    align(&mut table, 1..=5);
    let repeats = rows.first().map_or(0, |row| row.rounds_ns.len());
    format!("TSC clocks and ns a packet, median of {repeats} rounds:\n{}", trimmed(&table))
}

/// The changes since a record.
fn changes(against: &Against) -> String {
    let mut text =
        format!("\nsince {} ({}, commit {}):\n", against.recorded, against.file, against.commit);
    for note in &against.notes {
        text += &format!("{note}\n");
    }
    let mut table = plain_table(&["row", "then ns", "now ns", "change", "95%", "%", "verdict"]);
    for row in &against.rows {
        let [low, high] = row.interval_ns;
        table.add_row([
            row.name.clone(),
            format!("{:.2}", row.base_ns),
            format!("{:.2}", row.head_ns),
            format!("{:+.2}", row.difference_ns),
            format!("{low:+.2} .. {high:+.2}"),
            format!("{:+.1}", row.difference_percent),
            row.verdict.words().to_owned(),
        ]);
    }
    align(&mut table, 1..=5);
    text += &trimmed(&table);
    text += &format!(
        "\nunder {:.0}% nothing is reported: processes of one build differ by as much \
         (`tollway lab compare` detects less)\n",
        100.0 * against::FLOOR
    );
    text
}
