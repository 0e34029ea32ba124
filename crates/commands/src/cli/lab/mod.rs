//! `tollway lab`: the bench, one file for each command.

mod compare;
mod controller;
mod fib;
mod filter;
mod generate;
mod live;
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
    /// Measure routes: forwarding at all table sizes, memory, changes
    ///
    /// Building the tables is measured too.
    Fib(fib::Args),
    /// Measure the kernel and Tollway in turn on real interfaces (root)
    Live(live::Args),
    /// Measure how Tollway follows a kernel with a million routes (root)
    ///
    /// Measure start, memory, changes, losses and audits.
    #[command(alias = "mirror")]
    Controller(controller::Args),
    /// Measure rules: forwarding under all lists, build time, memory
    ///
    /// Lists have all sizes and shapes.
    Filter(filter::Args),
    /// Send numbered, timestamped frames, and report the result (root)
    Generate(Box<generate::Args>),
    /// Count generated frames at a device: loss, order, latency (root)
    Sink(sink::Args),
    /// Find the highest rate with no or little loss (RFC 2544; root)
    Throughput(Box<throughput::Args>),
    /// Measure requests and responses through two routers in turn (root)
    ///
    /// By default these are the kernel and Tollway.
    Rr(rr::Args),
    /// Compare two builds: revisions, programs, or compiler settings
    Compare(compare::Args),
    /// Show the time of a row by function: table, flame and call graph
    Profile(profile::Args),
    /// Repeat a published measurement, and show both results
    Study(study::Args),
    /// Measure one row for each line on stdin, and print JSON for each
    #[command(hide = true)]
    Probe(probe::Args),
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    match &args.bench {
        Bench::Tolls(args) => tolls::run(args),
        Bench::Fib(args) => fib::run(args),
        Bench::Live(args) => live::run(args),
        Bench::Controller(args) => controller::run(args),
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

/// Parses a delay to inject, ns per packet.
fn inject_ns(text: &str) -> Result<f64, String> {
    let ns = text.parse().ok().filter(|ns| (0.0..=1e6).contains(ns));
    ns.ok_or_else(|| "write nanoseconds a packet, from 0 to 1000000".to_owned())
}

/// Parses a duration of a measurement, seconds.
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
