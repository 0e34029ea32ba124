//! How long the controller takes.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tollway_controller::event::Event;
use tollway_controller::kernel::RouteKey;
use tollway_controller::netlink::{Settings, Source};

use crate::ip::{Ip, veth_pairs};
use crate::namespaces::PATIENCE;

/// Number of routes: `TOLLWAY_RIB_ROUTES`, or 100,000.
fn count() -> u32 {
    let given = std::env::var("TOLLWAY_RIB_ROUTES").ok().and_then(|count| count.parse().ok());
    given.unwrap_or(100_000)
}

pub fn list() {
    let count = count();
    veth_pairs();
    let mut ip = Ip::new();
    for start in (0..count).step_by(1000) {
        let mut lines = String::new();
        for n in start..count.min(start + 1000) {
            let (a, b, c, dev) = (20 + (n >> 16), n >> 8 & 255, n & 255, n % 4);
            let _ = writeln!(lines, "route add {a}.{b}.{c}.0/24 via 10.0.{dev}.2 proto bgp");
        }
        ip.run(&lines);
    }
    ip.finish();
    for _ in 0..3 {
        let mut source = Source::open(Settings::default()).unwrap();
        let (start, mut routes, mut complete) = (Instant::now(), 0, false);
        while !complete {
            let mut take = |event| match event {
                Event::Route(..) => routes += 1,
                Event::Complete => complete = true,
                _ => {}
            };
            source.read(&mut take).unwrap();
            assert!(start.elapsed() < PATIENCE);
        }
        let took = start.elapsed();
        println!("{routes} routes in {took:?}, {:?} each", took / routes);
        assert!(routes >= count);
        // Five times as long as on a machine that does nothing else.
        assert!(took < Duration::from_micros(10) * count.max(100_000), "{took:?}");
    }
    audit(count);
}

/// An audit is busy for no more than its share of the time.
fn audit(count: u32) {
    let settings = Settings { audit_every: Duration::from_millis(1), ..Settings::default() };
    let mut source = Source::open(settings).unwrap();
    let (start, mut busy, mut routes) = (Instant::now(), Duration::ZERO, 0);
    let mut audit_began = None;
    while source.stats().audits == 0 {
        let now = Instant::now();
        let mut take = |event| match event {
            Event::Listing { audit: true, .. } => audit_began = audit_began.or(Some(now)),
            Event::Route(..) if audit_began.is_some() => routes += 1,
            _ => {}
        };
        source.read(&mut take).unwrap();
        if audit_began.is_some() {
            busy += now.elapsed();
        }
        assert!(start.elapsed() < PATIENCE * 10);
        std::thread::sleep(source.due().saturating_duration_since(Instant::now()));
    }
    let took = audit_began.unwrap().elapsed();
    let share = busy.as_secs_f64() / took.as_secs_f64();
    println!("an audit of {routes} routes in {took:?}, of which busy {:.2}%", share * 100.0);
    assert!(routes >= count && share < 0.05);
}

/// The time starts when `ip` gets the line, so it includes that of `ip` and of the kernel.
pub fn latency() {
    veth_pairs();
    let mut source = Source::open(Settings::default()).unwrap();
    let start = Instant::now();
    while source.stats().resyncs == 0 {
        source.read(&mut |_| ()).unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
    let mut ip = Ip::new();
    // A busy machine gets another try.
    let rounds = (0..5).map(|_| {
        let mut times: Vec<_> = (0..300_u32)
            .map(|n| {
                let dst = format!("192.0.{}.{}/32", n / 200, n % 200);
                let sent = Instant::now();
                ip.run(&format!("route replace {dst} via 10.0.0.2\n"));
                receive(&mut source, &dst);
                sent.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("received after {:?} (median), {:?} (p99)", times[150], times[297]);
        times[297]
    });
    assert!(rounds.into_iter().any(|p99| p99 < Duration::from_millis(5)));
}

/// Waits for a route, without sleeping.
fn receive(source: &mut Source, dst: &str) {
    let dst: ipnet::IpNet = dst.parse().unwrap();
    let (start, mut found) = (Instant::now(), false);
    while !found {
        let is_it = |key: &RouteKey| key.dst == dst;
        source
            .read(&mut |event| found |= matches!(event, Event::Route(key, ..) if is_it(&key)))
            .unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
}
