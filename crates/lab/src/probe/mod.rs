//! `lab probe`: a child process that measures on request. A comparison starts it and requests one
//! slice after another.
//!
//! For each line that it reads, it measures once and writes one line, a JSON object: [`Slice`]. It
//! ends when its input ends, so it never outlives its parent.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::bench::IN_FLIGHT;
use crate::child;
use crate::machine::Machine;
use crate::tolls;

/// Default passes of each sort in a slice. A multiple of 64, so that a row of 65,536 flows sends
/// each flow equally often.
pub const PASSES: usize = 64;

/// The most passes in one request; they take minutes.
const MOST_PASSES: usize = 1 << 24;

/// The result of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// TSC clocks per packet.
    pub clocks_per_packet: f64,
    /// Nanoseconds per packet.
    pub ns_per_packet: f64,
    /// Number of forwarded packets.
    pub packets: u64,
}

/// Measures a row once for each line of `input`, and writes a line to `output` each time. A line
/// contains the passes of a slice, or is empty for [`PASSES`]. `inject_ns` is an artificial delay
/// for every packet.
///
/// # Errors
/// A message, if the row does not exist, memory is short, a line is not a number, or the output is
/// closed.
pub fn run(
    scenario: &str,
    inject_ns: f64,
    input: impl BufRead,
    output: impl Write,
) -> Result<(), String> {
    let mut bench = tolls::scenario(scenario)?.bench()?;
    let ns_per_clock = Machine::probe().ns_per_clock();
    bench.inject(inject_ns / ns_per_clock);
    child::serve(input, output, |line| {
        let passes = passes(line)?;
        let clocks_per_packet = bench.clocks_per_packet(passes);
        Ok(Slice {
            clocks_per_packet,
            ns_per_packet: clocks_per_packet * ns_per_clock,
            packets: (passes * IN_FLIGHT) as u64,
        })
    })
}

fn passes(line: &str) -> Result<usize, String> {
    if line.is_empty() {
        return Ok(PASSES);
    }
    let passes = line.parse().ok().filter(|passes| (1..=MOST_PASSES).contains(passes));
    passes.ok_or_else(|| {
        format!("{line:?} is no number of passes: write one from 1 to {MOST_PASSES}, or nothing")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries, of which one has to succeed: the machine may be busy.
    const TRIES: usize = 10;

    fn slices(input: &str, inject_ns: f64) -> Vec<Slice> {
        let mut output = Vec::new();
        run("ip4-one-flow", inject_ns, input.as_bytes(), &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn every_line_is_answered_by_a_slice() {
        // Another process may run in the part that is subtracted.
        let is_positive = (0..TRIES).any(|_| {
            let slices = slices("\n8\n 4 \n", 0.0);
            let packets: Vec<_> = slices.iter().map(|slice| slice.packets).collect();
            assert_eq!(packets, [PASSES as u64 * 1024, 8 * 1024, 4 * 1024]);
            slices.iter().all(|slice| slice.ns_per_packet > 0.0)
        });
        assert!(is_positive);
    }

    #[test]
    fn a_delay_is_in_the_figure() {
        // The slices have one pass, a millisecond; the test takes their lower quartile. When
        // another process runs in between, a slice gets longer, or far too short if that happens in
        // the part that is subtracted.
        let [plain, delayed] = [0.0, 1000.0].map(|ns| {
            let slices = slices(&"1\n".repeat(60), ns);
            let mut figures: Vec<_> = slices.iter().map(|slice| slice.ns_per_packet).collect();
            figures.sort_by(f64::total_cmp);
            figures[15]
        });
        let found = delayed - plain;
        assert!((800.0..2000.0).contains(&found), "1000 ns injected, {found:.0} found");
    }

    #[test]
    fn wrong_requests_are_refused() {
        for line in ["x", "0", "-1", "1.5", "99999999999"] {
            let error = run("ip4-one-flow", 0.0, line.as_bytes(), Vec::new()).unwrap_err();
            assert!(error.contains(line), "{error}");
        }
        let error = run("nonsense", 0.0, &b""[..], Vec::new()).unwrap_err();
        assert!(error.contains("the rows are floor, ip4-one-flow"), "{error}");
    }
}
