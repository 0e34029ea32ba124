//! Frames per second that the kernel and Tollway forward, measured in turn.

use std::time::Duration;

use serde::Serialize;

use super::generator::{Generator, Stream};
use super::program::{self, Setup, Tollway};
use super::sink::{Expect, Sink, SinkHook};
use super::topology::{Topology, VIDS};
use super::{Options, Topologies};
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;

/// The row with the kernel alone.
pub(super) const KERNEL: &str = "kernel";
/// Time after the generator's start that does not count.
const WARM_UP: Duration = Duration::from_millis(150);
/// Duration of a measurement.
const WINDOW: Duration = Duration::from_millis(500);
/// Duration of a step in which Tollway warms up.
const STEP: Duration = Duration::from_millis(250);
/// The most steps; a million flows take some.
const STEPS: usize = 60;
/// How many successive steps must agree, and the factor by which they may differ.
const ALIKE: (usize, f64) = (4, 1.03);

/// A configuration of Tollway to compare with the kernel.
pub(super) struct Case {
    pub(super) name: &'static str,
    figure: &'static str,
    title: &'static str,
    flows: u32,
    setup: Setup,
    /// Where frames are counted, for the kernel as well as for Tollway.
    sink: SinkHook,
    /// Whether it is measured only on request.
    extra: bool,
}

const XDP_PATH: Setup = Setup {
    kind: "af_xdp",
    xdp_path: true,
    features: false,
    own_processors: true,
    xdp_flows: None,
};

/// The configurations that are compared with the kernel.
pub(super) const CASES: [Case; 6] = [
    Case {
        name: "xdp",
        figure: "xdp_ratio",
        title: "XDP path, 256 flows",
        flows: 256,
        setup: XDP_PATH,
        sink: SinkHook::Xdp,
        extra: false,
    },
    Case {
        name: "xdp-features",
        figure: "xdp_features_ratio",
        title: "XDP path, VLAN in and out, VRF, 100 rules; the kernel plain",
        flows: 256,
        setup: Setup { features: true, ..XDP_PATH },
        sink: SinkHook::Xdp,
        extra: false,
    },
    Case {
        name: "xdp-64k",
        figure: "xdp_64k_flows_ratio",
        title: "XDP path, 65,536 flows",
        flows: 1 << 16,
        setup: XDP_PATH,
        sink: SinkHook::Xdp,
        extra: false,
    },
    Case {
        name: "xdp-1m",
        figure: "xdp_1m_flows_ratio",
        title: "XDP path, 1,048,576 flows",
        flows: 1 << 20,
        // Room for twice as many: the table evicts only approximately the least recently used flow.
        setup: Setup { xdp_flows: Some(1 << 21), ..XDP_PATH },
        sink: SinkHook::Xdp,
        extra: false,
    },
    Case {
        name: "af-xdp",
        figure: "af_xdp_ratio",
        title: "on the user path by AF_XDP, two cores",
        flows: 256,
        setup: Setup { xdp_path: false, ..XDP_PATH },
        // Both routers send kernel packets (`sk_buff`). An XDP sink would copy only Tollway's.
        sink: SinkHook::Tc,
        extra: false,
    },
    Case {
        name: "af-packet",
        figure: "af_packet_ratio",
        title: "on the user path by packet sockets, two cores",
        flows: 256,
        setup: Setup {
            kind: "af_packet",
            xdp_path: false,
            features: false,
            own_processors: true,
            xdp_flows: None,
        },
        sink: SinkHook::Tc,
        extra: true,
    },
];

/// The result of one configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, the same in every report.
    pub name: &'static str,
    /// A description in words.
    pub title: &'static str,
    /// What the kernel forwarded, million frames per second.
    pub kernel_mpps: Summary,
    /// What Tollway forwarded, million frames per second.
    pub tollway_mpps: Summary,
    /// Tollway's rate divided by the kernel's, pair by pair.
    pub ratio: Summary,
}

