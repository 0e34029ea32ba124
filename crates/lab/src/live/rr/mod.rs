//! Requests and responses, and a stream, through two routers in turn.
//!
//! There are two setups of a client, a router and a server in separate network namespaces, one for
//! each of the compared routers. Each row is measured in pairs, first with one router and then with
//! the other, in alternating order. The difference is evaluated by pairs, like that between two
//! builds.

mod testbed;
mod text;

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::traffic::{self, Kind};
use crate::generate::track::latencies;
use crate::machine::Machine;
use crate::progress;
use crate::report::Report;
use crate::stats::{Summary, paired_percent};
use crate::sys;
use testbed::{Router, Testbed};
pub use text::render;

/// The confidence of intervals.
const CONFIDENCE: f64 = 0.95;

/// Packets that the kernel may forward in Tollway's place, as a share of transactions.
const STRAYS: f64 = 0.05;
/// The most attempts at a measurement with too many of them.
const ATTEMPTS: usize = 8;

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows to measure; empty for all.
    pub only: Vec<String>,
    /// The routers: kernel, tollway, xdp, file or vrf.
    pub routers: [String; 2],
    /// Pairs of measurements of each row.
    pub pairs: usize,
    /// Duration of one measurement.
    pub time: Duration,
}

/// One kind of traffic over one address family.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, the same in every report.
    pub name: String,
    /// Transactions per second, or Mbit/s of a stream.
    pub unit: &'static str,
    /// The results of the first router.
    pub base: Side,
    /// The results of the second router.
    pub head: Side,
    /// The difference of the second router from the first in percent, mean of all pairs; `None` if
    /// a rate was zero.
    pub difference_percent: Option<f64>,
    /// The 95% interval of the difference; `None` if there are too few pairs.
    pub interval_percent: [Option<f64>; 2],
    /// The verdict in words.
    pub verdict: &'static str,
}

/// The results of one router in a row.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Rates of all measurements.
    pub rate: Summary,
    /// Duration of transactions in microseconds: median, 99th percentile, 99.9th percentile; `None`
    /// for a stream.
    pub latency_us: Option<[f64; 3]>,
    /// Datagrams without an answer.
    pub lost: u64,
}

/// All rows: name, kind of traffic, and whether over IPv6.
fn rows() -> Vec<(String, Kind, bool)> {
    let name = |kind: &str, v6: bool| format!("{kind}-ip{}", if v6 { 6 } else { 4 });
    let both = |(kind, what): (&str, Kind)| [false, true].map(|v6| (name(kind, v6), what, v6));
    Kind::ALL.into_iter().flat_map(both).collect()
}

/// The router of a name.
fn router(name: &str) -> Result<Router, String> {
    let found = Router::ALL.iter().find(|(known, _)| *known == name);
    let names = Router::ALL.map(|(name, _)| name).join(", ");
    found
        .map(|(_, router)| *router)
        .ok_or_else(|| format!("no router is called {name}; there are {names}"))
}

/// Checks that all names are known.
///
/// # Errors
/// A message, if one is unknown.
pub fn check(options: &Options) -> Result<(), String> {
    let rows = rows();
    let names: Vec<_> = rows.iter().map(|(name, ..)| name.as_str()).collect();
    if let Some(unknown) = options.only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("nothing is called {unknown}; there are {}", names.join(", ")));
    }
    options.routers.iter().try_for_each(|name| router(name).map(|_| ()))
}

/// Measures the selected rows.
///
/// # Errors
/// A message, if a name is unknown, the machine does not allow it, or something fails.
pub fn run(options: &Options) -> Result<Report<Row>, String> {
    check(options)?;
    let [base, head] = [router(&options.routers[0])?, router(&options.routers[1])?];
    if !sys::is_root() {
        return Err("network namespaces are only root's to make: run it as root".to_owned());
    }
    let testbeds = [Testbed::new(base)?, Testbed::new(head)?];
    let wanted = |name: &String| options.only.is_empty() || options.only.contains(name);
    let wanted: Vec<_> = rows().into_iter().filter(|(name, ..)| wanted(name)).collect();
    let bar = progress::bar((wanted.len() * options.pairs) as u64);
    let mut report = Report::new(Machine::probe(), Vec::new());
    for (name, kind, v6) in wanted {
        let mut sides = [Series::default(), Series::default()];
        for pair in 0..options.pairs {
            // Each comes first equally often, so that disturbances of the machine favour neither.
            for turn in [pair % 2, 1 - pair % 2] {
                let measured = one(&testbeds[turn], kind, v6, options.time);
                sides[turn].take(measured.map_err(|error| format!("row {name}: {error}"))?);
            }
            bar.inc(1);
        }
        report.rows.push(row(name, kind, &sides));
    }
    bar.finish_and_clear();
    for testbed in testbeds {
        testbed.end()?;
    }
    Ok(report)
}

