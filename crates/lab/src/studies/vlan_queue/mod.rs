//! `vlan-queue`: the cost of passing each packet of a VLAN through a queue with a mutex.

mod line;
mod queue;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use tollway_dataplane::wire::eth::ethertype;

use super::experiment::{Experiment, Slice};
use super::small_path::{self, Routes};
use super::{Options, Plan, Size, Spec, Study, alone};
use crate::bench::Bench as PathBench;
use crate::frames::Template;
use crate::tolls;
use line::Tally;
use work::{Method, VIDS};

pub(super) const STUDY: Study = Study {
    name: "vlan-queue",
    question: "what does it cost a VLAN's packets to be handed over by queues, one mutex after the other?",
    by_difference: false,
    plan,
    open,
    extra: None,
};

/// The most contexts.
const MOST_CONTEXTS: usize = 3;

/// How long each method is measured in a slice.
const TIME: Duration = Duration::from_millis(20);

/// How often the measurement is repeated, longer each time, if no packet came through.
const TRIES: u32 = 30;

/// Passes of the router's own path in a slice.
const PATH_PASSES: usize = 32;

/// Rows of the router's own path.
const PATH: [&str; 2] = ["ip4-all-off", "ip4-vlan"];

fn row(method: Method, contexts: usize) -> String {
    format!("{}-{contexts}", method.name())
}

fn plan(study: &Study, options: &Options) -> Result<Plan, String> {
    let mut specs = Vec::new();
    for contexts in 1..=MOST_CONTEXTS {
        let group = match contexts {
            1 => "one context".to_owned(),
            _ => format!("{contexts} contexts"),
        };
        for method in Method::ALL {
            let (title, published) = match method {
                Method::Plain => ("no tags, no queue", Some("1.42 Mpps")),
                Method::Mutex => ("one mutex a packet on input, two on output", Some("0.88 Mpps")),
                Method::Burst => ("the same queues, a burst at a time", None),
                Method::InPlace => ("no queue: the tag is part of the header", None),
            };
            let mut spec = Spec::new(&group, row(method, contexts), title);
            if method != Method::Plain {
                spec = spec.against(row(Method::Plain, contexts), None);
            }
            spec.published = published.filter(|_| contexts == 1).map(str::to_owned);
            specs.push(spec);
        }
    }
    let group = "the router's whole path, bursts of 64, one context, packets in caches";
    specs.push(Spec::new(group, "path-plain", "IPv4, no tags"));
    specs.push(Spec::new(group, "path-vlan", "IPv4, tags in and out").against("path-plain", None));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let note = format!("{MOST_CONTEXTS} contexts share {cpus} processors here");
    let notes = if cpus < MOST_CONTEXTS { vec![note] } else { Vec::new() };
    Ok(Plan { specs, notes, experiments: alone(study, options) })
}

struct Bench {
    /// Packets without tags and with.
    templates: [Vec<Template>; 2],
    routes: Routes,
    paths: [PathBench; 2],
    time: Duration,
    passes: usize,
    ns_per_clock: f64,
}

fn open(size: Size) -> Result<Box<dyn Experiment>, String> {
    let path = |name| tolls::scenario(name)?.bench();
    let full = size == Size::Full;
    let tag = [(ethertype::DOT1Q, VIDS[0])];
    Ok(Box::new(Bench {
        templates: [small_path::templates(1024, &[], 53), small_path::templates(1024, &tag, 53)],
        routes: Routes::new(),
        paths: [path(PATH[0])?, path(PATH[1])?],
        time: if full { TIME } else { Duration::from_millis(2) },
        passes: if full { PATH_PASSES } else { 2 },
        ns_per_clock: small_path::ns_per_clock(),
    }))
}

/// Adds the queues' counts to the report.
fn counts(method: Method, contexts: usize, tally: &Tally, into: &mut BTreeMap<String, f64>) {
    let name = |what| format!("{}_{contexts}_{what}", method.name());
    let received = tally.received.max(1) as f64;
    into.insert(name("input_drops_percent"), 100.0 * tally.input_drops as f64 / received);
    into.insert(name("output_drops_percent"), 100.0 * tally.output_drops as f64 / received);
    into.insert(name("livelocks_per_second"), tally.livelocks as f64 / tally.seconds);
    into.insert(name("contended_percent"), 100.0 * tally.contended as f64 / received);
}

impl Bench {
    /// Measures until some packets pass: with few processors, some contexts may not have run yet.
    fn tally(&self, method: Method, contexts: usize) -> Result<Tally, String> {
        let templates = &self.templates[usize::from(method != Method::Plain)];
        for tries in 1..=TRIES {
            // Contexts that share a processor need more time until each has run.
            let time = self.time * tries * if contexts > 1 { 3 } else { 1 };
            let tally = line::run(method, contexts, templates, &self.routes, time);
            tally.check(method)?;
            if tally.sent > 0 {
                return Ok(tally);
            }
        }
        Err(format!("{}: no packet passed {contexts} contexts; free a processor", method.name()))
    }
}

impl Experiment for Bench {
    fn slice(&mut self) -> Result<Slice, String> {
        let mut slice = Slice::default();
        for contexts in 1..=MOST_CONTEXTS {
            for method in Method::ALL {
                let tally = self.tally(method, contexts)?;
                let ns = 1e9 * tally.seconds / tally.sent as f64;
                slice.rows.insert(row(method, contexts), ns);
                if method.has_queues() {
                    counts(method, contexts, &tally, &mut slice.counts);
                }
            }
        }
        for (name, bench) in ["path-plain", "path-vlan"].iter().zip(&mut self.paths) {
            let clocks = bench.clocks_per_packet(self.passes);
            slice.rows.insert((*name).to_owned(), clocks * self.ns_per_clock);
        }
        Ok(slice)
    }
}
