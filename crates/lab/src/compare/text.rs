use comfy_table::Table;

use super::{
    Change, Changes, Comparison, Figures, Judgement, Method, Row, Test, Verdict, least_pairs,
};
use crate::stats::{Sample, ministat};
use crate::text::{align, figure, heading, plain_table, trimmed};

/// A comparison as text: each row as ministat shows it, then the other tests, then the verdict.
#[must_use]
pub fn render(of: &Comparison) -> String {
    let mut text = heading(&of.report);
    text += &format!("base  {}\nhead  {}\n", of.base.name(), of.head.name());
    if of.uncommitted {
        text += "changes here that are not committed are on neither side\n";
    }
    if of.method == Method::Tolls {
        text += "measured by whole runs of `lab tolls`, since a side has no `lab probe`\n";
    }
    for row in &of.report.rows {
        text += &section(row, of.report.rows.len());
    }
    if of.report.rows.len() > 1 {
        text += &format!("\n{}", trimmed(&summary(&of.report.rows)));
        text += "\n";
    }
    text
}

/// One of `rows` rows.
fn section(row: &Row, rows: usize) -> String {
    let pairs = row.differences_ns.len();
    let mut text = format!("\n{}: ns a packet, {pairs} pairs of processes\n", row.name);
    let series = [&row.base, &row.head].map(|side| Sample::of(&side.processes_ns));
    if let [Some(base), Some(head)] = &series {
        let options = ministat::Options::default();
        text += &ministat::text(["base", "head"], [base, head], options).unwrap_or_default();
    }
    text += &format!("\n{}\n", trimmed(&rates(&row.base, &row.head)));
    text += &tests(&row.judgement);
    text += &changes(&row.changes);
    text + &verdict(&row.judgement, pairs, rows)
}

/// The most functions that the text shows.
const SHOWN: usize = 15;

/// Instructions, and changes by function.
fn changes(of: &Changes) -> String {
    let mut text = String::new();
    if let Some(count) = &of.instructions_per_packet {
        let levels = match &count.levels {
            [base, head] if base == head => base.clone(),
            [base, head] => format!("{base} and {head}"),
        };
        text += &format!(
            "\ninstructions a packet ({}, path {levels}): {:.1}, {:.1}; {:+.1}\n",
            count.counter, count.base, count.head, count.difference
        );
    }
    let reported: Vec<_> = of.functions.iter().filter(|change| change.is_reported()).collect();
    if !reported.is_empty() {
        text += &format!("\n{}\n", trimmed(&by_function(&reported[..reported.len().min(SHOWN)])));
        if reported.len() > SHOWN {
            text += &format!("and {} functions that have changed less\n", reported.len() - SHOWN);
        }
    } else if !of.functions.is_empty() {
        text += "no function has changed beyond accuracy\n";
    }
    for note in &of.notes {
        text += &format!("{note}\n");
    }
    text
}

fn by_function(changes: &[&Change]) -> Table {
    let header = ["base ns", "head ns", "+/-", "instr.", "instr.", "+/-", "", "function"];
    let mut table = plain_table(&header);
    for of in changes {
        let count =
            |count: Option<f64>| count.map_or("-".to_owned(), |count| format!("{count:.1}"));
        let signed = of.difference_instructions.map(|count| format!("{count:+.1}"));
        table.add_row([
            format!("{:.2}", of.base_ns),
            format!("{:.2}", of.head_ns),
            format!("{:+.2}", of.difference_ns),
            count(of.base_instructions),
            count(of.head_instructions),
            signed.unwrap_or("-".to_owned()),
            if of.inlined { "inlined".to_owned() } else { String::new() },
            of.name.clone(),
        ]);
    }
    align(&mut table, 0..=5);
    table
}

fn rates(base: &Figures, head: &Figures) -> Table {
    let mut table = plain_table(&["", "packets/s", "ns a packet", "min", "max"]);
    for (name, side) in [("base", base), ("head", head)] {
        let ns = side.ns_per_packet;
        let figures = [ns.median, ns.min, ns.max].map(|value| format!("{value:.3}"));
        let [median, min, max] = figures;
        table.add_row([name.to_owned(), figure(side.pps), median, min, max]);
    }
    align(&mut table, 1..=4);
    table
}

