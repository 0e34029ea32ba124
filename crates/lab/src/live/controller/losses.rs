//! More changes than Tollway's receive buffer holds, while Tollway does not read them.

use std::time::{Duration, Instant};

use super::router::KernelRouter;
use super::table::compare;
use super::{Bench, Row};

/// Routes that change meanwhile.
const CHANGES: usize = 100_000;
/// How long Tollway is stopped.
const STOP: Duration = Duration::from_secs(5);
/// Batches of changes that must fill a receive buffer of the intended size.
const MOST_BATCHES: usize = 40;
/// The highest acceptable time until all routes equal the kernel's, s.
const BAR: f64 = 3.0;

/// Measures the time until Tollway's routes equal the kernel's again.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<(), String> {
    let (mut stopped, mut overrun, mut turn) = (Vec::new(), Vec::new(), 0);
    let tollway = bench.router.start(&[], false)?;
    for _ in 0..bench.options.repeat {
        let lost = tollway.control()?.count("lost")?;
        tollway.signal(libc::SIGSTOP)?;
        let start = Instant::now();
        change(bench, &mut turn)?;
        std::thread::sleep(STOP.saturating_sub(start.elapsed()));
        stopped.push(recover(bench, &tollway)?);
        bench.bar.inc(1);
        let more = tollway.control()?.count("lost")? - lost;
        note(bench, "stopped_lost", more);

        tollway.signal(libc::SIGSTOP)?;
        let mut batches = 0;
        let before = dropped(bench)?;
        while dropped(bench)? == before {
            if batches == MOST_BATCHES {
                return Err("the receive buffer does not get full".to_owned());
            }
            change(bench, &mut turn)?;
            batches += 1;
        }
        overrun.push(recover(bench, &tollway)?);
        bench.bar.inc(1);
        let overruns = tollway.control()?.count("lost")? - lost - more;
        note(bench, "overrun_lost", overruns);
        if overruns == 0 {
            return Err("no message was lost, so this measures nothing".to_owned());
        }
    }
    let title = |what: &str| format!("{what}, until all routes are the kernel's");
    bench.report.rows.extend([
        Row::new(
            "stopped",
            title("stopped for 5 s in which 100,000 routes change"),
            "s",
            &stopped,
            BAR,
        ),
        Row::new("overrun", title("stopped until messages are lost"), "s", &overrun, BAR),
    ]);
    tollway.stop()
}

/// Changes the gateways of [`CHANGES`] routes back and forth.
fn change(bench: &Bench<'_>, turn: &mut usize) -> Result<(), String> {
    *turn += 1;
    let by: fn(usize) -> usize =
        if turn.is_multiple_of(2) { |number| number } else { |number| number + 1 };
    let count = CHANGES.min(bench.table.len());
    bench.router.batch(bench.table.lines(0..count, "replace", by))
}

/// Lets Tollway continue. Returns the time until its routes equal the kernel's.
fn recover(bench: &Bench<'_>, tollway: &KernelRouter<'_>) -> Result<f64, String> {
    let kernel = bench.router.routes()?;
    let start = Instant::now();
    tollway.signal(libc::SIGCONT)?;
    let mut control = tollway.control()?;
    control.sync()?;
    let took = start.elapsed().as_secs_f64();
    compare(&kernel, &control.routes()?).map(|()| took)
}

/// Number of netlink messages that did not fit into a socket on the router.
fn dropped(bench: &Bench<'_>) -> Result<u64, String> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netlink");
    let text = bench.router.topology.r.run(read)?;
    let text = text.map_err(|error| format!("cannot list the kernel's sockets: {error}"))?;
    // Columns: sk, Eth, Pid, Groups, Rmem, Wmem, Dump, Locks, Drops, Inode. The first line has
    // their names.
    let drops = text.lines().filter_map(|line| line.split_whitespace().nth(8)?.parse::<u64>().ok());
    Ok(drops.sum())
}

fn note(bench: &mut Bench<'_>, name: &str, count: u64) {
    *bench.report.figures.entry(name.to_owned()).or_default() += count as f64;
}
