//! `tollway check`: checks a configuration or a rules file, or reports what network devices can
//! offload.

mod devices;
mod reach;
mod rules;

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use super::CliError;
use super::engine::{self, EngineArg};
use super::text::{plural, thousands};
use tollway_firewall::ir::Ruleset;
use tollway_model::compile::compile;
use tollway_model::{Engine, LinkKind, Model};
use tollway_rules::files::{self, Language};

/// Arguments of `tollway check`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tollway check tollway.toml     what is wrong with a configuration
  tollway check rules.nft        which rules of a file Tollway decides by
  tollway check eth0 eth1        what `tollway run eth0 eth1` would do faster than the kernel

Exit status: 1 and 2 after an error, else 0. For devices: 0 if all that the kernel forwards between
them would be fast, 3 if part of it, 4 if nothing.")]
pub(super) struct Args {
    /// Check a TOML file, nft/iptables-save/ipfw rules, or devices
    #[arg(required = true, value_name = "FILE|DEVICE")]
    what: Vec<String>,
    /// Select what would decide about packets of devices, as for `tollway run`
    #[arg(long, value_name = "[DEVICE=]ENGINE", value_parser = engine::parse)]
    engine: Vec<EngineArg>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    match devices::file_of(&args.what)? {
        Some(path) => file(&path, args.json).map(|()| ExitCode::SUCCESS),
        None => {
            let engines = engine::of_devices(&args.engine, &args.what, Engine::Auto)?;
            devices::check(&args.what, &engines, args.json)
        }
    }
}

fn file(path: &Path, json: bool) -> Result<(), CliError> {
    if let Some((text, language)) = rules_of(path) {
        return rules::check(path, &text, language, json);
    }
    let model = super::load(path)?;
    compile(&model).map_err(|error| CliError::failed(&error, error.remedy()))?;
    let things = inventory(&model);
    if json {
        let things: serde_json::Map<_, _> =
            things.iter().map(|(count, what)| (key(what), json!(count))).collect();
        return super::print(format_args!("{:#}\n", json!({"file": path, "has": things})));
    }
    super::print(format_args!("{} is in order: {}\n", path.display(), words(&things)))
}

/// The text and language of a rules file; none for any other file.
fn rules_of(path: &Path) -> Option<(String, Language)> {
    if path.extension().is_some_and(|end| end == "toml") {
        return None;
    }
    let text = files::read(path).ok()?;
    let language = Language::of(&text)?;
    Some((text, language))
}

/// The objects of a model, by number and kind.
fn inventory(model: &Model) -> Vec<(usize, &'static str)> {
    let is_vlan = |kind| matches!(kind, LinkKind::Vlan { .. });
    let vlans = model.links.iter().filter(|link| is_vlan(link.kind)).count();
    vec![
        (model.ports.len(), "port"),
        (vlans, "VLAN link"),
        (model.vrfs.len(), "VRF"),
        (model.routes.len(), "route"),
        (model.groups.len(), "next-hop group"),
        (model.neighs.len(), "static neighbour"),
        (model.filter.as_deref().map_or(0, Ruleset::rule_count), "firewall rule"),
    ]
}

/// Formats the inventory as text, without kinds that are absent.
fn words(things: &[(usize, &str)]) -> String {
    let present = things.iter().filter(|(count, _)| *count > 0);
    let words =
        present.map(|(n, what)| format!("{} {}", thousands(*n as u64), plural(*n as u64, what)));
    words.collect::<Vec<_>>().join(", ")
}

/// The JSON key for a kind.
fn key(what: &str) -> String {
    plural(2, what).to_lowercase().replace([' ', '-'], "_")
}
