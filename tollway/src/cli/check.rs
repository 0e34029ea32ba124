//! `tollway check`: reads a configuration and says what is wrong with it.

use std::path::PathBuf;

use super::CliError;
use super::text::{plural, thousands};
use crate::compile::compile;
use crate::model::{LinkKind, Model};

/// Arguments of `tollway check`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The configuration file
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let model = super::load(&args.file)?;
    compile(&model).map_err(|error| CliError::failed(&error, error.remedy()))?;
    super::print(format_args!("{} is in order: {}\n", args.file.display(), inventory(&model)))
}

/// What a model has, in words; what it has none of is left out.
fn inventory(model: &Model) -> String {
    let is_vlan = |kind| matches!(kind, LinkKind::Vlan { .. });
    let vlans = model.links.iter().filter(|link| is_vlan(link.kind)).count();
    let things = [
        (model.ports.len(), "port"),
        (vlans, "VLAN link"),
        (model.vrfs.len(), "VRF"),
        (model.routes.len(), "route"),
        (model.groups.len(), "next-hop group"),
        (model.neighs.len(), "static neighbour"),
    ];
    let told = things.iter().filter(|(count, _)| *count > 0);
    let told =
        told.map(|(n, what)| format!("{} {}", thousands(*n as u64), plural(*n as u64, what)));
    told.collect::<Vec<_>>().join(", ")
}
