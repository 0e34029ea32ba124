//! Several workers that enter flows into one XDP path.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollway_dataplane::burst::Burst;
use tollway_dataplane::changes::{Basis, Voided};
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::{PortId, RecordId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::xdp_path::XdpPath;

use super::{Flows, Maps, Ports, XdpFlows, exit, ports};
use crate::testkit::dice::Dice;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::wires::{LinkVariant, give_default_routes, tables};
use crate::xdp_path::outdated::{Outdated, Void};

const MS: u64 = 1_000_000;

/// The source of a worker's flows.
fn source(worker: usize) -> IpAddr {
    IpAddr::from([192, 0, 2, worker as u8])
}

/// A worker's side, with a burst that it has looked up and not reported yet.
struct Side {
    flows: XdpFlows<Maps>,
    umem: Umem,
    burst: Box<Burst>,
    source: IpAddr,
    now_ns: u64,
}

impl Side {
    fn begin(&mut self, tables: &Tables) {
        self.now_ns += 20 * MS;
        self.flows.begin(&tables.epochs.changes, self.now_ns);
    }

    /// Looks up two packets of a flow.
    fn lookup(&mut self, tables: &Tables, dst: IpAddr) {
        self.umem = Umem::new(4, 2048).unwrap();
        self.burst.reset(PortId(0));
        let packet = Packet::between(self.source, dst).to(LinkVariant::Plain.mac(0)).build();
        let next = tables.lookup(LinkVariant::Plain.vrf(), dst);
        let header = vec![0; tables.routes.next_hops.get(next).header_len.into()];
        let frame = [&header, &packet[14..]].concat();
        for lane in 0..2 {
            let stored = self.umem.store(&frame).unwrap();
            assert!(self.burst.push(stored.addr, stored.len as u16));
            self.burst.l3[lane] = 14;
            self.burst.link[lane] = LinkVariant::Plain.link(0);
            self.burst.next[lane] = RecordId(next.0);
        }
    }

    fn report(&mut self, tables: &Tables) {
        let lanes = self.burst.lanes();
        self.flows.forwarded(&self.burst, &self.umem, tables, lanes);
    }

    /// One turn with packets of a flow.
    fn turn(&mut self, tables: &Tables, dst: IpAddr) {
        self.begin(tables);
        self.lookup(tables, dst);
        self.report(tables);
    }
}

struct Bench {
    tables: Tables,
    maps: Maps,
    ports: Arc<Ports>,
    sides: Vec<Side>,
    /// Of the thread that changes tables.
    outdated: Outdated,
}

impl Bench {
    fn new(workers: usize) -> Self {
        let (mut tables, maps, ports) = (tables(), Maps::default(), ports());
        give_default_routes(&mut tables, LinkVariant::Plain.vrf());
        let voided = Arc::new(Voided::new());
        let flows = XdpFlows::of_workers(workers, &maps, &ports, 1000, &voided);
        let side = |(worker, flows)| {
            let (umem, burst) = (Umem::new(4, 2048).unwrap(), Box::new(Burst::new()));
            Side { flows, umem, burst, source: source(worker), now_ns: 0 }
        };
        let sides = flows.into_iter().enumerate().map(side).collect();
        Self { tables, maps, ports, sides, outdated: Outdated::new(voided) }
    }

    fn route(&mut self, prefix: RoutePrefix, port: u8) {
        let next = self.tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(port));
        self.tables.insert(LinkVariant::Plain.vrf(), prefix, next).unwrap();
    }

    /// What the thread does that changes tables.
    fn void(&mut self) {
        let (maps, changes) = (&self.maps, &self.tables.epochs.changes);
        let now = Basis { tables: changes.version(), ports: 0 };
        self.outdated.follow(changes, now, |void| match void {
            Void::Regions(regions) => maps.bump_regions(regions),
            Void::Flows | Void::All => maps.bump_generation(),
        });
    }

    /// How often anything was voided.
    fn voids(&self) -> u32 {
        self.maps.generation() + self.maps.region_changes.load(Ordering::Acquire)
    }

    /// Active flows as source, destination and egress port.
    fn active(&self) -> Vec<(IpAddr, IpAddr, u8)> {
        let flows = self.maps.v4.lock().unwrap();
        let active =
            flows.iter().filter(|(key, flow)| self.maps.is_active(&key.src_be, &key.dst_be, flow));
        active.map(|(key, flow)| (key.src_be.into(), key.dst_be.into(), flow.egress_port)).collect()
    }
}