/// One measurement of the intended router. The kernel takes over from a Tollway that had no
/// processor for 30 ms; the measurement is then repeated.
fn one(
    testbed: &Testbed,
    kind: Kind,
    v6: bool,
    time: Duration,
) -> Result<traffic::Measured, String> {
    let to = Testbed::server_address(v6)?;
    let mut strays = 0;
    for _ in 0..ATTEMPTS {
        let before = testbed.kernel_forwarded()?;
        let measured = traffic::measure(&testbed.topology.a, &testbed.server, to, kind, time)?;
        strays = testbed.kernel_forwarded()? - before;
        // For a stream, a thousand packets are few.
        let all = if kind == Kind::TcpStream { 1e4 } else { measured.rate * time.as_secs_f64() };
        if testbed.is_the_kernels() || strays as f64 <= all * STRAYS + 20.0 {
            return Ok(measured);
        }
    }
    Err(format!(
        "{strays} packets were forwarded by the kernel and not by Tollway, {ATTEMPTS} times: leave the \
         machine to the bench"
    ))
}

/// Measurements of one router.
struct Series {
    rates: Vec<f64>,
    latency: Histogram<u64>,
    lost: u64,
}

impl Default for Series {
    fn default() -> Self {
        Self { rates: Vec::new(), latency: latencies(), lost: 0 }
    }
}

impl Series {
    fn take(&mut self, measured: traffic::Measured) {
        self.rates.push(measured.rate);
        self.lost += measured.lost;
        // Both have the same bounds.
        let _ = self.latency.add(&measured.latency);
    }

    fn side(&self) -> Side {
        let us = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1e3;
        Side {
            rate: Summary::of(&self.rates).unwrap_or_default(),
            latency_us: (!self.latency.is_empty()).then(|| [us(0.5), us(0.99), us(0.999)]),
            lost: self.lost,
        }
    }
}

fn row(name: String, kind: Kind, [base, head]: &[Series; 2]) -> Row {
    let (difference_percent, interval_percent) =
        paired_percent(&base.rates, &head.rates, CONFIDENCE);
    let verdict = match interval_percent {
        [low, _] if low > 0.0 => "more",
        [_, high] if high < 0.0 => "less",
        _ => "below accuracy",
    };
    let unit = if kind == Kind::TcpStream { "Mbit/s" } else { "transactions/s" };
    Row {
        name,
        unit,
        base: base.side(),
        head: head.side(),
        difference_percent: finite(difference_percent),
        interval_percent: interval_percent.map(finite),
        verdict,
    }
}

/// A number that JSON can represent; `None` for others.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_are_null() {
        let of = |rates: [&[f64]; 2]| {
            let sides = rates.map(|rates| Series { rates: rates.to_vec(), ..Series::default() });
            let row = row("row".to_owned(), Kind::TcpRr, &sides);
            let report = Report::new(Machine::probe(), vec![row]);
            (serde_json::to_value(&report.rows[0]).unwrap(), render(&report, ["base", "head"]))
        };
        let (json, text) = of([&[1.0], &[2.0]]);
        assert!((json["difference_percent"].as_f64().unwrap() - 100.0).abs() < 1e-9, "{json}");
        assert_eq!(json["interval_percent"], serde_json::json!([null, null]));
        assert!(text.contains("too few pairs"), "{text}");
        for rates in [[&[0.0, 0.0][..], &[2.0, 1.0]], [&[0.0, 1.0], &[0.0, 1.0]]] {
            let (json, text) = of(rates);
            assert!(json["difference_percent"].is_null(), "{json}");
            assert_eq!(json["verdict"], "below accuracy", "{json}");
            assert!(!text.contains("inf%") && !text.contains("NaN"), "{text}");
        }
    }

    #[test]
    fn rows_are_of_both_families() {
        let rows = rows();
        assert_eq!(rows.len(), 8);
        assert_eq!(rows[0].0, "tcp-rr-ip4");
        assert_eq!(rows[7].0, "tcp-stream-ip6");
    }

    #[test]
    fn unknown_names_are_refused() {
        let options = Options {
            only: vec!["tcp-rr".to_owned()],
            routers: ["kernel".to_owned(), "kernel".to_owned()],
            pairs: 1,
            time: Duration::from_millis(10),
        };
        assert!(run(&options).unwrap_err().contains("tcp-rr-ip4"));
        let options = Options {
            only: Vec::new(),
            routers: ["cisco".to_owned(), "kernel".to_owned()],
            ..options
        };
        assert!(run(&options).unwrap_err().contains("xdp"));
    }

    #[test]
    fn transactions_go_through_a_kernel_by_both_families() {
        if !sys::is_root() && std::env::var_os("CI").is_none() {
            eprintln!("left out: only root can make namespaces");
            return;
        }
        let options = Options {
            only: Vec::new(),
            routers: ["kernel".to_owned(), "kernel".to_owned()],
            pairs: 2,
            time: Duration::from_millis(150),
        };
        let mut rows = run(&options).unwrap().rows;
        assert_eq!(rows.len(), 8);
        let goes = |row: &Row| row.base.rate.min > 0.0 && row.head.rate.min > 0.0;
        for row in &mut rows {
            // A lost segment stops a stream for longer than this test measures.
            for _ in 0..5 {
                if goes(row) {
                    break;
                }
                let only = vec![row.name.clone()];
                *row = run(&Options { only, ..options.clone() }).unwrap().rows.remove(0);
            }
            assert!(goes(row), "{row:?}");
            assert_eq!(row.base.latency_us.is_none(), row.unit == "Mbit/s");
        }
    }
}
