//! VRFs that fall back to others, compared with a list that is searched linearly.

use std::net::IpAddr;

use proptest::prelude::*;

use crate::dispatch::Path;
use crate::id::{NextHopId, VrfId};
use crate::next_hops::Action;
use crate::prefix::RoutePrefix;
use crate::tables::{Tables, TablesError};
use crate::testkit::dice::Dice;
use crate::testkit::linux::{Linux, OutcomeKind, bits, kinds, mac, random_address};
use crate::testkit::packet::{Packet, ip};
use crate::testkit::path_bench::PathBench;
use crate::verdict::DropReason;

fn packet(port: u8, dst: IpAddr) -> Vec<u8> {
    let src = if dst.is_ipv4() { ip("192.0.2.1") } else { ip("2001:db8:77::1") };
    Packet::between(src, dst).to(mac(port)).build()
}

fn path_bench(tables: &Tables) -> PathBench<'_> {
    PathBench::over(tables, Path::detect(), 2048)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 1 } else { 200 },
        ..Default::default()
    })]

    #[test]
    fn tables_are_queried_one_after_the_other(seed: u64) {
        let mut dice = Dice(seed);
        let count = 1 + dice.below(5) as u16;
        let linux = Linux::random(&mut dice, count);
        let tables = linux.compiled();
        for _ in 0..4 {
            let count = 1 + dice.below(64);
            let packets: Vec<_> = (0..count)
                .map(|_| {
                    let is_ipv4 = !dice.one_in(2);
                    random_address(&mut dice, is_ipv4)
                })
                .collect();
            let frames: Vec<_> = packets.iter().map(|dst| packet(1, *dst)).collect();
            let outcomes = path_bench(&tables).burst(1, &frames);
            for (dst, outcome) in packets.iter().zip(&outcomes) {
                let found = linux.search(0, bits(*dst), dst.is_ipv4());
                prop_assert!(kinds(found).contains(&OutcomeKind::of(outcome)), "{dst}: {outcome:?}");
                let next = tables.resolve(VrfId(0), *dst);
                prop_assert_eq!(next == NextHopId::NO_ROUTE, found.is_none());
            }
        }
    }
}

#[test]
fn a_vrf_never_falls_back_to_itself() {
    let mut tables = Tables::new();
    let vrfs: Vec<_> = (0..4).map(|_| tables.add_vrf().unwrap()).collect();
    assert_eq!(tables.set_fallback(vrfs[0], Some(vrfs[0])), Err(TablesError::Loop));
    for pair in vrfs.windows(2) {
        tables.set_fallback(pair[0], Some(pair[1])).unwrap();
    }
    for vrf in &vrfs {
        assert_eq!(tables.set_fallback(vrfs[3], Some(*vrf)), Err(TablesError::Loop));
    }
    assert_eq!(tables.fallback(vrfs[2]), Some(vrfs[3]));
    tables.set_fallback(vrfs[1], None).unwrap();
    tables.set_fallback(vrfs[3], Some(vrfs[0])).unwrap();
    assert_eq!(tables.set_fallback(vrfs[1], Some(vrfs[2])), Err(TablesError::Loop));
    assert_eq!(tables.set_fallback(VrfId(9), None), Err(TablesError::Unknown));
    assert_eq!(tables.set_fallback(vrfs[0], Some(VrfId(9))), Err(TablesError::Unknown));
}

#[test]
fn without_any_fallback_there_is_nothing_to_query() {
    let mut tables = Tables::new();
    let vrfs = [tables.add_vrf().unwrap(), tables.add_vrf().unwrap()];
    let before = tables.version();
    tables.set_fallback(vrfs[0], Some(vrfs[1])).unwrap();
    assert!(tables.routes.fallbacks.is_some());
    assert_ne!(tables.version(), before, "a change");
    tables.set_fallback(vrfs[0], None).unwrap();
    assert!(tables.routes.fallbacks.is_none());
}

/// As many lookup chains as in a large router: thousands that share one fallback.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn thousands_of_vrfs_share_what_they_fall_back_to() {
    const MANY: u16 = 5000;
    let mut tables = Tables::new();
    let main = tables.add_vrf().unwrap();
    let (_, link) = tables.add_port([2; 6], main, 1500).unwrap();
    let dst = ip("198.51.100.7");
    let next = tables.set_neigh(link, ip("10.0.0.1"), Some([6; 6])).unwrap();
    tables.insert(main, RoutePrefix::new(dst, 24), next).unwrap();
    let own = tables.drop(DropReason::Blackhole).unwrap();
    let vrfs: Vec<_> = (0..MANY).map(|_| tables.add_vrf().unwrap()).collect();
    for vrf in &vrfs {
        tables.set_fallback(*vrf, Some(main)).unwrap();
        if vrf.0 % 2 == 0 {
            tables.insert(*vrf, RoutePrefix::host(dst), own).unwrap();
        }
    }
    for vrf in &vrfs {
        let found = tables.next_hop(tables.resolve(*vrf, dst)).action;
        let blackholed = vrf.0 % 2 == 0;
        let expected =
            if blackholed { Action::Drop(DropReason::Blackhole) } else { Action::Forward };
        assert_eq!(found, expected, "{vrf:?}");
    }
    let bytes = tables.routes.fib4.memory_bytes() + tables.routes.fib6.memory_bytes();
    assert!(bytes < usize::from(MANY) * 16_384, "{} bytes each", bytes / usize::from(MANY));
}
