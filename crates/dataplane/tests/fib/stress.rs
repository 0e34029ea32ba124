//! One thread makes a million random changes while others look up addresses.
//!
//! Some routes are stable, others flap. At any moment, a lookup must find the longest stable route
//! that covers the address, or a longer route that flaps, and no other. Memory is small, so the
//! FIB soon reuses what it took out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollway_dataplane::burst::BURST;
use tollway_dataplane::epoch::{Epochs, Reader};
use tollway_dataplane::fib::{Capacity, Fib, Root};
use tollway_dataplane::id::NextHopId;
use tollway_dataplane::prefix::Prefix;

use crate::dice::Dice;
use crate::support::{Bursts, Family, Oracle};

/// The number of changes, both families together.
const CHANGES: usize = 1_000_000;
const READERS: u64 = 2;
const FLAPPING: usize = 8000;

/// The time limit of the writer; on a loaded machine it makes fewer changes.
const LIMIT: Duration = Duration::from_secs(20);

/// The stable routes, the routes that flap, and the allowed results for the probed addresses.
struct Scene {
    stable: Vec<(Prefix, NextHopId)>,
    flapping: Vec<(Prefix, NextHopId)>,
    probes: Vec<(u128, Allowed)>,
}

/// The next hop by stable routes, and the next hops of flapping routes that may replace it.
struct Allowed {
    stable: NextHopId,
    flapping: Vec<NextHopId>,
}

impl Scene {
    fn new(family: Family) -> Self {
        let mut dice = Dice(9);
        let mut taken = Oracle::default();
        let mut routes = |count: usize, numbers: u32, stable: bool| {
            let mut routes: Vec<(Prefix, NextHopId)> = Vec::new();
            while routes.len() < count {
                let near =
                    if routes.is_empty() { 0 } else { routes[dice.below(routes.len())].0.bits() };
                let bits = near ^ (dice.wide() & dice.wide() & dice.wide());
                let least = if stable { 4 } else { 1 };
                let len = least + dice.below(usize::from(family.width() - least + 1)) as u8;
                let prefix = family.prefix(bits, len);
                if !taken.has(prefix) {
                    let next = NextHopId(numbers + routes.len() as u32);
                    taken.insert(prefix, next);
                    routes.push((prefix, next));
                }
            }
            routes
        };
        let stable = routes(1000, 1, true);
        let flapping = routes(FLAPPING, 1 << 20, false);
        let edges = stable.iter().chain(&flapping).flat_map(|(prefix, _)| family.edges(*prefix));
        let mut probes: Vec<_> = edges.map(|address| (address, ())).collect();
        for at in (1..probes.len()).rev() {
            probes.swap(at, dice.below(at + 1));
        }
        probes.truncate(10_000);
        let probes = probes.into_iter().map(|(address, ())| {
            let over = |routes: &[(Prefix, NextHopId)]| {
                let mut over: Vec<_> =
                    routes.iter().filter(|(prefix, _)| prefix.contains(address)).copied().collect();
                over.sort_by_key(|(prefix, _)| prefix.len());
                over
            };
            let longest = over(&stable).last().copied();
            let (len, next) = longest
                .map_or((None, NextHopId::NO_ROUTE), |(prefix, next)| (Some(prefix.len()), next));
            let longer = over(&flapping).into_iter().filter(|(prefix, _)| Some(prefix.len()) > len);
            let flapping = longer.map(|(_, next)| next).collect();
            (address, Allowed { stable: next, flapping })
        });
        Self { probes: probes.collect(), stable, flapping }
    }
}

/// Looks up addresses, in bursts and one by one, until `stop` is set. The reader passes after each
/// burst, and sleeps now and then.
fn read(
    fib: &Fib,
    root: Root,
    family: Family,
    scene: &Scene,
    reader: &Reader,
    stop: &AtomicBool,
    seed: u64,
) -> u64 {
    let (mut dice, mut bursts, mut lookups) = (Dice(seed), Bursts::new(family), 0);
    while !stop.load(Ordering::Relaxed) {
        let first = dice.below(scene.probes.len() - BURST);
        let some = &scene.probes[first..first + BURST];
        let addresses: Vec<_> = some.iter().map(|(address, _)| *address).collect();
        let found = bursts.lookup(fib, |_| root, &addresses);
        for ((address, allowed), next) in some.iter().zip(found) {
            for next in [next, fib.lookup(root, *address)] {
                let good = next == allowed.stable || allowed.flapping.contains(&next);
                assert!(good, "{address:#034x} goes to {next:?}");
            }
        }
        lookups += 2 * BURST as u64;
        reader.pass();
        if dice.below(200) == 0 {
            reader.park();
            thread::sleep(Duration::from_micros(20));
            reader.wake();
        }
    }
    lookups
}

fn changes_while_read(family: Family) {
    let scene = Scene::new(family);
    let epochs = Epochs::new();
    let capacity = Capacity { roots: 1, nodes: 1 << 15, values: 1 << 19 };
    let fib = Fib::new(Arc::clone(&epochs), capacity);
    let root = fib.add_root().expect("a root");
    for (prefix, next) in &scene.stable {
        fib.insert(root, *prefix, *next).expect("room");
    }
    let (stop, lookups) = (AtomicBool::new(false), AtomicU64::new(0));
    let changes = thread::scope(|scope| {
        for seed in 0..READERS {
            let (fib, scene, stop, lookups, epochs) = (&fib, &scene, &stop, &lookups, &epochs);
            scope.spawn(move || {
                // Stop the writer even if this thread panics: further changes would be useless.
                let _stop = StopAtEnd(stop);
                let reader = epochs.join();
                let count = read(fib, root, family, scene, &reader, stop, seed);
                lookups.fetch_add(count, Ordering::Relaxed);
            });
        }
        let _stop = StopAtEnd(&stop);
        write(&fib, root, &scene, &stop)
    });
    eprintln!("{family:?}: {changes} changes, {} lookups meanwhile", lookups.into_inner());

    let mut oracle = Oracle::default();
    for (prefix, next) in scene.stable.iter().chain(&scene.flapping) {
        if fib.get(root, *prefix).is_some() {
            oracle.insert(*prefix, *next);
        }
    }
    for (address, _) in &scene.probes {
        assert_eq!(fib.lookup(root, *address), oracle.lookup(*address));
    }
}

/// Inserts and removes flapping routes at random; returns the number of changes.
fn write(fib: &Fib, root: Root, scene: &Scene, stop: &AtomicBool) -> usize {
    let (mut dice, begun) = (Dice(10), Instant::now());
    let mut up = vec![false; scene.flapping.len()];
    let mut changes = 0;
    while changes < CHANGES / 2 && begun.elapsed() < LIMIT && !stop.load(Ordering::Relaxed) {
        let at = dice.below(up.len());
        let (prefix, next) = scene.flapping[at];
        // The FIB refuses a change while readers hold what it took out, and stays unchanged.
        let done = if up[at] {
            fib.remove(root, prefix) == Ok(true)
        } else {
            fib.insert(root, prefix, next).is_ok()
        };
        up[at] ^= done;
        changes += usize::from(done);
        if !done {
            thread::yield_now();
        }
    }
    changes
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn ipv4_changes_while_it_is_read() {
    changes_while_read(Family::V4);
}

#[test]
fn ipv6_changes_while_it_is_read() {
    changes_while_read(Family::V6);
}
