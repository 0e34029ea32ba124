//! Runs scripts in pairs of twins, and compares.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

use tempfile::NamedTempFile;

use crate::crafted::{Bench, Count};
use crate::kernels::{self, Events};
use crate::namespaces::{self, Process};
use crate::scene::{ALONE, Twin, WITH};
use crate::script::{Protocol, Script, Talk};
use crate::talks::{Outcome, Running};

/// The first seed, and how many run if the environment does not say.
const FIRST: u64 = 1;
const SEEDS: u64 = 6;
/// Seeds that run at the same time: they mostly wait.
const SIDE_BY_SIDE: u64 = 2;
/// Names the file that takes what each seed has counted.
const TALLY: &str = "TOLLWAY_TWINS_TALLY";
/// The name of this test.
pub const NAME: &str = "two_kernels_do_the_same_with_one_script";

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().unwrap())
}

/// What a pair of twins has done.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    steps: usize,
    /// Conversations that were stopped.
    stopped: usize,
    connections: usize,
    /// Directions that Tollway forwards untracked.
    untracked: u64,
    /// Packets of hosts, and those that Tollway has forwarded.
    packets: u64,
    forwarded: u64,
    invalid: [u64; 2],
    crafted: Count,
}

/// Compares as many seeds as the environment says, each in namespaces of its own.
pub fn seeds() {
    if let Some(seed) = setting("TOLLWAY_TWINS_SEED") {
        return one(seed);
    }
    let first = setting("TOLLWAY_TWINS_FIRST").unwrap_or(FIRST);
    let end = first + setting("TOLLWAY_TWINS_SEEDS").unwrap_or(SEEDS);
    let tally = NamedTempFile::new().unwrap();
    let start = |seed: u64| {
        let mut command = namespaces::inside("-nm", NAME);
        command.env("TOLLWAY_TWINS_SEED", seed.to_string()).env(TALLY, tally.path());
        Process(command.spawn().unwrap())
    };
    let mut failed = Vec::new();
    for seed in (first..end).step_by(SIDE_BY_SIDE as usize) {
        let seeds = seed..end.min(seed + SIDE_BY_SIDE);
        let running: Vec<_> = seeds.map(|seed| (seed, start(seed))).collect();
        for (seed, mut process) in running {
            if !process.0.wait().unwrap().success() {
                failed.push(seed);
            }
        }
    }
    assert!(failed.is_empty(), "seeds that differ (TOLLWAY_TWINS_SEED runs one): {failed:?}");
    // Some rules leave much to the kernel, or stop most conversations.
    let (mut packets, mut forwarded) = (0, 0);
    for line in std::fs::read_to_string(tally.path()).unwrap().lines() {
        let (all, own) = line.split_once(' ').unwrap();
        packets += all.parse::<u64>().unwrap();
        forwarded += own.parse::<u64>().unwrap();
    }
    println!("Tollway has forwarded {forwarded} of {packets} packets");
    assert!(forwarded * 5 > packets * 2, "too few for a verdict");
}

fn one(seed: u64) {
    let start = Instant::now();
    let script = Script::new(seed);
    let result = run(&script);
    let seconds = start.elapsed().as_secs_f32();
    match result {
        Ok(tally) => {
            println!(
                "seed {seed}, {}, {:?}: {tally:?}, {seconds:.1} s",
                script.engine, script.version
            );
            if let Some(file) = std::env::var_os(TALLY) {
                let mut file = OpenOptions::new().append(true).open(file).unwrap();
                writeln!(file, "{} {}", tally.packets, tally.forwarded).unwrap();
            }
        }
        Err(differences) => {
            println!("{}{:?}", script.rules, script.settings);
            for talk in script.talks.iter().chain(&script.crafted) {
                // Ports name the conversation.
                let ports = [talk.target, talk.server.1, talk.clients[0].1].map(|at| at.port());
                let mut ports = ports.iter().map(|port| format!(":{port}"));
                if differences.iter().any(|text| ports.any(|port| text.contains(&port))) {
                    println!("{talk:?}");
                }
            }
            panic!("seed {seed}, {}: {}", script.engine, differences.join("\n"));
        }
    }
}

