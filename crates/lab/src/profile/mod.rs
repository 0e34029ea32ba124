//! Profiles a row of `lab tolls`: samples show the time of each function, in a table and in pictures.

mod calls;
mod flame;
mod sampler;
pub(crate) mod stacks;
pub(crate) mod symbols;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::bench::Bench;
use crate::machine::Machine;
use crate::progress;
use crate::report::Report;
use crate::text::{align, heading, plain_table, trimmed};
use crate::tolls;
pub use stacks::Function;
use stacks::Stacks;

/// Samples per second: neither divisor nor multiple of other periodic work.
const RATE: u32 = 1999;

/// Passes between two readings of the clock.
const PASSES: usize = 64;

/// The most functions in the text.
const SHOWN: usize = 25;

/// Shares of own and of total time, %, below which the text omits a function.
const LEAST_SHOWN: f64 = 0.1;

/// What to profile.
#[derive(Clone, Debug)]
pub struct Options {
    /// A row of `lab tolls`.
    pub scenario: String,
    /// How long to sample.
    pub time: Duration,
    /// An artificial delay for every packet, ns.
    pub inject_ns: f64,
    /// The directory for pictures; `None` for no pictures.
    pub pictures: Option<PathBuf>,
}

/// A whole profile. As JSON it is one object in the common form of reports, whose rows are
/// functions.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// Machine, compiler, commit, and the functions, most own time first.
    #[serde(flatten)]
    pub report: Report<Function>,
    /// The row that ran.
    pub scenario: String,
    /// Number of samples of forwarding.
    pub samples: u64,
    /// Samples per second of the thread's running time.
    pub rate_hz: u32,
    /// Time per packet, ns.
    pub ns_per_packet: f64,
    /// Whole stacks, the outermost function first, separated by `;`, and the number of samples of
    /// each.
    pub stacks: Vec<(String, u64)>,
    /// The pictures: flame graph, call graph, and the call graph as DOT.
    pub pictures: Vec<PathBuf>,
}

/// Why there is no profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no such row.
    Scenario(String),
    /// Another failure, as a message.
    Failed(String),
}

/// Samples a row.
///
/// # Errors
/// The row does not exist, memory is short, the system has no timer, or a picture cannot be
/// written.
pub fn run(options: &Options) -> Result<Profile, Error> {
    let scenario = tolls::scenario(&options.scenario).map_err(Error::Scenario)?;
    if let Some(directory) = &options.pictures {
        fs::create_dir_all(directory).map_err(|error| {
            Error::Failed(format!("cannot create {}: {error}", directory.display()))
        })?;
    }
    let mut bench = scenario.bench().map_err(Error::Failed)?;
    let machine = Machine::probe();
    bench.inject(options.inject_ns / machine.ns_per_clock());
    bench.clocks_per_packet(PASSES);
    let (stacks, clocks) = sample(&mut bench, options.time)?;
    let ns = clocks * machine.ns_per_clock();
    let mut profile = Profile {
        report: Report::new(machine, stacks::functions(&stacks, ns)),
        scenario: options.scenario.clone(),
        samples: stacks.values().sum(),
        rate_hz: RATE,
        ns_per_packet: ns,
        stacks: stacks.iter().map(|(stack, count)| (line(stack), *count)).collect(),
        pictures: Vec::new(),
    };
    if let Some(directory) = &options.pictures {
        profile.pictures = draw(&stacks, &profile, directory).map_err(Error::Failed)?;
    }
    Ok(profile)
}

/// Samples a bench for `time`. Returns the stacks, and the clocks per packet measured meanwhile.
fn sample(bench: &mut Bench, time: Duration) -> Result<(Stacks, f64), Error> {
    let failed = |error| Error::Failed(format!("the system has no timer for samples: {error}"));
    let sampler = sampler::Sampler::begin(RATE).map_err(failed)?;
    let bar = progress::bar(time.as_millis() as u64).with_message("sampling");
    let (start, mut clocks) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        for _ in 0..8 {
            bench.watch(PASSES, |on| {
                if on { sampler::start_recording() } else { sampler::stop_recording() }
            });
        }
        clocks.push(bench.clocks_per_packet(PASSES));
        bar.set_position(start.elapsed().as_millis() as u64);
    }
    bar.finish_and_clear();
    let samples = sampler.end();
    let clocks = crate::stats::Summary::of(&clocks).map_or(f64::NAN, |clocks| clocks.median);
    Ok((stacks::named(&samples), clocks))
}

fn line(stack: &[symbols::Frame]) -> String {
    stack.iter().map(|frame| &*frame.function).collect::<Vec<_>>().join(";")
}

