//! Loads rules in nft's own text: the real `nft` reads them, in a scratch namespace that exists only for this.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::include::Expanded;
use super::pieces::{Piece, Pieces};
use crate::loaded::{Loaded, LoadedError, ROOM};
use tollway_firewall::ir::Ruleset;
use tollway_firewall::mistake::{Fault, Ledger, Mistake};
use tollway_linux::netlink::{SocketHandover, Unshare};
use tollway_linux::programs::search_path;
use tollway_linux::sys::why as reason;

/// How long nft may take, in s: a hundred thousand elements take a busy machine half a minute.
const PATIENCE: &str = "60";

/// Creates the devices that the file's chains are attached to, loads the file, and lists it. The first
/// argument is the file, the others are devices. After `--` follow sizes of pieces, which the script then
/// loads from standard input instead of the file. The devices get numbers that no rule uses: otherwise nft
/// would list `iif 2` by the name of such a device.
const SCRIPT: &str = r#"file="$1"; shift
number=2000000000
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  number=$((number + 1))
  ip link add name "$1" index $number type dummy 2>/dev/null ||
    ip link add name "$1" index $number type bridge 2>/dev/null ||
    ip link add name "$1" index $number type veth peer index $((number - 1000000000)) 2>/dev/null
  shift
done
if [ $# -gt 0 ]; then
  shift
  for size; do
    head -c "$size" | nft -f - || exit 1
    echo loaded >&2
  done
else
  nft -f "$file" || exit 1
fi
nft -j list ruleset"#;

/// What the script prints for each piece.
const LOADED: &str = "loaded";

/// The kernel's error for a batch that is too large for the socket's send buffer.
const TOO_LONG: &str = "Message too long";

/// Approximate size in bytes of a batch that any user may send: twice the kernel's usual `net.core.wmem_max`.
const BATCH_BYTES: usize = 2 * 212_992;
/// The smallest size tried: estimates are off by at most a factor of a hundred.
const LEAST_BYTES: usize = BATCH_BYTES / 256;

/// Loads a file of nft's text in a scratch user and network namespace. Reads what nft lists there and what
/// the kernel has there.
///
/// The scratch namespace contains the devices that chains are attached to. `iif` and `oif` compare device
/// numbers, so nft rejects names that do not exist there. A file too large for one message of an ordinary
/// user is loaded in pieces.
///
/// # Errors
/// nft's own mistakes, each at its place; or why nft could not run.
pub(super) fn load(path: &Path) -> Result<Ruleset, Vec<Mistake>> {
    let file = path.display().to_string();
    let rules = loaded(path)?.rules(&file);
    rules.map_err(|faults| {
        let mistake = |fault: Fault| Mistake::placeless(file.clone(), 0, fault.what, &fault.remedy);
        faults.into_iter().map(mistake).collect()
    })
}

/// Like [`load`], but returns the rules as loaded.
pub(crate) fn loaded(path: &Path) -> Result<Loaded, Vec<Mistake>> {
    Script::new(path)?.load()
}

/// nft's listing of a file, with the parts added that the listing omits.
#[cfg(test)]
pub(crate) fn listing(path: &Path) -> Result<String, Vec<Mistake>> {
    Ok(loaded(path)?.listing())
}

/// A file to load.
struct Script<'p> {
    path: &'p Path,
    file: String,
    text: String,
    devices: Vec<String>,
}

/// The result of loading it.
struct NftRun {
    output: Output,
    handover: SocketHandover,
}

