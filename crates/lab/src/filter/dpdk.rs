//! Lookups of DPDK's `librte_acl` on the same rules and flows, with `dpdk-test-acl` of Debian's
//! package dpdk, if it is installed.
//!
//! It looks up tuples that are ready in memory, and does nothing else. So its cost compares to a
//! part of a whole path only.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::rules::{ANYTHING, Tuple};
use crate::frames::Flow4;
use crate::stats::Summary;

const PROGRAM: &str = "dpdk-test-acl";
/// Lookups of all flows in one run.
const PASSES: usize = 30;
/// Number of runs, each of which builds the lists again.
const REPEATS: usize = 3;
/// Tuples per lookup call, as many as a burst has packets.
const BURST: usize = 64;
/// Memory limit, MiB.
const MEMORY: usize = 2048;
/// Time limit of a run in seconds: some lists take very long to build.
const PATIENCE: &str = "60";

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answer {
    /// Clocks per lookup.
    Clocks(f64),
    /// It cannot handle so many rules.
    TooMany,
    /// It is not installed.
    Missing,
}

/// Looks flows up in a list of rules that ends with an accept-all rule.
pub(super) fn look_up(tuples: &[Tuple], flows: &[Flow4]) -> Result<Answer, String> {
    let failed = |error: std::io::Error| format!("files for {PROGRAM}: {error}");
    let temp_dir = TempDir::new().map_err(failed)?;
    let (rules, trace) = (temp_dir.0.join("rules"), temp_dir.0.join("trace"));
    fs::write(&rules, rules_text(tuples)).map_err(failed)?;
    fs::write(&trace, trace_text(flows)).map_err(failed)?;
    let mut clocks = Vec::new();
    for _ in 0..REPEATS {
        match run(&rules, tuples.len() + 1, &trace, flows.len())? {
            Answer::Clocks(one) => clocks.push(one),
            other => return Ok(other),
        }
    }
    Ok(Answer::Clocks(Summary::of(&clocks).ok_or("no repeats")?.median))
}

fn run(rules: &Path, rule_count: usize, trace: &Path, flows: usize) -> Result<Answer, String> {
    let memory = MEMORY.to_string();
    let mut command = Command::new("timeout");
    command.args([PATIENCE, PROGRAM, "--no-huge", "-m", &memory, "--no-pci", "--no-telemetry"]);
    command.args(["--no-shconf", "-l", "0", "--", "--verbose=0", "--bldcat=1", "--runcat=1"]);
    command.arg(format!("--rulesf={}", rules.display()));
    command.arg(format!("--tracef={}", trace.display()));
    command.args([
        format!("--rulenum={rule_count}"),
        format!("--tracenum={flows}"),
        format!("--tracestep={BURST}"),
        format!("--iter={PASSES}"),
    ]);
    let output = command.stdin(Stdio::null()).output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Answer::Missing),
        output => output.map_err(|error| format!("{PROGRAM}: {error}"))?,
    };
    // Exit codes of timeout(1): no such program, and time limit exceeded.
    match output.status.code() {
        Some(127) => return Ok(Answer::Missing),
        Some(124) => return Ok(Answer::TooMany),
        _ => {}
    }
    let text = String::from_utf8_lossy(&output.stdout);
    match clocks(&text) {
        Some(clocks) => Ok(Answer::Clocks(clocks)),
        None if text.contains("rte_acl_build") => Ok(Answer::TooMany),
        None => {
            let error = String::from_utf8_lossy(&output.stderr);
            let last = error.lines().last().unwrap_or("it prints nothing");
            Err(format!("{PROGRAM} has not looked anything up: {last}"))
        }
    }
}

/// `... 194.04 cycles/pkt, ...`.
fn clocks(text: &str) -> Option<f64> {
    text.split_once(" cycles/pkt")?.0.rsplit(' ').next()?.parse().ok()
}

/// The rules in ClassBench format.
fn rules_text(tuples: &[Tuple]) -> String {
    let mut text = String::new();
    for Tuple { src, dst, sport, dport, protocol } in tuples.iter().chain([&ANYTHING]) {
        let (number, mask) = protocol.map_or((0, 0), |protocol| (protocol, 0xff));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "@{}/{} {}/{} {} : {} {} : {} {number:#04x}/{mask:#04x}",
            Ipv4Addr::from(src.0),
            src.1,
            Ipv4Addr::from(dst.0),
            dst.1,
            sport.0,
            sport.1,
            dport.0,
            dport.1
        );
    }
    text
}

/// Flows as numbers, one per line.
fn trace_text(flows: &[Flow4]) -> String {
    let mut text = String::new();
    for Flow4 { src, dst, ports, protocol } in flows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{src} {dst} {} {} {protocol}", ports.0, ports.1);
    }
    text
}

/// A directory that is removed when this is dropped.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("tollway-acl-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // If it cannot be removed, the system's cleaner of temporary files takes it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_output_is_parsed() {
        let text = "  num_tries=1\nsearch_ip5tuples  @lcore 0: 100 iterations, 200000 pkts, 1 \
                    categories, 38807522 cycles (0.01 sec), 194.04 cycles/pkt, 13399464.16 pkt/sec\n";
        assert_eq!(clocks(text), Some(194.04));
        assert_eq!(clocks("rte_acl_build(1) finished with -12"), None);
    }

    #[test]
    fn rules_and_flows_are_in_its_form() {
        let tuple = Tuple {
            src: (0x0a00_0000, 8),
            dst: (0xc000_0201, 32),
            dport: (22, 80),
            protocol: Some(6),
            ..ANYTHING
        };
        assert_eq!(
            rules_text(&[tuple]),
            "@10.0.0.0/8 192.0.2.1/32 0 : 65535 22 : 80 0x06/0xff\n\
             @0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00\n"
        );
        let flow = Flow4 { src: 1, dst: 2, ports: (3, 4), protocol: 17 };
        assert_eq!(trace_text(&[flow]), "1 2 3 4 17\n");
    }
}
