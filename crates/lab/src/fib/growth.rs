//! The cost of forwarding as a table grows.

use indicatif::ProgressBar;

use super::data::more;
use super::scene::{self, Family};
use super::{Figures, Internet};
use crate::bench::Bench;
use crate::stats::Summary;
use crate::text;

/// The numbers of prefixes. Those beyond the table are generated.
pub(super) const SIZES: [usize; 6] = [1, 10, 1000, 10_000, 100_000, 1_000_000];

/// Number of measurements of each size.
const REPEATS: usize = 11;

/// Passes of each sort in one measurement, which together use every destination.
const PASSES: usize = 256;

/// Measurements that the progress bar counts.
pub(super) const STEPS: u64 = 2 * SIZES.len() as u64;

/// The name of a size's figure.
pub(super) fn name(family: Family, size: usize) -> String {
    format!("growth_{}_{size}_clocks", family.name())
}

/// Measures both families.
pub(super) fn measure(
    table: &Internet,
    figures: &mut Figures,
    bar: &ProgressBar,
) -> Result<(), String> {
    for family in [Family::V4, Family::V6] {
        let most = SIZES.into_iter().max().unwrap_or(0);
        // Drawn prefixes first, generated ones after: smaller tables contain no generated prefix.
        let drawn = scene::sample(family.of(table), most);
        let prefixes = more(drawn, most, family == Family::V4);
        for size in SIZES {
            let prefixes = &prefixes[..size];
            let tables = scene::tables(family, prefixes)?;
            let frames = scene::frames(family, prefixes);
            let mut bench = Bench::over(tables, frames, 64)?;
            bench.clocks_per_packet(PASSES);
            let clocks: Vec<_> = (0..REPEATS).map(|_| bench.clocks_per_packet(PASSES)).collect();
            let clocks = Summary::of(&clocks).ok_or("no repeats")?;
            figures.insert(name(family, size), clocks.median);
            bar.inc(1);
        }
    }
    Ok(())
}

/// The growth as a table; empty if it was not measured.
pub(super) fn render(figures: &Figures) -> String {
    let mut table = text::plain_table(&["prefixes", "IPv4", "IPv6"]);
    for size in SIZES {
        let clocks = |family| Some(format!("{:.1}", figures.get(&name(family, size))?));
        let (Some(v4), Some(v6)) = (clocks(Family::V4), clocks(Family::V6)) else {
            return String::new();
        };
        let size = text::figure(size as f64);
        table.add_row([size.trim_end_matches(".00").to_owned(), v4, v6]);
    }
    text::align(&mut table, 0..=2);
    format!("\nclocks a packet, whole path, as the table grows:\n{}\n", text::trimmed(&table))
}