/// Measures the selected rows.
pub(super) fn measure(
    topologies: &Topologies,
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    let wanted =
        |case: &&Case| options.wants(case.name) && !(case.extra && options.only.is_empty());
    let cases: Vec<_> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() && !options.wants(KERNEL) {
        return Ok(());
    }
    let bar = progress::bar((cases.len().max(1) * options.pairs) as u64);
    let mut kernel_alone = Vec::new();
    for case in &cases {
        let (row, kernel_mpps) = pairs(case, topologies, options.pairs, &|| bar.inc(1))?;
        if case.sink == SinkHook::Xdp || cases.len() == 1 {
            kernel_alone.extend(kernel_mpps);
        }
        report.figures.insert(case.figure.to_owned(), row.ratio.median);
        report.rows.push(row);
    }
    if cases.is_empty() {
        let kernel = kernel(topologies, SinkHook::Xdp)?;
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

/// The topology with the kernel alone.
fn kernel(topologies: &Topologies, hook: SinkHook) -> Result<RouterUnderTest<'_>, String> {
    let sink = Sink::start(&topologies.kernel.b, Expect { vid: None, follow: false, hook })?;
    Ok(RouterUnderTest { topology: &topologies.kernel, sink, vid: None })
}

/// Measures a case and the kernel in turn. Also returns the kernel's rates.
fn pairs(
    case: &Case,
    topologies: &Topologies,
    pairs: usize,
    done: &dyn Fn(),
) -> Result<(Row, Vec<f64>), String> {
    let failed = |error| format!("row {}: {error}", case.name);
    // Frames that the kernel forwards must not count as Tollway's.
    topologies.tollway.kernel_forwards(false)?;
    let vids = case.setup.features.then_some(VIDS);
    let kernel = kernel(topologies, case.sink)?;
    let expect = Expect { vid: vids.map(|vids| vids[1]), follow: false, hook: case.sink };
    let sink = Sink::start(&topologies.tollway.b, expect)?;
    let side =
        RouterUnderTest { topology: &topologies.tollway, sink, vid: vids.map(|vids| vids[0]) };
    let tollway = Tollway::start(&topologies.tollway, case.setup, false).map_err(failed)?;
    side.send_until_stable(case.flows).map_err(failed)?;
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        // Each comes first equally often, so that disturbances of the machine favour neither.
        let mut rates = [0.0; 2];
        for turn in [pair % 2, 1 - pair % 2] {
            rates[turn] = [&kernel, &side][turn].mpps(case.flows).map_err(failed)?;
        }
        theirs.push(rates[0]);
        ours.push(rates[1]);
        ratios.push(rates[1] / rates[0]);
        done();
    }
    tollway.stop().map_err(failed)?;
    program::clear(&topologies.tollway)?;
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

/// One router under test, between a generator and a sink.
struct RouterUnderTest<'a> {
    topology: &'a Topology,
    sink: Sink,
    vid: Option<u16>,
}

impl RouterUnderTest<'_> {
    fn send(&self, flows: u32) -> Result<Generator, String> {
        Generator::start(&self.topology.a, Stream { flows, vid: self.vid, rate: None })
    }

    /// Measures once: million frames per second.
    fn mpps(&self, flows: u32) -> Result<f64, String> {
        let generator = self.send(flows)?;
        std::thread::sleep(WARM_UP);
        let rate = self.sink.mpps(WINDOW)?;
        generator.stop()?;
        Ok(rate)
    }

    /// Sends until the rate is stable.
    fn send_until_stable(&self, flows: u32) -> Result<(), String> {
        let generator = self.send(flows)?;
        let mut rates = Vec::new();
        for _ in 0..STEPS {
            rates.push(self.sink.mpps(STEP)?);
            let last = Summary::of(rates.get(rates.len().saturating_sub(ALIKE.0)..).unwrap_or(&[]));
            let alike =
                last.is_some_and(|last| last.repeats == ALIKE.0 && last.max < last.min * ALIKE.1);
            if alike {
                break;
            }
        }
        generator.stop()?;
        if self.sink.seen()?.frames == 0 {
            return Err("no frame arrives at the sink".to_owned());
        }
        Ok(())
    }
}