/// Writes the pictures into a directory.
fn draw(stacks: &Stacks, profile: &Profile, directory: &Path) -> Result<Vec<PathBuf>, String> {
    let caption = format!(
        "{}: {:.2} ns a packet, {} samples ({})",
        profile.scenario, profile.ns_per_packet, profile.samples, profile.report.machine.cpu
    );
    let graph = calls::graph(stacks);
    let files = [
        ("flame.svg", flame::draw(stacks, &caption)),
        ("calls.svg", calls::draw(&graph, &caption)),
        ("calls.dot", calls::dot(&graph, &caption)),
    ];
    let mut written = Vec::new();
    for (kind, text) in files {
        let path = directory.join(format!("profile-{}-{kind}", profile.scenario));
        fs::write(&path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

/// The profile as text.
#[must_use]
pub fn render(profile: &Profile) -> String {
    let mut text = heading(&profile.report);
    text += &format!(
        "{}: {:.2} ns a packet, {} samples of forwarding\n\n",
        profile.scenario, profile.ns_per_packet, profile.samples
    );
    let mut table = plain_table(&["self %", "95%", "ns", "total %", "", "function"]);
    let all = &profile.report.rows;
    let is_shown = |of: &&Function| of.self_percent >= LEAST_SHOWN || of.total_percent >= 1.0;
    let shown: Vec<_> = all.iter().filter(is_shown).take(SHOWN).collect();
    for of in &shown {
        let [low, high] = of.self_interval_percent;
        table.add_row([
            format!("{:.1}", of.self_percent),
            format!("{low:.1} to {high:.1}"),
            format!("{:.2}", of.self_ns),
            format!("{:.1}", of.total_percent),
            if of.inlined { "inlined".to_owned() } else { String::new() },
            of.name.clone(),
        ]);
    }
    align(&mut table, 0..=3);
    text += &trimmed(&table);
    text += "\n";
    if shown.len() < all.len() {
        text += &format!("and {} functions with less\n", all.len() - shown.len());
    }
    if all.iter().all(|of| !of.inlined) {
        text += "no inlined function has a name here: this build has no debug information\n";
    }
    for path in &profile.pictures {
        text += &format!("wrote {}\n", path.display());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(scenario: &str) -> Options {
        Options {
            scenario: scenario.to_owned(),
            time: Duration::from_millis(600),
            inject_ns: 0.0,
            pictures: None,
        }
    }

    #[test]
    fn a_row_is_sampled_where_it_forwards() {
        let profile = run(&options("ip4-one-flow")).unwrap();
        assert!(profile.samples >= 30, "{} samples", profile.samples);
        // A sample or two may come from before or after.
        let is_rooted = |stack: &str| stack.starts_with("tollway_lab::bench::");
        let rooted: u64 = profile
            .stacks
            .iter()
            .filter(|(stack, _)| is_rooted(stack))
            .map(|(_, count)| count)
            .sum();
        assert!(rooted * 10 > profile.samples * 9, "{:?}", profile.stacks);
        let own: f64 = profile.report.rows.iter().map(|of| of.self_percent).sum();
        assert!((own - 100.0).abs() < 1e-6, "{own}");
        let text = render(&profile);
        let names = |part: &str| profile.report.rows.iter().any(|of| of.name.contains(part));
        assert!(names("tollway_dataplane::"), "{text}");
        assert!(text.contains("samples of forwarding"), "{text}");
    }

    #[test]
    fn an_injected_delay_takes_most_of_the_time() {
        let profile = run(&Options { inject_ns: 2000.0, ..options("ip4-one-flow") }).unwrap();
        let waste = profile.report.rows.iter().find(|of| of.name.ends_with("::waste"));
        assert!(waste.is_some_and(|of| of.total_percent > 50.0), "{waste:?}");
    }

    #[test]
    fn pictures_are_written_where_they_are_to_go() {
        let directory =
            std::env::temp_dir().join(format!("tollway-profile-{}", std::process::id()));
        let pictures = Some(directory.join("below"));
        let profile = run(&Options { pictures, ..options("floor") }).unwrap();
        let names: Vec<_> = profile.pictures.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(
            names,
            ["profile-floor-flame.svg", "profile-floor-calls.svg", "profile-floor-calls.dot"]
        );
        let text = fs::read_to_string(&profile.pictures[0]).unwrap();
        assert!(text.contains("touch") && text.ends_with("</svg>\n"), "{text}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn unknown_rows_are_refused() {
        let error = run(&options("nonsense")).unwrap_err();
        assert!(
            matches!(&error, Error::Scenario(message) if message.contains("nonsense")),
            "{error:?}"
        );
    }
}
