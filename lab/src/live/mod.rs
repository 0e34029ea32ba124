//! The live bench: forwarding between real interfaces, by the kernel and by Tollway in turn.
//!
//! There are two setups of hosts A and B with a router R between them: in one, R's kernel is the
//! router; in the other, Tollway runs on R. They use network namespaces that end with this process.
//! A BPF program on A, which the kernel runs with live frames, sends; another program on B counts.

pub mod controller;
mod generator;
mod host;
mod latency;
mod loss;
mod ping;
mod program;
mod rates;
pub mod rr;
pub(crate) mod runner;
mod sink;
pub(crate) mod sys;
#[cfg(test)]
mod tests;
mod text;
mod topology;

use aya::Ebpf;
use aya::programs::{Program, ProgramError};

use crate::machine::Machine;
use crate::report::Report;
pub use rates::Row;
use rates::{CASES, KERNEL};
pub use text::render;
use topology::Topology;

/// The measurements besides the rows, by name.
const PARTS: [&str; 4] = ["kill", "stop", "upgrade", "latency"];

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows and parts to measure; empty for all.
    pub only: Vec<String>,
    /// Pairs of measurements, kernel and Tollway, for each row.
    pub pairs: usize,
    /// How often Tollway is killed, and how often it is stopped.
    pub repeat: usize,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// The setups that forward packets.
struct Places {
    /// The kernel forwards.
    kernel: Topology,
    /// Tollway forwards.
    tollway: Topology,
}

/// Measures the selected rows and parts.
///
/// # Errors
/// A message, if a name is unknown, the machine does not allow it, or something fails.
pub fn run(options: &Options) -> Result<Report<Row>, String> {
    let rows = CASES.iter().map(|case| case.name);
    let names: Vec<_> = std::iter::once(KERNEL).chain(rows).chain(PARTS).collect();
    if let Some(unknown) = options.only.iter().find(|name| !names.contains(&&***name)) {
        return Err(format!("nothing is called {unknown}; there are {}", names.join(", ")));
    }
    if !sys::is_root() {
        return Err("network namespaces and BPF programs are only root's to make: run it as root"
            .to_owned());
    }
    let places = Places { kernel: Topology::new()?, tollway: Topology::new()? };
    let mut report = Report::new(Machine::probe(), Vec::new());
    rates::measure(&places, options, &mut report)?;
    loss::measure(&places, options, &mut report)?;
    latency::measure(&places, options, &mut report)?;
    Ok(report)
}

pub(crate) fn refused(name: &str, error: &dyn std::error::Error) -> String {
    // The kernel's own message is the last cause.
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    format!("the kernel refuses the BPF program {name}: {error}: {cause}")
}

/// A program in a BPF object, with its type.
pub(crate) fn program_of<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, String>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| format!("there is no program {name}"))?;
    program.try_into().map_err(|error| format!("{name} is of another kind: {error}"))
}

/// The index of an interface in the calling thread's namespace.
pub(crate) fn ifindex(name: &str) -> Result<u32, String> {
    sys::interface_number(name).ok_or_else(|| format!("there is no interface {name}"))
}
