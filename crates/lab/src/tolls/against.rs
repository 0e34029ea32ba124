//! The changes since a recorded run.
//!
//! A record comes from one process, and processes of one build differ by their memory addresses.
//! Rounds within a process do not show this, so a change is reported only if its interval lies
//! beyond [`FLOOR`].

use std::path::Path;

use serde::Serialize;

use super::Tolls;
use super::record::Record;
use crate::stats::{self, Sample};
use crate::verdict::Verdict;

/// Share of a row's time below which no change is reported.
pub const FLOOR: f64 = 0.05;

/// The confidence of displayed intervals, and the error level of a verdict for all rows together.
const SHOWN: f64 = 0.95;
const LEVEL: f64 = 0.01;

/// The change of every row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// The record's file.
    pub file: String,
    /// When it was recorded.
    pub recorded: String,
    /// The commit of its build.
    pub commit: String,
    /// The compiler of its build.
    pub compiler: String,
    /// Other differences: machine, kernel, instruction set, rows.
    pub notes: Vec<String>,
    /// The rows that both runs have.
    pub rows: Vec<Change>,
}

/// The change of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// Its median in the record, ns per packet.
    pub base_ns: f64,
    /// Its median in this run, ns per packet.
    pub head_ns: f64,
    /// This run's mean minus the record's.
    pub difference_ns: f64,
    /// The same as a percentage of the record's.
    pub difference_percent: f64,
    /// The 95% interval by Welch's t, as far as the rounds of both runs determine it.
    pub interval_ns: [f64; 2],
    /// The verdict.
    pub verdict: Verdict,
}

/// Compares a run with a record.
#[must_use]
pub fn compare(tolls: &Tolls, record: &Record, file: &Path) -> Against {
    let mut notes = Vec::new();
    let mut differs = |what: &str, then: &str, now: &str| {
        if then != now {
            notes.push(format!("{what} was {then} and is {now}"));
        }
    };
    let (then, now) = (&record.machine, &tolls.report.machine);
    differs("the processor", &then.cpu, &now.cpu);
    differs("the instruction set of the path", &then.level, &now.level);
    differs("the kernel", &then.kernel, &now.kernel);
    differs("the compiler", &record.compiler, tolls.report.compiler);
    let load = [record.load_average, tolls.report.figures.get(super::LOAD).copied()];
    notes.extend(busy(load, now.cpus));
    let rows = &tolls.report.rows;
    let is_new = |name: &str| record.rows.iter().all(|row| row.name != name);
    let new: Vec<_> = rows.iter().map(|row| row.row.name).filter(|name| is_new(name)).collect();
    if !new.is_empty() {
        notes.push(format!("not in the record: {}", new.join(", ")));
    }
    let both = rows.len() - new.len();
    let change = |row: &super::Row| {
        let then = record.rows.iter().find(|then| then.name == row.row.name)?;
        change(row.row.name, &then.rounds_ns, &row.rounds_ns, both)
    };
    Against {
        file: file.display().to_string(),
        recorded: record.recorded.clone(),
        commit: record.commit.clone(),
        compiler: record.compiler.clone(),
        notes,
        rows: rows.iter().filter_map(change).collect(),
    }
}

/// A warning if other programs used the caches in either run: rows with large tables then have less
/// of them, whatever the build.
fn busy(load: [Option<f64>; 2], cpus: usize) -> Option<String> {
    let [then, now] = load.map(|load| load.unwrap_or(0.0));
    // The bench itself may have run for a minute.
    let is_busy = then.max(now) > cpus.saturating_sub(1).max(1) as f64 + 0.5;
    is_busy.then(|| {
        format!(
            "other programs ran (the load was {then:.1} and is {now:.1}): rows with large tables share the \
             caches with them"
        )
    })
}

