//! Two workers of one router on threads of their own, while its tables, rules and host are changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::counters::{Counters, Traffic};
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::hand_over::{Outlet, ring};
use tollway_dataplane::host::Host;
use tollway_dataplane::id::{LinkId, PortId};
use tollway_dataplane::port::{MemoryPort, Port};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::router::Router;
use tollway_dataplane::stages::filter::{Filter, Op, Point, Rule, Rules};
use tollway_dataplane::verdict::DropReason;
use tollway_dataplane::worker::{Worker, check_memory};

use crate::testkit::packet::ip;
use crate::testkit::wires::{LinkVariant, PORTS, tables};

const PATIENCE: Duration = Duration::from_secs(60);

/// How often the configuration changes while the workers forward.
const CHANGES: u32 = if cfg!(miri) { 3 } else { 300 };

/// A worker with memory ports of its own.
struct Side {
    worker: Worker,
    /// The port that receives.
    from: u8,
    ports: Vec<MemoryPort>,
    frames: Vec<Vec<u8>>,
}

#[allow(unsafe_code)]
fn sides(router: &Arc<Router>) -> Vec<Side> {
    let umem = Umem::new(512, 2048).expect("memory");
    // SAFETY: frames go from one worker to the other only in the host, under the router's lock, and over a ring.
    let other = unsafe { umem.share() };
    let side = |umem, from: u8| {
        let frames = [1, 2].into_iter().flat_map(|to| {
            [LinkVariant::Plain.host4(to), LinkVariant::Plain.host6(to)]
                .map(|dst| LinkVariant::Plain.packet(from, dst).build())
        });
        let ports = (0..PORTS).map(|_| MemoryPort::new(BURST)).collect();
        Side { worker: Worker::new(router, umem), from, ports, frames: frames.collect() }
    };
    vec![side(umem, 0), side(other, 1)]
}

impl Side {
    /// Sends every frame once and takes what comes out; returns how many frames came out.
    fn round(&mut self) -> usize {
        for frame in &self.frames {
            if let Some(frame) = self.worker.umem.store(frame) {
                self.ports[usize::from(self.from)].inject(frame);
            }
        }
        while self.worker.turn(PortId(self.from.into()), &mut self.ports, 1) > 0 {}
        let mut sent = 0;
        for port in &mut self.ports {
            let frames = port.take_sent();
            sent += frames.len();
            self.worker.umem.free_all(frames.into_iter().map(|frame| frame.addr));
        }
        self.worker.umem.balance();
        sent
    }
}

/// Accepts everything and counts it, by a counter of its own for each version.
fn counting(counters: usize) -> Arc<Filter> {
    let mut filter = Filter::new(counters, Vec::new());
    for (counter, version) in [(0, 4), (1, 6)] {
        let ops = vec![Op::Count(counter), Op::Accept];
        let rules = Rules { rules: vec![Rule { ops, next: 1, ..Rule::default() }], end: 0 };
        filter.set(Point::Forward, version, &rules).expect("rules");
    }
    Arc::new(filter)
}

/// Checks packets and chunks over all workers.
fn check(sides: &[Side]) -> Counters {
    let mut counters = Counters::new(usize::from(PORTS));
    for side in sides {
        counters.add(&side.worker.counters);
    }
    counters.check().expect("packets add up");
    let workers: Vec<_> = sides.iter().map(|side| (&side.worker, &side.ports[..])).collect();
    check_memory(&workers).expect("no chunk is lost or free twice");
    counters
}

/// Runs `change` again and again while the workers forward, and then checks everything. Each change must be in use by
/// every worker when [`Router::synchronize`] returns.
fn changed(router: &Arc<Router>, mut change: impl FnMut(&Router, u32)) -> (Counters, Vec<Side>) {
    let stop = AtomicBool::new(false);
    let mut sides = sides(router);
    std::thread::scope(|scope| {
        for side in &mut sides {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    side.round();
                }
                side.worker.park();
            });
        }
        for number in 0..CHANGES {
            change(router, number);
            assert!(router.synchronize(PATIENCE), "a worker holds up the change");
        }
        stop.store(true, Ordering::Relaxed);
    });
    (check(&sides), sides)
}

#[test]
fn routes_change_while_two_workers_forward() {
    let router = Router::new(tables(), Host::new());
    let prefix = RoutePrefix::new(ip("198.51.100.0"), 24);
    let vrf = LinkVariant::Plain.vrf();
    let (counters, sides) = changed(&router, |router, number| {
        let tables = &mut router.lock().tables;
        let next = tables.lookup(vrf, LinkVariant::Plain.host4(1 + (number % 2) as u8));
        tables.insert(vrf, prefix, next).unwrap();
        assert!(tables.remove(vrf, prefix).unwrap());
    });
    assert!(sides.iter().all(|side| side.worker.counters.sent > 0));
    assert_eq!(counters.sent, counters.received_packets());
}

