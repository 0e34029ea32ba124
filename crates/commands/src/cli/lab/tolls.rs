//! `tollway lab tolls`: what forwarding costs a packet.

use std::path::PathBuf;

use tollway_lab::tolls::{self, against, html, record};

use super::{CliError, print, show};

/// Arguments of `tollway lab tolls`.
#[derive(clap::Args)]
#[command(
    after_help = "Figures are TSC clocks and ns a packet, forwarding alone, on one core, memory to memory."
)]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Write a self-contained page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Record the run in this directory, by date and commit
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = record::DIRECTORY)]
    record: Option<PathBuf>,
    /// Show the changes since a recorded run
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    // These checks come first, because the measurement takes long.
    let record = args.against.as_deref().map(|path| Ok((record::read(path)?, path))).transpose();
    let record = record.map_err(|error: String| {
        CliError::usage(error, "Name a file that `tollway lab tolls --record` has written")
    })?;
    let unwritable = |error| CliError::failed(error, "Name a place that can be written to");
    args.html.as_deref().map_or(Ok(()), html::check).map_err(unwritable)?;
    let mut tolls = tolls::run(&args.only)
        .map_err(|error| CliError::usage(error, "Run `tollway lab tolls` for all rows"))?;
    // A record contains this run only.
    let kept = args.record.as_deref().map(|directory| record::keep(&tolls, directory)).transpose();
    tolls.against = record.map(|(record, path)| against::compare(&tolls, &record, path));
    show(&tolls, args.json, tolls::render)?;
    let mut written = String::new();
    if let Some(path) = kept.map_err(unwritable)? {
        written += &format!("recorded in {}\n", path.display());
    }
    if let Some(path) = &args.html {
        html::write(&tolls, path).map_err(unwritable)?;
        written += &format!("wrote {}\n", path.display());
    }
    if args.json { Ok(()) } else { print(written) }
}
