use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use proptest::prelude::*;

use crate::burst::BURST;
use crate::dispatch::Path;
use crate::epoch::Epochs;
use crate::fib::{Capacity, Fib, Root};
use crate::id::{NextHopId, VrfId};
use crate::prefix::{Prefix, RoutePrefix};
use crate::tables::Tables;
use crate::testkit::packet::ip;
use crate::testkit::path_bench::{Outcome, PathBench, paths};
use crate::testkit::wires::{LinkVariant, tables};

const ROOTS: usize = 3;

fn new_fib() -> Fib {
    Fib::new(Epochs::new(), Capacity { roots: 32, nodes: 1 << 14, values: 1 << 19 })
}

/// A change of a FIB.
#[derive(Clone, Copy, Debug)]
enum Change {
    Insert(usize, Prefix, NextHopId),
    Remove(usize, Prefix),
}

/// A FIB, a list of its routes that is searched linearly, and another author's tries.
struct Pair {
    fib: Fib,
    roots: Vec<Root>,
    routes: BTreeMap<(usize, Prefix), NextHopId>,
    tries4: Vec<PrefixMap<Ipv4Net, NextHopId>>,
    tries6: Vec<PrefixMap<Ipv6Net, NextHopId>>,
    is_ipv4: bool,
}

fn net4(prefix: Prefix) -> Ipv4Net {
    let address = Ipv4Addr::from_bits((prefix.bits() >> 96) as u32);
    Ipv4Net::new(address, prefix.len()).unwrap()
}

fn net6(prefix: Prefix) -> Ipv6Net {
    Ipv6Net::new(Ipv6Addr::from_bits(prefix.bits()), prefix.len()).unwrap()
}

impl Pair {
    fn new(is_ipv4: bool) -> Self {
        let fib = new_fib();
        let roots = (0..ROOTS).map(|_| fib.add_root().unwrap()).collect();
        let (tries4, tries6) = (vec![PrefixMap::new(); ROOTS], vec![PrefixMap::new(); ROOTS]);
        Self { fib, roots, routes: BTreeMap::new(), tries4, tries6, is_ipv4 }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Insert(root, prefix, next) => {
                self.fib.insert(self.roots[root], prefix, next).unwrap();
                self.routes.insert((root, prefix), next);
                if self.is_ipv4 {
                    self.tries4[root].insert(net4(prefix), next);
                } else {
                    self.tries6[root].insert(net6(prefix), next);
                }
            }
            Change::Remove(root, prefix) => {
                let was = self.routes.remove(&(root, prefix)).is_some();
                assert_eq!(self.fib.remove(self.roots[root], prefix), Ok(was));
                if self.is_ipv4 {
                    self.tries4[root].remove(&net4(prefix));
                } else {
                    self.tries6[root].remove(&net6(prefix));
                }
            }
        }
    }

    /// Looks up an address in every root, in all three.
    fn check(&self, bits: u128) {
        for root in 0..ROOTS {
            let found = self.fib.lookup(self.roots[root], bits);
            let covering =
                self.routes.iter().filter(|((at, prefix), _)| *at == root && prefix.contains(bits));
            let longest = covering.max_by_key(|((_, prefix), _)| prefix.len());
            let expected = longest.map_or(NextHopId::NO_ROUTE, |(_, next)| *next);
            assert_eq!(found, expected, "root {root}, address {bits:#034x}");
            let trie = if self.is_ipv4 {
                let host = Ipv4Net::from(Ipv4Addr::from_bits((bits >> 96) as u32));
                self.tries4[root].get_lpm(&host).map(|(_, next)| *next)
            } else {
                let host = Ipv6Net::from(Ipv6Addr::from_bits(bits));
                self.tries6[root].get_lpm(&host).map(|(_, next)| *next)
            };
            assert_eq!(found, trie.unwrap_or(NextHopId::NO_ROUTE), "root {root}, {bits:#034x}");
        }
    }

    /// Compares the routes within and over a prefix with the list.
    fn check_lists(&self, prefix: Prefix) {
        for root in 0..ROOTS {
            let of_root = || {
                let own = self.routes.iter().filter(move |((at, _), _)| *at == root);
                own.map(|((_, prefix), next)| (*prefix, *next))
            };
            let within = of_root()
                .filter(|(of, _)| of.len() >= prefix.len() && prefix.contains(of.bits()))
                .collect::<Vec<_>>();
            assert_eq!(
                self.fib.within(self.roots[root], prefix),
                within,
                "root {root}, {prefix:?}"
            );
            let over = of_root()
                .filter(|(of, _)| of.len() <= prefix.len() && of.contains(prefix.bits()))
                .max_by_key(|(of, _)| of.len());
            assert_eq!(self.fib.longest(self.roots[root], prefix), over, "root {root}, {prefix:?}");
        }
    }

    /// Looks up the edges of a prefix: first, last, one before, one after.
    fn check_edges(&self, prefix: Prefix) {
        let unit = if self.is_ipv4 { 1 << 96 } else { 1 };
        let hosts = if prefix.is_empty() { u128::MAX } else { (1 << (128 - prefix.len())) - 1 };
        let hosts = if prefix.len() == 128 { 0 } else { hosts };
        let (first, last) = (prefix.bits(), prefix.bits() | hosts);
        for bits in [first, last, first.wrapping_sub(unit), last.wrapping_add(1)] {
            self.check(bits);
        }
    }
}

