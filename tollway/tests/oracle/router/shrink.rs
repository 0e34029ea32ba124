//! A case that differs, made as small as it can be, and kept in a file.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bench::{Bench, Start};
use super::case::{Case, Outcome};
use crate::rules::{Language, Rules};
use crate::shrink::{directory, fewer_rules};

/// Longer it is not worth the wait.
const PATIENCE: Duration = Duration::from_secs(240);

/// What a file holds.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// How to run it again.
    command: String,
    /// The router in words.
    text: Vec<String>,
    differences: Vec<String>,
    case: Case,
}

/// Takes away what is not needed for the case to differ, or (`strays`) for Tollway not to do what it says.
pub fn shrink(mut case: Case, strays: bool, bench: &mut Bench) -> Case {
    let start = Instant::now();
    let is_it = |outcome| match outcome {
        Outcome::Same(_) => false,
        Outcome::Differs(_) => !strays,
        Outcome::Strays(_) => strays,
    };
    let mut differs = |case: &Case| start.elapsed() < PATIENCE && is_it(case.run(bench));
    // What differs without a history needs none.
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

/// Ever smaller pieces of a list are left out.
fn fewer<T>(
    case: &mut Case,
    list: impl Fn(&mut Case) -> &mut Vec<T>,
    differs: &mut impl FnMut(&Case) -> bool,
) {
    let mut piece = list(case).len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < list(case).len() {
            let mut fewer = case.clone();
            let end = (at + piece).min(list(case).len());
            list(&mut fewer).drain(at..end);
            if differs(&fewer) {
                *case = fewer;
            } else {
                at += piece;
            }
        }
        piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
    }
}

/// Writes a case down; where.
pub fn keep(case: &Case, differences: Vec<String>) -> PathBuf {
    let path = directory().join(format!("router-{}.json", case.seed));
    let command = format!("TOLLWAY_ORACLE_REPLAY={} make oracle KIND=router", path.display());
    let kept = Kept { command, text: case.config.text(), differences, case: case.clone() };
    std::fs::write(&path, serde_json::to_string_pretty(&kept).unwrap()).unwrap();
    path
}

/// Reads a case that was kept.
pub fn kept(path: &str) -> Case {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Kept>(&text).unwrap().case
}
