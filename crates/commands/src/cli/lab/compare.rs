//! `tollway lab compare`: two builds, measured in turn.

use std::time::Duration;

use tollway_lab::compare::{self, Options, Settings};

use super::generate::to_cli_error;
use super::{CliError, show};

/// Arguments of `tollway lab compare`.
#[derive(clap::Args)]
#[command(
    after_help = "Revisions are built in a work tree below the target directory, once each. The verdict is \
                  \"faster\", \"slower\" or \"below accuracy\"; the guide says by which rule."
)]
pub(super) struct Args {
    /// Build this revision of the current repository, or run this program
    base: String,
    /// Compare it with this one, likewise; both may be the same
    head: String,
    /// Measure these toll rows [default: ip4-one-flow]
    #[arg(long, num_args = 1.., value_name = "ROW")]
    scenario: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Delay HEAD's packets N ns (a test)
    #[arg(long, default_value_t = 0.0, value_name = "N", value_parser = super::inject_ns)]
    inject_ns: f64,
    /// Measure for S seconds in total
    #[arg(long, default_value_t = 30.0, value_name = "S", value_parser = super::seconds)]
    seconds: f64,
    /// Omit changes by function and instruction counts
    #[arg(long)]
    no_profile: bool,
    /// Build with a rustup toolchain, or with A and B
    #[arg(long, value_name = "T|A..B")]
    toolchain: Option<String>,
    /// Build for this processor, or for A and B
    #[arg(long, value_name = "CPU|A..B")]
    target_cpu: Option<String>,
    /// Build with this optimisation level, or A and B
    #[arg(long, value_name = "LEVEL|A..B")]
    opt_level: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let to_cli_error = |error: compare::Error| to_cli_error(&error);
    let settings = Settings::of_both(
        args.toolchain.as_deref(),
        args.target_cpu.as_deref(),
        args.opt_level.as_deref(),
    );
    let options = Options {
        specs: [args.base.clone(), args.head.clone()],
        settings: settings.map_err(to_cli_error)?,
        rows: args.scenario.clone(),
        inject_ns: args.inject_ns,
        time: Duration::from_secs_f64(args.seconds),
        changes: !args.no_profile,
    };
    show(&compare::run(&options).map_err(to_cli_error)?, args.json, compare::render)
}
