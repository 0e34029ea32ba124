//! What forwarding costs as a list of rules grows.

use indicatif::ProgressBar;

use super::Figures;
use super::rules::{self, Tuple};
use super::scene::{self, Trace};
use crate::stats::Summary;
use crate::text;

/// Rules.
pub(super) const SIZES: [usize; 6] = [1, 10, 100, 1000, 10_000, 30_000];

/// Times that each size is measured.
const REPEATS: usize = 11;

/// Passes of each sort in one measurement.
const PASSES: usize = 256;

/// Flows of the trace.
const FLOWS: usize = 65_536;

/// Measurements for the progress bar to count.
pub(super) const STEPS: u64 = SIZES.len() as u64;

/// Where rules are from.
pub(super) const STYLES: [(&str, &str); 2] = [("mixed", "mixed shapes"), ("acl1", "acl1's style")];

/// The name of a size's figure.
pub(super) fn name(style: &str, size: usize) -> String {
    format!("growth_{style}_{size}_clocks")
}

/// Measures both styles.
pub(super) fn measure(
    list: &[Tuple],
    figures: &mut Figures,
    bar: &ProgressBar,
) -> Result<(), String> {
    for size in SIZES {
        for (style, _) in STYLES {
            let tuples = match style {
                "mixed" => rules::mixed(size),
                _ => rules::in_the_style_of(list, size),
            };
            let mut bench = scene::under(&tuples, Trace::Random, FLOWS)?;
            bench.clocks_per_packet(PASSES);
            let clocks: Vec<_> = (0..REPEATS).map(|_| bench.clocks_per_packet(PASSES)).collect();
            let clocks = Summary::of(&clocks).ok_or("no repeats")?;
            figures.insert(name(style, size), clocks.median);
        }
        bar.inc(1);
    }
    Ok(())
}

/// The growth as a table; empty where it was not measured.
pub(super) fn render(figures: &Figures) -> String {
    let mut table = text::plain_table(&["rules", STYLES[0].1, STYLES[1].1]);
    for size in SIZES {
        let clocks = |style| Some(format!("{:.1}", figures.get(&name(style, size))?));
        let (Some(mixed), Some(list)) = (clocks(STYLES[0].0), clocks(STYLES[1].0)) else {
            return String::new();
        };
        let size = text::figure(size as f64);
        table.add_row([size.trim_end_matches(".00").to_owned(), mixed, list]);
    }
    text::align(&mut table, 0..=2);
    format!("\nclocks a packet, whole path, as rules grow:\n{}\n", text::trimmed(&table))
}
