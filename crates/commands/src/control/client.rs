//! The client of the control socket: it queries a running router.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::default_paths;
use super::message::{ShowRequest, VERSION};
use super::peer::Peer;
use super::request::Request;
use tollway_linux::sys::why;

/// How long an answer may take. This is longer than the router waits for its worker.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no default path for the socket.
    #[error("no running tollway was found")]
    NoPath,
    /// No process listens there.
    #[error("no tollway runs at {}: {}", .path.display(), why(.error))]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The connection broke.
    #[error("the tollway at {} does not answer: {}", .path.display(), broken(.error))]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The answer is not of this version.
    #[error("the tollway at {} sent an answer in an unknown form: {what}", .path.display())]
    Malformed {
        /// The socket.
        path: PathBuf,
        /// What was unexpected.
        what: String,
    },
    /// The router refused the request.
    #[error("{0}")]
    Refused(String),
}

impl ClientError {
    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotRunning { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                "Run this as the user that runs the router, or as root"
            }
            Self::NoPath | Self::NotRunning { .. } => {
                "Start `tollway run`, or name its socket with --socket: it says at its start where \
                 that is"
            }
            Self::Broken { .. } => "Look at what it logs",
            Self::Malformed { .. } => "Use the same version of tollway on both sides",
            Self::Refused(_) => "See `tollway show --help`",
        }
    }
}

/// The reason why a connection broke.
fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("it has sent nothing for {} s, so it hangs or is stopped", PATIENCE.as_secs())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "it closed the connection".to_owned()
        }
        _ => why(error),
    }
}

/// The part that all answers share.
#[derive(Deserialize)]
struct Head {
    v: u64,
    error: Option<String>,
}

/// A connection to a router.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the router at a path, or at the first default path that exists.
    ///
    /// # Errors
    /// No process listens there.
    pub fn connect(path: Option<&Path>) -> Result<Self, ClientError> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => {
                let paths = default_paths();
                let there = paths.iter().find(|path| path.exists());
                there.or(paths.first()).ok_or(ClientError::NoPath)?.clone()
            }
        };
        let connected = UnixStream::connect(&path).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => Ok(Self { path, stream: BufReader::new(stream) }),
            Err(error) => Err(ClientError::NotRunning { path, error }),
        }
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The router's process. None if it cannot be determined: it is in another PID namespace, and
    /// the kernel is older than 6.5.
    ///
    /// # Errors
    /// The process has ended, or a system call failed.
    pub fn peer(&self) -> io::Result<Option<Peer>> {
        Peer::of(self.stream.get_ref())
    }

    /// Sets how long each further answer may take.
    ///
    /// # Errors
    /// [`ClientError::Broken`].
    pub fn wait_for(&mut self, patience: Duration) -> Result<(), ClientError> {
        let set = self.stream.get_mut().set_read_timeout(Some(patience));
        set.map_err(|error| ClientError::Broken { path: self.path.clone(), error })
    }

    /// Sends a query with a one-line answer, and parses the answer as `T` (a message, or any JSON).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn show<T: DeserializeOwned>(&mut self, show: &ShowRequest) -> Result<T, ClientError> {
        self.request(&Request::from(show))
    }

    /// Sends a request with a one-line answer, and parses the answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn request<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        self.send(request)?;
        self.answer()
    }

    /// Sends a query; [`Client::answer`] receives each line of its answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn send_show(&mut self, show: &ShowRequest) -> Result<(), ClientError> {
        self.send(&Request::from(show))
    }

    fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        let line = format!("{}\n", request.line());
        match self.stream.get_mut().write_all(line.as_bytes()) {
            // A router that hangs up usually sends a reason first; the caller reads it next.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|error| ClientError::Broken { path: self.path.clone(), error }),
        }
    }

    /// Receives the next line of an answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T, ClientError> {
        let mut line = String::new();
        let broken = |error| ClientError::Broken { path: self.path.clone(), error };
        if self.stream.read_line(&mut line).map_err(broken)? == 0 {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
        let head: Head = serde_json::from_str(&line).map_err(|error| self.strange(error))?;
        match head {
            Head { error: Some(sentence), .. } => Err(ClientError::Refused(sentence)),
            Head { v: VERSION, .. } => {
                serde_json::from_str(&line).map_err(|error| self.strange(error))
            }
            Head { v, .. } => Err(self.strange(format!("it is of version {v}"))),
        }
    }

    fn strange(&self, what: impl ToString) -> ClientError {
        ClientError::Malformed { path: self.path.clone(), what: what.to_string() }
    }
}
