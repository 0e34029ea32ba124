//! `tollway lab live`: forwarding between real interfaces.

use tollway_lab::live;

use super::{CliError, show};

/// Arguments of `tollway lab live`.
#[derive(clap::Args)]
#[command(after_help = live::row_names())]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows and parts
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Measure both routers N times in turn
    #[arg(long, default_value_t = 7, value_name = "N")]
    pairs: usize,
    /// Repeat kill, stop and the parts about connections N times
    #[arg(long, default_value_t = 6, value_name = "N")]
    repeat: usize,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let options = live::Options {
        only: args.only.clone(),
        pairs: args.pairs.max(1),
        repeat: args.repeat.max(1),
    };
    let report = live::run(&options)
        .map_err(|error| CliError::failed(error, "See `tollway lab live --help`"))?;
    show(&report, args.json, live::render)
}
