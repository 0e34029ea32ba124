//! Tests many routes.

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tollway_commands::control::ShowRequest;

use super::namespaces::{Host, PATIENCE, sh, until};
use super::running::{KernelRouter, Net};

/// Returns the number of routes: `TOLLWAY_ROUTES`, or 100,000.
fn count() -> usize {
    std::env::var("TOLLWAY_ROUTES").map_or(100_000, |text| text.parse().unwrap())
}

/// Returns the prefix with a number: /24s from 20.0.0.0 on.
fn prefix(number: usize) -> String {
    format!("{}.{}.{}.0/24", 20 + number / 65536, number / 256 % 256, number % 256)
}

/// Runs lines about prefixes with `ip -batch`.
fn batch(dir: &std::path::Path, lines: impl Iterator<Item = String>) {
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    let file = dir.join("batch");
    std::fs::write(&file, text).unwrap();
    sh(&format!("ip -batch {}", file.display()));
}

/// Returns the peak resident memory so far, in MB.
fn peak(router: &KernelRouter) -> u64 {
    let path = format!("/proc/{}/status", router.process.0.id());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Asserts the next hop of some routes in the active tables.
fn check(
    router: &KernelRouter,
    numbers: impl Iterator<Item = usize>,
    by: impl Fn(usize) -> Option<String>,
) {
    let mut client = router.client();
    for number in numbers {
        let address = prefix(number).replace(".0/24", ".9").parse().unwrap();
        let found: serde_json::Value =
            client.show(&ShowRequest::Route { address, vrf: None }).unwrap();
        let via = found["route"]["nexthops"][0]["via"].as_str().map(str::to_owned);
        assert_eq!(via, by(number), "{}: {found}", prefix(number));
    }
}

pub fn routes() {
    let _net = Net::new();
    let (count, dir) = (count(), tempfile::tempdir().unwrap());
    batch(dir.path(), (0..count).map(|n| format!("route add {} via 10.0.2.2", prefix(n))));
    let start = Instant::now();
    let router = KernelRouter::start("ra rb");
    let took = start.elapsed();
    let peak = peak(&router);
    println!("{count} routes installed in {took:?}, at most {peak} MB resident");
    let second = |_| Some("10.0.2.2".to_owned());
    check(&router, (0..count).step_by(count / 100), second);
    assert_eq!(router.audited().drift, 0);
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(peak < 400, "{peak} MB");
    // More routes arrive while the router runs.
    let later = count..count + 50_000;
    batch(dir.path(), later.clone().map(|n| format!("route add {} via 10.0.1.2", prefix(n))));
    let start = Instant::now();
    router.sync();
    println!("50,000 more active {:?} after the kernel had them", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    check(&router, later.step_by(500), |_| Some("10.0.1.2".to_owned()));
    assert_eq!(router.status().rebuilds, 0);
    // The kernel removes all of them without an event for each.
    sh("ip link set rb down");
    let start = Instant::now();
    router.sync();
    println!("{count} routes gone after {:?}", start.elapsed());
    check(&router, (0..count).step_by(count / 100), |_| None);
    // The memory of so many waits for the XDP programs, so the router may make larger tables, once.
    assert!(router.status().rebuilds <= 1, "{}", router.read("stderr"));
}

/// Returns the packets of one ping and its answer that the XDP path has forwarded.
fn pings_by_xdp_path(router: &KernelRouter, host: &Host, address: &str) -> u64 {
    let before = router.by_xdp_path();
    host.sh(&format!("ping -n -c 1 -W 2 {address}"));
    // Tollway counts packets of the XDP path with a delay.
    std::thread::sleep(Duration::from_millis(20));
    router.by_xdp_path() - before
}

/// Asserts that a host's first packet to an address goes by the XDP path, and so does its answer.
fn decides_at_once(router: &KernelRouter, host: &Host, address: &str) {
    let mut tried = Vec::new();
    let start = Instant::now();
    // On a busy machine the worker's heartbeat may be late, or larger tables may be made.
    while start.elapsed() < PATIENCE {
        tried.push(pings_by_xdp_path(router, host, address));
        if tried.last() == Some(&2) {
            return;
        }
    }
    panic!("{address} is not on the XDP path: {tried:?}, {}", router.read("stderr"));
}

/// While many routes come, packets stay on the XDP path; those to the new routes take it at once.
pub fn arriving() {
    const COUNT: usize = 200_000;
    const PARTS: usize = 4;
    let (net, dir) = (Net::new(), tempfile::tempdir().unwrap());
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    decides_at_once(&router, &net.a, "10.0.2.2");
    let behind = |part: usize| prefix((part + 1) * COUNT / PARTS - 1).replace(".0/24", ".9");
    for part in 0..PARTS {
        net.b.sh(&format!("ip address add {}/32 dev lo", behind(part)));
    }
    let mut by_xdp_path = 0;
    for part in 0..PARTS {
        let before = router.by_xdp_path();
        let mut pings = net.a.command("ping -n -q -i 0.002 -c 250 10.0.2.2");
        let pings = pings.stdout(Stdio::piped()).spawn().unwrap();
        let routes = part * COUNT / PARTS..(part + 1) * COUNT / PARTS;
        batch(dir.path(), routes.map(|n| format!("route add {} via 10.0.2.2", prefix(n))));
        let start = Instant::now();
        router.sync();
        println!("{} more routes are active after {:?}", COUNT / PARTS, start.elapsed());
        let pings = String::from_utf8(pings.wait_with_output().unwrap().stdout).unwrap();
        assert!(pings.contains(" 0% packet loss"), "{pings}");
        std::thread::sleep(Duration::from_millis(20));
        by_xdp_path += router.by_xdp_path() - before;
        decides_at_once(&router, &net.a, &behind(part));
    }
    println!("{by_xdp_path} packets by the XDP path, {} rebuilds", router.status().rebuilds);
    // While changes wait, the kernel forwards.
    assert!(by_xdp_path > 1000, "{by_xdp_path} of 2,000");
    let second = |_| Some("10.0.2.2".to_owned());
    check(&router, (0..COUNT).step_by(COUNT / 100), second);
    assert_eq!(router.audited().drift, 0);
}

pub fn stopped() {
    const COUNT: usize = 100_000;
    let _net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let router = KernelRouter::start("ra rb");
    sh(&format!("kill -STOP {}", router.process.0.id()));
    batch(dir.path(), (0..COUNT).map(|n| format!("route add {} via 10.0.2.2", prefix(n))));
    let odd = (0..COUNT).filter(|n| n % 2 == 1);
    batch(dir.path(), odd.map(|n| format!("route replace {} via 10.0.1.2", prefix(n))));
    let third = (0..COUNT).filter(|n| n % 3 == 0);
    batch(dir.path(), third.map(|n| format!("route del {}", prefix(n))));
    sh(&format!("kill -CONT {}", router.process.0.id()));
    let start = Instant::now();
    router.sync();
    println!("active {:?} after going on", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    check(&router, (0..COUNT).step_by(997), |n| match (n % 3, n % 2) {
        (0, _) => None,
        (_, 1) => Some("10.0.1.2".to_owned()),
        _ => Some("10.0.2.2".to_owned()),
    });
    until("as many as the kernel has", || {
        let kernel = sh("ip -4 route show table all").lines().count()
            + sh("ip -6 route show table all").lines().count();
        router.status().routes.abs_diff(kernel) < 10
    });
}