/// Prefixes that nest: few bits differ, at positions where lengths and blocks end.
fn prefix(is_ipv4: bool) -> impl Strategy<Value = Prefix> {
    let width = if is_ipv4 { 32_u8 } else { 128 };
    let edges = [0_u8, 1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32];
    let edges6 = [33_u8, 47, 48, 49, 63, 64, 65, 72, 80, 119, 120, 121, 126, 127, 128];
    let edges = if is_ipv4 { edges.to_vec() } else { [&edges[..], &edges6].concat() };
    let len = prop_oneof![proptest::sample::select(edges), 0..=width];
    (len, any::<u128>(), any::<u128>()).prop_map(move |(len, noise, mask)| {
        let base = 0x0a01_8040_20ff_0001_8000_0000_0000_0001_u128;
        let bits = base ^ (noise & mask & noise.rotate_left(17) & 0x0001_8101_80c1_8181 << 64);
        if is_ipv4 { Prefix::v4((bits >> 96) as u32, len) } else { Prefix::v6(bits, len) }
    })
}

fn changes(is_ipv4: bool) -> impl Strategy<Value = Vec<Change>> {
    let change = (0..ROOTS, prefix(is_ipv4), 1..6_u32, any::<bool>());
    proptest::collection::vec(change, 1..60).prop_map(|steps| {
        let mut seen: Vec<(usize, Prefix)> = Vec::new();
        let mut changes = Vec::new();
        for (at, (root, prefix, next, insert)) in steps.into_iter().enumerate() {
            // Two of three removals hit a route that once existed.
            let old = seen.get((at * 7) % seen.len().max(1)).copied();
            match (insert || at < 8, old) {
                (true, _) => {
                    seen.push((root, prefix));
                    changes.push(Change::Insert(root, prefix, NextHopId(next)));
                }
                (false, Some((root, prefix))) if at % 3 > 0 => {
                    changes.push(Change::Remove(root, prefix));
                }
                (false, _) => changes.push(Change::Remove(root, prefix)),
            }
        }
        changes
    })
}

