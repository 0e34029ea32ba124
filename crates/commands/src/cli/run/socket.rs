//! Opens the control socket of a new router, and takes over from a predecessor.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::cli::CliError;
use crate::control::{
    self, Client, ClientError, Command, HandedOver, Request, Socket, SocketError,
};

/// How long a predecessor may take to end.
const HAND_OVER: Duration = Duration::from_secs(10);

/// Requests that the router at a control socket hand its ports over, and waits until it has ended.
/// Without a router there, there is nothing to take over.
pub(super) fn take_over(path: Option<&Path>) -> Result<(), CliError> {
    let failed = |error: ClientError| CliError::control(&error);
    let mut client = match Client::connect(path) {
        Ok(client) => client,
        Err(ClientError::NotRunning { .. } | ClientError::NoPath) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let who = format!("the tollway at {}", client.path().display());
    let unwatched = |error: io::Error| {
        CliError::failed(
            format!("waiting for the end of {who} failed: {}", tollway_linux::sys::why(&error)),
            "Start again",
        )
    };
    let Some(predecessor) = client.peer().map_err(unwatched)? else {
        let what = format!("{who} is in another PID namespace, so its end cannot be observed");
        let remedy = "Replace it from that PID namespace, or use Linux 6.5 or newer";
        return Err(CliError::failed(what, remedy));
    };
    let HandedOver { .. } = client.request(&Request::Do(Command::HandOver)).map_err(failed)?;
    if !predecessor.ends_within(HAND_OVER).map_err(unwatched)? {
        let what = format!("{who} has begun to hand its ports over and does not end");
        return Err(CliError::failed(what, "End it; the kernel forwards meanwhile"));
    }
    tracing::info!("{who} has handed its ports over");
    Ok(())
}

/// Opens the control socket. A socket that the user names is required. Without one at a default
/// path the router forwards as well, unless another router already answers there.
pub(super) fn open(wanted: Option<&Path>) -> Result<Option<Socket>, CliError> {
    let failed = |error: SocketError| CliError::failed(&error, error.remedy());
    if let Some(path) = wanted {
        return Socket::open(path, false).map(Some).map_err(failed);
    }
    let mut why = "it has no default path, because XDG_RUNTIME_DIR is not set".to_owned();
    for path in control::default_paths() {
        match Socket::open(&path, false) {
            Ok(socket) => return Ok(Some(socket)),
            Err(error @ SocketError::System { .. }) => why = error.to_string(),
            Err(error) => return Err(failed(error)),
        }
    }
    tracing::warn!("starting without a control socket: {why}; name one with --socket");
    Ok(None)
}
