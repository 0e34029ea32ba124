//! What a measurement was made on.

use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tollway_dataplane::clock;
use tollway_dataplane::cpu::Level;

/// The machine, as far as it bears on a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name for itself.
    pub cpu: String,
    /// Processors that the process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The time-stamp counter's rate, MHz, measured against the system's clock.
    pub tsc_mhz: f64,
    /// The instruction set that the path runs on.
    pub level: String,
}

impl Machine {
    /// Looks at the machine; takes 50 ms.
    #[must_use]
    pub fn probe() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let named = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let cpu = named.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, name)| name);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu.to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            tsc_mhz: tsc_mhz(Duration::from_millis(50)),
            level: format!("{:?}", Level::detect()).to_lowercase(),
        }
    }

    /// Nanoseconds that one clock takes.
    #[must_use]
    pub fn ns_per_clock(&self) -> f64 {
        1000.0 / self.tsc_mhz
    }
}

fn tsc_mhz(time: Duration) -> f64 {
    let start = Moment::now();
    std::thread::sleep(time);
    start.tsc_mhz()
}

/// A moment by both clocks, from which the time-stamp counter's rate is known the better the longer ago
/// it is.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    time: Instant,
    clocks: u64,
}

impl Moment {
    /// Reads both clocks: of eight times the one in which the least passed between them, since the
    /// processor may be taken away there.
    #[must_use]
    pub fn now() -> Self {
        let read = || {
            let (before, time, after) = (clock::now(), Instant::now(), clock::now());
            (after - before, Self { time, clocks: before + (after - before) / 2 })
        };
        let reads = std::iter::repeat_with(read)
            .take(8)
            .reduce(|best, next| if next.0 < best.0 { next } else { best });
        reads.map_or_else(|| read().1, |(_, moment)| moment)
    }

    /// The counter's rate since then, MHz.
    #[must_use]
    pub fn tsc_mhz(self) -> f64 {
        let now = Self::now();
        (now.clocks - self.clocks) as f64 / (now.time - self.time).as_secs_f64() / 1e6
    }
}

/// The compiler that built this program.
pub const COMPILER: &str = env!("TOLLWAY_COMPILER");

/// The commit that this program was built from.
pub const COMMIT: &str = env!("TOLLWAY_COMMIT");
