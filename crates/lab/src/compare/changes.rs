//! Changes by function: time from samples, and counted instructions.

use std::collections::BTreeMap;

use serde::Serialize;

use super::child;
use super::side::Side;
use crate::callgrind::{self, Count};
use crate::profile::Function;

/// Standard deviations around the mean that contain 95% of a normal distribution.
const Z: f64 = 1.96;

/// The changes within a row, as far as they can be determined.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Changes {
    /// Instructions per packet; `None` if they cannot be counted.
    pub instructions_per_packet: Option<Instructions>,
    /// Every function of either side, largest change first.
    pub functions: Vec<Change>,
    /// What is not known, and why.
    pub notes: Vec<String>,
}

/// Instructions per packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instructions {
    /// On the base side.
    pub base: f64,
    /// On the head side.
    pub head: f64,
    /// `head` minus `base`.
    pub difference: f64,
    /// The tool that counted them.
    pub counter: &'static str,
    /// The instruction sets of the counted paths, `[base, head]`.
    pub levels: [String; 2],
}

/// A function on both sides. Figures are zero on a side that lacks it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Change {
    /// The function's path.
    pub name: String,
    /// Whether it was inlined everywhere.
    pub inlined: bool,
    /// Time per packet in the function itself on the base side, ns, from samples.
    pub base_ns: f64,
    /// The same on the head side.
    pub head_ns: f64,
    /// `head_ns` minus `base_ns`.
    pub difference_ns: f64,
    /// The 95% interval of the difference, as far as the number of samples determines it.
    pub interval_ns: [f64; 2],
    /// Instructions per packet in the function itself on the base side; `None` if not counted.
    pub base_instructions: Option<f64>,
    /// The same on the head side.
    pub head_instructions: Option<f64>,
    /// `head_instructions` minus `base_instructions`.
    pub difference_instructions: Option<f64>,
}

impl Change {
    /// Whether the function changed beyond accuracy, and by enough to report. By chance, five of a
    /// hundred functions lie outside their 95% intervals, so times must exceed 3.5 deviations.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        let [low, high] = self.interval_ns;
        let margin = (high - low) / 2.0 * (3.5 / Z);
        let counted = self.difference_instructions.is_some_and(|count| count.abs() >= 0.05);
        counted || (self.difference_ns.abs() >= 0.1 && self.difference_ns.abs() > margin)
    }

    /// A sort key for the size of the change. Instructions count before times, since they are more
    /// reliable.
    fn weight(&self) -> f64 {
        let counted = self.difference_instructions.map_or(0.0, |count| 1e6 * count.abs());
        counted + self.difference_ns.abs()
    }
}

/// Finds the changes of a row. `ns` is the time per packet of each side.
pub(super) fn find(sides: &[Side; 2], row: &str, ns: [f64; 2]) -> Changes {
    let mut changes = Changes::default();
    let counts = counts(sides, row, &mut changes.notes);
    if let Some([base, head]) = &counts {
        changes.instructions_per_packet = Some(Instructions {
            base: base.per_packet,
            head: head.per_packet,
            difference: head.per_packet - base.per_packet,
            counter: "callgrind",
            levels: [base.level.clone(), head.level.clone()],
        });
    }
    let profiles = profiles(sides, row, &mut changes.notes);
    changes.functions = merge(profiles.as_ref(), counts.as_ref(), ns);
    changes
}

/// Counts the instructions of both sides. If that fails, notes why and returns `None`.
fn counts(sides: &[Side; 2], row: &str, notes: &mut Vec<String>) -> Option<[Count; 2]> {
    // Both run at the same time, because other load does not change a count.
    let [base, head] = std::thread::scope(|scope| {
        let count = |side: usize| callgrind::count(&sides[side].program, row);
        let other = scope.spawn(move || count(1));
        let base = count(0);
        let panicked = |_| Err("the thread that counts them panicked".to_owned());
        [base, other.join().unwrap_or_else(panicked)]
    });
    match (base, head) {
        (Ok(base), Ok(head)) => Some([base, head]),
        (Err(reason), Err(other)) if reason == other => {
            notes.push(format!("instructions were not counted: {reason}"));
            None
        }
        (base, head) => {
            for (side, reason) in sides.iter().zip([base.err(), head.err()]) {
                let note =
                    |reason| format!("instructions of {} were not counted: {reason}", side.name());
                notes.extend(reason.map(note));
            }
            None
        }
    }
}

/// Samples both sides in turn. If that fails, notes why and returns `None`.
fn profiles(sides: &[Side; 2], row: &str, notes: &mut Vec<String>) -> Option<[Samples; 2]> {
    let mut samples = [Samples::default(), Samples::default()];
    for at in [0, 1, 1, 0] {
        match child::profile(&sides[at], row) {
            Ok((functions, all)) => samples[at].add(functions, all),
            Err(reason) => {
                notes.push(reason);
                return None;
            }
        }
    }
    Some(samples)
}

/// The samples of one side.
#[derive(Debug, Default)]
struct Samples {
    all: u64,
    functions: BTreeMap<String, (u64, bool)>,
}