#[test]
fn tables_are_swapped_while_two_workers_forward() {
    let router = Router::new(tables(), Host::new());
    let same: Vec<_> = (0..64).map(|link| Some(LinkId(link))).collect();
    let umem = Umem::new(16, 2048).unwrap();
    let (mut swapper, mut ports) = (Worker::new(&router, umem), Vec::<MemoryPort>::new());
    swapper.park();
    let (counters, _) = changed(&router, |_, _| {
        swapper.wake();
        let old = swapper.swap(&mut ports, tables(), Host::new(), &same, &[]);
        assert!(old.is_ok(), "the same number of ports");
        swapper.park();
    });
    assert_eq!(counters.sent, counters.received_packets());
}

#[test]
fn counts_of_rules_are_right_in_sum_while_rules_change() {
    let router = Router::new(tables(), Host::new());
    router.lock().set_filter(Some(counting(2)), &[]);
    let (counters, mut sides) = changed(&router, |router, number| {
        // The rules continue their counters, under other numbers at times.
        let carried = [Some(0), Some(1), None];
        router.lock().set_filter(Some(counting(2 + number as usize % 2)), &carried);
    });
    for side in &mut sides {
        side.worker.add_rule_counts();
    }
    let counts = router.rule_counts();
    assert_eq!(counts[0].packets + counts[1].packets, counters.sent);
    assert!(counts[0].packets > 0 && counts[1].packets > 0);
}

#[test]
fn a_worker_takes_a_state_before_its_next_burst() {
    let router = Router::new(tables(), Host::new());
    let mut sides = sides(&router);
    let all = sides[0].frames.len();
    assert_eq!(sides.iter_mut().map(Side::round).sum::<usize>(), 2 * all);
    let mut none = Filter::new(0, Vec::new());
    let ops = vec![Op::Drop];
    let rules = Rules { rules: vec![Rule { ops, next: 1, ..Rule::default() }], end: 0 };
    none.set(Point::Forward, 4, &rules).unwrap();
    router.lock().set_filter(Some(Arc::new(none)), &[]);
    assert_eq!(sides.iter_mut().map(Side::round).sum::<usize>(), all, "IPv6 only");
    router.lock().set_filter(None, &[]);
    assert_eq!(sides.iter_mut().map(Side::round).sum::<usize>(), 2 * all);
    check(&sides);
    let states = Arc::downgrade(&router.state());
    for side in &sides {
        side.worker.park();
    }
    router.lock().set_filter(None, &[]);
    sides.iter_mut().for_each(|side| {
        side.worker.wake();
        side.round();
        side.worker.park();
    });
    assert!(router.synchronize(PATIENCE));
    assert!(states.upgrade().is_none(), "a replaced state is freed when no worker has it");
}

/// A worker that takes other rules keeps what it has logged, under the number of the rules that logged it.
#[test]
fn logged_packets_have_the_number_of_their_rules() {
    let router = Router::new(tables(), Host::new());
    let mut sides = sides(&router);
    let mut expected = Vec::new();
    for _ in 0..3 {
        let mut filter = Filter::new(0, Vec::new());
        let ops = vec![Op::Log { log: 0, limit: None }, Op::Accept];
        let rules = Rules { rules: vec![Rule { ops, next: 1, ..Rule::default() }], end: 0 };
        filter.set(Point::Forward, 4, &rules).unwrap();
        let mut locked = router.lock();
        let number = locked.next_rules();
        locked.set_filter(Some(Arc::new(filter)), &[]);
        drop(locked);
        for side in &mut sides {
            side.round();
        }
        // One for each of two IPv4 frames.
        expected.extend([number; 2]);
    }
    router.lock().set_filter(None, &[]);
    for side in &mut sides {
        side.round();
        let log = &mut side.worker.filter.log;
        let numbers: Vec<_> = std::iter::from_fn(|| log.pop()).map(|one| one.rules).collect();
        assert_eq!(numbers, expected);
    }
    assert_eq!(expected, [1, 1, 2, 2, 3, 3]);
}

/// Only one worker looks after the host. What the others do at a tick does not need the router, which somebody may
/// have locked for long.
#[test]
fn each_worker_counts_what_its_ports_report() {
    struct Oversized;
    impl Port for Oversized {
        fn receive(&mut self, _umem: &mut Umem, _burst: &mut Burst) {}

        fn transmit(&mut self, _umem: &mut Umem, _frames: &[Descriptor]) -> usize {
            0
        }

        fn oversized(&mut self) -> Traffic {
            Traffic { packets: 1, bytes: 9000 }
        }
    }
    let router = Router::new(tables(), Host::new());
    let mut sides = sides(&router);
    let locked = router.lock();
    for side in &mut sides {
        side.worker.tick_ports(&mut [Oversized, Oversized]);
    }
    drop(locked);
    let counters = check(&sides);
    assert_eq!(counters.drops[DropReason::PktTooBig as usize], 4);
    assert_eq!(counters.rx[1], Traffic { packets: 2, bytes: 18_000 });
}

