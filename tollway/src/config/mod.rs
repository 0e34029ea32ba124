//! The configuration file: TOML text in, a checked [`Model`] out.
//!
//! The file says what `ip link`, `ip address`, `ip route` and `ip neigh` would say, in the kernel's
//! words; `docs/guide/configuration.md` describes every key. Limits: static routes and neighbours
//! only, at most two VLAN tags, IPv4 destinations only over IPv4 next hops (no RFC 5549).
//!
//! Reading goes in two steps. Each table is read on its own first (`ports`, `links`, `routes`,
//! `neighs`), then the relations between them are checked. A value that was found wrong counts as
//! unknown from then on, so that one mistake is told once and not again by whatever depends on it.

mod addresses;
mod changes;
mod filter;
mod links;
mod nearest;
mod neighs;
mod nexthops;
mod ports;
mod raw;
mod routes;
#[cfg(test)]
mod tests;
mod topology;
mod values;
mod vlans;
mod vrfs;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

#[allow(unused_imports, reason = "for the commands that print mistakes")]
pub use crate::mistake::{Mistake, report};
pub use changes::Running;

use crate::mistake::{Fault, Ledger};
use crate::model::{ExpressMode, FailMode, Model};
use crate::ports::why;
use raw::Section;
use values::choice;
pub(crate) use values::octets;

/// A configuration that was read and found free of mistakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What the router is to do.
    pub model: Model,
}

/// Reads and checks a configuration file; on failure gives every mistake found, in file order.
/// Relative paths of other files start at the file's own directory.
pub fn load(path: &Path) -> Result<Loaded, Vec<Mistake>> {
    read(path, None)
}

/// The same for a router that is running: what it can not change without a restart is a mistake.
pub fn load_for(path: &Path, running: &Running<'_>) -> Result<Loaded, Vec<Mistake>> {
    read(path, Some(running))
}

fn read(path: &Path, running: Option<&Running<'_>>) -> Result<Loaded, Vec<Mistake>> {
    let file = path.display().to_string();
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Err(vec![unreadable(file, &error)]),
    };
    match std::str::from_utf8(&bytes) {
        Ok(text) => check(text, &file, running),
        Err(error) => Err(vec![not_utf8(file, &bytes, error.valid_up_to())]),
    }
}

/// Checks the text of a configuration. `file` is its name, for messages and as the place where
/// relative paths of capture files start. Takes any text whatever without panicking.
pub fn parse(text: &str, file: &str) -> Result<Loaded, Vec<Mistake>> {
    check(text, file, None)
}

fn check(text: &str, file: &str, running: Option<&Running<'_>>) -> Result<Loaded, Vec<Mistake>> {
    let mut ledger = Ledger::new(file, text);
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let span = error.span().unwrap_or(text.len()..text.len());
        ledger.syntax(span, syntax_fault(error.message()));
    }
    let root = Section::new("the configuration".to_owned(), 0..0, root.get_ref());
    let base = Path::new(file).parent().unwrap_or(Path::new(""));
    let mut model = read_model(&root, base, &mut ledger);
    let rules = filter::read(&root, base, &mut ledger);
    let mut mistakes = ledger.finish();
    match rules {
        Ok(rules) => model.filter = rules,
        Err(others) => mistakes.extend(others),
    }
    if let Some(running) = running.filter(|_| mistakes.is_empty()) {
        let mut ledger = Ledger::new(file, text);
        changes::check(&root, &model, running, &mut ledger);
        mistakes = ledger.finish();
    }
    if mistakes.is_empty() { Ok(Loaded { model }) } else { Err(mistakes) }
}

