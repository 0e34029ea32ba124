//! Tables and frames of the rows with bridges.

use tollway_dataplane::id::{BridgeId, Domain, PortId};
use tollway_dataplane::stages::bridge::{
    BridgePortSettings, BridgeSettings, FdbEntry, FdbKey, FdbKind,
};
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::wire::eth::MacWord;

use super::scene::{ROUTER_MAC, Router, SENDER_MAC, Stage, failed};
use crate::frames::{self, Addresses, Source, Xorshift, station};

/// Stations of one flow.
pub(super) const FEW: u32 = 2;

/// Frames of the row with many stations.
const MANY_FRAMES: usize = 65_536;

/// A bridge of both ports that has learned so many stations, half of them behind each. Those behind the first one send to
/// the others.
pub(super) fn stage(stations: u32) -> Result<Stage, String> {
    let mut tables = Router::new(false, 0).map_err(failed)?.tables;
    let sides = learn(&mut tables, stations).map_err(failed)?;
    let template = frames::udp(
        ROUTER_MAC[0],
        SENDER_MAC,
        &[],
        Addresses::V4(0xac10_0001, 0x0a00_0001),
        (9, 9),
    );
    let mut rng = Xorshift::new(0x7011_0a11);
    let mut draw = |side: usize| sides[side][(rng.next() >> 32) as usize % sides[side].len()];
    let count = if stations > FEW { MANY_FRAMES } else { 1 };
    let pairs = (0..count).map(|_| [draw(1), draw(0)]).collect();
    Ok(Stage { tables, source: Source::Stations(template, pairs), filter: None })
}

/// Makes the bridge, and enters the stations as if it had learned them. Returns them by port. One in some thousand finds
/// no slot in the database; another one takes its place.
fn learn(tables: &mut Tables, stations: u32) -> Result<[Vec<u32>; 2], TablesError> {
    let bridge = BridgeSettings {
        ports: [0, 1].map(|id| BridgePortSettings::new(PortId(id))).to_vec(),
        ageing_s: 300,
        max_entries: stations,
        entries: Vec::new(),
    };
    tables.set_bridges(&[bridge])?;
    let domain = Domain::of_bridge(BridgeId(0)).ok_or(TablesError::Unknown)?;
    let mut fdb = tables.fdb.lock();
    let mut enter = |number: u32, port: u16| {
        let key = FdbKey::new(domain, MacWord::new(station(number)));
        fdb.set(key, FdbEntry { port: PortId(port), kind: FdbKind::Host }, 0).is_ok()
    };
    let mut sides = [Vec::new(), Vec::new()];
    let mut number = 0;
    while sides[1].len() < stations as usize / 2 {
        let side = usize::from(sides[0].len() > sides[1].len());
        if enter(number, side as u16) {
            sides[side].push(number);
        }
        number += 1;
    }
    Ok(sides)
}
