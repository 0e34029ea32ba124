//! `tollway reload`: has a running router read its configuration again.

use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

use super::CliError;
use crate::control::{Client, ClientError, Command, NO_FILE, Request};

/// A file of a million routes takes some seconds, or a minute on a small machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Arguments of `tollway reload`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The router's control socket (default: where `tollway run` has it if nobody says otherwise)
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
    let answer: Value = match client.request(&Request::Do(Command::Reload)) {
        Ok(answer) => answer,
        Err(ClientError::Refused(sentences)) => {
            super::complain(format_args!("{sentences}\n"));
            let remedy = if sentences == NO_FILE {
                "Change the kernel's configuration instead (ip, nft): the router follows it at once"
            } else {
                "Correct the configuration and try again"
            };
            let what = "nothing was reloaded: what was in force stays in force";
            return Err(CliError::failed(what, remedy));
        }
        Err(error) => return Err(failed(error)),
    };
    if args.json {
        return super::print(format_args!("{answer:#}\n"));
    }
    let told = answer.get("told").and_then(Value::as_str).unwrap_or_default();
    super::print(format_args!("{told}\n"))
}
