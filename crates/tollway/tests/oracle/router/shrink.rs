//! Shrinks a case that differs as far as possible, and keeps it in a file.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bench::{Bench, Start};
use super::case::{Case, Outcome};
use crate::rules::{Language, Rules};
use crate::shrink::{directory, fewer, fewer_rules};

/// Longest time to spend on one case.
const PATIENCE: Duration = Duration::from_secs(240);

/// The contents of a file.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The command that runs the case again.
    command: String,
    /// The router's configuration as text.
    text: Vec<String>,
    differences: Vec<String>,
    case: Case,
}

/// Removes what is not needed for the case to differ, or (`strays`) for Tollway to contradict its
/// report about its paths.
pub fn shrink(mut case: Case, strays: bool, bench: &mut Bench) -> Case {
    let start = Instant::now();
    let is_it = |outcome| match outcome {
        Outcome::Same(_) => false,
        Outcome::Differs(_) => !strays,
        Outcome::Strays(_) => strays,
    };
    let mut differs = |case: &Case| start.elapsed() < PATIENCE && is_it(case.run(bench));
    // A case that differs without a history does not need one.
    let plain = Case { before: None, start: Start::Fresh, ..case.clone() };
    if differs(&plain) {
        case = plain;
    } else if case.before.is_some() {
        let alone = Case { before: None, ..case.clone() };
        if differs(&alone) {
            case = alone;
        }
    }
    fewer(&mut case, |case| &mut case.packets, &mut differs);
    loop {
        let before = size(&case);
        if case.config.rules.is_some() {
            let none = Case {
                config: super::config::Config { rules: None, ..case.config.clone() },
                ..case.clone()
            };
            if differs(&none) {
                case = none;
            } else {
                fewer_rules(&mut case, rules, &mut differs);
            }
        }
        fewer(&mut case, |case| &mut case.config.lines, &mut differs);
        if case.before.is_some() {
            fewer(&mut case, |case| &mut case.before.as_mut().unwrap().lines, &mut differs);
        }
        if size(&case) == before {
            break;
        }
    }
    fewer(&mut case, |case| &mut case.packets, &mut differs);
    case
}

fn size(case: &Case) -> usize {
    let rules = case.config.rules.as_ref().map_or(0, |rules| rules.count() + rules.tables.len());
    case.config.lines.len() + rules
}

fn rules(case: &mut Case) -> &mut Rules {
    case.config.rules.get_or_insert_with(|| Rules { language: Language::Nft, tables: Vec::new() })
}

/// Writes a case to a file. Returns the path.
pub fn keep(case: &Case, differences: Vec<String>) -> PathBuf {
    let path = directory().join(format!("router-{}.json", case.seed));
    let command = format!("TOLLWAY_ORACLE_REPLAY={} make oracle KIND=router", path.display());
    let kept = Kept { command, text: case.config.text(), differences, case: case.clone() };
    std::fs::write(&path, serde_json::to_string_pretty(&kept).unwrap()).unwrap();
    path
}

/// Reads a case from a file that [`keep`] wrote.
pub fn kept(path: &str) -> Case {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Kept>(&text).unwrap().case
}
