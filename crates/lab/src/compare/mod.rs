//! Compares two builds: measures them in turn with pairs of processes, and evaluates them as a
//! careful reviewer does.

mod build;
mod changes;
mod child;
mod pairs;
mod settings;
mod side;
mod text;

use std::time::{Duration, Instant};

use serde::Serialize;

pub use crate::error::Error;
use crate::machine::{Machine, Moment};
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;
use crate::tolls;
pub use crate::verdict::{FLOOR, Judgement, Pair, Test, Verdict, evaluate, least_pairs};
use build::Repository;
pub use changes::{Change, Changes, Instructions};
pub use settings::Settings;
pub use side::Side;
pub use text::render;

/// The row that is measured by default.
const DEFAULT_ROW: &str = "ip4-one-flow";

/// Time for a pair of processes, if there is enough.
const PAIR: Duration = Duration::from_millis(1200);

/// The most pairs per row.
const MOST_PAIRS: usize = 60;

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Revisions or programs.
    pub specs: [String; 2],
    /// How to build revisions.
    pub settings: [Settings; 2],
    /// Rows of `lab tolls`; empty for the default one.
    pub rows: Vec<String>,
    /// An artificial delay for every packet on the head side, ns.
    pub inject_ns: f64,
    /// How long to measure.
    pub time: Duration,
    /// Whether to determine changes by function and instructions per packet.
    pub changes: bool,
}

/// How rows are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// With `lab probe`, in turns of a millisecond.
    Probe,
    /// With whole runs of `lab tolls` in turn, since one of the builds has no probe.
    Tolls,
}

/// A whole comparison. As JSON it is one object in the common form of reports, which repeats the
/// deciding row at its top.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Machine, compiler and commit of the comparing program, and the rows.
    #[serde(flatten)]
    pub report: Report<Row>,
    /// The base side.
    pub base: Side,
    /// The head side, which is compared with the base.
    pub head: Side,
    /// How the rows were measured.
    pub method: Method,
    /// Duration of the measurement in seconds.
    pub seconds: f64,
    /// Whether the repository has uncommitted changes, which this comparison does not cover.
    pub uncommitted: bool,
    /// The deciding row: among the rows that differ, the one furthest beyond its accuracy; else the
    /// first row.
    pub row: String,
    /// The judgement on that row.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// One row of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The base side.
    pub base: Figures,
    /// The head side.
    pub head: Figures,
    /// The judgement on this row.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// The additional time of the head side, ns per packet, pair by pair.
    pub differences_ns: Vec<f64>,
    /// Instructions, and changes by function.
    #[serde(flatten)]
    pub changes: Changes,
}

/// The measurements of one side's processes.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Nanoseconds per packet.
    pub ns_per_packet: Summary,
    /// Packets per second, from the median.
    pub pps: f64,
    /// The figure of each process, ns per packet.
    pub processes_ns: Vec<f64>,
}

impl Figures {
    fn of(processes: Vec<f64>) -> Option<Self> {
        let ns_per_packet = Summary::of(&processes)?;
        Some(Self { ns_per_packet, pps: 1e9 / ns_per_packet.median, processes_ns: processes })
    }
}

/// Builds what is necessary, measures and evaluates.
///
/// # Errors
/// What is wrong and how to mend it.
pub fn run(options: &Options) -> Result<Comparison, Error> {
    let rows = rows(&options.rows)?;
    let (sides, uncommitted) = prepare(options)?;
    let method = method(&sides, &rows)?;
    let (start, moment) = (Instant::now(), Moment::now());
    let pairs = measure(&sides, &rows, method, options.time).map_err(broken)?;
    let seconds = start.elapsed().as_secs_f64();
    let mut machine = Machine::probe();
    machine.tsc_mhz = moment.tsc_mhz();
    let ns = machine.ns_per_clock();
    let evaluated: Option<Vec<Row>> = rows
        .iter()
        .zip(pairs)
        .map(|(row, pairs)| evaluate_row(row, &pairs, ns, rows.len()))
        .collect();
    let mut evaluated = evaluated.ok_or_else(|| {
        Error::failed(
            format!("{seconds:.0} seconds are too short for three pairs of each row"),
            "Give more --seconds, or try again when the machine is quieter",
        )
    })?;
    if options.changes {
        explain(&sides, &mut evaluated, method);
    }
    let (row, judgement) =
        deciding(&evaluated).ok_or_else(|| broken("no row was measured".into()))?;
    let [base, head] = sides;
    let report = Report::new(machine, evaluated);
    Ok(Comparison { report, base, head, method, seconds, uncommitted, row, judgement })
}

fn broken(what: String) -> Error {
    Error::failed(what, "To see why, run `lab tolls` with the same program")
}

/// The requested rows, without duplicates.
fn rows(requested: &[String]) -> Result<Vec<String>, Error> {
    let mut rows = Vec::new();
    for row in requested {
        if !rows.contains(row) {
            rows.push(row.clone());
        }
    }
    if rows.is_empty() {
        rows.push(DEFAULT_ROW.to_owned());
    }
    let plain = |row: &String| !row.starts_with('-') && !row.is_empty();
    match rows.iter().find(|row| !plain(row)) {
        Some(row) => Err(Error::usage(format!("no row is called {row:?}"), tolls_remedy())),
        None => Ok(rows),
    }
}

