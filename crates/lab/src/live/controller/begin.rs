//! The start with a kernel that already has all routes.

use super::table::compare;
use super::{Bench, Row};

/// Measures the time until all routes are active, and the memory.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<(), String> {
    let (mut seconds, mut peak, mut resident) = (Vec::new(), Vec::new(), Vec::new());
    let kernel = bench.router.routes()?;
    for _ in 0..bench.options.repeat {
        let tollway = bench.router.start(&[], false)?;
        let mut control = tollway.control()?;
        control.sync()?;
        seconds.push(tollway.took.as_secs_f64());
        peak.push(tollway.memory_mb("VmHWM")?);
        resident.push(tollway.memory_mb("VmRSS")?);
        compare(&kernel, &control.routes()?)?;
        drop(control);
        tollway.stop()?;
        bench.bar.inc(1);
    }
    let count = bench.table.len();
    let time = format!("{count} routes in the kernel, until all are installed");
    bench.report.rows.extend([
        Row::new("begin", time, "s", &seconds, 5.0),
        Row::new("memory", "resident memory at most meanwhile", "MB", &peak, 400.0),
        Row::new("memory-after", "resident memory afterwards", "MB", &resident, 400.0),
    ]);
    Ok(())
}
