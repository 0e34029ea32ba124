//! `tollway lab controller`: how Tollway follows the kernel.

use std::path::PathBuf;

use tollway_lab::live::controller::{Options, render, run as measure};

use super::{CliError, show};

/// Arguments of `tollway lab controller`.
#[derive(clap::Args)]
#[command(after_help = "Parts: begin changes losses audit.")]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these parts
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Load N routes into the kernel, at most all of the list
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    routes: usize,
    /// Make N changes of each kind in a round, at most 4000
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4000))]
    changes: u32,
    /// Measure each part N times
    #[arg(long, default_value_t = 3, value_name = "N")]
    repeat: usize,
    /// Forward with and without an audit N times in turn
    #[arg(long, default_value_t = 60, value_name = "N")]
    pairs: usize,
    /// Read a gzipped list of prefixes, one per line
    ///
    /// Write `generated` to generate the prefixes.
    ///
    /// Default: ../shared/data/bgp-prefixes.txt.gz; generated if missing.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let options = Options {
        only: args.only.clone(),
        routes: args.routes.max(1),
        changes: args.changes as usize,
        repeat: args.repeat.max(1),
        pairs: args.pairs.max(1),
        data: args.data.clone(),
    };
    let report = measure(&options)
        .map_err(|error| CliError::failed(error, "See `tollway lab controller --help`"))?;
    show(&report, args.json, render)
}
