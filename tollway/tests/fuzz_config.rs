//! The fuzz target of the configuration, driven for some seconds by its seeds, the examples and
//! simple changes to them.
//!
//! `TOLLWAY_FUZZ_SECONDS` says for how many; the changes are the same each time.

#[path = "../../fuzz/src/config.rs"]
mod config;
#[allow(dead_code, reason = "other tests take more of it")]
#[path = "../../dataplane/src/testkit/dice.rs"]
mod dice;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use dice::Dice;

const SECONDS: u64 = 5;

/// Bytes of an input at most.
const LONGEST: usize = 4096;

/// What a text is made longer with: values at the edge of what is allowed, and beyond it.
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
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
            input = changed(&input, &other, &mut dice);
        }
        input.truncate(floor(&input, LONGEST));
        config::run(&input);
        runs += 1;
    }
    println!("{runs} inputs in {seconds} s");
}

/// The last place up to `at` where a character begins.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// A text after one of the changes that fuzzers make.
fn changed(text: &str, other: &str, dice: &mut Dice) -> String {
    let at = floor(text, dice.below(text.len() + 1));
    let end = floor(text, at + dice.below(12)).max(at);
    let (before, cut, after) = (&text[..at], &text[at..end], &text[end..]);
    match dice.below(7) {
        0 => [before, after].concat(),
        1 => [before, cut, cut, after].concat(),
        2 => [before, dice.pick(&WORDS), after].concat(),
        3 => [before, char::from(dice.roll() as u8).encode_utf8(&mut [0; 4]), after].concat(),
        4 => [before, &other[floor(other, dice.below(other.len() + 1))..]].concat(),
        5 => lines(text, other, dice),
        _ => value(text, dice),
    }
}

/// A text with one of the other's lines in it, or in place of one of its own.
fn lines(text: &str, other: &str, dice: &mut Dice) -> String {
    let mut lines: Vec<_> = text.lines().collect();
    let others: Vec<_> = other.lines().collect();
    if others.is_empty() {
        return String::new();
    }
    let at = dice.below(lines.len() + 1);
    if dice.one_in(2) && at < lines.len() {
        lines.remove(at);
    }
    lines.insert(at, others[dice.below(others.len())]);
    lines.join("\n")
}

/// A text with another value behind one of its keys.
fn value(text: &str, dice: &mut Dice) -> String {
    let keys: Vec<_> = text.match_indices("= ").map(|(at, _)| at + 2).collect();
    if keys.is_empty() {
        return text.to_owned();
    }
    let (before, after) = text.split_at(dice.pick(&keys));
    let after = &after[after.find('\n').unwrap_or(after.len())..];
    [before, dice.pick(&WORDS), after].concat()
}
