//! The reports of the generator and of a sink as text.

use crate::text::{align, figure, heading, plain_table, trimmed};

use super::Report;

/// Figures in output order, with their descriptions.
const FIGURES: [(&str, &str); 17] = [
    ("sent_frames", "frames sent"),
    ("mpps", "million frames a second"),
    ("wire_gbps", "Gbit/s on the wire"),
    ("received_frames", "frames received"),
    ("received_mpps", "million frames a second"),
    ("lost_frames", "lost"),
    ("loss_ratio", "share lost"),
    ("duplicate_frames", "received again"),
    ("reordered_frames", "received after later ones"),
    ("late_frames", "received too late to be checked"),
    ("unfollowed_frames", "of runs that the sink has no room to follow"),
    ("latency_p50_us", "us, median latency"),
    ("latency_p90_us", "us, 90th percentile"),
    ("latency_p99_us", "us, 99th percentile"),
    ("latency_p999_us", "us, 99.9th percentile"),
    ("latency_max_us", "us, the longest"),
    ("seconds", "seconds"),
];

/// What was sent, by thread if there are several, and what the sink received.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = heading(report);
    if report.rows.len() > 1 {
        let mut table = plain_table(&["thread", "frames", "Mpps"]);
        for row in &report.rows {
            let cells = [row.name.clone(), figure(row.sent_frames as f64), figure(row.mpps)];
            table.add_row(cells);
        }
        align(&mut table, 1..=2);
        text += &format!("{}\n\n", trimmed(&table));
    }
    let mut table = plain_table(&["figure", "", "what"]);
    for (name, what) in FIGURES {
        let Some(value) = report.figures.get(name) else { continue };
        if value.is_nan() {
            let cells = [name, "-", "not known: a capture's frames have no numbers"];
            table.add_row(cells);
            continue;
        }
        let value = match name {
            "loss_ratio" => format!("{value:.6}"),
            "sent_frames" | "received_frames" | "lost_frames" | "duplicate_frames"
            | "reordered_frames" | "late_frames" | "unfollowed_frames" => {
                figure(*value).replace(".00", "")
            }
            _ => figure(*value),
        };
        table.add_row([name.to_owned(), value, what.to_owned()]);
    }
    align(&mut table, 1..=1);
    text + &format!("{}\n", trimmed(&table))
}
