//! Bridges that learn by themselves.

use tollway_dataplane::id::PortId;
use tollway_dataplane::stages::bridge::{BridgePortSettings, BridgeSettings};
use tollway_dataplane::tables::{Tables, TablesError};

use super::{CompileError, at};
use crate::{LearningBridge, LearningPort, Model, PortIndex};

/// Adds the model's bridges to tables that have its ports.
pub(super) fn set(model: &Model, tables: &mut Tables) -> Result<(), CompileError> {
    let names = || {
        let names: Vec<&str> = model.bridges.iter().map(|bridge| bridge.name.as_str()).collect();
        format!("the bridge {}", names.join(" or "))
    };
    let settings = model.bridges.iter().map(settings).collect::<Result<Vec<_>, _>>();
    tables.set_bridges(&settings.map_err(at(names))?).map_err(at(names))
}

fn settings(bridge: &LearningBridge) -> Result<BridgeSettings, TablesError> {
    let ports = bridge.ports.iter().map(port).collect::<Result<_, _>>()?;
    let mut entries = Vec::new();
    for entry in &bridge.entries {
        entries.push((entry.mac.0, port_id(entry.port)?));
    }
    let (ageing_s, max_entries) = (bridge.ageing_s, bridge.max_entries);
    Ok(BridgeSettings { ports, ageing_s, max_entries, entries })
}

fn port(port: &LearningPort) -> Result<BridgePortSettings, TablesError> {
    let LearningPort { port, is_isolated, is_hairpin, learns, storm_limit } = *port;
    Ok(BridgePortSettings { port: port_id(port)?, is_isolated, is_hairpin, learns, storm_limit })
}

fn port_id(port: PortIndex) -> Result<PortId, TablesError> {
    u16::try_from(port.0).map(PortId).map_err(|_| TablesError::Unknown)
}
