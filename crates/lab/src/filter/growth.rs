//! The cost of forwarding as a list of rules grows.

use indicatif::ProgressBar;

use super::Figures;
use super::dpdk::{self, Answer};
use super::rules::{self, Tuple};
use super::testbed::{self, Trace};
use crate::stats::Summary;
use crate::text;

/// Numbers of rules.
pub(super) const SIZES: [usize; 6] = [1, 10, 100, 1000, 10_000, 30_000];

/// Number of measurements of each size.
const REPEATS: usize = 11;

/// Passes of each sort in one measurement.
const PASSES: usize = 256;

/// Flows of the trace.
const FLOWS: usize = 65_536;

/// Measurements that the progress bar counts.
pub(super) const STEPS: u64 = SIZES.len() as u64;

/// Origins of the rules.
pub(super) const STYLES: [(&str, &str); 2] = [("mixed", "mixed shapes"), ("acl1", "acl1's style")];

/// The same rules in DPDK; absent if it is not installed.
pub(super) const DPDK: [(&str, &str); 2] = [
    ("dpdk-acl-mixed", "DPDK rte_acl, lookup alone: mixed shapes"),
    ("dpdk-acl-acl1", "DPDK rte_acl, lookup alone: acl1's style"),
];

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
        for ((style, _), (of_dpdk, _)) in STYLES.into_iter().zip(DPDK) {
            let tuples = match style {
                "mixed" => rules::mixed(size),
                _ => rules::in_the_style_of(list, size),
            };
            let mut bench = testbed::under(&tuples, Trace::Random, FLOWS)?;
            bench.clocks_per_packet(PASSES);
            let clocks: Vec<_> = (0..REPEATS).map(|_| bench.clocks_per_packet(PASSES)).collect();
            let clocks = Summary::of(&clocks).ok_or("no repeats")?;
            figures.insert(name(style, size), clocks.median);
            let flows = testbed::flows(&tuples, Trace::Random, FLOWS);
            if let Answer::Clocks(clocks) = dpdk::look_up(&tuples, &flows)? {
                figures.insert(name(of_dpdk, size), clocks);
            }
        }
        bar.inc(1);
    }
    Ok(())
}

/// The growth as a table; empty if it was not measured.
pub(super) fn render(figures: &Figures) -> String {
    let clocks = |style, size| figures.get(&name(style, size)).map(|clocks| format!("{clocks:.1}"));
    let is_measured = |style| SIZES.iter().any(|size| figures.contains_key(&name(style, *size)));
    if !is_measured(STYLES[0].0) {
        return String::new();
    }
    let dpdk: Vec<_> = DPDK.into_iter().filter(|(style, _)| is_measured(style)).collect();
    let lines: Vec<_> = STYLES.into_iter().chain(dpdk.clone()).collect();
    let titles: Vec<_> = ["rules"].into_iter().chain(lines.iter().map(|line| line.1)).collect();
    let mut table = text::plain_table(&titles);
    for size in SIZES {
        let number = text::figure(size as f64).trim_end_matches(".00").to_owned();
        let cells = lines.iter().map(|(style, _)| clocks(style, size).unwrap_or("-".to_owned()));
        table.add_row([number].into_iter().chain(cells));
    }
    text::align(&mut table, 0..=lines.len());
    let note = match dpdk.is_empty() {
        true => {
            "dpdk-test-acl (Debian's package dpdk) is not installed: nothing to hold this against\n"
        }
        false => "",
    };
    let table = text::trimmed(&table);
    format!("\nclocks a packet, whole path, as rules grow:\n{table}\n{note}")
}