/// A worker that hangs keeps its own state alive, and no other.
#[test]
fn a_worker_that_hangs_keeps_one_state() {
    let router = Router::new(tables(), Host::new());
    let worker = Worker::new(&router, Umem::new(16, 2048).unwrap());
    let mut states = vec![Arc::downgrade(&router.state())];
    for number in 0..10 {
        router.lock().tables.set_multipath_seed(number);
        states.push(Arc::downgrade(&router.state()));
        assert!(!router.synchronize(Duration::ZERO), "the worker takes no turn");
    }
    let alive: Vec<_> = states.iter().map(|state| state.strong_count() > 0).collect();
    assert!(alive[0] && alive[10]);
    assert_eq!(alive.iter().filter(|alive| **alive).count(), 2, "{alive:?}");
    worker.park();
    assert!(router.synchronize(PATIENCE));
}

/// Routes and neighbours change in place. So what the host learns on a worker's thread publishes no state, which
/// nobody would free before the next change.
#[test]
fn routes_and_neighbours_publish_no_state() {
    let router = Router::new(tables(), Host::new());
    let (before, vrf) = (router.state(), LinkVariant::Plain.vrf());
    let (link, address) = (LinkVariant::Plain.link(1), ip("192.0.2.77"));
    let mut locked = router.lock();
    let next = locked.tables.publish_neigh(link, address, [2, 0, 0, 0, 0, 7]).unwrap();
    locked.tables.insert(vrf, RoutePrefix::host(address), next).unwrap();
    locked.tables.remove(vrf, RoutePrefix::host(address)).unwrap();
    locked.tables.withdraw_neigh(link, address);
    drop(locked);
    assert!(Arc::ptr_eq(&before, &router.state()));
}

/// A port of either kind.
enum Mixed {
    Memory(MemoryPort),
    Outlet(Outlet),
}

impl Port for Mixed {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        match self {
            Self::Memory(port) => port.receive(umem, burst),
            Self::Outlet(port) => port.receive(umem, burst),
        }
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        match self {
            Self::Memory(port) => port.transmit(umem, frames),
            Self::Outlet(port) => port.transmit(umem, frames),
        }
    }
}

/// One worker has no queue of the egress port, and hands its frames over to the other on another thread, which cannot
/// send all of them. No packet and no chunk is lost without a count.
#[test]
fn frames_are_handed_over_to_the_worker_that_has_the_queue() {
    const ROUNDS: usize = if cfg!(miri) { 3 } else { 2000 };
    let router = Router::new(tables(), Host::new());
    let [mut sender, mut owner] = <[Side; 2]>::try_from(sides(&router)).ok().unwrap();
    let (producer, mut consumer) = ring(8);
    let mut ports: Vec<_> = (0..PORTS).map(|_| Mixed::Memory(MemoryPort::new(BURST))).collect();
    ports[1] = Mixed::Outlet(Outlet::new(PortId(1), producer));
    let stop = AtomicBool::new(false);
    let frame = LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).build();
    let sent = std::thread::scope(|scope| {
        let Side { worker, ports: own, .. } = &mut owner;
        let (stop, consumer) = (&stop, &mut consumer);
        let owner = scope.spawn(move || {
            let mut sent = 0;
            own[1].limit_tx(3);
            loop {
                let last = stop.load(Ordering::Acquire);
                let found = worker.send_handed_over(consumer, own);
                let frames = own[1].take_sent();
                sent += frames.len();
                worker.umem.free_all(frames.into_iter().map(|frame| frame.addr));
                worker.umem.balance();
                if last && found == 0 {
                    return sent;
                }
            }
        });
        for _ in 0..ROUNDS {
            for _ in 0..4 {
                let Some(frame) = sender.worker.umem.store(&frame) else { break };
                if let Mixed::Memory(port) = &mut ports[0] {
                    port.inject(frame);
                }
            }
            while sender.worker.turn(PortId(0), &mut ports, 1) > 0 {}
        }
        stop.store(true, Ordering::Release);
        owner.join().unwrap()
    });
    let counters = check(&[sender, owner]);
    assert_eq!(counters.sent, sent as u64);
    assert_eq!(counters.tx[1].packets, sent as u64);
    assert!(sent > 0);
}
