//! What an audit takes from forwarding.

use std::time::{Duration, Instant};

use super::super::generator::{Generator, Stream};
use super::super::sink::{Expect, Place, Sink};
use super::router::{Mirror, Router};
use super::{Bench, Row};
use crate::stats::Summary;

/// Each place has the audit in one of them.
pub(super) const HALVES: usize = 2;
/// An audit that begins again at once, and one that does not come.
const EVERY: [&str; 2] = ["1", "86400"];
/// Before a measurement.
const WARM_UP: Duration = Duration::from_millis(300);
/// A measurement.
const WINDOW: Duration = Duration::from_millis(700);
/// Flows; through user space they are all alike.
const FLOWS: u32 = 256;
/// How much slower forwarding may be, %.
const BAR: f64 = 2.0;

/// A place where packets are forwarded.
struct Lane<'a> {
    mirror: Mirror<'a>,
    sink: Sink,
    router: &'a Router,
}

impl<'a> Lane<'a> {
    fn new(router: &'a Router, every: &str) -> Result<Self, String> {
        let expect = Expect { vid: None, follow: false, place: Place::Tc };
        let sink = Sink::start(&router.topology.b, expect)?;
        // On a processor of its own, with its audit.
        let mirror = router.start(&["--express", "off", "--audit", every], true)?;
        mirror.talk()?.sync()?;
        mirror.signal(libc::SIGSTOP)?;
        Ok(Self { mirror, sink, router })
    }

    /// Million frames a second, while all others stand still.
    fn mpps(&self) -> Result<f64, String> {
        self.mirror.signal(libc::SIGCONT)?;
        let stream = Stream { flows: FLOWS, vid: None, rate: None };
        let generator = Generator::start(&self.router.topology.a, stream)?;
        std::thread::sleep(WARM_UP);
        let kernel = self.router.topology.kernel_forwarded()?;
        let (start, before) = (Instant::now(), self.sink.seen()?);
        std::thread::sleep(WINDOW);
        let (taken, after) = (start.elapsed(), self.sink.seen()?);
        let kernel = self.router.topology.kernel_forwarded()? - kernel;
        generator.stop()?;
        after.check()?;
        self.mirror.signal(libc::SIGSTOP)?;
        let frames = after.frames - before.frames;
        if kernel * 100 > frames {
            return Err(format!("not Tollway: the kernel forwarded {kernel} of {frames} frames"));
        }
        Ok(frames as f64 / taken.as_secs_f64() / 1e6)
    }

    fn stop(self) -> Result<(), String> {
        self.mirror.signal(libc::SIGCONT)?;
        self.mirror.stop()
    }
}

/// Measures two routers in turn, one of which is being audited, then with the roles changed: so no place
/// is at an advantage.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<(), String> {
    let other = Router::new(bench.table)?;
    let routers = [bench.router, &other];
    let (mut slowdown, mut rates, mut halves) = (Vec::new(), Vec::new(), Vec::new());
    for half in 0..HALVES {
        let [audited, quiet] = [routers[half], routers[1 - half]];
        let lanes = [Lane::new(audited, EVERY[0])?, Lane::new(quiet, EVERY[1])?];
        let mut ratios = Vec::new();
        for pair in 0..bench.options.pairs {
            let mut mpps = [0.0; 2];
            for turn in [pair % 2, 1 - pair % 2] {
                mpps[turn] = lanes[turn].mpps()?;
            }
            ratios.push(mpps[0] / mpps[1]);
            rates.push(mpps[1]);
            bench.bar.inc(1);
        }
        let [audited, quiet] = lanes;
        audited.stop()?;
        quiet.stop()?;
        halves.push(Summary::of(&ratios).unwrap_or_default().median);
        slowdown.extend(ratios);
    }
    // The places' own difference is in one half as much for as it is against in the other.
    let ratio = halves.iter().product::<f64>().powf(1.0 / halves.len() as f64);
    let percent = |ratio: f64| (1.0 - ratio) * 100.0;
    let values: Vec<_> = slowdown.iter().map(|ratio| percent(*ratio)).collect();
    let title = format!("{} routes audited, forwarding slower", bench.table.len());
    let mut row = Row::new("audit", title, "%", &values, BAR);
    row.value.median = percent(ratio);
    bench.report.rows.push(row);
    let mpps = Summary::of(&rates).unwrap_or_default().median;
    bench.report.figures.insert("audit_mpps".to_owned(), mpps);
    Ok(())
}
