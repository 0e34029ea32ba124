//! Runs the fuzz target of the configuration on its seeds, on the examples, and on random changes of
//! both.
//!
//! `TOLLWAY_FUZZ_SECONDS` sets the duration. The changes are the same each time.

#[path = "changes/mod.rs"]
mod changes;
#[path = "../../../fuzz/src/config.rs"]
mod config;
#[path = "../../dataplane/src/testkit/dice.rs"]
mod dice;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use changes::Changes;
use dice::Dice;

const SECONDS: u64 = 5;

/// The most bytes of an input.
const LONGEST: usize = 4096;

const CHANGES: Changes = Changes { before: "= ", ends: &['\n'], words: &WORDS };
/// Words that a change inserts: values at the limits of what is allowed, and beyond them.
const WORDS: [&str; 24] = [
    "0",
    "1",
    "4095",
    "4294967296",
    "-1",
    "1e9",
    "true",
    "\"\"",
    "\"main\"",
    "\"default\"",
    "\"0.0.0.0/0\"",
    "\"10.0.0.1/32\"",
    "\"255.255.255.255\"",
    "\"::/0\"",
    "\"fe80::1\"",
    "\"ff02::1\"",
    "\"02:00:00:00:00:01\"",
    "[",
    "]",
    "{",
    "}",
    "\n[vrfs.red]\n",
    "\u{feff}",
    "é",
];

fn read(folder: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).expect("a text")).collect()
}

#[test]
fn no_text_breaks_the_reader() {
    let text = std::env::var("TOLLWAY_FUZZ_SECONDS").ok();
    let seconds = text.and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let (start, bound) = (Instant::now(), Duration::from_secs(seconds));
    let mut inputs = read("fuzz/seeds/config");
    inputs.extend(read("examples"));
    assert!(inputs.len() >= 5, "seeds and examples");
    inputs.iter().for_each(|input| config::run(input));
    config::run("");
    let (mut dice, mut runs) = (Dice(1), 0_u64);
    while start.elapsed() < bound {
        let other = dice.pick(&inputs);
        let mut input = dice.pick(&inputs);
        for _ in 0..=dice.below(4) {
            input = changes::changed(&input, &other, CHANGES, &mut dice);
        }
        input.truncate(changes::floor(&input, LONGEST));
        config::run(&input);
        runs += 1;
    }
    println!("{runs} inputs in {seconds} s");
}
