//! The other end: asks a running router.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::default_paths;
use super::message::{Ask, VERSION};
use crate::ports::why;

/// How long an answer may take: longer than the router waits for its worker.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a router can not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody says where it is.
    #[error("no tollway is known to run")]
    Nowhere,
    /// Nobody listens there.
    #[error("no tollway runs at {}: {}", .path.display(), why(.error))]
    Nobody {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The talk broke off.
    #[error("the tollway at {} does not answer: {}", .path.display(), broken(.error))]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The answer is none of this version.
    #[error("the tollway at {} answers what is not understood: {what}", .path.display())]
    Strange {
        /// The socket.
        path: PathBuf,
        /// What is strange.
        what: String,
    },
    /// It refused.
    #[error("{0}")]
    Refused(String),
}

impl ClientError {
    /// What a user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Nobody { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                "Ask as the user that runs it, or as root"
            }
            Self::Nowhere | Self::Nobody { .. } => {
                "Start `tollway run`, or name its socket with --socket: it says at its start where \
                 that is"
            }
            Self::Broken { .. } => "Look at what it logs",
            Self::Strange { .. } => "Use the same version of tollway on both sides",
            Self::Refused(_) => "See `tollway show --help`",
        }
    }
}

/// Why a talk broke off.
fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("it has said nothing for {} s, so it hangs or is stopped", PATIENCE.as_secs())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => "it has hung up".to_owned(),
        _ => why(error),
    }
}

/// A talk with a router.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Begins a talk with the router at a socket, or at the first of the default ones that is there.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(path: Option<&Path>) -> Result<Self, ClientError> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => {
                let paths = default_paths();
                let there = paths.iter().find(|path| path.exists());
                there.or(paths.first()).ok_or(ClientError::Nowhere)?.clone()
            }
        };
        let connected = UnixStream::connect(&path).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => Ok(Self { path, stream: BufReader::new(stream) }),
            Err(error) => Err(ClientError::Nobody { path, error }),
        }
    }

    /// Where the router is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks for something that is answered in one line.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ask(&mut self, ask: &Ask) -> Result<Value, ClientError> {
        self.say(ask)?;
        self.answer()
    }

    /// The same, as what it stands for.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(&mut self, ask: &Ask) -> Result<T, ClientError> {
        let answer = self.ask(ask)?;
        self.read(answer)
    }

    /// Understands an answer.
    ///
    /// # Errors
    /// [`ClientError::Strange`].
    pub fn read<T: DeserializeOwned>(&self, answer: Value) -> Result<T, ClientError> {
        serde_json::from_value(answer).map_err(|error| self.strange(error))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn say(&mut self, ask: &Ask) -> Result<(), ClientError> {
        let line = format!("{}\n", ask.line());
        let sent = self.stream.get_mut().write_all(line.as_bytes());
        sent.map_err(|error| ClientError::Broken { path: self.path.clone(), error })
    }

    /// Takes the next line of an answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn answer(&mut self) -> Result<Value, ClientError> {
        let mut line = String::new();
        let broken = |error| ClientError::Broken { path: self.path.clone(), error };
        if self.stream.read_line(&mut line).map_err(broken)? == 0 {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
        let answer: Value = serde_json::from_str(&line).map_err(|error| self.strange(error))?;
        if answer.get("v") != Some(&json!(VERSION)) {
            return Err(self.strange("its version is another"));
        }
        match answer.get("error").and_then(Value::as_str) {
            Some(sentence) => Err(ClientError::Refused(sentence.to_owned())),
            None => Ok(answer),
        }
    }

    fn strange(&self, what: impl ToString) -> ClientError {
        ClientError::Strange { path: self.path.clone(), what: what.to_string() }
    }
}
