//! Requests and responses as text.

use super::{Row, Side};
use crate::report::Report;
use crate::text::{align, figure, heading, plain_table, trimmed};

/// Rates of both routers, what they differ by, and how long transactions took.
#[must_use]
pub fn render(report: &Report<Row>, routers: [&str; 2]) -> String {
    let [base, head] = routers;
    let mut table = plain_table(&["row", base, head, "difference", "interval", "", "unit"]);
    for row in &report.rows {
        let interval = match row.interval_percent {
            [Some(low), Some(high)] => format!("{low:+.1} to {high:+.1}%"),
            _ => "too few pairs".to_owned(),
        };
        let difference = row.difference_percent;
        let difference = difference.map_or("-".to_owned(), |percent| format!("{percent:+.1}%"));
        table.add_row([
            row.name.clone(),
            figure(row.base.rate.median),
            figure(row.head.rate.median),
            difference,
            interval,
            row.verdict.to_owned(),
            row.unit.to_owned(),
        ]);
    }
    align(&mut table, 1..=4);
    let mut text = format!("{}{}\n\n", heading(report), trimmed(&table));
    let header = ["row", "router", "p50 us", "p99 us", "p99.9 us", "lost"];
    let mut table = plain_table(&header);
    for row in &report.rows {
        for (name, side) in [(base, &row.base), (head, &row.head)] {
            let Side { latency_us: Some([p50, p99, p999]), lost, .. } = side else { continue };
            let us = [p50, p99, p999].map(|us| figure(*us));
            let [p50, p99, p999] = us;
            table.add_row([row.name.clone(), name.to_owned(), p50, p99, p999, lost.to_string()]);
        }
    }
    align(&mut table, 2..=5);
    text += &format!("{}\n", trimmed(&table));
    text
}
