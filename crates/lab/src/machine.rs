//! The machine and the build that a measurement was made on.

use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tollway_dataplane::clock;
use tollway_dataplane::cpu::Level;

/// The machine, as far as it influences figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// Number of processors that the process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The rate of the time-stamp counter in MHz, measured against the system clock.
    pub tsc_mhz: f64,
    /// The instruction set that the packet path uses.
    pub level: String,
}

impl Machine {
    /// Examines the machine. Takes 50 ms.
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

    /// Nanoseconds per clock of the time-stamp counter.
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

/// A moment read from both clocks. The longer ago it is, the more precise the rate of the
/// time-stamp counter.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    time: Instant,
    clocks: u64,
}

impl Moment {
    /// Reads both clocks. Of eight readings it takes the one with the least time between the
    /// clocks, since the scheduler may interrupt a reading.
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

    /// The counter's rate since that moment, MHz.
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