fn replay(is_ipv4: bool, changes: &[Change]) {
    let mut pair = Pair::new(is_ipv4);
    for change in changes {
        pair.apply(*change);
        let (Change::Insert(_, prefix, _) | Change::Remove(_, prefix)) = *change;
        pair.check_edges(prefix);
        pair.check_lists(prefix);
    }
    assert_eq!(pair.fib.len(), pair.routes.len());
    for (root, prefix) in pair.routes.keys().copied().collect::<Vec<_>>() {
        pair.check_edges(prefix);
        assert_eq!(pair.fib.get(pair.roots[root], prefix), Some(pair.routes[&(root, prefix)]));
    }
    for (root, prefix) in pair.routes.keys().copied().collect::<Vec<_>>() {
        pair.apply(Change::Remove(root, prefix));
        pair.check_edges(prefix);
    }
    assert!(pair.fib.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 192,
        ..Default::default()
    })]

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn ipv4_agrees_with_a_list_and_a_trie(changes in changes(true)) {
        replay(true, &changes);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn ipv6_agrees_with_a_list_and_a_trie(changes in changes(false)) {
        replay(false, &changes);
    }

    /// Routes that come and go in any order leave nothing behind: the second time needs no more memory
    /// than the first.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn memory_comes_back(changes in changes(false), order: u64) {
        let fib = new_fib();
        let roots: Vec<_> = (0..ROOTS).map(|_| fib.add_root().unwrap()).collect();
        let mut after_first = 0;
        for cycle in 0..6 {
            let mut routes = Vec::new();
            for change in &changes {
                let Change::Insert(root, prefix, next) = *change else { continue };
                fib.insert(roots[root], prefix, next).unwrap();
                routes.push((root, prefix));
            }
            let turn = order.rotate_left(cycle * 16) as usize;
            while !routes.is_empty() {
                let (root, prefix) = routes.swap_remove(turn % routes.len());
                fib.remove(roots[root], prefix).unwrap();
            }
            prop_assert!(fib.is_empty());
            if cycle == 0 {
                after_first = fib.memory_bytes();
            }
            // The last removed items are kept for readers, some 64 nodes at most.
            let kept = 64 * (64 + 257 * 4);
            prop_assert!(fib.memory_bytes() <= after_first + kept, "cycle {}", cycle);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn a_root_of_its_own_for_each_vrf() {
    let fib = new_fib();
    let roots: Vec<_> = (0..20).map(|_| fib.add_root().unwrap()).collect();
    for (at, root) in roots.iter().enumerate() {
        fib.insert(*root, Prefix::v4(0x0a00_0000, 25), NextHopId(at as u32 + 1)).unwrap();
    }
    for (at, root) in roots.iter().enumerate() {
        assert_eq!(fib.lookup(*root, 0x0a00_007f << 96), NextHopId(at as u32 + 1));
        assert_eq!(fib.lookup(*root, 0x0a00_0080 << 96), NextHopId::NO_ROUTE);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn a_next_hop_that_does_not_fit_is_refused() {
    let fib = new_fib();
    let root = fib.add_root().unwrap();
    let prefix = Prefix::v4(0, 0);
    assert!(fib.insert(root, prefix, NextHopId(NextHopId::MASK)).is_ok());
    assert!(fib.insert(root, prefix, NextHopId(NextHopId::MASK + 1)).is_err());
    assert_eq!(fib.get(root, prefix), Some(NextHopId(NextHopId::MASK)));
    assert_eq!(fib.lookup(root, 0), NextHopId(NextHopId::MASK));
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn every_prefix_length_is_looked_up_on_the_path() {
    for (host, width) in [("10.0.128.200", 32), ("2001:db8:8000:1:8000:1:2:3", 128)] {
        let host = ip(host);
        let mut tables = tables();
        let vrf = LinkVariant::Plain.vrf();
        for len in 1..=width {
            let port = len % 3;
            let next = tables.lookup(vrf, LinkVariant::Plain.host4(port));
            let next6 = tables.lookup(vrf, LinkVariant::Plain.host6(port));
            let next = if host.is_ipv4() { next } else { next6 };
            tables.insert(vrf, RoutePrefix::new(host, len), next).unwrap();
            assert_path(&tables, host, port);
        }
        for len in (2..=width).rev() {
            assert_eq!(tables.remove(vrf, RoutePrefix::new(host, len)), Ok(true));
            assert_path(&tables, host, (len - 1) % 3);
        }
    }
}

/// Asserts that a packet to `host` is sent by `port`.
fn assert_path(tables: &Tables, host: IpAddr, port: u8) {
    let frame = LinkVariant::Plain.packet(0, host).build();
    let outcome = PathBench::over(tables, Path::detect(), 512).send(0, &frame);
    assert_eq!(outcome, Outcome::Sent(port.into(), LinkVariant::Plain.forwarded(port, &frame)));
}

/// Longest match by looking at all routes.
fn scan(routes: &[(VrfId, Prefix, u8)], vrf: VrfId, host: u32) -> u8 {
    let covering = routes
        .iter()
        .filter(|(of, prefix, _)| *of == vrf && prefix.contains(u128::from(host) << 96))
        .max_by_key(|(_, prefix, _)| prefix.len());
    covering.expect("there is a default route").2
}

/// Packets that leap from the top, beside packets that take one step, take several, or have their
/// result in the top; with a top of 16 bits, one of 8 bits, and both in one burst.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn leaps_steps_and_leaves_share_a_burst() {
    let mut tables = tables();
    let (wide, narrow) = (LinkVariant::Plain, LinkVariant::Qinq);
    let mut routes = Vec::new();
    for (vrf, steps) in [(wide.vrf(), 4200), (narrow.vrf(), 20)] {
        let mut add = |address: u32, len| {
            routes.push((vrf, Prefix::v4(address, len), (routes.len() % 3) as u8));
        };
        add(0, 0);
        add(60 << 24, 8);
        for at in 0..40 {
            // One of these is alone in its /16, and at first in its /8.
            add(60 << 24 | at << 16 | (at * 7) << 8 | 64, 25 + at as u8 % 8);
            add((70 + at) << 24 | at << 16 | 0x0780, 25 + at as u8 % 8);
            add(61 << 24 | at << 16, 16);
            // Deeper than a step: two levels below the top, or three.
            add(11 << 24 | at << 8 | 32, 27);
        }
        (0..steps).for_each(|at| add(11 << 24 | at << 8, 24));
    }
    for (vrf, prefix, port) in &routes {
        let variant = if *vrf == wide.vrf() { wide } else { narrow };
        let next = tables.lookup(*vrf, variant.host4(*port));
        tables.insert(*vrf, RoutePrefix::V4(*prefix), next).unwrap();
    }
    let hosts: Vec<u32> = (0..40)
        .flat_map(|at| {
            let leaping = 60 << 24 | at << 16 | (at * 7) << 8 | 64;
            let alone = (70 + at) << 24 | at << 16 | 0x0780;
            let step = 11 << 24 | at << 8;
            // Addresses under each leap, and addresses that differ in each byte that it skips.
            let leaps = [leaping, leaping ^ 0x40, leaping ^ 0x100, alone, alone ^ 0x100];
            let leaves = [alone ^ 0x1_0000, 61 << 24 | at << 16 | 9, 62 << 24 | at];
            [&leaps[..], &leaves, &[step | 9, step | 33, 11 << 24 | 99 << 16]].concat()
        })
        .collect();
    // Shuffled by a step that is coprime to their number.
    let shuffled = |at: usize| hosts[at * 89 % hosts.len()];
    let ways: [fn(usize) -> LinkVariant; 4] = [
        |_| LinkVariant::Plain,
        |_| LinkVariant::Qinq,
        |lane| if lane % 2 == 0 { LinkVariant::Plain } else { LinkVariant::Qinq },
        |lane| if lane < 63 { LinkVariant::Plain } else { LinkVariant::Qinq },
    ];
    for path in paths() {
        let mut path_bench = PathBench::over(&tables, path, 512);
        for (first, way_of) in
            (0..hosts.len()).step_by(16).flat_map(|at| ways.map(|variant| (at, variant)))
        {
            let sent: Vec<_> = (0..BURST)
                .map(|lane| {
                    let (variant, host) = (way_of(lane), shuffled(first + lane));
                    let frame = variant.packet(0, Ipv4Addr::from_bits(host).into()).build();
                    let port = scan(&routes, variant.vrf(), host);
                    let outcome = Outcome::Sent(port.into(), variant.forwarded(port, &frame));
                    (frame, host, outcome)
                })
                .collect();
            let frames: Vec<_> = sent.iter().map(|(frame, ..)| frame).collect();
            for (lane, ((_, host, expected), outcome)) in
                sent.iter().zip(path_bench.burst(0, &frames)).enumerate()
            {
                assert_eq!(outcome, *expected, "{} in lane {lane}", Ipv4Addr::from_bits(*host));
            }
        }
    }
}
