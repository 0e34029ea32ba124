//! Programs on devices get other tables to decide by. What happens to one port does not concern the others.

use std::net::IpAddr;
use std::sync::Arc;

use tollway_dataplane::id::PortId;
use tollway_dataplane::memory::{Capacities, Capacity, Memory};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::tables::Tables;
use tollway_xdp::{Mode, Options, SharedTables, TableMaps, XdpPrograms};

use super::super::echo::{BOTH, pings_with_heartbeats};
use super::super::namespaces::{Host, sh, until};
use super::owners::program_on;
use super::{A, B, HOST_A, HOST_B, MAC_A, MAC_B, Worker, port, ports, two_hosts, untagged};

/// A third port, whose device nobody is behind.
const C: PortId = PortId(2);
const MAC_C: [u8; 6] = [2, 0, 0, 0, 0, 0x0c];

/// The longest frame that devices take, in bytes.
const FRAME: u32 = 1518;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Tables that join the two hosts, in maps.
fn tables() -> Tables {
    let fib = Capacity { roots: 16, nodes: 1 << 10, values: 1 << 16 };
    let capacities = Capacities {
        fib4: fib,
        fib6: fib,
        next_hops: 1 << 10,
        groups: 1,
        rules: 0,
        sets: fib,
        processors: 0,
        fdb_buckets: 0,
    };
    let maps = TableMaps::with_capacities(capacities).unwrap();
    let mut tables = Tables::with_memory(&Memory::lent(Arc::new(maps)));
    let vrf = tables.add_vrf().unwrap();
    for (mac, host, number) in [(MAC_A, HOST_A, 1), (MAC_B, HOST_B, 2)] {
        let (_, link) = tables.add_port(mac, vrf, 1500).unwrap();
        let glean = tables.glean(link).unwrap();
        for (prefix, len) in [(format!("10.0.{number}."), 24), (format!("fd00:{number}::"), 64)] {
            let first = if len == 24 { ip(&format!("{prefix}0")) } else { ip(&prefix) };
            tables.insert(vrf, RoutePrefix::new(first, len), glean).unwrap();
            tables.publish_neigh(link, ip(&format!("{prefix}2")), host).unwrap();
        }
    }
    tables.add_port(MAC_C, vrf, 1500).unwrap();
    tables
}

/// Asserts that no program reads these tables: their memory waits for nobody.
fn are_free(tables: &Tables) {
    until("no program reads the tables", || tables.epochs.passed() == u64::MAX);
}

/// Asserts that the programs of both hosts' ports decide by tables.
#[track_caller]
fn decide(programs: &XdpPrograms, host: &Host) {
    let grown = pings_with_heartbeats(programs, &[A, B], (host, &BOTH, 1));
    let packets = grown.iter().map(|port| (port.xdp_rx_packets, port.xdp_tx_packets));
    assert_eq!(packets.collect::<Vec<_>>(), [(20, 20); 2]);
}

/// Three ports with the XDP path, whose programs decide by tables.
fn start(tables: &Tables) -> (XdpPrograms, Worker) {
    sh("ip link add rc type veth peer name rd");
    sh("ip link set rc address 02:00:00:00:00:0c up");
    let mut all = ports();
    all.push(port(C, "rc", MAC_C, &[untagged(2)]));
    let mut programs = XdpPrograms::load(&all, &Options::default()).unwrap();
    let worker = Worker::start(programs.state());
    for port in [A, B, C] {
        programs.attach(port, &[Mode::Native], true).unwrap();
        programs.state().set_exit_limit(port, FRAME);
    }
    programs.use_tables(tables).unwrap();
    tables.write_engines();
    programs.state().set_bypass(false);
    (programs, worker)
}

/// A device that is gone costs no other port its tables.
pub fn gone() {
    let (a, _b) = two_hosts();
    let (old, new) = (tables(), tables());
    let (mut programs, _worker) = start(&old);
    decide(&programs, &a);
    sh("ip link delete rc");
    until("the device to lose its program", || !programs.is_attached(C));
    programs.use_tables(&new).unwrap();
    assert!(programs.has_tables());
    new.write_engines();
    decide(&programs, &a);
    assert!(new.epochs.passed() < new.epochs.advance(), "the programs read them");
    assert!(programs.is_attached(A) && programs.is_attached(B));
    // The port itself notices that its device is gone.
    programs.remove_port(C);
    are_free(&old);
}

/// Programs are loaded while others decide, and then replace them in one go, whatever has changed meanwhile.
pub fn renewed() {
    let (a, _b) = two_hosts();
    let (old, new) = (tables(), tables());
    let (mut programs, _worker) = start(&old);
    let before = [program_on("ra"), program_on("rb"), program_on("rc")];
    let mut renewal = programs.renewal(SharedTables::of(&new));
    renewal.load().unwrap();
    assert_eq!([program_on("ra"), program_on("rb"), program_on("rc")], before);
    decide(&programs, &a);
    // One port's program has another Ethernet address, and another port is a new one.
    sh("ip link set rc address 02:00:00:00:00:0d");
    programs.set_port(port(C, "rc", [2, 0, 0, 0, 0, 0x0d], &[untagged(2)])).unwrap();
    programs.attach_again(C).unwrap();
    let again = program_on("rc");
    sh("ip link add re type veth peer name rf");
    programs.serve(port(PortId(3), "re", [2; 6], &[untagged(3)]), &[Mode::Native], true).unwrap();
    programs.renew(renewal).unwrap();
    new.write_engines();
    are_free(&old);
    assert_ne!(program_on("rc"), again);
    assert!([A, B, C, PortId(3)].iter().all(|port| programs.is_attached(*port)));
    decide(&programs, &a);
    // Without tables, programs decide by flows only.
    programs.use_tables(&Tables::new()).unwrap();
    assert!(!programs.has_tables());
    are_free(&new);
}

/// A program without the XDP path reads no tables, and their memory does not wait for it.
pub fn unread() {
    let _hosts = two_hosts();
    let tables = tables();
    let mut programs = XdpPrograms::load(&ports(), &Options::default()).unwrap();
    programs.use_tables(&tables).unwrap();
    tables.write_engines();
    programs.attach(A, &[Mode::Native], false).unwrap();
    let before = program_on("ra");
    assert!(tables.epochs.passed() >= tables.epochs.advance());
    programs.use_tables(&tables).unwrap();
    assert_eq!(program_on("ra"), before);
    programs.attach(A, &[Mode::Native], true).unwrap();
    assert!(tables.epochs.passed() < tables.epochs.advance());
    programs.attach(A, &[Mode::Native], false).unwrap();
    are_free(&tables);
}
