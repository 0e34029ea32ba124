//! Measures what the counters of ipfw's rules cost in the user path, and the states that they keep.
//!
//! Workers with memory ports forward the same packets of 256 flows, or of 16,000: one without rules, one by a list of ipfw whose
//! counters were taken out, and one by the whole list. They take turns, so that they share the machine's good and bad
//! times. The example prints the median of each, and of the difference between the last two, in clocks per packet.
//! A packet meets a list twice, at `in` and at `out`.
//!
//!     cargo build --release -p tollway --example ipfw_counts
//!     target/release/examples/ipfw_counts

mod memory_ports;

use std::error::Error;
use std::sync::Arc;

use tollway_dataplane::host::Host;
use tollway_dataplane::worker::Worker;
use tollway_firewall::ir::{Action, Step};
use tollway_firewall::links::Link;
use tollway_firewall::program;

use memory_ports::{clocks, median};

/// Packets that a worker forwards before it is another's turn.
const TURN: usize = 1 << 19;
/// Turns of each worker; the medians are over these.
const ROUNDS: usize = 31;
/// Flows that packets belong to, in turn.
const FLOWS: usize = 256;
/// As many flows as there is room for their states.
const MANY_FLOWS: usize = 16_000;

fn main() -> Result<(), Box<dyn Error>> {
    let rules = |count: u32, rule: fn(u32) -> String| (0..count).map(rule).collect::<String>();
    let ten = rules(10, |n| format!("add {} count udp from any to any 5{n}\n", 100 + n));
    let hundred = rules(100, |n| format!("add {} deny udp from 172.16.{n}.0/24 to any\n", 100 + n));
    let allow = "add 1000 allow udp from any to any\n";
    let three = "add 1 count ip from any to any\nadd 2 count udp from any to any\n\
                 add 3 count ip from 10.0.0.0/8 to any\n";
    let states = "add 1 check-state\nadd 2 allow udp from any to any keep-state\n".to_owned();
    let lists = [
        ("one rule", allow.to_owned(), FLOWS),
        ("ten count rules that do not match, then one", format!("{ten}{allow}"), FLOWS),
        ("three count rules that match, then one", format!("{three}{allow}"), FLOWS),
        ("100 rules that do not match, then one", format!("{hundred}{allow}"), FLOWS),
        ("the same with three count rules that match", format!("{three}{hundred}{allow}"), FLOWS),
        ("a rule that keeps states", states.clone(), FLOWS),
        ("the same with 16,000 states", states, MANY_FLOWS),
    ];
    println!(
        "clocks per packet, medians of {ROUNDS}: no rules, without counters, with, difference"
    );
    for (name, text, flows) in lists {
        let mut workers =
            [worker(None, true)?, worker(Some(&text), false)?, worker(Some(&text), true)?];
        let mut now_ns = 0;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(
                workers.each_mut().map(|worker| {
                    clocks(worker, TURN, |packet| (packet % flows) as u32, &mut now_ns)
                }),
            );
        }
        println!(
            "{:6.1} {:6.1} {:6.1} {:6.1}  {name}",
            median(&rounds, |round: &[f64; 3]| round[0]),
            median(&rounds, |round: &[f64; 3]| round[1]),
            median(&rounds, |round: &[f64; 3]| round[2]),
            median(&rounds, |round: &[f64; 3]| round[2] - round[1]),
        );
    }
    Ok(())
}

/// A worker with two memory ports, perhaps with rules of ipfw, perhaps without their counters.
fn worker(text: Option<&str>, counts: bool) -> Result<Worker, Box<dyn Error>> {
    let mut tables = memory_ports::tables().map_err(|error| format!("{error:?}"))?;
    if let Some(text) = text {
        let mut rules =
            tollway_firewall::ipfw::read(text, "list").map_err(|wrong| format!("{wrong:?}"))?;
        for rule in rules.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
            rule.steps.retain(|step| counts || !matches!(step, Step::Do(Action::Count(_))));
        }
        let links = ["a", "b"].map(|name| Link {
            name: name.to_owned(),
            vrf: "main".to_owned(),
            on: None,
            vrf_device: None,
            addresses: Vec::new(),
        });
        let filter = program::compile(&rules, &links, &tables.epochs)?;
        tables.filter = Some(Arc::new(filter));
    }
    Ok(Worker::alone(tables, memory_ports::umem().ok_or("no memory")?, Host::new()))
}
