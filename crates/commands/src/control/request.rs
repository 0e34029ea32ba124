//! Requests of clients: queries and commands.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::message::{ShowRequest, VERSION, line};
use super::set::Change;

/// The answer to [`Command::Reload`] of a router without a configuration file.
pub const NO_FILE: &str =
    "this router has no configuration file: it follows what the kernel is configured to do";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A query.
    Show(ShowRequest),
    /// A command.
    Do(Command),
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Read the configuration again and install it.
    Reload,
    /// Answer when everything that the kernel has notified of so far is active.
    Sync,
    /// Stop and give the ports to a successor; the kernel forwards meanwhile.
    HandOver,
    /// Change a set of the firewall.
    Set {
        /// Its name, with or without its table's name.
        name: String,
        /// Whether to add or delete.
        change: Change,
        /// Addresses, prefixes, or ranges.
        elements: Vec<String>,
    },
}

/// The router that hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    /// The process, by its number in its own PID namespace. The ports are free when it has ended.
    pub pid: u32,
}

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Whether anything has changed.
    pub changed: bool,
    /// The result in a sentence.
    pub report: String,
    /// How long the worker was paused, ns.
    pub pause_ns: Option<u64>,
}

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is not text.
    #[error("the request is not UTF-8 text")]
    NotText,
    /// It is not JSON.
    #[error("the request is no JSON object on one line: {0}")]
    NotJson(String),
    /// It is of another version of the protocol.
    #[error("the request is of version {0}, and this is version {VERSION}")]
    OtherVersion(Value),
    /// It has no version.
    #[error("the request names no version; add \"v\":{VERSION}")]
    NoVersion,
    /// It is no request of this version.
    #[error("the request is not understood: {0}")]
    Unknown(String),
}

impl Request {
    /// Parses a request.
    ///
    /// # Errors
    /// The line is no request of this version.
    pub fn read(line: &str) -> Result<Self, RequestError> {
        let mut request: Value =
            serde_json::from_str(line).map_err(|error| RequestError::NotJson(error.to_string()))?;
        let version = request.as_object_mut().and_then(|object| object.remove("v"));
        match version {
            Some(version) if version == json!(VERSION) => {}
            Some(version) => return Err(RequestError::OtherVersion(version)),
            None => return Err(RequestError::NoVersion),
        }
        let read = match request.get("do") {
            Some(_) => serde_json::from_value(request).map(Self::Do),
            None => serde_json::from_value(request).map(Self::Show),
        };
        read.map_err(|error| RequestError::Unknown(error.to_string()))
    }

    /// Formats the request as a line, without the newline.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Show(show) => line(show),
            Self::Do(command) => line(command),
        }
    }
}

impl From<&ShowRequest> for Request {
    fn from(show: &ShowRequest) -> Self {
        Self::Show(show.clone())
    }
}
