//! `tollway set`: adds elements to a set of a running router's firewall, or deletes them.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::CliError;
use crate::control::{Change, Client, ClientError, Command, Request, SetChanged};
use tollway_firewall::element;
use tollway_linux::sys::why;

/// The most bytes of elements in a request; the rest of the request needs some room too.
const MOST_BYTES: usize = 60_000;

/// Arguments of `tollway set`.
#[derive(clap::Args)]
#[command(
    after_help = "Sets that can be changed so have a name and IPv4 or IPv6 addresses, and are \
    declared to change (nft: flags dynamic) or have more than 64 elements. Others change with the \
    rules, by `tollway reload`.\n\nWhat is changed here is not written to any file. When a reload puts \
    rules active, sets have what the file says."
)]
pub(super) struct Args {
    /// Name the set, with or without its table
    ///
    /// Examples: `inet filter blocklist`, or blocklist.
    #[arg(value_name = "NAME")]
    name: String,
    /// Add or delete elements
    change: ChangeArg,
    /// Give addresses, prefixes, or ranges such as 192.0.2.1-192.0.2.9
    #[arg(value_name = "ELEMENT", required_unless_present = "from")]
    elements: Vec<String>,
    /// Read elements from a file too, or from stdin with -
    ///
    /// Separate them by blanks, commas or lines; # begins a comment.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Use this control socket [default: as `tollway run`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The kind of change.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ChangeArg {
    /// Add elements; those that are present stay
    Add,
    /// Delete elements; all must be present
    Delete,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let mut elements = args.elements.clone();
    for text in &elements {
        element::read(text).map_err(|what| CliError::usage(what, "See `tollway set --help`"))?;
    }
    if let Some(path) = &args.from {
        elements.extend(parse(&read(path)?, &path.display().to_string())?);
    }
    let failed = |error: ClientError| match error {
        ClientError::Refused(sentence) => {
            CliError::failed(sentence, "See `tollway set --help` for what can be changed")
        }
        error => CliError::control(&error),
    };
    let mut client = Client::connect(args.socket.as_deref()).map_err(failed)?;
    let change = match args.change {
        ChangeArg::Add => Change::Add,
        ChangeArg::Delete => Change::Delete,
    };
    let (mut done, mut last) = (0, None);
    for elements in batches(elements) {
        let command = Command::Set { name: args.name.clone(), change, elements };
        let answer: SetChanged = client.request(&Request::Do(command)).map_err(failed)?;
        done += answer.changed;
        last = Some(answer);
    }
    let Some(SetChanged { set, count, .. }) = last else { return Ok(()) };
    if args.json {
        let answer = json!({"set": set, "changed": done, "count": count});
        return super::print(format_args!("{answer:#}\n"));
    }
    let did = if change == Change::Add { "added" } else { "deleted" };
    super::print(format_args!("{set}: {done} {did}, {count} now\n"))
}

/// Splits elements into batches that fit into a request; without elements, one empty batch.
fn batches(elements: Vec<String>) -> Vec<Vec<String>> {
    let mut batches = vec![Vec::new()];
    let mut bytes = 0;
    for element in elements {
        // With quotes and comma.
        let more = element.len() + 3;
        if bytes + more > MOST_BYTES {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(batch) = batches.last_mut() {
            batch.push(element);
        }
    }
    batches
}

fn read(path: &Path) -> Result<String, CliError> {
    let read = match path.to_str() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        _ => std::fs::read_to_string(path),
    };
    read.map_err(|error| {
        let what = format!("{} cannot be read: {}", path.display(), why(&error));
        CliError::failed(what, "Name a text file that is there, or - for stdin")
    })
}

/// Reads and checks the elements of a file.
fn parse(text: &str, file: &str) -> Result<Vec<String>, CliError> {
    let mut elements = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split(|c: char| c.is_whitespace() || c == ',');
        for word in words.filter(|word| !word.is_empty()) {
            element::read(word).map_err(|what| {
                CliError::failed(format!("{file}:{number}: {what}"), "Nothing was changed")
            })?;
            elements.push(word.to_owned());
        }
    }
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_elements_apart_by_anything() {
        let elements = parse("# all\n192.0.2.1, 192.0.2.2\n\n2001:db8::/32 # one\n", "f");
        assert_eq!(elements.unwrap(), ["192.0.2.1", "192.0.2.2", "2001:db8::/32"]);
        let error = parse("192.0.2.1\n192.0.2\n", "f").unwrap_err().to_string();
        assert!(error.starts_with("f:2: \"192.0.2\" is no address"), "{error}");
    }

    #[test]
    fn many_elements_are_several_requests_of_what_a_router_takes() {
        let elements: Vec<_> =
            (0..20_000_u32).map(|n| format!("10.1.{}.{}", n >> 8, n & 255)).collect();
        let batches = batches(elements.clone());
        assert_eq!(batches.concat(), elements);
        assert!(batches.len() > 1);
        for batch in batches {
            let name = "inet filter blocklist".to_owned();
            let command = Command::Set { name, change: Change::Delete, elements: batch };
            let line = Request::Do(command).line();
            assert!((line.len() as u64) < crate::control::REQUEST_LIMIT, "{}", line.len());
            assert!(Request::read(&line).is_ok());
        }
    }
}
