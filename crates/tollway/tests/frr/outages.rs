//! Measures what traffic loses when daemons and routers die: with the kernel alone, and with
//! Tollway.

use std::time::Duration;

use crate::namespaces::until;
use crate::running::KernelRouter;
use crate::scene::{Restarts, Scene, Witness, prefix};
use crate::traffic::{Hole, Stream};

/// Number of routes that come and go.
const ROUTES: usize = 2000;
/// Time between two packets.
const PACE: Duration = Duration::from_millis(2);
/// How long the test sends packets before and after.
const MARGIN: Duration = Duration::from_millis(400);
/// Longest time until all routes are back.
const PATIENCE: Duration = Duration::from_secs(40);
/// How much longer packets may be lost than the kernel lacks the route, in seconds: on a busy
/// machine everything waits.
const SLACK: f64 = 0.15;
/// The same for a whole scenario, whose length depends mostly on the random part of BGP's timers.
const SAME: f64 = 2.5;

/// The losses of a scenario.
#[derive(Debug)]
struct Outage {
    /// The longest time in which no packet got through, in seconds.
    longest: f64,
    /// The longest part of such a time in which the kernel had a route, in seconds.
    unexplained: f64,
    /// Packets lost.
    lost: u64,
    /// How long the kernel had no route, in seconds.
    routeless: f64,
}

/// Runs `what` while packets flow to the last of the prefixes.
fn outage(scene: &mut Scene, what: impl FnOnce(&mut Scene)) -> Outage {
    let to = prefix(ROUTES - 1).replace(".0/24", ".9");
    let witness = Witness::new(scene);
    let file = scene.path().join("arrivals");
    let stream = Stream::start(&scene.net.a, (&scene.net.b, &to), PACE, file);
    std::thread::sleep(MARGIN);
    what(scene);
    scene.until_routes(ROUTES, PATIENCE);
    std::thread::sleep(MARGIN);
    // Even now, a restarted bgpd may remove its predecessor's routes.
    let is_here = || witness.changes(&prefix(ROUTES - 1)).last().is_none_or(|(_, here)| *here);
    until("the route to be back", is_here);
    std::thread::sleep(MARGIN);
    let arrivals = stream.stop();
    assert!(arrivals.len() > 100, "{} packets arrived", arrivals.len());
    let gone = absences(&witness.changes(&prefix(ROUTES - 1)));
    let holes = arrivals.holes();
    let seconds = |hole: &Hole| hole.to - hole.from;
    for hole in &holes {
        println!("  nothing for {:.3} s from {:.3} on", hole.to - hole.from, hole.from % 86400.0);
    }
    for [from, to] in &gone {
        println!("  no route for {:.3} s from {from:.3} on", to - from);
    }
    Outage {
        longest: holes.iter().map(seconds).fold(0.0, f64::max),
        unexplained: holes.iter().map(|hole| unexplained(hole, &gone)).fold(0.0, f64::max),
        lost: holes.iter().map(|hole| hole.packets).sum(),
        routeless: gone.iter().map(|[from, to]| to - from).sum(),
    }
}

/// When the kernel had no route, as times of day in seconds.
fn absences(changes: &[(f64, bool)]) -> Vec<[f64; 2]> {
    let mut absences: Vec<[f64; 2]> = Vec::new();
    let mut gone = None;
    for (time, here) in changes {
        match (here, gone) {
            (false, None) => gone = Some(*time),
            (true, Some(from)) => {
                absences.push([from, *time]);
                gone = None;
            }
            _ => {}
        }
    }
    assert_eq!(gone, None, "the route is back");
    absences
}

/// How much of a hole is outside these times.
fn unexplained(hole: &Hole, absences: &[[f64; 2]]) -> f64 {
    let day = 24.0 * 3600.0;
    let (from, to) = (hole.from % day, hole.to % day);
    let common = |[begin, end]: &[f64; 2]| (to.min(*end) - from.max(*begin)).max(0.0);
    (to - from).max(0.0) - absences.iter().map(common).sum::<f64>()
}

/// One scenario, with the kernel alone and then with Tollway.
struct Scenario {
    name: &'static str,
    what: fn(&mut Scene),
    /// Whether the kernel has no route for a while; `None` if that depends on FRR alone.
    is_felt: Option<bool>,
}

