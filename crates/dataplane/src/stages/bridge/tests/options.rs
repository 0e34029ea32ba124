//! Settings of bridges and of their ports.

use super::bench::{Bench, frame, station};
use crate::id::PortId;
use crate::stages::bridge::{BridgePortSettings, BridgeSettings};
use crate::tables::{Tables, TablesError};
use crate::verdict::DropReason;

const BROADCAST: [u8; 6] = [0xff; 6];

fn receivers(bench: &mut Bench, port: u16, dst: [u8; 6], src: [u8; 6]) -> Vec<u16> {
    bench.send(port, &frame(dst, src, 60)).into_iter().map(|(port, _)| port).collect()
}

#[test]
fn isolated_ports_reach_only_the_others() {
    let mut bench = Bench::new(4, |bridge| {
        bridge.ports[0].is_isolated = true;
        bridge.ports[1].is_isolated = true;
    });
    assert_eq!(receivers(&mut bench, 0, BROADCAST, station(1)), [2, 3]);
    assert_eq!(receivers(&mut bench, 2, BROADCAST, station(3)), [0, 1, 3]);
    assert_eq!(receivers(&mut bench, 1, station(1), station(2)), []);
    assert_eq!(bench.drops(DropReason::NoTxTarget), 1);
    assert_eq!(receivers(&mut bench, 2, station(1), station(3)), [0]);
}

#[test]
fn a_hairpin_port_gets_its_own_frames() {
    let mut bench = Bench::new(2, |bridge| bridge.ports[0].is_hairpin = true);
    assert_eq!(receivers(&mut bench, 0, BROADCAST, station(1)), [0, 1]);
    assert_eq!(receivers(&mut bench, 0, station(1), station(2)), [0]);
    assert_eq!(receivers(&mut bench, 1, BROADCAST, station(3)), [0]);
}

#[test]
fn a_port_that_does_not_learn_forwards() {
    let mut bench = Bench::new(3, |bridge| bridge.ports[0].learns = false);
    receivers(&mut bench, 1, BROADCAST, station(2));
    assert_eq!(receivers(&mut bench, 0, station(2), station(1)), [1]);
    assert_eq!(receivers(&mut bench, 1, station(1), station(2)), [0, 2], "unknown still");
    // Nor does it move what others have learned.
    receivers(&mut bench, 0, BROADCAST, station(2));
    assert_eq!(bench.counts().moved, 0);
}

#[test]
fn a_static_entry_neither_moves_nor_ages() {
    let mut bench = Bench::new(3, |bridge| bridge.entries = vec![(station(1), PortId(2))]);
    receivers(&mut bench, 1, BROADCAST, station(1));
    bench.pass(400);
    assert_eq!(receivers(&mut bench, 0, station(1), station(2)), [2]);
    assert_eq!(receivers(&mut bench, 2, station(2), station(1)), [0]);
    assert_eq!((bench.counts().moved, bench.counts().learned), (0, 1));
}

#[test]
fn floods_have_a_limit_and_known_unicast_has_none() {
    let mut bench = Bench::new(3, |bridge| bridge.ports[0].storm_limit = Some(10));
    receivers(&mut bench, 1, BROADCAST, station(2));
    let flooded = |bench: &mut Bench| {
        (0..25).filter(|_| !receivers(bench, 0, BROADCAST, station(1)).is_empty()).count()
    };
    assert_eq!(flooded(&mut bench), 10);
    assert_eq!(bench.drops(DropReason::StormLimit), 15);
    bench.now_ns += 500_000_000;
    assert_eq!(flooded(&mut bench), 5);
    assert_eq!(receivers(&mut bench, 0, station(2), station(1)), [1]);
    assert_eq!(receivers(&mut bench, 2, BROADCAST, station(3)), [0, 1], "a limit of its own");
}

#[test]
fn bridges_know_nothing_of_each_other() {
    let bridge = |ports: [u16; 2]| BridgeSettings {
        ports: ports.map(|id| BridgePortSettings::new(PortId(id))).to_vec(),
        ageing_s: 300,
        max_entries: 10,
        entries: Vec::new(),
    };
    let mut bench = Bench::with_bridges(&[1500; 5], &[bridge([0, 1]), bridge([2, 3])]);
    assert_eq!(receivers(&mut bench, 0, BROADCAST, station(1)), [1]);
    assert_eq!(receivers(&mut bench, 2, station(1), station(2)), [3]);
    assert_eq!(receivers(&mut bench, 3, BROADCAST, station(1)), [2]);
    assert_eq!(receivers(&mut bench, 1, station(1), station(3)), [0]);
    assert_eq!(receivers(&mut bench, 4, BROADCAST, station(1)), [], "a port of no bridge");
}

#[test]
fn what_has_no_room_is_refused() {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf().unwrap();
    for number in 0..65 {
        tables.add_port([2, 0, 0, 0, 0, number], vrf, 1500).unwrap();
    }
    let mut set = |id| {
        let ports = vec![BridgePortSettings::new(PortId(id))];
        tables.set_bridges(&[BridgeSettings { ports, ..BridgeSettings::default() }])
    };
    assert_eq!(
        (set(63), set(64), set(65)),
        (Ok(()), Err(TablesError::Full), Err(TablesError::Full))
    );
}
