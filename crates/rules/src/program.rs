//! Runs the program nft in the caller's network namespace.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollway_firewall::mistake::quoted;
use tollway_linux::programs::{file_of, search_path};
use tollway_linux::sys::why;

/// How long nft may run.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often to check whether it has ended, at first and at the longest.
const LOOK_EVERY: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(20)];
/// The largest accepted listing: 512 MiB hold some millions of elements.
const MOST_BYTES: u64 = 512 << 20;

/// Why nft gave no output.
#[derive(Debug, thiserror::Error)]
pub(super) enum NftError {
    /// The program is not installed.
    #[error("the program nft is not there; install the package nftables")]
    NotInstalled,
    /// The system does not start it.
    #[error("the program nft cannot be started: {}", why(.0))]
    NotStarted(io::Error),
    /// The system does not say whether it has ended.
    #[error("the system does not say whether nft has ended: {}", why(.0))]
    Lost(io::Error),
    /// It takes too long.
    #[error("nft did not end within {} s", PATIENCE.as_secs())]
    TooSlow,
    /// Its output cannot be read.
    #[error("the output of nft cannot be read: {}", why(.0))]
    Unreadable(io::Error),
    /// It has failed.
    #[error("nft cannot list the ruleset ({status}): {}", quoted(.message))]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// The first line of its errors.
        message: String,
    },
    /// Its output is not text.
    #[error("the output of nft is not UTF-8")]
    NotText,
}

/// Lists the ruleset (`nft -j -t list ruleset`: without the elements of named sets). Gives up as soon as
/// `stopped` returns true, and then returns `None`.
///
/// # Errors
/// nft cannot be run, or fails.
pub(super) fn list(stopped: &dyn Fn() -> bool) -> Result<Option<String>, NftError> {
    list_by("nft", stopped)
}

/// Like [`list`], by a program of another name.
pub(super) fn list_by(nft: &str, stopped: &dyn Fn() -> bool) -> Result<Option<String>, NftError> {
    run(nft, &["-j", "-t", "list", "ruleset"], stopped)
}

/// Runs nft with other arguments. Gives up as soon as `stopped` returns true, and then returns `None`.
///
/// # Errors
/// As [`list`].
pub(super) fn run_nft(
    words: &[&str],
    stopped: &dyn Fn() -> bool,
) -> Result<Option<String>, NftError> {
    run("nft", words, stopped)
}

/// Returns the program's output; `None` if it was abandoned.
fn run(nft: &str, words: &[&str], stopped: &dyn Fn() -> bool) -> Result<Option<String>, NftError> {
    let mut process = NftProcess::start(nft, words)?;
    let until = Instant::now() + PATIENCE;
    let [mut pause, longest] = LOOK_EVERY;
    while !process.has_ended()? {
        if stopped() {
            return Ok(None);
        }
        if Instant::now() >= until {
            return Err(NftError::TooSlow);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(longest);
    }
    process.text().map(Some)
}

/// A running nft; dropping this ends it.
struct NftProcess {
    child: Child,
    /// Reads its standard output.
    output: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// Reads its standard error.
    errors: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

impl NftProcess {
    fn start(nft: &str, words: &[&str]) -> Result<Self, NftError> {
        let mut command = Command::new(file_of(nft));
        command.args(words).env("LC_ALL", "C").env("PATH", search_path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NftError::NotInstalled,
            _ => NftError::NotStarted(error),
        })?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        Ok(Self { child, output: output.and_then(reader), errors: errors.and_then(reader) })
    }

    fn has_ended(&mut self) -> Result<bool, NftError> {
        let ended = self.child.try_wait().map_err(NftError::Lost)?.is_some();
        // Processes that it started may still write.
        let readers = [&self.output, &self.errors];
        Ok(ended && readers.into_iter().flatten().all(JoinHandle::is_finished))
    }

    /// Returns its output, once it has ended successfully.
    fn text(mut self) -> Result<String, NftError> {
        let status = self.child.wait().map_err(NftError::Unreadable)?;
        let errors = output_of(&mut self.errors).unwrap_or_default();
        if !status.success() {
            let errors = String::from_utf8_lossy(&errors);
            let first = errors.lines().find(|line| !line.trim().is_empty());
            let message = first.unwrap_or("it gives no reason").trim().to_owned();
            return Err(NftError::Failed { status, message });
        }
        let output = output_of(&mut self.output).map_err(NftError::Unreadable)?;
        String::from_utf8(output).map_err(|_| NftError::NotText)
    }
}

impl Drop for NftProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn reader(pipe: impl Read + Send + 'static) -> Option<JoinHandle<io::Result<Vec<u8>>>> {
    let read = move || {
        let mut bytes = Vec::new();
        pipe.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(io::Error::other(format!("it is larger than {} MiB", MOST_BYTES >> 20)));
        }
        Ok(bytes)
    };
    std::thread::Builder::new().name("nft".to_owned()).spawn(read).ok()
}

/// The bytes that a reader thread read.
fn output_of(reader: &mut Option<JoinHandle<io::Result<Vec<u8>>>>) -> io::Result<Vec<u8>> {
    let lost = || io::Error::other("no thread reads it");
    reader.take().ok_or_else(lost)?.join().map_err(|_| lost())?
}
