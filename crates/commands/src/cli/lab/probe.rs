//! `tollway lab probe`: measures one row on request, for comparisons.

use std::io;

use tollway_lab::probe;

use super::CliError;

/// Arguments of `tollway lab probe`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Measure this row of `lab tolls`
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Delay each packet N ns
    #[arg(long, default_value_t = 0.0, value_name = "N", value_parser = super::inject_ns)]
    inject_ns: f64,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    probe::run(&args.scenario, args.inject_ns, input, output)
        .map_err(|error| CliError::usage(error, "See `tollway lab probe --help`"))
}
