//! `tollway lab profile`: shows where the time of a row goes.

use std::path::PathBuf;
use std::time::Duration;

use tollway_lab::profile::{self, Error, Options};

use super::{CliError, show};

/// Arguments of `tollway lab profile`.
#[derive(clap::Args)]
#[command(
    after_help = "Samples are taken by a timer, so no counters of the processor's are needed. Pictures are \
                  profile-SCENARIO-flame.svg, -calls.svg and -calls.dot."
)]
pub(super) struct Args {
    /// Profile this row of `lab tolls`
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Sample for S seconds
    #[arg(long, default_value_t = 5.0, value_name = "S", value_parser = super::seconds)]
    seconds: f64,
    /// Write the pictures to this directory
    #[arg(long, default_value = ".", value_name = "DIR")]
    out: PathBuf,
    /// Draw nothing
    #[arg(long, conflicts_with = "out")]
    no_pictures: bool,
    /// Delay each packet N ns (bench test)
    #[arg(long, default_value_t = 0.0, value_name = "N", value_parser = super::inject_ns)]
    inject_ns: f64,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let options = Options {
        scenario: args.scenario.clone(),
        time: Duration::from_secs_f64(args.seconds),
        inject_ns: args.inject_ns,
        pictures: (!args.no_pictures).then(|| args.out.clone()),
    };
    let profile = profile::run(&options).map_err(|error| match error {
        Error::Scenario(what) => CliError::usage(what, "Name a row of `tollway lab tolls`"),
        Error::Failed(what) => CliError::failed(what, "See `tollway lab profile --help`"),
    })?;
    show(&profile, args.json, profile::render)
}
