//! The configuration file: parses TOML text into a checked [`Model`].
//!
//! The file says the same as `ip link`, `ip address`, `ip route` and `ip neigh`, in the kernel's
//! words; `docs/guide/configuration.md` describes every key. Limits: static routes and neighbours
//! only, at most two VLAN tags, IPv4 destinations only over IPv4 next hops (no RFC 5549).
//!
//! The reader works in two steps. It first reads each table on its own (`ports`, `links`, `routes`,
//! `neighs`), then checks the relations between them. From then on, it treats a wrong value as
//! unknown. So it reports each mistake once, and not again for everything that depends on it.

mod addresses;
mod bridges;
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

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

pub use changes::Running;
#[allow(unused_imports, reason = "for the commands that print mistakes")]
pub use tollway_firewall::mistake::{Mistake, report};

use crate::{FailMode, Model, XdpPathMode};
use raw::Section;
use tollway_firewall::mistake::{Fault, Ledger};
use tollway_linux::sys::why;
use values::choice;

/// A configuration without mistakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The model of the router.
    pub model: Model,
}

/// Reads and checks a configuration file. On failure returns every mistake, in file order. Relative
/// paths of other files start at the directory of this file.
pub fn load(path: &Path) -> Result<Loaded, Vec<Mistake>> {
    read(path, None)
}

/// Like [`load`], for a router that is running: a change that needs a restart is a mistake.
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

/// Checks the text of a configuration, and does not panic on any text. `file` is its name in
/// messages; relative paths start at the directory of this file.
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
        "xdp",
        "xdp_flows",
        "fail",
        "filter",
        "filter_log",
        "ports",
        "vlans",
        "vrfs",
        "bridges",
        "groups",
        "routes",
        "neighbours",
    ];
    root.check_keys(&keys, ledger);
    let control = read_control(root, base, ledger);
    let xdp_path = read_xdp_path(root, ledger);
    let fail = read_fail(root, ledger);
    let flows = root.integer("xdp_flows", FLOWS, ledger);
    let xdp_flows = flows.given().map_or(DEFAULT_FLOWS, |flows| flows.value);
    let vrfs = vrfs::read(root, ledger);
    let (ports, mut drafts) = ports::read(root, base, &vrfs, ledger);
    vlans::read(root, &vrfs, &mut drafts, ledger);
    let names = links::unique_names(&drafts, &vrfs, ledger);
    let drafts = vlans::arrange(drafts, &names, ledger);
    let topology = addresses::check(drafts, vrfs, ledger);
    let bridges = bridges::read(root, &ports, &topology, ledger);
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
        bridge_ports: BTreeMap::new(),
        bridges,
        links,
        vrfs,
        routes,
        groups,
        neighs,
        xdp_path,
        own: Vec::new(),
        xdp_flows,
        connections: None,
        filter,
        fail,
        kernel_rules: None,
        filter_log,
    }
}

/// The default number of flows of each family in the XDP path. The memory is allocated at start:
/// about 200 bytes for a flow of IPv4, with what connections take, and 160 for a flow of IPv6.
pub const DEFAULT_FLOWS: u32 = 1 << 18;
/// The numbers of flows that may be configured.
pub const FLOWS: RangeInclusive<u32> = 1 << 10..=1 << 23;

fn read_xdp_path(root: &Section<'_>, ledger: &mut Ledger<'_>) -> XdpPathMode {
    let modes = [("auto", XdpPathMode::Auto), ("on", XdpPathMode::On), ("off", XdpPathMode::Off)];
    let mode = root.text("xdp", ledger);
    let mode = mode.read(ledger, |text| choice("mode of the XDP path", text, &modes));
    mode.given().map_or(XdpPathMode::Auto, |mode| mode.value)
}

fn read_fail(root: &Section<'_>, ledger: &mut Ledger<'_>) -> FailMode {
    let modes = [("closed", FailMode::Closed), ("open", FailMode::Open)];
    let mode = root.text("fail", ledger);
    let mode = mode.read(ledger, |text| choice("way to fail", text, &modes));
    mode.given().map_or(FailMode::Closed, |mode| mode.value)
}

/// Reads the path of the control socket.
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
    // The parser's message is "WHAT, expected THIS, THAT"; the expected part becomes the remedy.
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
