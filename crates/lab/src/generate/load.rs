//! The load: how much to send, at which rate, and with how many threads.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Error;
use super::mark::STREAMS;
use crate::sys;

/// The most frames in a burst.
pub const MAX_BURST: usize = 64;

/// A requested rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Frames per second.
    Pps(f64),
    /// Bits per second on the wire, with preamble, frame check sequence and gap.
    Bps(f64),
}

impl Rate {
    /// The rate in frames per second, for frames that take `wire_bytes` on the wire.
    #[must_use]
    pub fn pps(self, wire_bytes: f64) -> f64 {
        match self {
            Self::Pps(pps) => pps,
            Self::Bps(bits) => bits / 8.0 / wire_bytes,
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    /// Parses a number, then K, M or G, then `pps` or `bit`; frames per second by default.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no rate: write 500000, 1.5Mpps or 10Gbit");
        let (number, bits) = match (text.strip_suffix("pps"), text.strip_suffix("bit")) {
            (Some(number), _) => (number, false),
            (_, Some(number)) => (number, true),
            _ => (text, false),
        };
        let mut scale = 1.0;
        let mut number = number.trim_end();
        for (letter, factor) in [('k', 1e3), ('K', 1e3), ('M', 1e6), ('G', 1e9)] {
            if let Some(rest) = number.strip_suffix(letter) {
                (number, scale) = (rest, factor);
                break;
            }
        }
        let value: f64 = number.trim_end().parse().map_err(|_| bad())?;
        match value.is_finite() && value >= 0.0 {
            true if bits => Ok(Self::Bps(value * scale)),
            true => Ok(Self::Pps(value * scale)),
            false => Err(bad()),
        }
    }
}

/// How much to send, how fast, with how many threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Rate of all threads together; `None` for as fast as possible.
    pub rate: Option<Rate>,
    /// Frames of each thread; `None` for no limit.
    pub count: Option<u64>,
    /// Time limit.
    pub time: Option<Duration>,
    /// Frames per transmit call.
    pub burst: usize,
    /// Number of threads, each with its own stream and processor.
    pub threads: usize,
    /// The processor of the first thread.
    pub first_cpu: usize,
}

impl Load {
    /// Checks the values.
    ///
    /// # Errors
    /// The rate is zero, or the burst, the number of threads or the processor is impossible.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(Rate::Pps(rate) | Rate::Bps(rate)) = self.rate
            && (rate <= 0.0 || !rate.is_finite())
        {
            let remedy = "Say a rate above zero, or leave --rate out to send as fast as it goes";
            return Err(Error::usage("a rate of zero sends nothing", remedy));
        }
        if !(1..=MAX_BURST).contains(&self.burst) {
            let remedy = format!("Say -b with a number from 1 to {MAX_BURST}");
            return Err(Error::usage(format!("a burst cannot have {} frames", self.burst), remedy));
        }
        if !(1..=STREAMS).contains(&self.threads) {
            let remedy = format!("Say -t with a number from 1 to {STREAMS}");
            return Err(Error::usage(format!("there cannot be {} threads", self.threads), remedy));
        }
        let processors = sys::processors().len();
        if self.first_cpu >= processors {
            let what = format!("there is no processor {}", self.first_cpu);
            let remedy = format!("Say -f with a number from 0 to {}", processors.saturating_sub(1));
            return Err(Error::usage(what, remedy));
        }
        if self.time.is_some_and(|time| time.is_zero()) {
            return Err(Error::usage("nothing is sent in no time", "Say --time with more seconds"));
        }
        Ok(())
    }

    /// One thread's share of the rate in frames per second.
    #[must_use]
    pub fn share(&self, wire_bytes: f64) -> Option<f64> {
        self.rate.map(|rate| rate.pps(wire_bytes) / self.threads as f64)
    }
}

/// Says whether work is to end. All threads share the flag, and a request to stop sets it.
pub fn is_over(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_units() {
        let read = |text: &str| text.parse::<Rate>();
        assert_eq!(read("500000"), Ok(Rate::Pps(5e5)));
        assert_eq!(read("1.5Mpps"), Ok(Rate::Pps(1.5e6)));
        assert_eq!(read("100 kpps"), Ok(Rate::Pps(1e5)));
        assert_eq!(read("10Gbit"), Ok(Rate::Bps(1e10)));
        for bad in ["", "fast", "-1", "1Tbit", "nan", "inf"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        // 10 Gbit/s are 14.88 Mpps of the shortest frames.
        assert!((Rate::Bps(1e10).pps(84.0) - 14_880_952.4).abs() < 0.1);
    }

    #[test]
    fn invalid_loads_are_refused() {
        let good =
            Load { rate: None, count: None, time: None, burst: 32, threads: 1, first_cpu: 0 };
        assert_eq!(good.check(), Ok(()));
        for (wrong, about) in [
            (Load { rate: Some(Rate::Pps(0.0)), ..good.clone() }, "rate of zero"),
            (Load { burst: 0, ..good.clone() }, "burst"),
            (Load { burst: 65, ..good.clone() }, "burst"),
            (Load { threads: 17, ..good.clone() }, "threads"),
            (Load { first_cpu: 5000, ..good.clone() }, "no processor 5000"),
            (Load { first_cpu: usize::MAX, threads: 2, ..good.clone() }, "no processor"),
            (Load { time: Some(Duration::ZERO), ..good.clone() }, "no time"),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.usage && error.what.contains(about), "{error}");
        }
    }
}