#[test]
fn a_change_is_voided_by_the_first_who_notices_it() {
    let (dst, prefix) = (ip("20.1.0.1"), RoutePrefix::new(ip("20.1.0.0"), 16));
    let everything = RoutePrefix::new(ip("0.0.0.0"), 1);
    for prefix in [prefix, everything] {
        for by_controller in [true, false] {
            let mut bench = Bench::new(3);
            for side in &mut bench.sides {
                side.turn(&bench.tables, dst);
            }
            assert_eq!(bench.active().len(), 3);
            bench.route(prefix, 1);
            if by_controller {
                bench.void();
                assert_eq!(bench.active(), []);
            }
            bench.sides[1].turn(&bench.tables, dst);
            assert_eq!(bench.active(), [(source(1), dst, 1)]);
            let voids = bench.voids();
            for side in &mut bench.sides {
                side.turn(&bench.tables, dst);
            }
            bench.void();
            assert_eq!(bench.active().len(), 3, "the first worker's flow stayed");
            assert_eq!(bench.voids(), voids);
        }
    }
}

#[test]
fn a_change_of_ports_is_voided_once() {
    let mut bench = Bench::new(2);
    let dst = LinkVariant::Plain.host4(1);
    for side in &mut bench.sides {
        side.turn(&bench.tables, dst);
    }
    bench.ports.set_exit(PortId(2), None);
    let voids = bench.voids();
    for side in &mut bench.sides {
        side.turn(&bench.tables, dst);
    }
    assert_eq!((bench.active().len(), bench.voids()), (2, voids + 1));
}

#[test]
fn workers_begin_with_one_empty_path_and_count_together() {
    let bench = Bench::new(4);
    assert_eq!(bench.voids(), 1);
    let mut sides = bench.sides;
    for (worker, side) in sides.iter_mut().enumerate() {
        side.turn(&bench.tables, LinkVariant::Plain.host4(1));
        assert_eq!(bench.maps.len(), worker + 1);
    }
    assert!(sides.iter().all(|side| side.flows.entered().entered() == 4));
    let memory = |most| crate::xdp_path::flow_stats::FlowStats::new(most).memory_bytes();
    let parts: usize = sides.iter().map(|side| side.flows.flow_stats.memory_bytes()).sum();
    assert!(parts <= memory(1000) + memory(0) * 4, "each has a share");
}

/// Steps of several workers, of a thread that changes routes and of a watcher of ports, in a random order.
struct Steps {
    bench: Bench,
    dice: Dice,
    /// Whether somebody has looked for changes of tables, and of ports, since the last one.
    noticed: [bool; 2],
    has_exit: bool,
}

impl Steps {
    fn new(seed: u64) -> Self {
        Self { bench: Bench::new(3), dice: Dice(seed), noticed: [false; 2], has_exit: true }
    }

    fn destination(&mut self) -> IpAddr {
        IpAddr::from([20, self.dice.below(2) as u8, 0, 1])
    }

    fn step(&mut self) {
        let (worker, step, dst) = (self.dice.below(3), self.dice.below(24), self.destination());
        let Self { bench, dice, noticed, has_exit } = self;
        let side = &mut bench.sides[worker];
        let has_begun = side.flows.basis.is_some();
        match step {
            0 => {
                let before = bench.tables.epochs.changes.version();
                let prefix = RoutePrefix::new(dst, dice.pick(&[4, 16, 32]));
                bench.route(prefix, dice.below(3) as u8);
                noticed[0] &= bench.tables.epochs.changes.version() == before;
            }
            1 => {
                *has_exit = !*has_exit;
                bench.ports.set_exit(PortId(2), has_exit.then(|| exit(2)));
                noticed[1] = false;
            }
            2..=3 => {
                bench.void();
                noticed[0] = true;
            }
            4..=11 => {
                let before = bench.voids();
                bench.sides[worker].begin(&bench.tables);
                assert!(*noticed != [true; 2] || bench.voids() == before, "voided again");
                *noticed = [true; 2];
            }
            12..=17 if has_begun => side.lookup(&bench.tables, dst),
            18..=23 if has_begun => side.report(&bench.tables),
            _ => {}
        }
        if matches!(step, 4..=11) {
            bench.sides[worker].burst.reset(PortId(0));
        }
    }

    /// Checks the active flows if all changes were noticed; returns how many there are.
    fn check(&self) -> usize {
        if self.noticed != [true; 2] {
            return 0;
        }
        let active = self.bench.active();
        for (_, dst, port) in &active {
            let next = self.bench.tables.lookup(LinkVariant::Plain.vrf(), *dst);
            let expected = self.bench.tables.routes.next_hops.get(next).port;
            assert_eq!(PortId((*port).into()), expected);
            assert!(*port != 2 || self.has_exit);
        }
        active.len()
    }
}

/// As soon as anybody has noticed a change, no flow is active that the tables would send elsewhere; and nobody
/// voids what somebody else has voided.
#[test]
fn no_order_of_steps_leaves_an_old_flow_active() {
    let mut active = 0;
    for seed in 0..100 {
        let mut steps = Steps::new(seed);
        for _ in 0..400 {
            steps.step();
            active += steps.check();
        }
    }
    assert!(active > 5_000, "{active}");
}
