//! The processes that measure: `lab probe`, which keeps running, and `lab tolls` and `lab profile`,
//! which end.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::side::Side;
use crate::child::{Child, first_line};
use crate::probe::Slice;
use crate::profile::Function;

/// How long a slice of a millisecond may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that measures one slice after another. Dropping this ends it.
pub(super) struct Probe(Child);

impl Probe {
    /// Starts the probe of a side.
    ///
    /// # Errors
    /// A message, if the process cannot be started.
    pub(super) fn start(side: &Side, row: &str) -> Result<Self, String> {
        let mut command = Command::new(&side.program);
        command.args(["lab", "probe", row]);
        if side.inject_ns > 0.0 {
            command.arg("--inject-ns").arg(side.inject_ns.to_string());
        }
        Child::start(command, format!("the probe of {}", side.name())).map(Self)
    }

    /// Measures a slice: TSC clocks per packet.
    ///
    /// # Errors
    /// A message, if no figure arrives.
    pub(super) fn slice(&mut self) -> Result<f64, String> {
        self.0.request(PATIENCE).map(|slice: Slice| slice.clocks_per_packet)
    }
}

/// Whether a side's program has a probe. If it has one but no such row, the error is the program's
/// own message, by which alone the two cases differ: the program may be any build.
pub(super) fn has_probe(side: &Side, row: &str) -> Result<bool, String> {
    let mut probe = Probe::start(side, row)?;
    match probe.slice() {
        Ok(_) => Ok(true),
        Err(reason) if reason.contains("no row is called") => Err(reason),
        Err(_) => Ok(false),
    }
}

/// The part of a `lab tolls` report that is needed here.
#[derive(Deserialize)]
struct Report {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    clocks_per_packet: Clocks,
}

#[derive(Deserialize)]
struct Clocks {
    median: f64,
}

/// Measures a row by a whole run of `lab tolls`: TSC clocks per packet.
///
/// # Errors
/// A message, if the program has no such bench or no such row.
pub(super) fn tolls(side: &Side, row: &str) -> Result<f64, String> {
    let mut command = Command::new(&side.program);
    command.args(["lab", "tolls", "--json", "--only", row]).stdin(Stdio::null());
    let done = command
        .output()
        .map_err(|error| format!("cannot start {}: {error}", side.program.display()))?;
    let wrong =
        |reason: &str| format!("`lab tolls --only {row}` of {} fails: {reason}", side.name());
    if !done.status.success() {
        return Err(wrong(first_line(&String::from_utf8_lossy(&done.stderr))));
    }
    let report: Report =
        serde_json::from_slice(&done.stdout).map_err(|error| wrong(&error.to_string()))?;
    let row = report.rows.into_iter().find(|measured| measured.name == row);
    row.map(|row| row.clocks_per_packet.median).ok_or_else(|| wrong("the row is not in its report"))
}

/// The samples of `lab profile`.
#[derive(Deserialize)]
struct Profile {
    rows: Vec<Function>,
    samples: u64,
}

/// Samples a side's program for a second. Returns its functions and the number of samples.
///
/// # Errors
/// A message, if the program has no such bench or fails.
pub(super) fn profile(side: &Side, row: &str) -> Result<(Vec<Function>, u64), String> {
    let mut command = Command::new(&side.program);
    command.args(["lab", "profile", row, "--json", "--no-pictures", "--seconds", "1"]);
    if side.inject_ns > 0.0 {
        command.arg("--inject-ns").arg(side.inject_ns.to_string());
    }
    let wrong = |reason: &str| format!("{} was not profiled: {reason}", side.name());
    let done = command.stdin(Stdio::null()).output().map_err(|error| wrong(&error.to_string()))?;
    if !done.status.success() {
        return Err(wrong(first_line(&String::from_utf8_lossy(&done.stderr))));
    }
    let profile: Profile =
        serde_json::from_slice(&done.stdout).map_err(|error| wrong(&error.to_string()))?;
    Ok((profile.rows, profile.samples))
}
