//! Studies: published measurements of packet paths, repeated as experiments that anyone can run.
//!
//! Each study does one thing in several ways, in turn within one process, and checks that all ways
//! produce the same from the same packets. Each of several processes is one observation.

mod call_split;
mod experiment;
mod measure;
mod metadata;
mod page;
mod picture;
mod receive_burst;
mod report;
mod small_path;
mod text;
mod vlan_queue;
mod vrf_lookup;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::child;
use crate::machine::{Machine, Moment};
use crate::progress;
use crate::report::Report;
use experiment::{Child, Experiment};
pub use report::{Contrast, Outcome, Row};
pub use text::render;

/// A study.
pub struct Study {
    /// Its name.
    pub name: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// Whether its picture shows differences.
    by_difference: bool,
    /// Makes the plan: what to measure, and with which experiments.
    plan: fn(&Study, &Options) -> Result<Plan, String>,
    /// Opens the experiment in this process.
    open: fn(Size) -> Result<Box<dyn Experiment>, String>,
    /// An additional measurement after the rows, only with a program.
    extra: Option<ExtraMeasurement>,
}

/// Measures something besides the rows.
type ExtraMeasurement = fn(&Options) -> Result<ExtraResults, String>;

/// The results of an additional measurement.
#[derive(Debug, Default)]
struct ExtraResults {
    figures: BTreeMap<String, f64>,
    notes: Vec<String>,
}

/// Every study.
pub const STUDIES: &[Study] = &[
    call_split::STUDY,
    receive_burst::STUDY,
    metadata::STUDY,
    vlan_queue::STUDY,
    vrf_lookup::STUDY,
];

/// How to run a study.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program whose `lab study --serve` measures, with a new process for each observation.
    /// `None` to measure everything in this process.
    pub program: Option<PathBuf>,
    /// Number of processes, at least three.
    pub processes: usize,
    /// How long to measure.
    pub time: Duration,
    /// How much to measure at once.
    pub size: Size,
}

/// How much is measured at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The size for figures.
    Full,
    /// A little of everything, to check that it runs.
    Brief,
}

/// Opens the experiments that measure one observation together.
type Experiments = Box<dyn FnMut(usize) -> Result<Vec<Box<dyn Experiment>>, String>>;

/// What to measure, and with which experiments.
struct Plan {
    specs: Vec<Spec>,
    notes: Vec<String>,
    experiments: Experiments,
}

/// One way to do it.
#[derive(Clone, Debug)]
struct Spec {
    name: String,
    group: String,
    title: String,
    base: Option<String>,
    published: Option<String>,
}

impl Spec {
    fn new(group: impl Into<String>, name: impl Into<String>, title: impl Into<String>) -> Self {
        let (name, group, title) = (name.into(), group.into(), title.into());
        Self { name, group, title, base: None, published: None }
    }

    /// Compares the row with another.
    fn against(mut self, base: impl Into<String>, published: Option<&str>) -> Self {
        self.base = Some(base.into());
        self.published = published.map(str::to_owned);
        self
    }

    /// Adds the published figure.
    fn published(mut self, figure: &str) -> Self {
        self.published = Some(figure.to_owned());
        self
    }
}

/// The study of a name.
///
/// # Errors
/// A message, if the name is not in [`STUDIES`].
pub fn study(name: &str) -> Result<&'static Study, String> {
    STUDIES.iter().find(|study| study.name == name).ok_or_else(|| {
        let names: Vec<_> = STUDIES.iter().map(|study| study.name).collect();
        format!("no study is called {name}; the studies are {}", names.join(", "))
    })
}

/// Runs a study.
///
/// # Errors
/// A message, if it fails, or ways to do the same differ in their results.
pub fn run(study: &Study, options: &Options) -> Result<Outcome, String> {
    let (start, moment) = (Instant::now(), Moment::now());
    let mut plan = (study.plan)(study, options)?;
    let extra = study.extra.filter(|_| options.program.is_some());
    // An additional measurement gets the other half of the time.
    let time = if extra.is_some() { options.time / 2 } else { options.time };
    let count = options.processes.max(3);
    let bar = progress::bar(count as u64);
    let all = measure::processes(&mut plan, count, time, || bar.inc(1));
    bar.finish_and_clear();
    let all = all?;
    let extra = extra.map_or(Ok(ExtraResults::default()), |extra| extra(options))?;
    let mut machine = Machine::probe();
    machine.tsc_mhz = moment.tsc_mhz();
    let mut report = Report::new(machine, measure::rows(&plan.specs, &all)?);
    report.figures = measure::counts(&all);
    report.figures.extend(extra.figures);
    plan.notes.extend(extra.notes);
    Ok(Outcome {
        study: study.name,
        question: study.question,
        processes: count,
        seconds: start.elapsed().as_secs_f64(),
        notes: plan.notes,
        report,
        by_difference: study.by_difference,
    })
}

/// Measures a slice of a study for every line of `input`, and writes it to `output`. [`run`] starts
/// this.
///
/// # Errors
/// A message, if that fails.
pub fn serve(study: &Study, input: impl BufRead, output: impl Write) -> Result<(), String> {
    let mut experiment = (study.open)(Size::Full)?;
    child::serve(input, output, |_| experiment.slice())
}

/// Writes a study's picture as SVG.
///
/// # Errors
/// A message, if the file cannot be written.
pub fn write_svg(of: &Outcome, path: &Path) -> Result<(), String> {
    write(path, &picture::draw(of))
}

/// Writes a study's text and picture as one HTML page.
///
/// # Errors
/// A message, if the file cannot be written.
pub fn write_html(of: &Outcome, path: &Path) -> Result<(), String> {
    write(path, &page::page(of))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// A single experiment: a process of the program, or this process if there is no program.
fn alone(study: &Study, options: &Options) -> Experiments {
    let (name, open, size) = (study.name, study.open, options.size);
    let program = options.program.clone();
    Box::new(move |_| {
        let Some(program) = &program else { return Ok(vec![open(size)?]) };
        let mut command = Command::new(program);
        command.args(["lab", "study", name, "--serve"]);
        Ok(vec![Box::new(Child::start(command, format!("the process of {name}"))?)])
    })
}

#[cfg(test)]
mod tests;
