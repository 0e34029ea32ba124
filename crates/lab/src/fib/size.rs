//! The memory of tables and their build time.

use std::time::Instant;

use indicatif::ProgressBar;
use tollway_dataplane::prefix::Prefix;
use tollway_dataplane::tables::Tables;

use super::scene::{self, shuffle};
use super::{Figures, Internet};
use crate::frames::Xorshift;
use crate::stats::Summary;

/// Number of builds from each order.
const BUILDS: usize = 3;

/// Number of VRFs.
const VRFS: usize = 4000;

/// Routes in each VRF.
const ROUTES: usize = 100;

/// Measurements that the progress bar counts.
pub(super) const STEPS: u64 = 2 * BUILDS as u64;
pub(super) const VRF_STEPS: u64 = 3;

/// Builds both tables from sorted and from shuffled prefixes.
pub(super) fn build(
    table: &Internet,
    figures: &mut Figures,
    bar: &ProgressBar,
) -> Result<(), String> {
    let (mut sorted, mut shuffled) = (table.clone(), table.clone());
    sorted.v4.sort_unstable();
    sorted.v6.sort_unstable();
    shuffle(&mut shuffled.v4);
    shuffle(&mut shuffled.v6);
    let mut worst = 0.0_f64;
    for (name, table) in [("sorted", &sorted), ("shuffled", &shuffled)] {
        let mut seconds = Vec::new();
        for _ in 0..BUILDS {
            let start = Instant::now();
            let both = scene::both(table)?;
            seconds.push(start.elapsed().as_secs_f64());
            let (bytes4, bytes6) =
                (both.routes.fib4.memory_bytes() as f64, both.routes.fib6.memory_bytes() as f64);
            // Memory depends slightly on the order: report the larger value.
            for (name, bytes) in [
                ("memory_bytes_full", bytes4 + bytes6),
                ("memory_bytes_full_ip4", bytes4),
                ("memory_bytes_full_ip6", bytes6),
                ("memory_bytes_per_prefix_ip4", bytes4 / table.v4.len().max(1) as f64),
                ("memory_bytes_per_prefix_ip6", bytes6 / table.v6.len().max(1) as f64),
            ] {
                let figure = figures.entry(name.to_owned()).or_insert(0.0);
                *figure = figure.max(bytes);
            }
            bar.inc(1);
        }
        let median = Summary::of(&seconds).ok_or("no repeats")?.median;
        figures.insert(format!("build_seconds_{name}"), median);
        worst = worst.max(median);
    }
    figures.insert("build_seconds_full".to_owned(), worst);
    Ok(())
}

/// Measures the memory of VRFs: empty ones, and some with routes drawn from the table.
pub(super) fn vrfs(
    table: &Internet,
    figures: &mut Figures,
    bar: &ProgressBar,
) -> Result<(), String> {
    let mut rng = Xorshift::new(0x0f7f);
    let mut draw = |prefixes: &[Prefix], count: usize| -> Vec<Prefix> {
        let mut draw = || prefixes[(rng.next() % prefixes.len() as u64) as usize];
        let count = if prefixes.is_empty() { 0 } else { count };
        (0..count).map(|_| draw()).collect()
    };
    let mut weigh = |v4: usize, v6: usize| -> Result<f64, String> {
        let mut tables = Tables::new();
        for _ in 0..VRFS {
            let (v4, v6) = (draw(&table.v4, v4), draw(&table.v6, v6));
            scene::add_vrf(&mut tables, &v4, &v6)?;
        }
        bar.inc(1);
        Ok((tables.routes.fib4.memory_bytes() + tables.routes.fib6.memory_bytes()) as f64)
    };
    for (name, bytes) in [
        ("memory_bytes_empty_vrf", weigh(0, 0)? / VRFS as f64),
        ("memory_bytes_4000_vrfs", weigh(ROUTES / 2, ROUTES / 2)?),
        ("memory_bytes_4000_vrfs_ip4_only", weigh(ROUTES, 0)?),
    ] {
        figures.insert(name.to_owned(), bytes);
    }
    Ok(())
}
