//! What a client wants: to be shown something, or that something be done.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::message::{Ask, VERSION, line};
use super::set::Change;

/// What a router says that has no configuration to be read again.
pub const NO_FILE: &str =
    "this router has no configuration file: it follows what the kernel is configured to do";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Show something.
    Show(Ask),
    /// Do something.
    Do(Command),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Read the configuration again and put it in force.
    Reload,
    /// Answer when all is in force that the kernel has told by now.
    Sync,
    /// Stop, and leave the ports to a successor; the kernel forwards meanwhile.
    HandOver,
    /// Change a set of the firewall.
    Set {
        /// Its name, with its table's or without.
        name: String,
        /// What to do.
        change: Change,
        /// Addresses, prefixes, or ranges.
        elements: Vec<String>,
    },
}

/// Who hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    /// The process, by its number in its own PID namespace; the ports are free when it has ended.
    pub pid: u32,
}

/// What a reload has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Whether anything has changed.
    pub changed: bool,
    /// What was done, in a sentence.
    pub told: String,
    /// How long the worker did nothing else, ns.
    pub pause_ns: Option<u64>,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn read(line: &str) -> Result<Self, String> {
        let mut request: Value = serde_json::from_str(line)
            .map_err(|error| format!("the request is no JSON object on one line: {error}"))?;
        let version = request.as_object_mut().and_then(|object| object.remove("v"));
        match version {
            Some(version) if version == json!(VERSION) => {}
            Some(version) => {
                return Err(format!(
                    "the request is of version {version}, and this is version {VERSION}"
                ));
            }
            None => return Err(format!("the request names no version; add \"v\":{VERSION}")),
        }
        let read = match request.get("do") {
            Some(_) => serde_json::from_value(request).map(Self::Do),
            None => serde_json::from_value(request).map(Self::Show),
        };
        read.map_err(|error| format!("the request is not understood: {error}"))
    }

    /// The request as a line, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Show(ask) => line(ask),
            Self::Do(command) => line(command),
        }
    }
}

impl From<&Ask> for Request {
    fn from(ask: &Ask) -> Self {
        Self::Show(ask.clone())
    }
}
