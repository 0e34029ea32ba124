//! How many frames a second get through: the kernel and Tollway in turn.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::generator::{Generator, Stream};
use super::program::{self, Setup, Tollway};
use super::sink::{Expect, Place, Sink};
use super::topology::{Topology, VIDS};
use super::{Options, Places};
use crate::report::Report;
use crate::stats::Summary;
use crate::tolls::progress;

/// The row of the kernel alone.
pub(super) const KERNEL: &str = "kernel";
/// Nothing is counted right after the generator's start.
const WARM_UP: Duration = Duration::from_millis(150);
/// A measurement.
const WINDOW: Duration = Duration::from_millis(500);
/// Part of the time that Tollway is given to get to its pace.
const STEP: Duration = Duration::from_millis(250);
/// Steps at most; a million flows take some.
const STEPS: usize = 60;
/// Steps in a row that must be alike, and how much they may differ.
const ALIKE: (usize, f64) = (4, 1.03);

/// A way to forward, measured against the kernel's.
pub(super) struct Case {
    pub(super) name: &'static str,
    figure: &'static str,
    title: &'static str,
    flows: u32,
    setup: Setup,
    /// Where frames are counted, the kernel's as well as Tollway's.
    sink: Place,
    /// Whether it is measured only when asked for.
    extra: bool,
}

const EXPRESS: Setup =
    Setup { kind: "af_xdp", express: true, features: false, apart: true, lane: None };

/// What is measured against the kernel.
pub(super) const CASES: [Case; 6] = [
    Case {
        name: "express",
        figure: "express_ratio",
        title: "express lane, 256 flows",
        flows: 256,
        setup: EXPRESS,
        sink: Place::Xdp,
        extra: false,
    },
    Case {
        name: "express-features",
        figure: "express_features_ratio",
        title: "express lane, VLAN in and out, VRF, 100 rules; the kernel plain",
        flows: 256,
        setup: Setup { features: true, ..EXPRESS },
        sink: Place::Xdp,
        extra: false,
    },
    Case {
        name: "express-64k",
        figure: "express_64k_flows_ratio",
        title: "express lane, 65,536 flows",
        flows: 1 << 16,
        setup: EXPRESS,
        sink: Place::Xdp,
        extra: false,
    },
    Case {
        name: "express-1m",
        figure: "express_1m_flows_ratio",
        title: "express lane, 1,048,576 flows",
        flows: 1 << 20,
        // Twice as many: what is forgotten is not quite what was used least recently.
        setup: Setup { lane: Some(1 << 21), ..EXPRESS },
        sink: Place::Xdp,
        extra: false,
    },
    Case {
        name: "af-xdp",
        figure: "af_xdp_ratio",
        title: "through user space by AF_XDP, two cores",
        flows: 256,
        setup: Setup { express: false, ..EXPRESS },
        // What leaves is the kernel's packets on both sides; with XDP there, only Tollway's are copied.
        sink: Place::Tc,
        extra: false,
    },
    Case {
        name: "af-packet",
        figure: "af_packet_ratio",
        title: "through user space by packet sockets, two cores",
        flows: 256,
        setup: Setup {
            kind: "af_packet",
            express: false,
            features: false,
            apart: true,
            lane: None,
        },
        sink: Place::Tc,
        extra: true,
    },
];

/// One way to forward, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, the same in every report.
    pub name: &'static str,
    /// What it is, in words.
    pub title: &'static str,
    /// What the kernel forwarded meanwhile, million frames a second.
    pub kernel_mpps: Summary,
    /// What Tollway forwarded, million frames a second.
    pub tollway_mpps: Summary,
    /// Tollway's rate by the kernel's, each pair by itself.
    pub ratio: Summary,
}

