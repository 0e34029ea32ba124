//! Changes that nobody reads for a while, and more than there is room for.

use std::time::{Duration, Instant};

use super::router::Mirror;
use super::table::compare;
use super::{Bench, Row};

/// Routes that change meanwhile.
const CHANGES: usize = 100_000;
/// How long nobody reads.
const STOP: Duration = Duration::from_secs(5);
/// More batches of changes than this do not fill a buffer that is as large as it should be.
const MOST_BATCHES: usize = 40;
/// How long it may take until all is as the kernel has it, s.
const BAR: f64 = 3.0;

/// Measures how long it takes until the routes are the kernel's again.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<(), String> {
    let (mut stopped, mut overrun, mut turn) = (Vec::new(), Vec::new(), 0);
    let mirror = bench.router.start(&[], false)?;
    for _ in 0..bench.options.repeat {
        let lost = mirror.talk()?.count("lost")?;
        mirror.signal(libc::SIGSTOP)?;
        let start = Instant::now();
        change(bench, &mut turn)?;
        std::thread::sleep(STOP.saturating_sub(start.elapsed()));
        stopped.push(recover(bench, &mirror)?);
        bench.bar.inc(1);
        let more = mirror.talk()?.count("lost")? - lost;
        note(bench, "stopped_lost", more);

        mirror.signal(libc::SIGSTOP)?;
        let mut batches = 0;
        let before = dropped(bench)?;
        while dropped(bench)? == before {
            if batches == MOST_BATCHES {
                return Err("the receive buffer does not get full".to_owned());
            }
            change(bench, &mut turn)?;
            batches += 1;
        }
        overrun.push(recover(bench, &mirror)?);
        bench.bar.inc(1);
        let overruns = mirror.talk()?.count("lost")? - lost - more;
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
    mirror.stop()
}

/// Has as many routes lead elsewhere, in turn.
fn change(bench: &Bench<'_>, turn: &mut usize) -> Result<(), String> {
    *turn += 1;
    let by: fn(usize) -> usize =
        if turn.is_multiple_of(2) { |number| number } else { |number| number + 1 };
    let count = CHANGES.min(bench.table.len());
    bench.router.batch(bench.table.lines(0..count, "replace", by))
}

/// Lets it go on; how long it took to have the kernel's routes.
fn recover(bench: &Bench<'_>, mirror: &Mirror<'_>) -> Result<f64, String> {
    let kernel = bench.router.routes()?;
    let start = Instant::now();
    mirror.signal(libc::SIGCONT)?;
    let mut talk = mirror.talk()?;
    talk.sync()?;
    let took = start.elapsed().as_secs_f64();
    compare(&kernel, &talk.routes()?).map(|()| took)
}

/// Messages of the kernel that did not fit into a socket on the router.
fn dropped(bench: &Bench<'_>) -> Result<u64, String> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netlink");
    let text = bench.router.topology.r.run(read)?;
    let text = text.map_err(|error| format!("the kernel's sockets can not be listed: {error}"))?;
    // sk, Eth, Pid, Groups, Rmem, Wmem, Dump, Locks, Drops, Inode; the first line names them.
    let drops = text.lines().filter_map(|line| line.split_whitespace().nth(8)?.parse::<u64>().ok());
    Ok(drops.sum())
}

fn note(bench: &mut Bench<'_>, name: &str, count: u64) {
    *bench.report.figures.entry(name.to_owned()).or_default() += count as f64;
}
