//! Runs the path's fuzz target for some seconds on its seeds and on simple changes of them.
//!
//! `TOLLWAY_FUZZ_SECONDS` sets the number of seconds. The changes are the same in every run.

#[path = "../../../fuzz/src/path.rs"]
mod path;
#[path = "../src/testkit/mod.rs"]
mod testkit;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use testkit::dice::Dice;
use testkit::mixed;
use testkit::wires::PORTS;

const SECONDS: u64 = 10;

/// The maximum size of an input in bytes.
const LONGEST: usize = 4096;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/path")
}

fn read_seeds() -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder()).expect("a folder of seeds");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

/// The seeds: a few frames each.
fn seeds() -> Vec<Vec<u8>> {
    let seed = |n: u64| {
        let frame = |at| {
            let port = (n + at) as u8 % PORTS;
            (port, mixed::frame(port, n << 8 | at))
        };
        let frames: Vec<_> = (0..5).map(frame).filter(|(_, frame)| frame.len() < 600).collect();
        path::encode(frames.iter().map(|(port, frame)| (*port, &frame[..])))
    };
    (0..24).map(seed).collect()
}

/// Compares the seed files with [`seeds`]. If `TOLLWAY_WRITE_SAMPLES` is set, writes them first.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn the_seeds_are_what_this_makes() {
    if std::env::var_os("TOLLWAY_WRITE_SAMPLES").is_some() {
        for (n, seed) in seeds().iter().enumerate() {
            fs::write(folder().join(format!("{n:02}")), seed).expect("to be written");
        }
    }
    assert_eq!(read_seeds(), seeds(), "the seeds are not up to date");
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn no_input_breaks_the_path() {
    let text = std::env::var("TOLLWAY_FUZZ_SECONDS").ok();
    let seconds = text.and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let (start, bound) = (Instant::now(), Duration::from_secs(seconds));
    let mut inputs = read_seeds();
    inputs.extend([vec![], vec![0xff], vec![0, 0, 0], vec![0x40; LONGEST]]);
    inputs.iter().for_each(|input| path::run(input));
    let (mut dice, mut runs) = (Dice(1), 0_u64);
    while start.elapsed() < bound {
        let other = dice.pick(&inputs);
        let mut input = dice.pick(&inputs);
        for _ in 0..=dice.below(4) {
            change(&mut input, &other, &mut dice);
        }
        input.truncate(LONGEST);
        path::run(&input);
        runs += 1;
    }
    println!("{runs} inputs in {seconds} s");
}

/// Applies one of the changes that fuzzers make.
fn change(input: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    if input.is_empty() {
        input.push(dice.roll() as u8);
    }
    let at = dice.below(input.len());
    match dice.below(8) {
        0 => input[at] ^= 1 << dice.below(8),
        1 => input[at] = dice.roll() as u8,
        2 => input[at] = dice.pick(&[0, 1, 0x7f, 0x80, 0xff, 0x45, 0x60, 0x81]),
        3 => input[at] |= 0x40,
        4 => input.truncate(at),
        5 => {
            input.remove(at);
        }
        6 => input.insert(at, dice.roll() as u8),
        _ => {
            let from = dice.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}
