//! Rules in nft's own text: the real `nft` reads them, in a scratch namespace that they end with.

use std::path::Path;
use std::process::{Command, Output};

use crate::mistake::{Fault, Ledger, Mistake};

/// How long nft may take, s.
const PATIENCE: &str = "20";

/// Makes the devices that the file's chains hang at, loads the file, lists it. The first argument is
/// the file, the others are devices.
const SCRIPT: &str = r#"file="$1"; shift
for device; do
  ip link add name "$device" type dummy 2>/dev/null ||
    ip link add name "$device" type bridge 2>/dev/null ||
    ip link add name "$device" type veth 2>/dev/null
done
nft -f "$file" && nft -j list ruleset && printf '\036' && nft list ruleset"#;

/// Stands between the two listings.
const BETWEEN: char = '\u{1e}';

/// Loads a file of nft's text in a scratch user and network namespace, and gives what `nft -j list ruleset`
/// says there, with what [`super::complete()`] adds.
///
/// Devices that chains hang at are made there; `iif` and `oif` stand for numbers of devices, so that
/// nft refuses names that are not there.
///
/// # Errors
/// nft's own, each at its place; or why it could not be asked.
pub fn script(path: &Path) -> Result<String, Vec<Mistake>> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        vec![alone(&file, format!("cannot be read: {error}"), "name a file of nft's text")]
    })?;
    let devices = devices(&text);
    let mut output = run(path, &devices, "-rn");
    // Where only root may make namespaces, root has no need of one for users.
    if output.as_ref().is_ok_and(|output| said(output).starts_with("unshare:")) {
        output = run(path, &devices, "-n");
    }
    let output = output.map_err(|error| {
        let what = format!("cannot be loaded: {error}");
        vec![alone(&file, what, "install the packages coreutils and util-linux")]
    })?;
    match output.status.code() {
        Some(0) => {
            let listings = String::from_utf8_lossy(&output.stdout).into_owned();
            let (listing, words) = listings.split_once(BETWEEN).unwrap_or((&listings, ""));
            Ok(super::complete(listing, words))
        }
        Some(124 | 137) => {
            let what = format!("nft did not end within {PATIENCE} s");
            Err(vec![alone(&file, what, "load the rules yourself and give `nft -j list ruleset`")])
        }
        _ => Err(mistakes(&said(&output), &file, &text)),
    }
}

fn run(path: &Path, devices: &[String], namespaces: &str) -> std::io::Result<Output> {
    // A leading dash would make an option of it.
    let file = if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) };
    Command::new("timeout")
        .args(["-k", "1", PATIENCE, "unshare", namespaces, "sh", "-c", SCRIPT, "sh"])
        .arg(file)
        .args(devices)
        .env("LC_ALL", "C")
        .stdin(std::process::Stdio::null())
        .output()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn alone(file: &str, what: String, remedy: &str) -> Mistake {
    Mistake {
        file: file.to_owned(),
        line: 0,
        column: 0,
        what,
        remedy: remedy.to_owned(),
        excerpt: String::new(),
        length: 1,
    }
}

/// nft's messages: `FILE:LINE:COLUMN-COLUMN: Error: TEXT`, then the line and a mark.
fn mistakes(said: &str, file: &str, text: &str) -> Vec<Mistake> {
    let mut ledger = Ledger::new(file, text);
    let mut others = Vec::new();
    for line in said.lines() {
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
                others.push(Mistake { line, column, ..alone(name, what.to_owned(), remedy) });
            }
            None => others.push(alone(file, what.to_owned(), remedy)),
        }
    }
    let mut mistakes = ledger.finish();
    mistakes.append(&mut others);
    if mistakes.is_empty() {
        mistakes.push(alone(file, why(said), remedy(said)));
    }
    mistakes
}

/// Whether nft's name of a file is ours.
fn is_named(name: &str, file: &str) -> bool {
    name == file || name.strip_prefix("./") == Some(file)
}

fn position(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    before + column.saturating_sub(1)
}

fn why(said: &str) -> String {
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing was said");
    format!("cannot be loaded: {last}")
}

fn remedy(what: &str) -> &'static str {
    if what.contains("nft: not found") {
        "install the package nftables, or give `nft -j list ruleset` of another machine"
    } else if what.starts_with("unshare:") {
        "allow user namespaces, or start as root"
    } else if what.contains("Interface does not exist") {
        "write iifname or oifname in the place of iif or oif"
    } else if what.contains("No such file or directory") {
        "see that what it names exists: devices of chains can be dummy devices, files those included"
    } else {
        "mend it as nft says; `nft -c -f FILE` checks a file"
    }
}

/// Devices that chains hang at: what follows `device`, and the names in `devices = { ... }`. Words that
/// begin with `$` are looked up in what the file defines.
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

/// What a variable is defined as.
fn defined<'w>(words: &'w [String], variable: &str) -> &'w [String] {
    let is_it = |three: &[String]| three[0] == "define" && three[1] == variable && three[2] == "=";
    match words.windows(3).position(is_it) {
        Some(at) => list(&words[at + 3..]),
        None => &[],
    }
}

/// One word, or those between braces.
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
