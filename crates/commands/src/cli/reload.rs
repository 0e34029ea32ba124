//! `tollway reload`: a running router reloads its configuration.

use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

use super::CliError;
use crate::control::{Client, ClientError, Command, NO_FILE, Request};

/// A file of a million routes takes some seconds; on a small machine, a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// Arguments of `tollway reload`.
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
    let answer: Value = match client.request(&Request::Do(Command::Reload)) {
        Ok(answer) => answer,
        Err(ClientError::Refused(sentences)) => {
            super::complain(format_args!("{sentences}\n"));
            let remedy = if sentences == NO_FILE {
                "Change the kernel's configuration instead (ip, nft): the router follows it at once"
            } else {
                "Correct the configuration and try again"
            };
            let what = "nothing was reloaded: the old configuration stays active";
            return Err(CliError::failed(what, remedy));
        }
        Err(error) => return Err(failed(error)),
    };
    if args.json {
        return super::print(format_args!("{answer:#}\n"));
    }
    let report = answer.get("report").and_then(Value::as_str).unwrap_or_default();
    super::print(format_args!("{report}\n"))
}
