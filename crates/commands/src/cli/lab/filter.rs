//! `tollway lab filter`: what rules cost.

use std::path::PathBuf;

use tollway_lab::filter;

use super::{CliError, show};

/// Arguments of `tollway lab filter`.
#[derive(clap::Args)]
#[command(
    after_help = "A row's figure is the worse of two: packets that match nothing before the last rule, and packets drawn from the rules."
)]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows and parts
    ///
    /// Rows: none rules-1 rules-100-uniform rules-100-mixed rules-1000-mixed
    ///
    /// More: acl1-941-64k acl1-10k-64k early-drop vlan-vrf-100-mixed-64k.
    ///
    /// Parts: build growth.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Read a list of rules in ClassBench's format
    ///
    /// Default: ../shared/data/acl1-941.rules; generated if missing.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Plot the cost against the rule count to an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let options = filter::Options { only: args.only.clone(), data: args.data.clone() };
    let report = filter::run(&options)
        .map_err(|error| CliError::failed(error, "See `tollway lab filter --help`"))?;
    if let Some(path) = &args.plot {
        filter::plot::write(&report, path).map_err(|error| {
            CliError::failed(error, "Name a file to write, and leave growth in --only")
        })?;
    }
    show(&report, args.json, filter::render)
}
