//! Tests of audits.

use std::time::{Duration, Instant};

use tollway_controller::netlink::Settings;

use crate::bridges;
use crate::dice::Dice;
use crate::ip::{Ip, batch, veth_pairs};
use crate::model::SyncedModel;
use crate::namespaces::sh;
use crate::random;

/// An audit finds what differs from the kernel, and corrects it.
pub fn drift() {
    veth_pairs();
    for n in 0..50 {
        sh(&format!("ip route add 192.0.2.{n} via 10.0.1.2"));
    }
    let settings = Settings { audit_every: Duration::from_millis(300), ..Settings::default() };
    let mut synced = SyncedModel::new(settings);
    synced.until("audits", |synced| synced.source.stats().audits >= 3);
    assert_eq!(synced.source.stats().drifts, 0);
    // Change the model as if messages had been lost.
    let (key, _) = synced.model.routes.pop_first().unwrap();
    let (_, other) = synced.model.routes.iter_mut().next().unwrap();
    other[0].0.mtu = 1234;
    let wrong = other.clone();
    let mut stale = key;
    stale.table = 4711;
    synced.model.routes.insert(stale, wrong);
    synced.until("three drifts", |synced| synced.source.stats().drifts == 3);
    synced.assert_agrees();
    // This test's model does not know what the kernel deletes without a message.
    sh("ip link set a1 down");
    synced.until("the dropped routes to go", |synced| {
        !synced.model.routes.values().flatten().any(|(route, _)| {
            route.hops.list().iter().any(|hop| hop.via.is_some_and(|via| via.is_ipv4()))
        })
    });
    synced.assert_agrees();
}

/// While much changes, an audit finds no differences and introduces none.
pub fn busy() {
    veth_pairs();
    bridges::add();
    let mut dice = Dice(11);
    batch(&random::many());
    let settings = Settings { audit_every: Duration::from_millis(20), ..Settings::default() };
    let mut synced = SyncedModel::new(settings);
    for _ in 0..5 {
        let mut ip = Ip::new();
        let lines = random::reported_lines(&mut dice, 1000) + &random::spread(&mut dice, 3000);
        let audits = synced.source.stats().audits;
        let whole: Vec<&str> = lines.lines().collect();
        // A few at a time, all through the audit.
        for some in whole.chunks(20) {
            ip.run(&(some.join("\n") + "\n"));
            let start = Instant::now();
            synced.until("some time", |_| start.elapsed() > Duration::from_millis(2));
        }
        ip.finish();
        synced.assert_agrees();
        synced.until("an audit", |synced| synced.source.stats().audits > audits);
        synced.assert_agrees();
    }
    let stats = synced.source.stats();
    println!("{stats:?}");
    assert_eq!((stats.drifts, stats.resyncs), (0, 1));
}
