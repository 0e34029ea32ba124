use std::sync::{Arc, Barrier};
use std::thread;

use super::{Filter, Limit, LimitUnit, Op, Point, Rule, Rules};
use crate::dispatch::Path;
use crate::prefix::{Prefix, RoutePrefix};
use crate::tables::Tables;
use crate::testkit::linux::mac;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::path_bench::{Outcome, PathBench};

const S: u64 = 1_000_000_000;
/// Hundredths of a second that a worker forwards.
const TURNS: u64 = if cfg!(miri) { 3 } else { 100 };

/// `limit rate 1000/second burst 200 packets accept`, then `drop`, for IPv4.
fn limited() -> Filter {
    let limit = Limit { rate: 1000, period_ns: S, burst: 200, unit: LimitUnit::Packets };
    let accept = vec![Op::Limit { limit: 0, over: false }, Op::Accept];
    let rule = |ops, next| Rule { ops, next, ..Rule::default() };
    let rules = Rules { rules: vec![rule(accept, 1), rule(vec![Op::Drop], 2)], end: 1 };
    let mut filter = Filter::new(0, vec![limit]);
    filter.set(Point::Prerouting, 4, &rules).unwrap();
    filter
}

/// Tables with one route, and a limit on all packets.
fn tables() -> Tables {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf().unwrap();
    let links = [0, 1].map(|port| tables.add_port(mac(port), vrf, 1500).unwrap().1);
    let next = tables.set_neigh(links[1], ip("10.1.0.2"), Some(mac(9))).unwrap();
    tables.insert(vrf, RoutePrefix::V4(Prefix::v4(0x0a01_0000, 16)), next).unwrap();
    tables.filter = Some(Arc::new(limited()));
    tables
}

/// How many packets a worker forwards that receives a full burst every 10 ms, and four at the start. It
/// waits when it has used up those.
fn forwarded(tables: &Tables, started: &Barrier) -> usize {
    let packet = Packet::udp("10.0.0.7", "10.1.0.9").to(mac(0)).build();
    let frames = vec![packet; 64];
    let mut bench = PathBench::over(tables, Path::detect(), 2048);
    bench.filter.renew(tables.filter.as_deref(), 0);
    let mut send = |now_ns| {
        bench.filter.now_ns = now_ns;
        let outcomes = bench.burst(0, &frames);
        outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Sent(..))).count()
    };
    let first: usize = (0..4).map(|_| send(7 * S)).sum();
    started.wait();
    first + (1..=TURNS).map(|turn| send(7 * S + turn * S / 100)).sum::<usize>()
}

#[test]
fn workers_with_the_same_rules_have_one_limit_together() {
    let (tables, started) = (tables(), Barrier::new(2));
    let total: usize = thread::scope(|scope| {
        let workers = [(); 2].map(|()| scope.spawn(|| forwarded(&tables, &started)));
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
    });
    assert_eq!(total as u64, 200 + 10 * TURNS);
}
