//! Lookups alone, without the packet path: ours and those of rivals, over four kinds of addresses.

use std::collections::BTreeMap;
use std::hint::black_box;

use indicatif::ProgressBar;
use tollway_dataplane::burst::BURST;
use tollway_dataplane::clock;
use tollway_dataplane::prefix::Prefix;

use super::data::random_v6;
use super::level::{self, Job};
use super::ours::Ours;
use super::rival::{Flat, Rival};
use super::scene::{Family, below, shuffle};
use super::{Figures, Internet};
use crate::frames::Xorshift;
use crate::stats::Summary;
use crate::text;

/// Addresses in a trace.
const KEYS: usize = 1 << 18;

/// Number of measurements of each trace.
const REPEATS: usize = 15;

/// Measurements that the progress bar counts.
pub(super) const STEPS: u64 = 5;

/// The kinds of traces.
const TRACES: [&str; 4] = ["hot", "uniform", "inside", "zipf"];

/// Measures all structures on all traces.
pub(super) fn measure(
    table: &Internet,
    figures: &mut Figures,
    bar: &ProgressBar,
) -> Result<(), String> {
    for family in [Family::V4, Family::V6] {
        let mut prefixes = family.of(table).to_vec();
        shuffle(&mut prefixes);
        let mut rng = Xorshift::new(0xbeef);
        let routes: Vec<_> =
            prefixes.iter().map(|prefix| (*prefix, 1 + (rng.next() % 64) as u32)).collect();
        let traces = TRACES.map(|kind| trace(kind, family, &prefixes));
        let name = family.name();
        let mut step = |name, clocks: BTreeMap<String, f64>| {
            figures.extend(
                clocks.into_iter().map(|(trace, clocks)| (format!("{name}_{trace}"), clocks)),
            );
            bar.inc(1);
        };
        if family == Family::V4 {
            step(format!("lookup_{name}_full"), compare::<Ours<1>>(&routes, &traces)?);
            step(format!("rival_dir24_{name}_full"), compare::<Flat<24>>(&routes, &traces)?);
        } else {
            step(format!("lookup_{name}_full"), compare::<Ours<2>>(&routes, &traces)?);
        }
        step(format!("rival_flat_{name}_full"), compare::<Flat<16>>(&routes, &traces)?);
    }
    Ok(())
}

/// Addresses to look up.
fn trace(kind: &str, family: Family, prefixes: &[Prefix]) -> Vec<u128> {
    let mut rng = Xorshift::new(0x7ace);
    let mut random = || u128::from(rng.next()) << 64 | u128::from(rng.next());
    let address = |bits: u128| match family {
        Family::V4 => bits >> 96 << 96,
        Family::V6 => bits,
    };
    let within = |number: usize, random: u128| {
        let prefix = prefixes[number];
        address(prefix.bits() | random & below(prefix))
    };
    // Zipf's law: the first prefix is used twice as often as the second.
    let mut sums = Vec::new();
    if kind == "zipf" {
        let mut sum = 0.0;
        sums.extend((1..=prefixes.len()).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        }));
    }
    let mut draw = || {
        let bits = random();
        let dice = random() as u64;
        match kind {
            "hot" => within(0, 1),
            "inside" => within((dice % prefixes.len() as u64) as usize, bits),
            "zipf" => {
                let all = sums.last().copied().unwrap_or(0.0);
                let wanted = all * (dice >> 11) as f64 / (1_u64 << 53) as f64;
                let rank = sums.partition_point(|sum| *sum <= wanted);
                within(rank.min(prefixes.len() - 1), bits)
            }
            // Nearly all of the IPv6 space is unallocated, so addresses come from the allocated
            // part.
            _ if family == Family::V6 => random_v6(bits, 128).bits(),
            _ => address(bits),
        }
    };
    (0..KEYS).map(|_| draw()).collect()
}

/// Clocks per lookup, by trace and method, and the memory.
fn compare<R: Rival>(
    routes: &[(Prefix, u32)],
    traces: &[Vec<u128>],
) -> Result<BTreeMap<String, f64>, String> {
    let mut rival = R::build(routes)?;
    let mut clocks = vec![[const { Vec::new() }; 2]; traces.len()];
    for _ in 0..REPEATS {
        for (keys, clocks) in traces.iter().zip(&mut clocks) {
            let start = clock::now();
            level::run(&mut Single { rival: &rival, keys });
            clocks[0].push((clock::now() - start) as f64 / keys.len() as f64);
            let start = clock::now();
            level::run(&mut Bursts { rival: &mut rival, keys });
            clocks[1].push((clock::now() - start) as f64 / keys.len() as f64);
        }
    }
    let mut figures = BTreeMap::from([("memory_bytes".to_owned(), rival.memory_bytes() as f64)]);
    for (kind, clocks) in TRACES.iter().zip(&clocks) {
        for (way, clocks) in ["single", "burst"].iter().zip(clocks) {
            let median = Summary::of(clocks).ok_or("no repeats")?.median;
            figures.insert(format!("{kind}_{way}_clocks"), median);
        }
    }
    Ok(figures)
}

/// Single lookups, none of which depends on another's result.
struct Single<'a, R> {
    rival: &'a R,
    keys: &'a [u128],
}

impl<R: Rival> Job for Single<'_, R> {
    #[inline(always)]
    fn run(&mut self) {
        let mut sum = 0_u32;
        for bits in self.keys {
            sum = sum.wrapping_add(self.rival.lookup(*bits));
        }
        black_box(sum);
    }
}

/// Lookups in bursts.
struct Bursts<'a, R> {
    rival: &'a mut R,
    keys: &'a [u128],
}

impl<R: Rival> Job for Bursts<'_, R> {
    #[inline(always)]
    fn run(&mut self) {
        let mut found = [0; BURST];
        for keys in self.keys.as_chunks::<BURST>().0 {
            self.rival.lookup_burst(keys, &mut found);
            black_box(&mut found);
        }
    }
}

/// All results as a text table; empty if none was measured.
pub(super) fn render(figures: &Figures) -> String {
    let mut table = text::plain_table(&[
        "full table",
        "MB",
        "hot",
        "burst",
        "uniform",
        "burst",
        "inside",
        "burst",
        "zipf",
        "burst",
    ]);
    let mut any = false;
    for (prefix, title) in [
        ("lookup_ip4_full", "IPv4, the router's"),
        ("rival_flat_ip4_full", "IPv4, 16 bits, then blocks of 8"),
        ("rival_dir24_ip4_full", "IPv4, DIR-24-8"),
        ("lookup_ip6_full", "IPv6, the router's"),
        ("rival_flat_ip6_full", "IPv6, 16 bits, then blocks of 8"),
    ] {
        let figure = |name: &str| figures.get(&format!("{prefix}_{name}")).copied();
        let Some(bytes) = figure("memory_bytes") else { continue };
        any = true;
        let mut cells = vec![title.to_owned(), format!("{:.1}", bytes / 1e6)];
        for kind in TRACES {
            for way in ["single", "burst"] {
                let clocks = figure(&format!("{kind}_{way}_clocks")).unwrap_or(f64::NAN);
                cells.push(format!("{clocks:.1}"));
            }
        }
        table.add_row(cells);
    }
    text::align(&mut table, 1..=9);
    if !any {
        return String::new();
    }
    format!(
        "\nlookups alone, clocks each, one by one and in bursts of 64:\n{}\n",
        text::trimmed(&table)
    )
}