impl<'p> Script<'p> {
    fn new(path: &'p Path) -> Result<Self, Vec<Mistake>> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            vec![Mistake::placeless(
                file.clone(),
                0,
                format!("cannot be read: {error}"),
                "name a file of nft's text",
            )]
        })?;
        let devices = devices(&text);
        Ok(Self { path, file, text, devices })
    }

    fn load(&self) -> Result<Loaded, Vec<Mistake>> {
        let (nft_run, place) = self.whole().map_err(|error| self.not_run(&error))?;
        if stderr_of(&nft_run.output).contains(TOO_LONG) {
            return self.in_pieces(place, BATCH_BYTES);
        }
        self.evaluate(&nft_run, None)
    }

    /// Loads the whole file, as root if possible: other users may not send large batches.
    fn whole(&self) -> io::Result<(NftRun, Unshare)> {
        match self.run(Unshare::Net, None) {
            Ok(nft_run) if !stderr_of(&nft_run.output).contains("Operation not permitted") => {
                Ok((nft_run, Unshare::Net))
            }
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
            _ => Ok((self.run(Unshare::User, None)?, Unshare::User)),
        }
    }

    /// Loads pieces of at most `bytes` bytes, or smaller ones if necessary.
    fn in_pieces(&self, place: Unshare, mut bytes: usize) -> Result<Loaded, Vec<Mistake>> {
        let text = super::include::expanded(&self.file, &self.text);
        let pieces = Pieces::new(&text.text);
        loop {
            let loaded = pieces.of(bytes);
            let nft_run = self.run(place, Some(&loaded)).map_err(|error| self.not_run(&error))?;
            if !stderr_of(&nft_run.output).contains(TOO_LONG) {
                return self.evaluate(&nft_run, Some((&text, &loaded)));
            }
            if bytes <= LEAST_BYTES || loaded.len() >= pieces.most() {
                let number = loaded_of(&stderr_of(&nft_run.output));
                let (file, line) = text.place(loaded.get(number).map_or(0, |piece| piece.line));
                let what =
                    "this rule is too long for a message that an ordinary user may send the kernel";
                let remedy = "write its elements in a set with a name, or start as root";
                return Err(vec![Mistake::placeless(
                    file.to_owned(),
                    line,
                    what.to_owned(),
                    remedy,
                )]);
            }
            bytes /= 2;
        }
    }

    fn not_run(&self, error: &io::Error) -> Vec<Mistake> {
        let what = format!("cannot be loaded: {}", reason(error));
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => {
                "install the package coreutils, and see that /proc is mounted"
            }
            _ => "allow user namespaces, or start as root",
        };
        vec![Mistake::placeless(self.file.clone(), 0, what, remedy)]
    }

    fn evaluate(
        &self,
        nft_run: &NftRun,
        pieces: Option<(&Expanded, &[Piece])>,
    ) -> Result<Loaded, Vec<Mistake>> {
        let output = &nft_run.output;
        match output.status.code() {
            Some(0) => Self::loaded(nft_run).map_err(|error| {
                let remedy = "try again, and report it as a defect of Tollway if it stays so";
                vec![Mistake::placeless(self.file.clone(), 0, error.to_string(), remedy)]
            }),
            Some(124 | 137) => {
                let what = format!("nft did not end within {PATIENCE} s");
                let remedy = "load the rules yourself and give `nft -j list ruleset`";
                Err(vec![Mistake::placeless(self.file.clone(), 0, what, remedy)])
            }
            _ => {
                let text = stderr_of(output);
                let messages =
                    pieces.map_or(text.clone(), |(file, pieces)| placed(&text, file, pieces));
                Err(mistakes(&messages, &self.file, &self.text))
            }
        }
    }

    fn loaded(nft_run: &NftRun) -> Result<Loaded, LoadedError> {
        let socket = nft_run.handover.socket(ROOM).map_err(LoadedError::NoSocket)?;
        Loaded::new(&String::from_utf8_lossy(&nft_run.output.stdout), socket)
    }

    fn run(&self, place: Unshare, pieces: Option<&[Piece]>) -> io::Result<NftRun> {
        // A leading dash would make it an option.
        let path = self.path;
        let file = if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) };
        let mut command = Command::new("timeout");
        command
            .args(["-k", "1", PATIENCE, "sh", "-c", SCRIPT, "sh"])
            .arg(file)
            .args(&self.devices)
            .env("LC_ALL", "C")
            .env("PATH", search_path());
        let handover = place.apply(&mut command, NETLINK_NETFILTER as _)?;
        let output = match pieces {
            None => command.stdin(Stdio::null()).output()?,
            Some(pieces) => {
                command.arg("--").args(pieces.iter().map(|piece| piece.text.len().to_string()));
                feed(&mut command, pieces)?
            }
        };
        Ok(NftRun { output, handover })
    }
}

/// Runs a command with pieces as its input.
fn feed(command: &mut Command, pieces: &[Piece]) -> io::Result<Output> {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn()?;
    let input = child.stdin.take();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut input = input;
            // A failed process reads no more; its output says why.
            let _ = pieces.iter().try_for_each(|piece| match &mut input {
                Some(input) => input.write_all(piece.text.as_bytes()),
                None => Ok(()),
            });
        });
        child.wait_with_output()
    })
}

/// The number of pieces that were loaded.
fn loaded_of(messages: &str) -> usize {
    messages.lines().filter(|line| *line == LOADED).count()
}

