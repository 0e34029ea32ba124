//! Tests a router that is behind with the kernel's events: after a pause, or when events come
//! faster than it can install them. The kernel forwards meanwhile.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Bench, REPORTED, TRIES, flow};
use crate::namespaces::{Process, sh};

const ROUTES: u32 = 50_000;
const BLACKHOLE: &str = "ip route add blackhole 172.16.5.5/32";
const GO: &str = "ip route del blackhole 172.16.5.5/32";

/// Writes two files with which `ip -batch` adds and deletes many routes. Returns their names.
fn batches(bench: &Bench) -> [String; 2] {
    ["add", "del"].map(|what| {
        let mut lines = String::new();
        for number in 0..ROUTES {
            let [_, high, low, _] = (number << 8).to_be_bytes();
            let _ = writeln!(lines, "route {what} 11.{high}.{low}.0/24 via 10.0.2.2");
        }
        let path = bench.router.path(what);
        std::fs::write(&path, lines).unwrap();
        path.display().to_string()
    })
}

/// A stopped process misses the changes made meanwhile, and resumes before it has read them.
pub fn stopped() {
    let bench = Bench::new();
    let [add, del] = batches(&bench);
    let signal = |signal| sh(&format!("kill -{signal} {}", bench.router.process.0.id()));
    for _ in 0..2 {
        bench.flows();
        signal("STOP");
        sh(&format!("ip -batch {add}"));
        sh(BLACKHOLE);
        let done_ns = flow::now_ns();
        signal("CONT");
        let leak = Duration::from_nanos(bench.flow.last_ns().saturating_sub(done_ns));
        println!("after a pause with {ROUTES} routes unread: packets for {leak:?}");
        assert!(leak <= REPORTED, "{leak:?}");
        sh(GO);
        sh(&format!("ip -batch {del}"));
        bench.router.sync();
    }
}

/// A change comes after many others.
pub fn flooded() {
    let bench = Bench::new();
    let [add, del] = batches(&bench);
    let leak = || {
        bench.flows();
        let mut command = Command::new("chrt");
        command.args(["-o", "0", "ip", "-batch", &add]).stdin(Stdio::null());
        let mut routes = Process(command.spawn().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        sh(BLACKHOLE);
        let done_ns = flow::now_ns();
        let goes_on = routes.0.try_wait().unwrap().is_none();
        let leak = Duration::from_nanos(bench.flow.last_ns().saturating_sub(done_ns));
        assert!(routes.0.wait().unwrap().success());
        sh(GO);
        sh(&format!("ip -batch {del}"));
        bench.router.sync();
        println!("behind {ROUTES} routes, which go on: {goes_on}: packets for {leak:?}");
        leak
    };
    assert!((0..TRIES).any(|_| leak() <= REPORTED && leak() <= REPORTED));
}

/// Once a sync has returned, a change is active: it stops each packet sent later.
pub fn synced() {
    let bench = Bench::new();
    for (stop, go) in [
        (BLACKHOLE, GO),
        ("ip rule add pref 100 iif ra blackhole", "ip rule del pref 100"),
        ("nft add element inet f s { 172.16.5.5 }", "nft delete element inet f s { 172.16.5.5 }"),
        (
            "ip neigh replace 10.0.2.2 lladdr 02:00:00:00:77:77 dev rb nud permanent",
            "ip neigh del 10.0.2.2 dev rb",
        ),
    ] {
        for _ in 0..3 {
            bench.flows();
            sh(stop);
            bench.router.sync();
            let synced_ns = flow::now_ns();
            let leak = Duration::from_nanos(bench.flow.last_ns().saturating_sub(synced_ns));
            sh(go);
            assert_eq!(leak, Duration::ZERO, "{stop}");
        }
    }
}
