//! `tollway lab`: the bench, one file for each command.

mod compare;
mod fib;
mod filter;
mod generate;
mod live;
mod mirror;
mod port;
mod probe;
mod profile;
mod rr;
mod sink;
mod study;
mod throughput;
mod tolls;
mod traffic;

use serde::Serialize;

use super::{CliError, print, print_json};

/// Arguments of `tollway lab`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// Measure what forwarding costs a packet, and what each feature adds
    Tolls(tolls::Args),
    /// Measure what routes cost: forwarding over tables of all sizes, memory, building, changes
    Fib(fib::Args),
    /// Measure forwarding between real interfaces, by the kernel and by Tollway in turn (root's)
    Live(live::Args),
    /// Measure how a Tollway follows a kernel with a million routes: start, memory, changes, losses, audits
    /// (root's)
    Mirror(mirror::Args),
    /// Measure what rules cost: forwarding under lists of all sizes and shapes, building, memory
    Filter(filter::Args),
    /// Send frames with numbers and times out of a device, and report what becomes of them (root's)
    Generate(Box<generate::Args>),
    /// Count the generator's frames at a device: loss, order, latency (root's)
    Sink(sink::Args),
    /// Find the highest rate that gets through without loss, or with little (RFC 2544; root's)
    Throughput(Box<throughput::Args>),
    /// Measure requests and responses through two routers in turn: the kernel, Tollway (root's)
    Rr(rr::Args),
    /// Compare two builds: revisions, programs, or settings of the compiler
    Compare(compare::Args),
    /// Show where the time of a row goes, function by function: a table, a flame graph, a call graph
    Profile(profile::Args),
    /// Make a published measurement anew: what it found, and what it is here
    Study(study::Args),
    /// Measure one row for each line on stdin, and print a JSON object for each
    #[command(hide = true)]
    Probe(probe::Args),
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    match &args.bench {
        Bench::Tolls(args) => tolls::run(args),
        Bench::Fib(args) => fib::run(args),
        Bench::Live(args) => live::run(args),
        Bench::Mirror(args) => mirror::run(args),
        Bench::Filter(args) => filter::run(args),
        Bench::Generate(args) => generate::run(args),
        Bench::Sink(args) => sink::run(args),
        Bench::Throughput(args) => throughput::run(args),
        Bench::Rr(args) => rr::run(args),
        Bench::Compare(args) => compare::run(args),
        Bench::Profile(args) => profile::run(args),
        Bench::Study(args) => study::run(args),
        Bench::Probe(args) => probe::run(args),
    }
}

/// Reads a delay that is to be injected, ns a packet.
fn inject_ns(text: &str) -> Result<f64, String> {
    let ns = text.parse().ok().filter(|ns| (0.0..=1e6).contains(ns));
    ns.ok_or_else(|| "write nanoseconds a packet, from 0 to 1000000".to_owned())
}

/// Reads how long something is to be measured, seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "write seconds, from 1 to 86400".to_owned())
}

/// Prints a report as one JSON object, or as text.
fn show<R: Serialize>(report: &R, json: bool, text: impl Fn(&R) -> String) -> Result<(), CliError> {
    if !json {
        return print(text(report));
    }
    print_json(report)
}
