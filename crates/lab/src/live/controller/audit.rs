//! The cost of an audit for forwarding.
//!
//! One Tollway forwards all the time, on one processor. The auditing thread runs in one window and
//! pauses in the next. So windows differ only in the audit, and neither in the setup nor in the
//! generator. All other work of that thread counts as part of the audit.

use std::time::{Duration, Instant};

use super::super::generator::{Flows, Generator, Stream};
use super::super::sink::{Expect, Sink, SinkHook};
use super::router::{KernelRouter, Router};
use super::{Bench, Row};
use crate::stats::{Summary, paired_percent};
use crate::sys;

/// Audit interval in seconds: an audit restarts at once.
const EVERY: &str = "1";
/// Tollway's name for the thread that audits.
const AUDITOR: &str = "controller";
/// Time before the first measurement.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time after the auditor stops or continues: as long as it may pause.
const SETTLE: Duration = Duration::from_millis(250);
/// Duration of a measurement: ten slices of an audit.
const WINDOW: Duration = Duration::from_millis(500);
/// Number of flows, which makes no difference on the user path.
const FLOWS: u32 = 256;
/// The confidence of the interval.
const CONFIDENCE: f64 = 0.95;
/// The highest acceptable slowdown of forwarding, %.
const BAR: f64 = 2.0;

/// A setup that forwards packets.
struct XdpTraffic<'a> {
    tollway: KernelRouter<'a>,
    sink: Sink,
    router: &'a Router,
}

/// The result of a window.
struct Window {
    /// Million frames per second.
    mpps: f64,
    /// The auditor's share of the processor, %.
    auditor_percent: f64,
}

impl<'a> XdpTraffic<'a> {
    fn new(router: &'a Router) -> Result<Self, String> {
        let expect = Expect { vid: None, follow: false, hook: SinkHook::Tc, bridged: None };
        let sink = Sink::start(&router.topology.b, expect)?;
        // Tollway and its audit have a separate processor.
        let tollway = router.start(&["--xdp", "off", "--audit", EVERY], true)?;
        tollway.control()?.sync()?;
        Ok(Self { tollway, sink, router })
    }

    /// Measures one window.
    fn window(&self, auditor: i32) -> Result<Window, String> {
        std::thread::sleep(SETTLE);
        let kernel = self.router.topology.kernel_forwarded()?;
        let spent = self.tollway.spent(auditor)?;
        let (start, before) = (Instant::now(), self.sink.seen()?);
        std::thread::sleep(WINDOW);
        let (taken, after) = (start.elapsed(), self.sink.seen()?);
        let spent = self.tollway.spent(auditor)? - spent;
        let kernel = self.router.topology.kernel_forwarded()? - kernel;
        after.check()?;
        let frames = after.frames - before.frames;
        if kernel * 100 > frames {
            return Err(format!("not Tollway: the kernel forwarded {kernel} of {frames} frames"));
        }
        Ok(Window {
            mpps: frames as f64 / taken.as_secs_f64() / 1e6,
            auditor_percent: spent.as_secs_f64() / taken.as_secs_f64() * 100.0,
        })
    }
}

/// Measures windows with and without an audit in turn.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<(), String> {
    let traffic = XdpTraffic::new(bench.router)?;
    let auditor = traffic.tollway.thread(AUDITOR)?;
    let stream = Stream { flows: Flows::InTurn(FLOWS), vid: None, rate: None };
    let generator = Generator::start(&bench.router.topology.a, stream)?;
    std::thread::sleep(WARM_UP);
    let (mut audited, mut quiet, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..bench.options.pairs {
        let (mut mpps, mut percent) = ([0.0; 2], [0.0; 2]);
        // Each comes first equally often.
        for turn in [pair % 2, 1 - pair % 2] {
            let stands_still = turn == 1;
            sys::set_idle_policy(auditor, stands_still)
                .map_err(|error| format!("cannot hold up the auditor: {error}"))?;
            let window = traffic.window(auditor)?;
            (mpps[turn], percent[turn]) = (window.mpps, window.auditor_percent);
        }
        audited.push(mpps[0]);
        quiet.push(mpps[1]);
        parts.push(percent[0] - percent[1]);
        bench.bar.inc(1);
    }
    generator.stop()?;
    traffic.tollway.stop()?;
    let title = format!("{} routes audited, forwarding slower", bench.table.len());
    let slower = audited.iter().zip(&quiet).map(|(audited, quiet)| (1.0 - audited / quiet) * 100.0);
    let slower: Vec<_> = slower.collect();
    bench.report.rows.push(Row::new("audit", title, "%", &slower, BAR));
    let figures = &mut bench.report.figures;
    let mut note = |name: &str, value: f64| {
        figures.insert(format!("audit_{name}"), value);
    };
    let middle = |values: &[f64]| Summary::of(values).unwrap_or_default().median;
    note("mpps", middle(&quiet));
    note("processor_percent", middle(&parts));
    let (_, [least, most]) = paired_percent(&quiet, &audited, CONFIDENCE);
    // A negative difference of the rate is a slowdown; with too few pairs the interval is unknown.
    if least.is_finite() && most.is_finite() {
        note("mean_low_percent", -most);
        note("mean_high_percent", -least);
    }
    Ok(())
}