/// Measures the rows that are wanted.
pub(super) fn measure(
    places: &Places,
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    let wanted =
        |case: &&Case| options.wants(case.name) && !(case.extra && options.only.is_empty());
    let cases: Vec<_> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() && !options.wants(KERNEL) {
        return Ok(());
    }
    let bar = progress((cases.len().max(1) * options.pairs) as u64);
    let mut kernel_alone = Vec::new();
    for case in &cases {
        let (row, kernel_mpps) = pairs(case, places, options.pairs, &|| bar.inc(1))?;
        if case.sink == Place::Xdp || cases.len() == 1 {
            kernel_alone.extend(kernel_mpps);
        }
        report.figures.insert(case.figure.to_owned(), row.ratio.median);
        report.rows.push(row);
    }
    if cases.is_empty() {
        let kernel = kernel(places, Place::Xdp)?;
        for _ in 0..options.pairs {
            kernel_alone.push(kernel.mpps(256)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if let Some(kernel) = Summary::of(&kernel_alone) {
        report.figures.insert("kernel_mpps".to_owned(), kernel.median);
        report.figures.insert("kernel_mpps_min".to_owned(), kernel.min);
        report.figures.insert("kernel_mpps_max".to_owned(), kernel.max);
    }
    Ok(())
}

/// The way by the kernel alone.
fn kernel(places: &Places, place: Place) -> Result<Lane<'_>, String> {
    let sink = Sink::start(&places.kernel.b, Expect { vid: None, follow: false, place })?;
    Ok(Lane { topology: &places.kernel, sink, vid: None })
}

/// Measures a case and the kernel in turn; the kernel's rates are told apart too.
fn pairs(
    case: &Case,
    places: &Places,
    pairs: usize,
    done: &dyn Fn(),
) -> Result<(Row, Vec<f64>), String> {
    let failed = |error| format!("row {}: {error}", case.name);
    // What the kernel forwards must not be taken for Tollway's.
    places.tollway.kernel_forwards(false)?;
    let vids = case.setup.features.then_some(VIDS);
    let kernel = kernel(places, case.sink)?;
    let expect = Expect { vid: vids.map(|vids| vids[1]), follow: false, place: case.sink };
    let sink = Sink::start(&places.tollway.b, expect)?;
    let lane = Lane { topology: &places.tollway, sink, vid: vids.map(|vids| vids[0]) };
    let tollway = Tollway::start(&places.tollway, case.setup, false).map_err(failed)?;
    lane.settle(case.flows).map_err(failed)?;
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        // Each goes first as often: what the machine does meanwhile is nobody's advantage.
        let mut rates = [0.0; 2];
        for turn in [pair % 2, 1 - pair % 2] {
            rates[turn] = [&kernel, &lane][turn].mpps(case.flows).map_err(failed)?;
        }
        theirs.push(rates[0]);
        ours.push(rates[1]);
        ratios.push(rates[1] / rates[0]);
        done();
    }
    tollway.stop().map_err(failed)?;
    program::clear(&places.tollway)?;
    let sum = |values: &[f64]| Summary::of(values).unwrap_or_default();
    let row = Row {
        name: case.name,
        title: case.title,
        kernel_mpps: sum(&theirs),
        tollway_mpps: sum(&ours),
        ratio: sum(&ratios),
    };
    Ok((row, theirs))
}

/// A way from a generator to a sink.
struct Lane<'a> {
    topology: &'a Topology,
    sink: Sink,
    vid: Option<u16>,
}

impl Lane<'_> {
    fn send(&self, flows: u32) -> Result<Generator, String> {
        Generator::start(&self.topology.a, Stream { flows, vid: self.vid, rate: None })
    }

    /// Million frames a second that get through, over some time.
    fn rate(&self, time: Duration) -> Result<f64, String> {
        let (start, before) = (Instant::now(), self.sink.seen()?);
        std::thread::sleep(time);
        let (taken, after) = (start.elapsed(), self.sink.seen()?);
        after.check()?;
        Ok((after.frames - before.frames) as f64 / taken.as_secs_f64() / 1e6)
    }

    /// One measurement.
    fn mpps(&self, flows: u32) -> Result<f64, String> {
        let generator = self.send(flows)?;
        std::thread::sleep(WARM_UP);
        let rate = self.rate(WINDOW)?;
        generator.stop()?;
        Ok(rate)
    }

    /// Sends until the rate does not change any more.
    fn settle(&self, flows: u32) -> Result<(), String> {
        let generator = self.send(flows)?;
        let mut rates = Vec::new();
        for _ in 0..STEPS {
            rates.push(self.rate(STEP)?);
            let last = Summary::of(rates.get(rates.len().saturating_sub(ALIKE.0)..).unwrap_or(&[]));
            let alike =
                last.is_some_and(|last| last.repeats == ALIKE.0 && last.max < last.min * ALIKE.1);
            if alike {
                break;
            }
        }
        generator.stop()?;
        if self.sink.seen()?.frames == 0 {
            return Err("not one frame got through".to_owned());
        }
        Ok(())
    }
}
