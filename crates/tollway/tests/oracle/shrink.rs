//! Shrinks a case that differs as far as possible, and keeps it in a file.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::case::{Case, Outcome, Routers};
use crate::rules::Rules;

/// Longest time to spend on one case.
const PATIENCE: Duration = Duration::from_secs(60);

/// The contents of a file.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The command that runs the case again.
    command: String,
    /// The ruleset as its language writes it.
    text: Vec<String>,
    differences: Vec<String>,
    case: Case,
}

/// Removes what is not needed for the case to differ.
pub fn shrink(mut case: Case, routers: &mut Routers) -> Case {
    let start = Instant::now();
    let mut differs = |case: &Case| {
        start.elapsed() < PATIENCE && matches!(case.run(routers), Outcome::Differs(_))
    };
    fewer(&mut case, |case| &mut case.packets, &mut differs);
    loop {
        let before = case.rules.count();
        rules(&mut case, &mut differs);
        if case.rules.count() == before {
            break;
        }
    }
    fewer(&mut case, |case| &mut case.packets, &mut differs);
    case
}

/// Removes ever smaller pieces of a list.
pub fn fewer<C: Clone, T>(
    case: &mut C,
    list: impl Fn(&mut C) -> &mut Vec<T>,
    differs: &mut impl FnMut(&C) -> bool,
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

/// Removes tables, chains, rules and sets, one after the other.
fn rules(case: &mut Case, differs: &mut impl FnMut(&Case) -> bool) {
    fewer_rules(case, |case| &mut case.rules, differs);
}

/// The same for the rules of any case.
pub fn fewer_rules<C: Clone>(
    case: &mut C,
    rules: impl Fn(&mut C) -> &mut Rules,
    differs: &mut impl FnMut(&C) -> bool,
) {
    let mut attempt = |case: &mut C, change: &dyn Fn(&mut Rules)| {
        let mut fewer = case.clone();
        change(rules(&mut fewer));
        if differs(&fewer) {
            *case = fewer;
        }
    };
    for table in (0..rules(case).tables.len()).rev() {
        attempt(case, &|rules| {
            rules.tables.remove(table);
        });
    }
    for table in 0..rules(case).tables.len() {
        for chain in (0..rules(case).tables[table].chains.len()).rev() {
            attempt(case, &|rules| rules.tables[table].chains[chain].rules.clear());
            for rule in (0..rules(case).tables[table].chains[chain].rules.len()).rev() {
                attempt(case, &|rules| {
                    rules.tables[table].chains[chain].rules.remove(rule);
                });
            }
            if rules(case).tables[table].chains[chain].rules.is_empty() {
                attempt(case, &|rules| {
                    rules.tables[table].chains.remove(chain);
                });
            }
        }
        for object in (0..rules(case).tables[table].objects.len()).rev() {
            attempt(case, &|rules| {
                rules.tables[table].objects.remove(object);
            });
        }
    }
}

/// The directory of kept cases.
pub fn directory() -> PathBuf {
    // A virtual machine has its own directory to write to.
    let target = std::env::var_os("TOLLWAY_OUT").or_else(|| std::env::var_os("CARGO_TARGET_DIR"));
    let target = target.map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")),
        PathBuf::from,
    );
    let dir = target.join("oracle");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Writes a case to a file. Returns the path.
pub fn keep(case: &Case, differences: Vec<String>) -> PathBuf {
    let path = directory().join(format!("filter-{}.json", case.seed));
    let command = format!("TOLLWAY_ORACLE_REPLAY={} make oracle KIND=filter", path.display());
    let text = case.rules.text().lines().map(str::to_owned).collect();
    let kept = Kept { command, text, differences, case: case.clone() };
    std::fs::write(&path, serde_json::to_string_pretty(&kept).unwrap()).unwrap();
    path
}

/// Reads a case from a file that [`keep`] wrote.
pub fn kept(path: &str) -> Case {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Kept>(&text).unwrap().case
}
