//! `tollway lab fib`: what routes cost.

use std::path::PathBuf;

use tollway_lab::fib;

use super::{CliError, show};

/// Arguments of `tollway lab fib`.
#[derive(clap::Args)]
#[command(
    after_help = "Rows are forwarding through the whole path; the other figures are named in the guide."
)]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows and parts
    ///
    /// Rows: ip4-10k ip4-full ip6-10k ip6-full.
    ///
    /// Parts: build vrfs lookups updates growth.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Read a gzipped list of prefixes, one per line
    ///
    /// Write `generated` to generate the prefixes.
    ///
    /// Default: ../shared/data/bgp-prefixes.txt.gz; generated if missing.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Plot the cost against the table size to an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let options = fib::Options { only: args.only.clone(), data: args.data.clone() };
    let report = fib::run(&options)
        .map_err(|error| CliError::failed(error, "See `tollway lab fib --help`"))?;
    if let Some(path) = &args.plot {
        fib::plot::write(&report, path).map_err(|error| {
            CliError::failed(error, "Name a file to write, and leave growth in --only")
        })?;
    }
    show(&report, args.json, fib::render)
}