impl Samples {
    fn add(&mut self, functions: Vec<Function>, all: u64) {
        self.all += all;
        for function in functions {
            let sum = self.functions.entry(function.name).or_insert((0, true));
            sum.0 += function.self_samples;
            sum.1 &= function.inlined;
        }
    }

    /// A function's time per packet and its standard error, both ns.
    fn time(&self, name: &str, ns: f64) -> (f64, f64) {
        let found = self.functions.get(name).map_or(0, |found| found.0) as f64;
        let all = self.all.max(1) as f64;
        // Adds one sample inside and one outside the function. Without them, a function without samples
        // would have a standard error of zero.
        let share = (found + 1.0) / (all + 2.0);
        (found / all * ns, (share * (1.0 - share) / all).sqrt() * ns)
    }
}

/// Merges the functions of both sides.
fn merge(
    profiles: Option<&[Samples; 2]>,
    counts: Option<&[Count; 2]>,
    ns: [f64; 2],
) -> Vec<Change> {
    let mut changes: BTreeMap<String, Change> = BTreeMap::new();
    let mut change = |name: &String, inlined: bool| {
        let new = || Change { name: name.clone(), inlined: true, ..Change::default() };
        changes.entry(name.clone()).or_insert_with(new).inlined &= inlined;
    };
    for side in profiles.into_iter().flatten() {
        // Functions that only call others have no samples of their own.
        side.functions.iter().filter(|of| of.1.0 > 0).for_each(|(name, of)| change(name, of.1));
    }
    for side in counts.into_iter().flatten() {
        side.functions.iter().for_each(|(name, of)| change(name, of.1));
    }
    let mut changes: Vec<_> = changes.into_values().collect();
    for change in &mut changes {
        if let Some([base, head]) = profiles {
            let ((base, error), (head, other)) =
                (base.time(&change.name, ns[0]), head.time(&change.name, ns[1]));
            let (difference, margin) = (head - base, Z * error.hypot(other));
            (change.base_ns, change.head_ns, change.difference_ns) = (base, head, difference);
            change.interval_ns = [difference - margin, difference + margin];
        }
        if let Some(sides) = counts {
            let of = |side: &Count| side.functions.get(&change.name).map_or(0.0, |of| of.0);
            let [base, head] = [of(&sides[0]), of(&sides[1])];
            change.base_instructions = Some(base);
            change.head_instructions = Some(head);
            change.difference_instructions = Some(head - base);
        }
    }
    changes.sort_by(|a, b| b.weight().total_cmp(&a.weight()).then_with(|| a.name.cmp(&b.name)));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(all: u64, functions: &[(&str, u64)]) -> Samples {
        let of = |(name, count): &(&str, u64)| ((*name).to_owned(), (*count, true));
        Samples { all, functions: functions.iter().map(of).collect() }
    }

    fn count(functions: &[(&str, f64)]) -> Count {
        let of = |(name, count): &(&str, f64)| ((*name).to_owned(), (*count, false));
        Count {
            per_packet: functions.iter().map(|of| of.1).sum(),
            functions: functions.iter().map(of).collect(),
            level: "v3".to_owned(),
        }
    }

    #[test]
    fn the_merged_changes_have_the_functions_of_both_sides() {
        let profiles = [
            samples(10_000, &[("a", 5000), ("b", 5000), ("calls", 0)]),
            samples(10_000, &[("a", 5000), ("b", 2500), ("c", 2500)]),
        ];
        let counts = [count(&[("a", 60.0), ("b", 40.0)]), count(&[("a", 60.0), ("c", 30.0)])];
        let changes = merge(Some(&profiles), Some(&counts), [10.0, 20.0]);
        let names: Vec<_> = changes.iter().map(|change| &*change.name).collect();
        assert_eq!(names, ["b", "c", "a"], "the surest changes first");
        let [b, c, a] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((b.base_ns, b.head_ns, b.difference_ns), (5.0, 5.0, 0.0));
        assert_eq!(b.difference_instructions, Some(-40.0));
        assert_eq!((c.base_ns, c.head_ns, c.difference_instructions), (0.0, 5.0, Some(30.0)));
        assert!(c.interval_ns[0] > 4.5 && c.interval_ns[1] < 5.5, "{c:?}");
        assert_eq!((a.difference_ns, a.difference_instructions), (5.0, Some(0.0)));
        assert!(changes.iter().all(Change::is_reported));
        assert!(!a.inlined, "one side has code of it");
    }

    #[test]
    fn changes_within_the_error_are_not_reported() {
        let profiles =
            [samples(100, &[("a", 50), ("b", 50)]), samples(100, &[("a", 55), ("b", 45)])];
        let changes = merge(Some(&profiles), None, [10.0; 2]);
        assert_eq!(changes.len(), 2);
        assert!(changes.iter().all(|change| !change.is_reported()), "{changes:?}");
        assert_eq!(changes[0].difference_instructions, None);
    }

    #[test]
    fn what_is_not_measured_has_no_figures() {
        assert_eq!(merge(None, None, [1.0; 2]), []);
        let counts = [count(&[("a", 1.0)]), count(&[("a", 1.01)])];
        let changes = merge(None, Some(&counts), [1.0; 2]);
        assert_eq!((changes.len(), changes[0].is_reported()), (1, false));
    }
}
