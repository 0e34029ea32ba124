//! What routes cost: forwarding over tables of all sizes, memory, building, and changes meanwhile.

mod data;
mod scene;

use std::path::PathBuf;
use std::time::Instant;

use tollway_dataplane::path::Everything;

use crate::machine::Machine;
use crate::report::{Report, Row};
use crate::stats::Summary;
use crate::text;
use crate::tolls::Bench;
pub use data::Internet;
use scene::Family;

/// Times that every row is measured.
const REPEATS: usize = 21;

/// Passes of each sort in one measurement.
const PASSES: usize = 256;

/// Where a real table is, from the repository's root.
pub const DATA: &str = "../shared/data/bgp-prefixes.txt.gz";

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Rows to measure; all where empty.
    pub only: Vec<String>,
    /// The file with the real table.
    pub data: Option<PathBuf>,
}

/// A row: a family, and how many prefixes of the table.
struct Size {
    name: &'static str,
    title: &'static str,
    family: Family,
    prefixes: usize,
}

const SIZES: [Size; 4] = [
    Size { name: "ip4-10k", title: "IPv4, 10,000 prefixes", family: Family::V4, prefixes: 10_000 },
    Size { name: "ip4-full", title: "IPv4, full table", family: Family::V4, prefixes: usize::MAX },
    Size { name: "ip6-10k", title: "IPv6, 10,000 prefixes", family: Family::V6, prefixes: 10_000 },
    Size { name: "ip6-full", title: "IPv6, full table", family: Family::V6, prefixes: usize::MAX },
];

/// Measures.
///
/// # Errors
/// A sentence, where the data can not be read or memory is short.
pub fn run(options: &Options) -> Result<Report, String> {
    let path = options.data.clone().unwrap_or_else(|| PathBuf::from(DATA));
    let table = Internet::load(&path)?;
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|row| row == name);
    let mut benches = Vec::new();
    for size in SIZES.iter().filter(|size| wanted(size.name)) {
        let prefixes = scene::sample(size.family.of(&table), size.prefixes);
        let tables = scene::tables(size.family, &prefixes)?;
        let frames = scene::frames(size.family, &prefixes);
        benches.push((size, Bench::<Everything>::over(tables, frames, 64)?));
    }
    let mut clocks = vec![Vec::new(); benches.len()];
    for _ in 0..REPEATS {
        for (index, (_, bench)) in benches.iter_mut().enumerate() {
            clocks[index].push(bench.clocks_per_packet(PASSES));
        }
    }
    let machine = Machine::probe();
    let mut rows = Vec::new();
    for ((size, bench), clocks) in benches.iter().zip(&clocks) {
        let clocks = Summary::of(clocks).ok_or("no repeats")?;
        rows.push(Row {
            name: size.name,
            title: size.title,
            clocks_per_packet: clocks,
            ns_per_packet: clocks.scaled(machine.ns_per_clock()),
            stages: bench.stages(),
        });
    }
    drop(benches);
    let mut report = Report::new(machine, rows);
    let start = Instant::now();
    let both = scene::both(&table)?;
    report.figures.insert("build_seconds_full".to_owned(), start.elapsed().as_secs_f64());
    let bytes = both.fib4.memory_bytes() + both.fib6.memory_bytes();
    report.figures.insert("memory_bytes_full".to_owned(), bytes as f64);
    report.figures.insert("memory_bytes_full_ip4".to_owned(), both.fib4.memory_bytes() as f64);
    Ok(report)
}

/// The report as text.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = text::render(report);
    text += "\n";
    for (name, figure) in &report.figures {
        text += &format!("{name:<28} {}\n", text::figure(*figure));
    }
    text
}
