//! What a measurement was made on.

use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;
use tollway_dataplane::clock;
use tollway_dataplane::cpu::Level;

/// The machine, as far as it bears on a figure.
#[derive(Clone, Debug, Serialize)]
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
    let (start, clocks) = (Instant::now(), clock::now());
    std::thread::sleep(time);
    let clocks = clock::now() - clocks;
    clocks as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// The compiler that built this program.
pub const COMPILER: &str = env!("TOLLWAY_COMPILER");

/// The commit that this program was built from.
pub const COMMIT: &str = env!("TOLLWAY_COMMIT");
