//! `tollway lab compare`: two builds, measured in turn.

use std::time::Duration;

use tollway_lab::compare::{self, Options, Settings};

use super::generate::refuse;
use super::{CliError, show};

/// Arguments of `tollway lab compare`.
#[derive(clap::Args)]
#[command(
    after_help = "Revisions are built in a work tree below the target directory, once each. The verdict is \
                  \"faster\", \"slower\" or \"below accuracy\"; the guide says by which rule."
)]
pub(super) struct Args {
    /// A revision of the repository that you are in, or the path of a program
    base: String,
    /// What it is compared with, likewise; the same again is fine
    head: String,
    /// Measure these rows of `lab tolls` [default: ip4-one-flow]
    #[arg(long, num_args = 1.., value_name = "ROW")]
    scenario: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Have every packet cost so many nanoseconds more on the second side, to test the bench
    #[arg(long, default_value_t = 0.0, value_name = "N", value_parser = super::inject_ns)]
    inject_ns: f64,
    /// Measure for so long, over all rows
    #[arg(long, default_value_t = 30.0, value_name = "S", value_parser = super::seconds)]
    seconds: f64,
    /// Leave out what has changed by function, and the instructions of a packet
    #[arg(long)]
    no_profile: bool,
    /// Build with this toolchain of rustup's, or the second side with another
    #[arg(long, value_name = "T|A..B")]
    toolchain: Option<String>,
    /// Build for this processor, or the second side for another
    #[arg(long, value_name = "CPU|A..B")]
    target_cpu: Option<String>,
    /// Build with this level of optimisation, or the second side with another
    #[arg(long, value_name = "LEVEL|A..B")]
    opt_level: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let refuse = |error: compare::Error| refuse(&error);
    let settings = Settings::of_both(
        args.toolchain.as_deref(),
        args.target_cpu.as_deref(),
        args.opt_level.as_deref(),
    );
    let options = Options {
        specs: [args.base.clone(), args.head.clone()],
        settings: settings.map_err(refuse)?,
        rows: args.scenario.clone(),
        inject_ns: args.inject_ns,
        time: Duration::from_secs_f64(args.seconds),
        changes: !args.no_profile,
    };
    show(&compare::run(&options).map_err(refuse)?, args.json, compare::render)
}