fn read_model(root: &Section<'_>, base: &Path, ledger: &mut Ledger<'_>) -> Model {
    let keys = [
        "control",
        "express",
        "express_flows",
        "fail",
        "filter",
        "filter_log",
        "ports",
        "vlans",
        "vrfs",
        "groups",
        "routes",
        "neighbours",
    ];
    root.check_keys(&keys, ledger);
    let control = read_control(root, base, ledger);
    let express = read_express(root, ledger);
    let fail = read_fail(root, ledger);
    let flows = root.integer("express_flows", FLOWS, ledger);
    let express_flows = flows.given().map_or(DEFAULT_FLOWS, |flows| flows.value);
    let vrfs = vrfs::read(root, ledger);
    let (ports, mut drafts) = ports::read(root, base, &vrfs, ledger);
    vlans::read(root, &vrfs, &mut drafts, ledger);
    let names = links::unique_names(&drafts, &vrfs, ledger);
    let drafts = vlans::arrange(drafts, &names, ledger);
    let topology = addresses::check(drafts, vrfs, ledger);
    let groups = nexthops::read_groups(root, &topology, ledger);
    let routes = routes::read(root, &topology, &groups, ledger);
    let neighs = neighs::read(root, &topology, ledger);
    let (links, vrfs) = topology.into_model();
    let groups = groups.into_iter().map(|group| group.group).collect();
    let filter = None;
    let filter_log = filter::read_log(root, base, ledger);
    Model {
        control,
        ports,
        links,
        vrfs,
        routes,
        groups,
        neighs,
        express,
        own: Vec::new(),
        express_flows,
        filter,
        fail,
        kernel_rules: None,
        filter_log,
    }
}

/// What the express lane may hold, flows of each family; its memory is taken at start, some 130 bytes
/// a flow of IPv4 and 160 a flow of IPv6.
pub(crate) const DEFAULT_FLOWS: u32 = 1 << 18;
/// The same that there can be.
pub(crate) const FLOWS: RangeInclusive<u32> = 1 << 10..=1 << 23;

fn read_express(root: &Section<'_>, ledger: &mut Ledger<'_>) -> ExpressMode {
    let modes = [("auto", ExpressMode::Auto), ("on", ExpressMode::On), ("off", ExpressMode::Off)];
    let mode = root.text("express", ledger);
    let mode = mode.read(ledger, |text| choice("mode of the express lane", text, &modes));
    mode.given().map_or(ExpressMode::Auto, |mode| mode.value)
}

fn read_fail(root: &Section<'_>, ledger: &mut Ledger<'_>) -> FailMode {
    let modes = [("closed", FailMode::Closed), ("open", FailMode::Open)];
    let mode = root.text("fail", ledger);
    let mode = mode.read(ledger, |text| choice("way to fail", text, &modes));
    mode.given().map_or(FailMode::Closed, |mode| mode.value)
}

/// Where the control socket is to be.
fn read_control(root: &Section<'_>, base: &Path, ledger: &mut Ledger<'_>) -> Option<PathBuf> {
    let path = root.text("control", ledger).read(ledger, |text| {
        if text.is_empty() || text.contains('\0') {
            return Fault::err("control is not a file name", "name the socket to be made");
        }
        Ok(base.join(text))
    });
    path.given().map(|at| at.value)
}

fn syntax_fault(message: &str) -> Fault {
    // The parser says "WHAT, expected THIS, THAT": what it expected is the remedy.
    match message.split_once(", expected ") {
        Some((what, "nothing")) => Fault::new(what, "remove it"),
        Some((what, expected)) => Fault::new(what, format!("TOML wants {expected} here")),
        None if message == "duplicate key" => {
            Fault::new("this name or key is already given above", "merge the two or rename one")
        }
        None => Fault::new(message, "correct the TOML syntax"),
    }
}

fn unreadable(file: String, error: &std::io::Error) -> Mistake {
    let remedy = match error.kind() {
        std::io::ErrorKind::NotFound => "name a file that exists",
        std::io::ErrorKind::PermissionDenied => "let this user read it",
        _ => "name a readable file",
    };
    Mistake::placeless(file, 0, format!("the configuration cannot be read: {}", why(error)), remedy)
}

fn not_utf8(file: String, bytes: &[u8], valid: usize) -> Mistake {
    let newlines = bytes.iter().take(valid).filter(|b| **b == b'\n').count();
    Mistake::placeless(
        file,
        newlines + 1,
        "the file is not UTF-8 text".to_owned(),
        "save it as UTF-8",
    )
}
