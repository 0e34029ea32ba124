//! Shrinks a case that differs as far as possible, and keeps it in a file.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bench::Bench;
use super::case::{Case, Step};
use crate::shrink::{directory, fewer};

/// Longest time to spend on one case.
const PATIENCE: Duration = Duration::from_secs(60);

/// The contents of a file.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The command that runs the case again.
    command: String,
    differences: Vec<String>,
    case: Case,
}

/// Removes what is not needed for the case to differ.
fn shrink(mut case: Case, bench: &mut Bench) -> Case {
    let start = Instant::now();
    let mut differs = |case: &Case| start.elapsed() < PATIENCE && case.run(bench).is_err();
    fewer(&mut case, |case| &mut case.steps, &mut differs);
    fewer(&mut case, |case| &mut case.config, &mut differs);
    case
}

/// Shrinks a case, keeps it in a file, and describes it.
pub fn report(case: Case, differences: Vec<String>, bench: &mut Bench) -> String {
    let seed = case.seed;
    println!("bridge {seed} differs: {differences:#?}");
    let small = shrink(case.clone(), bench);
    let (small, differences) = match small.run(bench) {
        Err(differences) => (small, differences),
        Ok(_) => (case, [vec!["it differed once and no more".to_owned()], differences].concat()),
    };
    println!("made small: {:#?}", small.config);
    for change in small.steps.iter() {
        if let Step::Change(line) = change {
            println!("then {line}");
        }
    }
    println!("{differences:#?}");
    let path = directory().join(format!("bridge-{seed}.json"));
    let command = format!("TOLLWAY_ORACLE_REPLAY={} make oracle KIND=bridge", path.display());
    let kept = Kept { command, differences, case: small };
    std::fs::write(&path, serde_json::to_string_pretty(&kept).unwrap()).unwrap();
    format!("bridge {seed}, kept in {}", path.display())
}

/// Reads a case from a file that [`report`] wrote.
pub fn kept(path: &str) -> Case {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Kept>(&text).unwrap().case
}