/// Runs scenarios with the kernel alone, then with Tollway, which must lose no more.
fn compare(restarts: Restarts, scenarios: &[Scenario]) {
    let mut scene = Scene::new(restarts);
    scene.announce(ROUTES);
    scene.until_routes(ROUTES, PATIENCE);
    wait_until_converged(&mut scene);
    let alone: Vec<_> = scenarios.iter().map(|of| outage(&mut scene, of.what)).collect();
    let mut tollway = KernelRouter::start("ra rb");
    tollway.forwards(&scene.net.a, &prefix(7).replace(".0/24", ".9"));
    for (scenario, alone) in scenarios.iter().zip(alone) {
        let (name, with) = (scenario.name, outage(&mut scene, scenario.what));
        println!("{name}: the kernel alone {alone:.3?}\n{name}: with Tollway {with:.3?}");
        let is_felt = alone.routeless > 0.0;
        assert_eq!(is_felt, scenario.is_felt.unwrap_or(is_felt), "{name}: {}", scene.router.log());
        assert!(with.unexplained <= alone.unexplained + SLACK, "{name}");
        assert!(with.lost as f64 <= alone.lost as f64 * 1.5 + SAME / PACE.as_secs_f64(), "{name}");
        assert!(with.longest <= alone.longest * 1.5 + SAME, "{name}");
        assert!(tollway.lives(), "{}", tollway.read("stderr"));
    }
    tollway.forwards(&scene.net.a, &prefix(7).replace(".0/24", ".9"));
    assert_eq!(tollway.sync().bypassed, None);
    die(&mut scene, tollway);
}

/// Tollway dies, and another Tollway takes its place.
fn die(scene: &mut Scene, tollway: KernelRouter) {
    let killed = outage(scene, |_| {
        let mut tollway = tollway;
        tollway.process.0.kill().unwrap();
        tollway.process.0.wait().unwrap();
    });
    println!("kill -9 of tollway: {killed:.3?}");
    assert!(killed.longest <= SLACK);
    let mut next = None;
    let replaced = outage(scene, |_| next = Some(KernelRouter::start("ra rb")));
    println!("the next one: {replaced:.3?}");
    assert!(replaced.longest <= SLACK);
    next.unwrap().forwards(&scene.net.a, &prefix(7).replace(".0/24", ".9"));
}

/// Waits until both BGP speakers consider their routes complete.
fn wait_until_converged(scene: &mut Scene) {
    let probe = format!("show bgp ipv4 unicast {}", prefix(ROUTES - 1));
    until("routes that are not stale", || {
        let shown = scene.router.run(&probe);
        shown.contains("best") && !shown.contains("stale") && !shown.contains("Stale")
    });
}

fn flap(scene: &mut Scene) {
    scene.peer.run("clear bgp *");
    // The session ends a moment later.
    until("routes to go", || scene.routes() < ROUTES);
}

fn router_dies(scene: &mut Scene) {
    scene.router.kill_bgpd();
    until("routes to go", || scene.routes() < ROUTES);
    scene.router.start_bgpd_again();
}

fn router_restarts(scene: &mut Scene) {
    scene.router.kill_bgpd();
    std::thread::sleep(MARGIN);
    scene.router.start_bgpd_again();
    wait_until_converged(scene);
    std::thread::sleep(MARGIN);
}

fn peer_restarts(scene: &mut Scene) {
    scene.peer.kill_bgpd();
    let probe = format!("show bgp ipv4 unicast {}", prefix(ROUTES - 1));
    let is_awaited = || scene.router.run(&probe).to_lowercase().contains("stale");
    until("the router to wait for its peer", is_awaited);
    std::thread::sleep(MARGIN);
    scene.peer.start_bgpd_again();
    wait_until_converged(scene);
    std::thread::sleep(MARGIN);
}

pub fn plain() {
    let scenarios = [
        Scenario { name: "session flap", what: flap, is_felt: Some(true) },
        Scenario { name: "kill -9 of bgpd", what: router_dies, is_felt: Some(true) },
    ];
    compare(Restarts::Plain, &scenarios);
}

pub fn graceful() {
    let scenario = |name, what, is_felt| Scenario { name, what, is_felt };
    let scenarios = [
        scenario("graceful restart of the peer", peer_restarts as fn(&mut Scene), Some(false)),
        // A restarted bgpd 8.4 may remove its predecessor's routes, and then add them again.
        scenario("graceful restart of the router", router_restarts, None),
    ];
    compare(Restarts::Graceful, &scenarios);
}