/// nft's messages about a piece, with the places of the file.
fn placed(messages: &str, text: &Expanded, pieces: &[Piece]) -> String {
    let lines = pieces.get(loaded_of(messages)).map_or(&[][..], |piece| &piece.lines);
    let place = |line: &str| {
        let (number, rest) = line.strip_prefix("/dev/stdin:")?.split_once(':')?;
        let number: usize = number.parse().ok()?;
        let (file, line) = text.place(*lines.get(number.checked_sub(1)?)?);
        Some(format!("{file}:{line}:{rest}"))
    };
    let messages = messages.lines().filter(|line| *line != LOADED);
    messages.map(|line| place(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// nft's messages: `FILE:LINE:COLUMN-COLUMN: Error: TEXT`, then the line and a mark.
fn mistakes(messages: &str, file: &str, text: &str) -> Vec<Mistake> {
    let mut ledger = Ledger::new(file, text);
    let mut others = Vec::new();
    for line in messages.lines() {
        let Some((place, what)) = line.split_once(": Error: ") else { continue };
        let remedy = remedy(what);
        let numbers = place.rsplit_once(':').and_then(|(before, columns)| {
            let (name, line) = before.rsplit_once(':')?;
            let first = columns.split('-').next()?;
            Some((name, line.parse().ok()?, first.parse().ok()?))
        });
        match numbers {
            Some((name, line, column)) if is_named(name, file) => {
                let start = position(text, line, column);
                ledger.value(start..start + 1, Fault::new(what, remedy));
            }
            Some((name, line, column)) => {
                others.push(Mistake {
                    line,
                    column,
                    ..Mistake::placeless(name.to_owned(), 0, what.to_owned(), remedy)
                });
            }
            None => others.push(Mistake::placeless(file.to_owned(), 0, what.to_owned(), remedy)),
        }
    }
    let mut mistakes = ledger.finish();
    mistakes.append(&mut others);
    if mistakes.is_empty() {
        mistakes.push(Mistake::placeless(file.to_owned(), 0, why(messages), remedy(messages)));
    }
    mistakes
}

/// Says whether a name in nft's messages is that of this file.
fn is_named(name: &str, file: &str) -> bool {
    name == file || name.strip_prefix("./") == Some(file)
}

fn position(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    before + column.saturating_sub(1)
}

fn why(messages: &str) -> String {
    let last =
        messages.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nft gives no reason");
    format!("cannot be loaded: {last}")
}

fn remedy(what: &str) -> &'static str {
    if what.contains("nft: not found") {
        "install the package nftables, or give `nft -j list ruleset` of another machine"
    } else if what.contains("Interface does not exist") {
        "write iifname or oifname in the place of iif or oif"
    } else if what.contains("No such file or directory") {
        "see that what it names exists: devices of chains can be dummy devices, files those included"
    } else {
        "mend it as nft reports; `nft -c -f FILE` checks a file"
    }
}

/// Devices that chains are attached to: the word after `device`, and the names in `devices = { ... }`. Words
/// that begin with `$` are looked up among the file's variables.
fn devices(text: &str) -> Vec<String> {
    let words = words(text);
    let mut devices = Vec::new();
    let mut rest = &words[..];
    while let Some((word, behind)) = rest.split_first() {
        rest = behind;
        let names: &[String] = match word.as_str() {
            "device" => behind.get(..1).unwrap_or_default(),
            "devices" => list(behind.strip_prefix(&["=".to_owned()]).unwrap_or(behind)),
            _ => continue,
        };
        for name in names {
            match name.strip_prefix('$') {
                Some(variable) => devices.extend_from_slice(defined(&words, variable)),
                None => devices.push(name.clone()),
            }
        }
    }
    devices.retain(|name| !name.contains('*') && name != "lo");
    devices.sort();
    devices.dedup();
    devices
}

/// The definition of a variable.
fn defined<'w>(words: &'w [String], variable: &str) -> &'w [String] {
    let is_it = |three: &[String]| three[0] == "define" && three[1] == variable && three[2] == "=";
    match words.windows(3).position(is_it) {
        Some(at) => list(&words[at + 3..]),
        None => &[],
    }
}

/// A single word, or those between braces.
fn list(words: &[String]) -> &[String] {
    match words.first().map(String::as_str) {
        Some("{") => {
            let end = words.iter().position(|word| word == "}").unwrap_or(words.len());
            words.get(1..end).unwrap_or_default()
        }
        Some(_) => &words[..1],
        None => &[],
    }
}

/// The words of a file, without comments, commas and quotes.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let spaced = line.replace('{', " { ").replace('}', " } ").replace('=', " = ");
        let parts = spaced.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';'));
        let parts = parts.map(|part| part.trim_matches('"')).filter(|part| !part.is_empty());
        words.extend(parts.map(str::to_owned));
    }
    words
}

#[cfg(test)]
#[path = "tests/pieces.rs"]
mod tests;