/// The result of each test at 95%.
fn tests(of: &Judgement) -> String {
    let mut table = plain_table(&["head - base, ns", "", "95%", "from", "to"]);
    let mut add = |name: &str, difference: f64, [low, high]: [f64; 2]| {
        let margin = format!("+/- {:.3}", (high - low) / 2.0);
        let figures = [difference, low, high].map(|value| format!("{value:+.3}"));
        let [difference, low, high] = figures;
        table.add_row([name.to_owned(), difference, margin, low, high]);
    };
    let mut student = |name, test: Test| add(name, test.difference_ns, test.interval_ns);
    student("Student, pooled", of.student);
    if let Some(welch) = of.welch {
        student("Welch", welch);
    }
    student("Student, pairs", of.paired);
    add("bootstrap, pairs", of.difference_ns, of.interval_ns);
    align(&mut table, 1..=4);
    format!("\n{}\n", trimmed(&table))
}

/// The verdict in words, from `pairs` pairs, on one of `rows` rows.
fn verdict(of: &Judgement, pairs: usize, rows: usize) -> String {
    let least = match of.smallest_detectable_ns {
        Some(ns) => format!("from {ns:.3} ns on a difference would have shown"),
        None => format!("{pairs} pairs, {} needed to detect any difference", least_pairs(rows)),
    };
    let by = match of.verdict {
        Verdict::Faster | Verdict::Slower => format!(
            " by {:.3} ns ({:+.3} to {:+.3}), {:+.1}%",
            of.difference_ns.abs(),
            of.interval_ns[0],
            of.interval_ns[1],
            of.difference_percent
        ),
        Verdict::BelowAccuracy => String::new(),
    };
    format!("\nverdict: {}{by}; {least}\n", of.verdict.words())
}

/// A summary of all rows, one line each.
fn summary(rows: &[Row]) -> Table {
    let mut table =
        plain_table(&["row", "base ns", "head ns", "difference", "from", "to", "verdict"]);
    for row in rows {
        let of = &row.judgement;
        let figures = [of.difference_ns, of.interval_ns[0], of.interval_ns[1]];
        let [difference, low, high] = figures.map(|value| format!("{value:+.3}"));
        let sides = [&row.base, &row.head].map(|side| format!("{:.3}", side.ns_per_packet.median));
        let [base, head] = sides;
        let verdict = of.verdict.words().to_owned();
        let cells = [row.name.clone(), base, head, difference, low, high, verdict];
        table.add_row(cells);
    }
    align(&mut table, 1..=5);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Instructions, Pair, evaluate};

    #[test]
    fn too_few_pairs_are_reported() {
        let pair = |at: usize| Pair { base: 5.5, head: 7.5, difference: 2.0 + at as f64 * 0.01 };
        let pairs: Vec<_> = (0..8).map(pair).collect();
        let of = |rows: usize| verdict(&evaluate(&pairs, rows).unwrap(), pairs.len(), rows);
        assert!(of(1).contains("slower by") && of(1).contains("ns on a difference would have"));
        assert!(of(9).contains("below accuracy; 8 pairs, 11 needed"), "{}", of(9));
        let json = serde_json::to_value(evaluate(&pairs, 9)).unwrap();
        assert!(json["smallest_detectable_ns"].is_null(), "{json}");
    }

    #[test]
    fn changed_functions_are_reported() {
        let change = |name: &str, count: f64| Change {
            name: name.to_owned(),
            inlined: true,
            base_ns: 1.0,
            head_ns: 1.5,
            difference_ns: 0.5,
            interval_ns: [-0.1, 1.1],
            base_instructions: Some(10.0),
            head_instructions: Some(10.0 + count),
            difference_instructions: Some(count),
        };
        let mut of = Changes {
            instructions_per_packet: Some(Instructions {
                base: 100.0,
                head: 104.0,
                difference: 4.0,
                counter: "callgrind",
                levels: ["v3".to_owned(), "v3".to_owned()],
            }),
            functions: vec![change("a::more", 4.0), change("a::same", 0.0)],
            notes: Vec::new(),
        };
        let text = changes(&of);
        assert!(
            text.contains("instructions a packet (callgrind, path v3): 100.0, 104.0; +4.0"),
            "{text}"
        );
        assert!(text.contains("+4.0  inlined  a::more") && !text.contains("a::same"), "{text}");
        of.functions.remove(0);
        of.notes.push("a note".to_owned());
        let text = changes(&of);
        assert!(text.contains("no function has changed beyond accuracy\na note\n"), "{text}");
        assert_eq!(changes(&Changes::default()), "");
    }
}
