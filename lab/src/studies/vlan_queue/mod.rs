//! `vlan-queue`: what it costs to hand each packet of a VLAN over by a queue with a mutex.

mod line;
mod queue;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use tollway_dataplane::path::Everything;
use tollway_dataplane::wire::eth::ethertype;

use super::experiment::{Experiment, Slice};
use super::road::{self, Routes};
use super::{Options, Plan, Size, Spec, Study, alone};
use crate::frames::Template;
use crate::tolls::{self, Bench as PathBench};
use line::Tally;
use work::{VIDS, Way};

pub(super) const STUDY: Study = Study {
    name: "vlan-queue",
    question: "what does it cost a VLAN's packets to be handed over by queues, one mutex after the other?",
    by_difference: false,
    plan,
    open,
    further: None,
};

/// Contexts at most.
const MOST: usize = 3;

/// How long a way is measured in a slice.
const TIME: Duration = Duration::from_millis(20);

/// How often it is measured again, longer each time, where nothing came through.
const TRIES: u32 = 30;

/// Passes of the router's own path in a slice.
const PATH_PASSES: usize = 32;

/// Rows of the router's own path.
const PATH: [&str; 2] = ["ip4-all-off", "ip4-vlan"];

fn row(way: Way, contexts: usize) -> String {
    format!("{}-{contexts}", way.name())
}

fn plan(study: &Study, options: &Options) -> Result<Plan, String> {
    let mut specs = Vec::new();
    for contexts in 1..=MOST {
        let group = match contexts {
            1 => "one context".to_owned(),
            _ => format!("{contexts} contexts"),
        };
        for way in Way::ALL {
            let (title, published) = match way {
                Way::Plain => ("no tags, no queue", Some("1.42 Mpps")),
                Way::Mutex => ("one mutex a packet on input, two on output", Some("0.88 Mpps")),
                Way::Burst => ("the same queues, a burst at a time", None),
                Way::InPlace => ("no queue: the tag is part of the header", None),
            };
            let mut spec = Spec::new(&group, row(way, contexts), title);
            if way != Way::Plain {
                spec = spec.against(row(Way::Plain, contexts), None);
            }
            spec.published = published.filter(|_| contexts == 1).map(str::to_owned);
            specs.push(spec);
        }
    }
    let group = "the router's whole path, bursts of 64, one context, packets in caches";
    specs.push(Spec::new(group, "path-plain", "IPv4, no tags"));
    specs.push(Spec::new(group, "path-vlan", "IPv4, tags in and out").against("path-plain", None));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let note = format!("{MOST} contexts share {cpus} processors here");
    let notes = if cpus < MOST { vec![note] } else { Vec::new() };
    Ok(Plan { specs, notes, crew: alone(study, options) })
}

struct Bench {
    /// Without tags and with.
    templates: [Vec<Template>; 2],
    routes: Routes,
    paths: [PathBench<Everything>; 2],
    time: Duration,
    passes: usize,
    ns_per_clock: f64,
}

fn open(size: Size) -> Result<Box<dyn Experiment>, String> {
    let path = |name| PathBench::new(tolls::scenario(name)?);
    let full = size == Size::Full;
    let tag = [(ethertype::DOT1Q, VIDS[0])];
    Ok(Box::new(Bench {
        templates: [road::templates(1024, &[], 53), road::templates(1024, &tag, 53)],
        routes: Routes::new(),
        paths: [path(PATH[0])?, path(PATH[1])?],
        time: if full { TIME } else { Duration::from_millis(2) },
        passes: if full { PATH_PASSES } else { 2 },
        ns_per_clock: road::ns_per_clock(),
    }))
}

/// What the queues did, for the report.
fn counts(way: Way, contexts: usize, tally: &Tally, into: &mut BTreeMap<String, f64>) {
    let name = |what| format!("{}_{contexts}_{what}", way.name());
    let received = tally.received.max(1) as f64;
    into.insert(name("input_drops_percent"), 100.0 * tally.input_drops as f64 / received);
    into.insert(name("output_drops_percent"), 100.0 * tally.output_drops as f64 / received);
    into.insert(name("livelocks_per_second"), tally.livelocks as f64 / tally.seconds);
    into.insert(name("contended_percent"), 100.0 * tally.contended as f64 / received);
}

impl Bench {
    /// What became of the packets in a while in which some came through: where processors are few, the
    /// contexts may not all have had one.
    fn tally(&self, way: Way, contexts: usize) -> Result<Tally, String> {
        let templates = &self.templates[usize::from(way != Way::Plain)];
        for tries in 1..=TRIES {
            // Where contexts take turns on a processor it takes a while until each has had some.
            let time = self.time * tries * if contexts > 1 { 3 } else { 1 };
            let tally = line::run(way, contexts, templates, &self.routes, time);
            tally.check(way)?;
            if tally.sent > 0 {
                return Ok(tally);
            }
        }
        Err(format!("{}: nothing came through {contexts} contexts: free a processor", way.name()))
    }
}

impl Experiment for Bench {
    fn slice(&mut self) -> Result<Slice, String> {
        let mut slice = Slice::default();
        for contexts in 1..=MOST {
            for way in Way::ALL {
                let tally = self.tally(way, contexts)?;
                let ns = 1e9 * tally.seconds / tally.sent as f64;
                slice.rows.insert(row(way, contexts), ns);
                if way.has_queues() {
                    counts(way, contexts, &tally, &mut slice.counts);
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