fn tolls_remedy() -> String {
    let names: Vec<_> = tolls::ROWS.iter().map(|row| row.name).collect();
    format!("This build's rows are {}", names.join(", "))
}

/// The programs of both sides, and whether there are changes that neither contains.
///
/// # Errors
/// What is wrong and how to mend it.
pub fn prepare(options: &Options) -> Result<([Side; 2], bool), Error> {
    let repository = Repository::here();
    let side = |at: usize| {
        Side::find(&options.specs[at], options.settings[at].clone(), repository.as_ref())
    };
    // Both revisions are resolved before either is built, since a branch may move meanwhile.
    let mut sides = [side(0)?, side(1)?];
    sides[1].inject_ns = options.inject_ns;
    let revisions = sides.iter().any(|side| side.commit.is_some());
    let Some(repository) = repository.filter(|_| revisions) else { return Ok((sides, false)) };
    for side in &mut sides {
        side.build(&repository)?;
    }
    Ok((sides, repository.is_dirty()))
}

/// The measuring method that both sides support.
fn method(sides: &[Side; 2], rows: &[String]) -> Result<Method, Error> {
    let wrong = |reason: String| Error::usage(reason, tolls_remedy());
    for row in rows {
        for side in sides {
            if child::has_probe(side, row).map_err(wrong)? {
                continue;
            }
            if sides[1].inject_ns > 0.0 {
                return Err(Error::usage(
                    format!("{} has no probe, so it cannot inject a delay", side.name()),
                    "Leave --inject-ns out, or name a later revision",
                ));
            }
            child::tolls(side, row).map_err(wrong)?;
            return Ok(Method::Tolls);
        }
    }
    Ok(Method::Probe)
}

/// Measures pairs of every row in turn, in TSC clocks per packet, for the given time. On a busy
/// machine it takes up to twice that time for the pairs that a verdict needs.
fn measure(
    sides: &[Side; 2],
    rows: &[String],
    method: Method,
    time: Duration,
) -> Result<Vec<Vec<Pair>>, String> {
    let (start, least) = (Instant::now(), least_pairs(rows.len()));
    let each = pairs::share(time, rows.len());
    let rounds = (each.as_millis() / PAIR.as_millis()) as usize;
    let rounds = match method {
        Method::Probe => rounds.clamp(least, MOST_PAIRS.max(least)),
        Method::Tolls => MOST_PAIRS.max(least),
    };
    let bar = progress::bar((rounds * rows.len()) as u64);
    let mut measured = vec![Vec::new(); rows.len()];
    for round in 0..rounds {
        let spent = start.elapsed();
        if spent >= 2 * time || (spent >= time && round >= least) {
            break;
        }
        for (at, row) in rows.iter().enumerate() {
            let left = (rounds - round) * rows.len() - at;
            let until = Instant::now() + pairs::share(time.saturating_sub(start.elapsed()), left);
            let swapped = round % 2 == 1;
            measured[at].push(match method {
                Method::Probe => pairs::by_probes(sides, row, swapped, until)?,
                Method::Tolls => pairs::by_tolls(sides, row, swapped)?,
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(measured)
}

fn evaluate_row(name: &str, pairs: &[Pair], ns_per_clock: f64, rows: usize) -> Option<Row> {
    let pairs: Vec<_> = pairs.iter().map(|pair| pair.scaled(ns_per_clock)).collect();
    Some(Row {
        name: name.to_owned(),
        base: Figures::of(pairs.iter().map(|pair| pair.base).collect())?,
        head: Figures::of(pairs.iter().map(|pair| pair.head).collect())?,
        judgement: evaluate(&pairs, rows)?,
        differences_ns: pairs.iter().map(|pair| pair.difference).collect(),
        changes: Changes::default(),
    })
}

/// Determines the changes by function in every row.
fn explain(sides: &[Side; 2], rows: &mut [Row], method: Method) {
    let bar = progress::bar(rows.len() as u64).with_message("changes by function");
    for row in rows {
        row.changes = match method {
            Method::Probe => {
                let ns = [&row.base, &row.head].map(|side| side.ns_per_packet.median);
                changes::find(sides, &row.name, ns)
            }
            Method::Tolls => Changes {
                notes: vec!["a side has no `lab probe`, so no function is reported".to_owned()],
                ..Changes::default()
            },
        };
        bar.inc(1);
    }
    bar.finish_and_clear();
}

/// The deciding row.
fn deciding(rows: &[Row]) -> Option<(String, Judgement)> {
    // Any row that differs has enough pairs for a smallest detectable difference.
    let beyond = |row: &&Row| {
        let least = row.judgement.smallest_detectable_ns.unwrap_or(f64::INFINITY);
        row.judgement.difference_ns.abs() / least
    };
    let different = rows.iter().filter(|row| row.judgement.verdict != Verdict::BelowAccuracy);
    let most = different.max_by(|a, b| beyond(a).total_cmp(&beyond(b)));
    most.or(rows.first()).map(|row| (row.name.clone(), row.judgement.clone()))
}
