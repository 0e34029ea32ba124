//! Studies: published measurements of packet paths, made anew as experiments that anyone can run.
//!
//! Each does one thing in several ways, in one process, in turn, and sees to it that all ways make the same
//! of the same packets. Several processes are so many observations.

mod call_split;
mod experiment;
mod measure;
mod metadata;
mod page;
mod picture;
mod receive_burst;
mod report;
mod road;
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
use crate::report::Report;
use crate::tolls::progress;
use experiment::{Child, Experiment};
pub use report::{Contrast, Outcome, Row};
pub use text::render;

/// A study.
pub struct Study {
    /// Its name.
    pub name: &'static str,
    /// What it asks.
    pub question: &'static str,
    /// Whether its picture is of differences.
    by_difference: bool,
    /// What it measures, and by whom.
    plan: fn(&Study, &Options) -> Result<Plan, String>,
    /// What measures, in this process.
    open: fn(Size) -> Result<Box<dyn Experiment>, String>,
    /// What else there is to measure, by the program alone, after the rows.
    further: Option<Beside>,
}

/// Measures what there is beside the rows.
type Beside = fn(&Options) -> Result<Further, String>;

/// What is measured beside the rows.
#[derive(Debug, Default)]
struct Further {
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

/// How a study is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program whose `lab study --serve` measures, a new process for each observation; all is measured
    /// in this process where there is none.
    pub program: Option<PathBuf>,
    /// How many processes, three at least.
    pub processes: usize,
    /// How long it measures.
    pub time: Duration,
    /// How much it measures at once.
    pub size: Size,
}

/// How much is measured at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// What figures are told by.
    Full,
    /// A little of everything: to see that it runs.
    Brief,
}

/// Those who measure at once, in one observation.
type Crew = Box<dyn FnMut(usize) -> Result<Vec<Box<dyn Experiment>>, String>>;

/// What is to be measured, and by whom.
struct Plan {
    specs: Vec<Spec>,
    notes: Vec<String>,
    crew: Crew,
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

    /// Compared with another.
    fn against(mut self, base: impl Into<String>, published: Option<&str>) -> Self {
        self.base = Some(base.into());
        self.published = published.map(str::to_owned);
        self
    }

    /// With what was published of it.
    fn published(mut self, told: &str) -> Self {
        self.published = Some(told.to_owned());
        self
    }
}

/// The study of a name.
///
/// # Errors
/// A sentence, where a name is none of [`STUDIES`].
pub fn study(name: &str) -> Result<&'static Study, String> {
    STUDIES.iter().find(|study| study.name == name).ok_or_else(|| {
        let names: Vec<_> = STUDIES.iter().map(|study| study.name).collect();
        format!("no study is called {name}; the studies are {}", names.join(", "))
    })
}

/// Makes a study.
///
/// # Errors
/// A sentence, where it can not be made, or ways to do the same do not.
pub fn run(study: &Study, options: &Options) -> Result<Outcome, String> {
    let (start, moment) = (Instant::now(), Moment::now());
    let mut plan = (study.plan)(study, options)?;
    let further = study.further.filter(|_| options.program.is_some());
    // What else there is has the other half of the time.
    let time = if further.is_some() { options.time / 2 } else { options.time };
    let count = options.processes.max(3);
    let bar = progress(count as u64);
    let all = measure::processes(&mut plan, count, time, || bar.inc(1));
    bar.finish_and_clear();
    let all = all?;
    let further = further.map_or(Ok(Further::default()), |further| further(options))?;
    let mut machine = Machine::probe();
    machine.tsc_mhz = moment.tsc_mhz();
    let mut report = Report::new(machine, measure::rows(&plan.specs, &all)?);
    report.figures = measure::counts(&all);
    report.figures.extend(further.figures);
    plan.notes.extend(further.notes);
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

/// Measures a slice of a study for every line of `input`, and writes it to `output`: what [`run`] starts.
///
/// # Errors
/// A sentence, where that fails.
pub fn serve(study: &Study, input: impl BufRead, output: impl Write) -> Result<(), String> {
    let mut experiment = (study.open)(Size::Full)?;
    child::serve(input, output, |_| experiment.slice())
}

/// Writes the picture of a study as SVG.
///
/// # Errors
/// A sentence, where the file can not be written.
pub fn write_svg(of: &Outcome, path: &Path) -> Result<(), String> {
    write(path, &picture::draw(of))
}

/// Writes text and picture of a study as one page of HTML.
///
/// # Errors
/// A sentence, where the file can not be written.
pub fn write_html(of: &Outcome, path: &Path) -> Result<(), String> {
    write(path, &page::page(of))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// One process of the program, or none of its own where there is no program.
fn alone(study: &Study, options: &Options) -> Crew {
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
