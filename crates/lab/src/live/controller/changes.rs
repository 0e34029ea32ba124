//! Single changes, one after the other: the time until each is active in Tollway.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::router::{ControlClient, Ip};
use super::{Bench, Row};

/// Time limit of a change.
const PATIENCE: Duration = Duration::from_secs(10);
/// The highest acceptable time of a change, ms.
const BAR: f64 = 5.0;

/// A kind of change: its name and description.
const KINDS: [(&str, &str); 3] = [
    ("route", "a route comes or goes"),
    ("neighbour", "a neighbour comes or goes"),
    ("address", "an address of the router comes or goes"),
];

/// Two lines for ip(8), the second of which reverts the first, and the address to query. Tollway's
/// answer contains `word` after the first line, and does not contain it after the second.
struct Change {
    lines: [String; 2],
    address: String,
    word: String,
}

impl Change {
    fn new(kind: &str, number: usize) -> Self {
        let (high, low) = (number / 200, 20 + number % 200);
        match kind {
            "route" => {
                let prefix = format!("172.{}.{low}.0/24", 16 + high);
                Self {
                    lines: [
                        format!("route add {prefix} via 10.2.0.2"),
                        format!("route del {prefix}"),
                    ],
                    address: prefix.replace(".0/24", ".1"),
                    word: format!("\"{prefix}\""),
                }
            }
            "neighbour" => {
                let (address, mac) =
                    (format!("10.2.0.{low}"), format!("02:00:00:07:{high:02x}:{low:02x}"));
                Self {
                    lines: [
                        format!("neigh replace {address} lladdr {mac} dev r1 nud permanent"),
                        format!("neigh del {address} dev r1"),
                    ],
                    address,
                    word: mac,
                }
            }
            _ => {
                let address = format!("10.{}.{low}.1", 20 + high);
                Self {
                    lines: [
                        format!("address add {address}/24 dev r1"),
                        format!("address del {address}/24 dev r1"),
                    ],
                    address,
                    word: "\"local\"".to_owned(),
                }
            }
        }
    }

    /// Makes the change and reverts it. Returns the time of each, ms.
    fn make(&self, ip: &mut Ip, control: &mut ControlClient) -> Result<[f64; 2], String> {
        let mut times = [0.0; 2];
        for ((line, time), wanted) in self.lines.iter().zip(&mut times).zip([true, false]) {
            let start = Instant::now();
            ip.send(line)?;
            while contains(&control.route(&self.address)?, &self.word) != wanted {
                if start.elapsed() > PATIENCE {
                    return Err(format!(
                        "`ip {line}` is not active after {} s",
                        PATIENCE.as_secs()
                    ));
                }
            }
            *time = start.elapsed().as_secs_f64() * 1e3;
        }
        Ok(times)
    }
}

fn contains(answer: &Value, word: &str) -> bool {
    answer.to_string().contains(word)
}

/// Measures the 99th percentile of each kind over several rounds.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<(), String> {
    let tollway = bench.router.start(&[], false)?;
    let (mut ip, mut control) = (bench.router.ip()?, tollway.control()?);
    control.sync()?;
    let rebuilds = control.count("rebuilds")?;
    for (name, title) in KINDS {
        let (mut p99, mut medians) = (Vec::new(), Vec::new());
        for _ in 0..bench.options.repeat {
            let mut times = Vec::new();
            for number in 0..bench.options.changes.div_ceil(2) {
                times.extend(Change::new(name, number).make(&mut ip, &mut control)?);
                bench.bar.inc(2);
            }
            times.sort_by(f64::total_cmp);
            let at = |percent: usize| times.get(times.len() * percent / 100).copied();
            p99.extend(at(99));
            medians.extend(at(50));
        }
        let median = crate::stats::Summary::of(&medians).unwrap_or_default().median;
        bench.report.figures.insert(format!("{name}_median_ms"), median);
        bench.report.rows.push(Row::new(name, format!("{title}, p99"), "ms", &p99, BAR));
    }
    let rebuilt = control.count("rebuilds")? - rebuilds;
    bench.report.figures.insert("changes_rebuilds".to_owned(), rebuilt as f64);
    drop(control);
    tollway.stop()
}
