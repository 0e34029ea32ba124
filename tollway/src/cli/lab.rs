//! `tollway lab`: the bench.

use std::path::PathBuf;

use serde::Serialize;
use tollway_lab::report::Report;

use super::CliError;

/// Arguments of `tollway lab`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// Measure what forwarding costs a packet, and what each feature adds
    Tolls(TollsArgs),
    /// Measure what routes cost: forwarding over tables of all sizes, memory, building, changes
    Fib(FibArgs),
    /// Measure forwarding between real interfaces, by the kernel and by Tollway in turn (root's)
    Live(LiveArgs),
    /// Measure what rules cost: forwarding under lists of all sizes and shapes, building, memory
    Filter(FilterArgs),
}

/// Arguments of `tollway lab live`.
#[derive(clap::Args)]
#[command(
    after_help = "Rows: kernel express express-features express-64k express-1m af-xdp, and af-packet where it is \
                  named; parts: kill stop upgrade latency."
)]
struct LiveArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows and parts
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Measure the kernel and Tollway in turn so many times
    #[arg(long, default_value_t = 9, value_name = "N")]
    pairs: usize,
    /// Kill and stop Tollway so many times
    #[arg(long, default_value_t = 10, value_name = "N")]
    repeat: usize,
}

/// Arguments of `tollway lab filter`.
#[derive(clap::Args)]
#[command(
    after_help = "A row's figure is the worse of two: packets that match nothing before the last rule, and packets drawn from the rules."
)]
struct FilterArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows and parts: none rules-1 rules-100-uniform rules-100-mixed rules-1000-mixed
    /// acl1-941-64k acl1-10k-64k early-drop vlan-vrf-100-mixed-64k, build growth
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// A list of rules in ClassBench's form (default: ../shared/data/acl1-941.rules where it is, else
    /// made up)
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Write what forwarding costs as rules grow to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Arguments of `tollway lab fib`.
#[derive(clap::Args)]
#[command(
    after_help = "Rows are forwarding through the whole path; the other figures are named in the guide."
)]
struct FibArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows and parts: ip4-10k ip4-full ip6-10k ip6-full, build vrfs lookups updates
    /// growth
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// A gzipped list of prefixes, one a line, or the word `generated` (default:
    /// ../shared/data/bgp-prefixes.txt.gz where it is, else generated)
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Write what forwarding costs as the table grows to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Arguments of `tollway lab tolls`.
#[derive(clap::Args)]
#[command(
    after_help = "Figures are TSC clocks and ns a packet, forwarding alone, on one core, memory to memory."
)]
struct TollsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    match &args.bench {
        Bench::Tolls(args) => {
            let report = tollway_lab::tolls::run(&args.only)
                .map_err(|error| CliError::usage(error, "Run `tollway lab tolls` for all rows"))?;
            show(&report, args.json, tollway_lab::tolls::render)
        }
        Bench::Fib(args) => {
            let options =
                tollway_lab::fib::Options { only: args.only.clone(), data: args.data.clone() };
            let report = tollway_lab::fib::run(&options)
                .map_err(|error| CliError::failed(error, "See `tollway lab fib --help`"))?;
            if let Some(path) = &args.plot {
                tollway_lab::fib::plot::write(&report, path).map_err(|error| {
                    CliError::failed(error, "Name a file to write, and leave growth in --only")
                })?;
            }
            show(&report, args.json, tollway_lab::fib::render)
        }
        Bench::Live(args) => {
            let options = tollway_lab::live::Options {
                only: args.only.clone(),
                pairs: args.pairs.max(1),
                repeat: args.repeat.max(1),
            };
            let report = tollway_lab::live::run(&options)
                .map_err(|error| CliError::failed(error, "See `tollway lab live --help`"))?;
            show(&report, args.json, tollway_lab::live::render)
        }
        Bench::Filter(args) => {
            let options =
                tollway_lab::filter::Options { only: args.only.clone(), data: args.data.clone() };
            let report = tollway_lab::filter::run(&options)
                .map_err(|error| CliError::failed(error, "See `tollway lab filter --help`"))?;
            if let Some(path) = &args.plot {
                tollway_lab::filter::plot::write(&report, path).map_err(|error| {
                    CliError::failed(error, "Name a file to write, and leave growth in --only")
                })?;
            }
            show(&report, args.json, tollway_lab::filter::render)
        }
    }
}

/// Prints a report as one JSON object, or as text.
fn show<R: Serialize>(
    report: &Report<R>,
    json: bool,
    text: impl Fn(&Report<R>) -> String,
) -> Result<(), CliError> {
    if !json {
        return super::print(text(report));
    }
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| CliError::failed(error, "Report this as a defect"))?;
    super::print(format_args!("{json}\n"))
}