fn run(script: &Script) -> Result<Tally, Vec<String>> {
    let twins = Twin::pair(script.engine, script.version, &script.settings.sysctls());
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &script.rules).unwrap();
    for twin in &twins {
        twin.sh(&format!("nft -f {}", file.path().display()));
    }
    let tollway = twins[WITH].tollway.as_ref().unwrap();
    tollway.sync();
    let events = [ALONE, WITH].map(|twin| Events::follow(&twins[twin]));
    let arrived = || twins[WITH].arrived();
    let before = (
        arrived(),
        tollway.counts().sent,
        [ALONE, WITH].map(|twin| kernels::invalid(&twins[twin])),
    );
    let mut tally = Tally::default();
    let mut differences = Vec::new();
    // Sockets live until the lists have been compared.
    let mut kept = Vec::new();
    let mut told = Vec::new();
    std::thread::scope(|scope| {
        let running: Vec<_> = script
            .talks
            .iter()
            .map(|talk| (talk, scope.spawn(|| converse(&twins, talk))))
            .collect();
        let mut bench = Bench::new(&twins);
        differences.extend(bench.converse(&script.crafted, script.seed));
        tally.crafted = bench.count;
        told = bench.told;
        for (talk, thread) in running {
            let (running, done, result) = thread.join().unwrap();
            tally.steps += done;
            match result {
                Ok(outcome) => tally.stopped += usize::from(outcome == Outcome::Stopped),
                Err(difference) => differences.push(format!("{:?}: {difference}", talk.target)),
            }
            kept.push(running);
        }
    });
    // A FIN or an RST that the kernel gets back, it judges by old windows: with one of many segments that belong nowhere, it
    // may find another state than by all of them.
    let crafted = script.crafted.iter().filter(|talk| talk.protocol == Protocol::Tcp);
    let crafted: Vec<_> = crafted.map(|talk| format!(":{}:", talk.clients[0].1.port())).collect();
    let is_crafted = |tuple: &str| crafted.iter().any(|ports| tuple.contains(ports));
    match kernels::compare(&twins, &events, is_crafted) {
        Ok(connections) => tally.connections = connections,
        Err(more) => differences.extend(more),
    }
    tally.invalid = [ALONE, WITH].map(|twin| kernels::invalid(&twins[twin]) - before.2[twin]);
    if tally.invalid[WITH] > tally.invalid[ALONE] {
        differences.push(format!("invalid packets: {:?}", tally.invalid));
    }
    tally.untracked = twins[WITH].untracked();
    tally.packets = arrived() - before.0;
    tally.forwarded = tollway.counts().sent - before.1;
    if !differences.is_empty() {
        let is_meant = |told: &&String| {
            let (target, _) = told.split_once('\n').unwrap();
            let (_, port) = target.split_at(target.len() - 4);
            differences.iter().any(|difference| difference.contains(port))
        };
        let told: Vec<_> = told.iter().filter(is_meant).cloned().collect();
        differences.extend(told);
        differences.push(format!("{tally:?}, late {}", twins[WITH].late()));
    }
    drop(kept);
    if differences.is_empty() { Ok(tally) } else { Err(differences) }
}

/// Has a conversation until its end, or until it is stopped. Returns its sockets as well, and how many steps it took.
fn converse<'a>(
    twins: &'a [Twin; 2],
    talk: &'a Talk,
) -> (Running<'a>, usize, Result<Outcome, String>) {
    let mut running = Running::new(twins, talk).unwrap();
    for (number, step) in talk.steps.iter().enumerate() {
        match running.step(step) {
            Ok(Outcome::Done) => {}
            Ok(Outcome::Stopped) => return (running, number, Ok(Outcome::Stopped)),
            Err(difference) => {
                return (running, number, Err(format!("step {number}, {step:?}: {difference}")));
            }
        }
    }
    (running, talk.steps.len(), Ok(Outcome::Done))
}