/// The change of one of `rows` rows; `None` for a single round, which determines nothing.
fn change(name: &str, then: &[f64], now: &[f64], rows: usize) -> Option<Change> {
    let [base, head] = [Sample::of(then)?, Sample::of(now)?];
    let interval = |confidence| match stats::welch(&base, &head, confidence) {
        Some(difference) => Some(difference.interval()),
        // All rounds are equal, so there is no uncertainty.
        None if base.deviation() == 0.0 && head.deviation() == 0.0 => {
            Some([head.mean() - base.mean(); 2])
        }
        None => None,
    };
    let strict = interval(1.0 - LEVEL / rows.max(1) as f64)?;
    let difference = head.mean() - base.mean();
    Some(Change {
        name: name.to_owned(),
        base_ns: base.median(),
        head_ns: head.median(),
        difference_ns: difference,
        difference_percent: 100.0 * difference / base.mean(),
        interval_ns: interval(SHOWN)?,
        verdict: Verdict::beyond(strict, FLOOR * base.median()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tolls::record;
    use crate::tolls::tests::{directory, made};

    #[test]
    fn a_record_shows_the_changes_since() {
        let directory = directory("against");
        let then = made(&[("ip4-one-flow", 10.0), ("ip4-vlan", 20.0), ("ip4-vrf", 30.0)]);
        let path = record::keep(&then, &directory).unwrap();
        let record = record::read(&path).unwrap();
        let now = made(&[
            ("ip4-one-flow", 10.2),
            ("ip4-vlan", 16.0),
            ("ip4-vrf", 36.0),
            ("ip6-vrf", 1.0),
        ]);
        let against = compare(&now, &record, &path);
        let verdicts: Vec<_> = against.rows.iter().map(|row| (&*row.name, row.verdict)).collect();
        assert_eq!(
            verdicts,
            [
                ("ip4-one-flow", Verdict::BelowAccuracy),
                ("ip4-vlan", Verdict::Faster),
                ("ip4-vrf", Verdict::Slower),
            ]
        );
        let vlan = &against.rows[1];
        assert!((vlan.difference_ns + 4.0).abs() < 1e-9, "{vlan:?}");
        assert!((vlan.difference_percent + 20.0).abs() < 1e-9, "{vlan:?}");
        let [low, high] = vlan.interval_ns;
        assert!(low < -4.0 && -4.0 < high && high - low < 0.2, "{vlan:?}");
        assert_eq!(against.notes, ["not in the record: ip6-vrf"]);
        let same = compare(&then, &record, &path);
        assert!(same.rows.iter().all(|row| row.difference_ns.abs() < 1e-9), "{same:?}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn another_machine_is_reported() {
        let directory = directory("machine");
        let tolls = made(&[("ip4-one-flow", 10.0)]);
        let path = record::keep(&tolls, &directory).unwrap();
        let mut record = record::read(&path).unwrap();
        record.machine.cpu = "Z80".to_owned();
        record.machine.kernel = "0.01".to_owned();
        let notes = compare(&tolls, &record, &path).notes;
        assert!(notes[0].starts_with("the processor was Z80 and is "), "{notes:?}");
        assert!(notes[1].starts_with("the kernel was 0.01 and is "), "{notes:?}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_busy_machine_is_reported() {
        assert_eq!(busy([Some(0.3), Some(1.2)], 2), None);
        assert_eq!(busy([None, None], 2), None);
        let note = busy([Some(15.0), Some(1.0)], 2).unwrap();
        assert!(note.contains("the load was 15.0 and is 1.0"), "{note}");
    }

    #[test]
    fn noise_is_no_change() {
        let noisy =
            |middle: f64| (0..21).map(|at| middle + f64::from(at % 7) * 4.0).collect::<Vec<_>>();
        let change = change("x", &noisy(20.0), &noisy(22.0), 1).unwrap();
        assert_eq!(change.verdict, Verdict::BelowAccuracy);
        assert!((change.difference_percent - 100.0 * 2.0 / 32.0).abs() < 0.5, "{change:?}");
    }
}
