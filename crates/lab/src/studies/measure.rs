//! Measures rows with several processes, and compares each row with its base.
//!
//! A process is one observation: memory and code addresses make processes of one build differ more
//! than slices of one process do. Each process measures all rows in turn, slice by slice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::experiment::{Experiment, Slice};
use super::report::{Contrast, Row};
use super::small_path::Agreement;
use super::{Plan, Spec};
use crate::stats::{Bootstrap, Kind, Sample, Summary, median};
use crate::verdict::{Pair, evaluate};

/// The fewest slices of a process.
const LEAST_SLICES: usize = 3;

/// Number of resamples for the interval of a row's median, and their seed.
const RESAMPLES: usize = 2000;
const SEED: u64 = 0x7011_0a11;

/// All slices of one process.
pub(super) type Process = Vec<Slice>;

/// Lets all processes together measure for `time`. The first slice of each process only warms up.
///
/// # Errors
/// A message, if one fails or their results differ.
pub(super) fn processes(
    plan: &mut Plan,
    count: usize,
    time: Duration,
    mut done: impl FnMut(),
) -> Result<Vec<Process>, String> {
    let start = Instant::now();
    let mut all = Vec::new();
    let mut agreement = Agreement::default();
    for number in 0..count {
        let mut experiments = (plan.experiments)(number)?;
        round(&mut experiments)?;
        let left = u32::try_from(count - number).unwrap_or(1);
        let until = Instant::now() + time.saturating_sub(start.elapsed()) / left;
        let mut slices = Vec::new();
        while slices.len() < LEAST_SLICES || Instant::now() < until {
            let slice = round(&mut experiments)?;
            agreement.join(&slice.digests)?;
            slices.push(slice);
        }
        all.push(slices);
        done();
    }
    Ok(all)
}

/// One slice from each experiment, one after the other.
fn round(experiments: &mut [Box<dyn Experiment>]) -> Result<Slice, String> {
    let mut slice = Slice::default();
    for member in experiments {
        slice.join(member.slice()?)?;
    }
    Ok(slice)
}

/// The median of a value over the slices.
fn slice_median(process: &Process, value: impl Fn(&Slice) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = process.iter().filter_map(value).collect();
    Some(Sample::of(&values)?.median())
}

/// The rows, from the measurements of all processes.
///
/// # Errors
/// A message, if a row was not measured.
pub(super) fn rows(specs: &[Spec], all: &[Process]) -> Result<Vec<Row>, String> {
    let contrasts = specs.iter().filter(|spec| spec.base.is_some()).count();
    specs.iter().map(|spec| row(spec, all, contrasts)).collect()
}

fn row(spec: &Spec, all: &[Process], contrasts: usize) -> Result<Row, String> {
    let missing = || format!("{} was not measured", spec.name);
    let of = |process: &Process| slice_median(process, |slice| slice.rows.get(&spec.name).copied());
    let values: Vec<f64> = all.iter().filter_map(of).collect();
    let ns = Summary::of(&values).ok_or_else(missing)?;
    let interval = Bootstrap::of(&values, median, RESAMPLES, SEED)
        .and_then(|drawn| drawn.interval(Kind::Percentile, 0.95));
    let contrast = spec.base.as_ref().map(|base| contrast(spec, base, all, contrasts));
    Ok(Row {
        name: spec.name.clone(),
        group: spec.group.clone(),
        title: spec.title.clone(),
        ns_per_packet: ns,
        median_interval_ns: interval.unwrap_or([ns.min, ns.max]),
        mpps: 1e3 / ns.median,
        published: spec.published.clone(),
        contrast: contrast.transpose()?,
    })
}

fn contrast(
    spec: &Spec,
    base: &str,
    all: &[Process],
    contrasts: usize,
) -> Result<Contrast, String> {
    let pair = |process: &Process| {
        let both = |slice: &Slice| Some((*slice.rows.get(base)?, *slice.rows.get(&spec.name)?));
        Some(Pair {
            base: slice_median(process, |slice| Some(both(slice)?.0))?,
            head: slice_median(process, |slice| Some(both(slice)?.1))?,
            difference: slice_median(process, |slice| both(slice).map(|(base, head)| head - base))?,
        })
    };
    let pairs: Vec<Pair> = all.iter().filter_map(pair).collect();
    let judgement = evaluate(&pairs, contrasts)
        .ok_or_else(|| format!("{} against {base} takes at least three processes", spec.name))?;
    let rates: Vec<f64> = pairs.iter().map(|pair| pair.base / pair.head).collect();
    Ok(Contrast {
        base: base.to_owned(),
        verdict: judgement.verdict,
        difference_ns: judgement.difference_ns,
        difference_percent: judgement.difference_percent,
        interval_ns: judgement.interval_ns,
        rate_percent: 100.0 * (median(&rates) - 1.0),
        smallest_detectable_ns: judgement.smallest_detectable_ns,
    })
}

/// The medians of the processes' counts, by name.
pub(super) fn counts(all: &[Process]) -> BTreeMap<String, f64> {
    let names = all.iter().flatten().flat_map(|slice| slice.counts.keys());
    let names: std::collections::BTreeSet<&String> = names.collect();
    let figure = |name: &String| {
        let of = |process: &Process| slice_median(process, |slice| slice.counts.get(name).copied());
        let values: Vec<f64> = all.iter().filter_map(of).collect();
        Some((name.clone(), Summary::of(&values)?.median))
    };
    names.into_iter().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    fn slice(base: f64, head: f64) -> Slice {
        let rows = [("base".to_owned(), base), ("head".to_owned(), head)].into();
        Slice { rows, ..Slice::default() }
    }

    fn specs() -> Vec<Spec> {
        vec![
            Spec::new("group", "base", "the base"),
            Spec::new("group", "head", "the other").against("base", None),
        ]
    }

    #[test]
    fn a_row_is_the_median_of_its_processes_and_its_difference_that_of_their_slices() {
        let process = |shift: f64| -> Process {
            (0..5)
                .map(|n| slice(10.0 + shift + f64::from(n), 12.0 + shift + f64::from(n)))
                .collect()
        };
        let all: Vec<_> = (0..9).map(|n| process(f64::from(n))).collect();
        let rows = rows(&specs(), &all).unwrap();
        assert_eq!(rows[0].ns_per_packet.median, 16.0);
        assert!(rows[0].contrast.is_none());
        let contrast = rows[1].contrast.as_ref().unwrap();
        assert_eq!(contrast.difference_ns, 2.0);
        assert_eq!(contrast.verdict, Verdict::Slower);
        assert!((contrast.rate_percent - -100.0 / 9.0).abs() < 1e-9, "{}", contrast.rate_percent);
        assert!(contrast.interval_ns[0] <= 2.0 && contrast.interval_ns[1] >= 2.0);
    }

    #[test]
    fn missing_measurements_are_reported() {
        let lonely = vec![Spec::new("group", "other", "")];
        let all = vec![vec![slice(1.0, 2.0)]; 3];
        assert!(rows(&lonely, &all).unwrap_err().contains("other was not measured"));
        assert!(rows(&specs(), &all[..2]).unwrap_err().contains("three processes"));
    }
}
