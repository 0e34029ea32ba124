//! `tollway sync`: waits until the kernel's configuration is active.

use std::path::PathBuf;
use std::time::Duration;

use super::CliError;
use crate::control::{Client, ClientError, Command, Request};
use tollway_controller::handle::Synced;

/// This is longer than the router itself waits.
const PATIENCE: Duration = Duration::from_secs(90);

/// Arguments of `tollway sync`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Use this control socket [default: as `tollway run`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let failed = |error: ClientError| CliError::control(&error);
    let mut client = Client::connect(args.socket.as_deref()).map_err(failed)?;
    client.wait_for(PATIENCE).map_err(failed)?;
    let answer: Synced = client.request(&Request::Do(Command::Sync)).map_err(failed)?;
    if args.json {
        return super::print_json(&answer);
    }
    let changes = answer.changes;
    match answer.bypassed {
        None => super::print(format_args!("{changes} changes of the kernel are installed\n")),
        Some(why) => super::print(format_args!(
            "{changes} changes of the kernel are known, and the kernel forwards everything: {why}\n"
        )),
    }
}
