//! Many routes that arrive by BGP.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway_commands::control::{Route, RoutesPage, ShowRequest};

use crate::namespaces::{Process, sh};
use crate::running::KernelRouter;
use crate::scene::{ELSEWHERE, Restarts, Scene};
use crate::traffic::sender;

/// Time between two packets of other traffic.
const PACE: Duration = Duration::from_micros(50);
/// How long the test measures while nothing else happens.
const QUIET: Duration = Duration::from_secs(3);
/// Longest time until the routes are in the kernel.
const PATIENCE: Duration = Duration::from_secs(100);

/// Number of routes: `TOLLWAY_BGP_ROUTES`, or 20,000.
fn count() -> usize {
    std::env::var("TOLLWAY_BGP_ROUTES").map_or(20_000, |text| text.parse().unwrap())
}

/// How many packets A has sent and C has received.
#[derive(Clone, Copy, Debug)]
struct Carried {
    at: Instant,
    sent: u64,
    came: u64,
}

impl Carried {
    fn look(scene: &Scene) -> Self {
        let sent = || scene.net.a.counts("ha")[9];
        // Packets sent between the two readings seem lost, so the quickest of several looks counts.
        let looks = (0..5).map(|_| {
            let look = Self { sent: sent(), came: scene.c.received("hc"), at: Instant::now() };
            (sent() - look.sent, look)
        });
        looks.min_by_key(|(meanwhile, _)| *meanwhile).unwrap().1
    }

    /// Packets that arrived per second, and their share of those sent.
    fn since(self, before: Self) -> (f64, f64) {
        let came = (self.came - before.came) as f64;
        let seconds = (self.at - before.at).as_secs_f64();
        (came / seconds, came / (self.sent - before.sent) as f64)
    }
}

pub fn routes() {
    let count = count();
    let mut scene = Scene::new(Restarts::Plain);
    let tollway = KernelRouter::start("ra rb rc");
    let _other: Process = sender(&scene.net.a, ELSEWHERE, PACE);
    tollway.forwards(&scene.net.a, "10.0.2.2");
    let start = Carried::look(&scene);
    std::thread::sleep(QUIET);
    let quiet = Carried::look(&scene);

    scene.announce(count);
    scene.until_routes(1, PATIENCE);
    let (first, began) = (Carried::look(&scene), Instant::now());
    let mut longest = Duration::ZERO;
    while scene.routes() < count {
        assert!(began.elapsed() < PATIENCE, "{}", scene.router.log());
        let sent = Instant::now();
        tollway.sync();
        longest = longest.max(sent.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    let arrived = Instant::now();
    let synced = tollway.sync();
    let late = arrived.elapsed();
    let last = Carried::look(&scene);

    let ((pace, share), (meanwhile, share_then)) = (quiet.since(start), last.since(first));
    println!(
        "{count} routes by BGP arrived in {:.1} s, active {late:?} after the last, {longest:?} at most in \
         between",
        (arrived - began).as_secs_f64()
    );
    println!(
        "other traffic: {pace:.0} packets a second, {:.3}% of them carried; meanwhile {meanwhile:.0}, \
         {:.3}%",
        share * 100.0,
        share_then * 100.0
    );
    assert_eq!(synced.bypassed, None);
    let kernels = kernels();
    assert!(kernels.len() >= count, "{} routes in the kernel", kernels.len());
    same(&kernels, &installed(&tollway));
    assert!(late.max(longest) < Duration::from_secs(1));
    assert!(share_then > share * 0.95);
    let status = tollway.audited();
    println!("{status:?}");
    assert_eq!(status.drift, 0);
}

/// Of a hundred thousand routes, this shows only those that differ.
fn same(kernels: &BTreeMap<String, String>, installed: &BTreeMap<String, String>) {
    let lacks = |has: &BTreeMap<String, String>, all: &BTreeMap<String, String>| {
        let lacks = all.iter().filter(|(dst, via)| has.get(*dst) != Some(via));
        lacks.map(|(dst, via)| format!("{dst} via {via}")).take(5).collect::<Vec<_>>()
    };
    let none = Vec::<String>::new();
    assert_eq!(lacks(installed, kernels), none, "the kernel has them, of {}", kernels.len());
    assert_eq!(lacks(kernels, installed), none, "active, of {}", installed.len());
}

/// IPv4 unicast routes with a gateway, as the kernel lists them.
fn kernels() -> BTreeMap<String, String> {
    let list: Vec<Value> = serde_json::from_str(&sh("ip -json -4 route show table main")).unwrap();
    let routes = list.iter().filter_map(|route| {
        let dst = route["dst"].as_str().unwrap().to_owned();
        let dst = if dst.contains('/') { dst } else { format!("{dst}/32") };
        Some((dst, route["gateway"].as_str()?.to_owned()))
    });
    routes.collect()
}

/// The same routes, as Tollway forwards by them.
fn installed(tollway: &KernelRouter) -> BTreeMap<String, String> {
    let mut routes = BTreeMap::new();
    let mut client = tollway.client();
    client
        .send_show(&ShowRequest::Routes { vrf: Some("main".to_owned()), within: None, all: false })
        .unwrap();
    loop {
        let page: RoutesPage = client.answer().unwrap();
        for Route { prefix, kind, nexthops } in page.routes {
            if let ("unicast", Some(via)) = (kind.as_str(), nexthops[0].via) {
                routes.insert(prefix.to_string(), via.to_string());
            }
        }
        if !page.more {
            return routes;
        }
    }
}
