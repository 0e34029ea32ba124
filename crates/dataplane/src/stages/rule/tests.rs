use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::{PolicyAction, PolicyRule};
use crate::dispatch::Path;
use crate::id::{LinkId, NextHopId, VrfId};
use crate::prefix::RoutePrefix;
use crate::stages::filter::{Condition, Field, Filter, Op, Point, Rule, Rules};
use crate::tables::{Tables, TablesError};
use crate::testkit::dice::Dice;
use crate::testkit::linux::{Linux, OutcomeKind, kinds, mac, random_address, random_prefix};
use crate::testkit::packet::{Packet, ip};
use crate::testkit::path_bench::PathBench;
use crate::verdict::PuntReason;

/// The link with a policy, and its port.
const PORT: u8 = 2;
const LINK: LinkId = LinkId(PORT as u16);

fn random_rule(dice: &mut Dice, tables: usize) -> PolicyRule {
    let is_ipv4 = !dice.one_in(2);
    let prefix = |dice: &mut Dice| match is_ipv4 {
        true => RoutePrefix::V4(random_prefix(dice, true)),
        false => RoutePrefix::V6(random_prefix(dice, false)),
    };
    PolicyRule {
        src: dice.one_in(2).then(|| prefix(dice)),
        dst: dice.one_in(3).then(|| prefix(dice)),
        mark: dice.one_in(3).then(|| (dice.below(4) as u32, dice.pick(&[0, 1, 2, 3, u32::MAX]))),
        action: match dice.below(9) {
            0 => PolicyAction::Blackhole,
            1 => PolicyAction::Unreachable,
            2 => PolicyAction::Prohibit,
            3 => PolicyAction::Punt,
            _ => PolicyAction::View(VrfId(dice.below(tables) as u16)),
        },
    }
}

fn path_bench(tables: &Tables) -> PathBench<'_> {
    PathBench::over(tables, Path::detect(), 2048)
}

/// Rules that mark packets by the last two bits of their source port.
fn marks_by_port() -> Filter {
    let condition =
        |value: u128| Condition { mask: 3, ..Condition::new(Field::SourcePort, [(value, value)]) };
    let rule = |mark: u32| Rule {
        conditions: vec![condition(mark.into())],
        ops: vec![Op::Mark { keep: 0, flip: mark }],
        next: mark + 1,
    };
    let last = Rule { ops: vec![Op::Accept], next: 5, ..Rule::default() };
    let rules = Rules { rules: (0..4).map(rule).chain([last]).collect(), end: 4 };
    let mut filter = Filter::new(0, Vec::new());
    for version in [4, 6] {
        filter.set(Point::Prerouting, version, &rules).unwrap();
    }
    filter
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 1 } else { 300 },
        ..Default::default()
    })]

    #[test]
    fn the_first_rule_with_a_route_decides(seed: u64) {
        let mut dice = Dice(seed);
        let count = 1 + dice.below(4);
        let linux = Linux::random(&mut dice, count as u16);
        let mut tables = linux.compiled();
        let rules: Vec<_> = (0..=dice.below(6)).map(|_| random_rule(&mut dice, count)).collect();
        tables.set_policy(LINK, rules.clone()).unwrap();
        let is_marked = dice.one_in(2);
        tables.filter = is_marked.then(|| Arc::new(marks_by_port()));
        let mut path_bench = path_bench(&tables);
        if let Some(filter) = &tables.filter {
            path_bench.filter.renew(Some(filter), 0);
        }
        for _ in 0..4 {
            let packets: Vec<_> = (0..1 + dice.below(64))
                .map(|_| {
                    let is_ipv4 = !dice.one_in(2);
                    let [src, dst] = [(); 2].map(|()| random_address(&mut dice, is_ipv4));
                    (src, dst, dice.below(4) as u16)
                })
                .collect();
            let frame = |(src, dst, port): &(IpAddr, IpAddr, u16)| {
                Packet::between(*src, *dst).ports(*port, 7).to(mac(PORT)).build()
            };
            let frames: Vec<_> = packets.iter().map(frame).collect();
            let outcomes = path_bench.burst(PORT, &frames);
            for ((src, dst, port), outcome) in packets.into_iter().zip(&outcomes) {
                let mark = if is_marked { port.into() } else { 0 };
                let expected = match linux.by_rules(&rules, (src, dst), mark) {
                    Ok(found) => kinds(found),
                    Err(action) => vec![OutcomeKind::of_action(action)],
                };
                let kind = OutcomeKind::of(outcome);
                prop_assert!(expected.contains(&kind), "{src} {dst} {mark}: {kind:?}, {expected:?}");
            }
        }
    }
}

#[test]
fn links_without_a_policy_have_their_vrf() {
    let mut dice = Dice(1);
    let mut linux = Linux::random(&mut dice, 1);
    linux.routes.clear();
    let mut tables = linux.compiled();
    let next = tables.set_neigh(LinkId(0), ip("10.255.0.1"), Some([6; 6])).unwrap();
    let dst = ip("10.0.0.1");
    tables.insert(VrfId(0), RoutePrefix::host(dst), next).unwrap();
    let rule = |action| PolicyRule { src: None, dst: None, mark: None, action };
    let before = tables.version();
    tables.set_policy(LINK, vec![rule(PolicyAction::Prohibit)]).unwrap();
    assert_ne!(tables.version(), before, "a change");
    let kind = |tables: &Tables, port| {
        let frame = Packet::between(ip("10.0.0.2"), dst).to(mac(port)).build();
        OutcomeKind::of(&path_bench(tables).send(port, &frame))
    };
    assert_eq!(kind(&tables, PORT), OutcomeKind::Punt(PuntReason::Prohibit));
    assert_eq!(kind(&tables, 1), OutcomeKind::By(0));
    tables.set_policy(LINK, Vec::new()).unwrap();
    assert_eq!(kind(&tables, PORT), OutcomeKind::By(0));
    assert!(tables.routes.policies.is_none(), "nothing is looked up any more");
}

#[test]
fn kernel_links_take_the_kernel_path_despite_policies() {
    let mut tables = Linux { routes: Vec::new(), next: vec![None] }.compiled();
    let dst = ip("10.0.0.1");
    let next = tables.set_neigh(LinkId(0), ip("10.255.0.1"), Some([6; 6])).unwrap();
    tables.insert(VrfId(0), RoutePrefix::host(dst), next).unwrap();
    let all = PolicyRule { src: None, dst: None, mark: None, action: PolicyAction::View(VrfId(0)) };
    tables.set_policy(LINK, vec![all]).unwrap();
    for takes_kernel_path in [true, false, true] {
        tables.set_kernel_link(LINK, takes_kernel_path, false).unwrap();
        let frame = Packet::between(ip("10.0.0.2"), dst).to(mac(PORT)).build();
        let kind = match takes_kernel_path {
            true => OutcomeKind::Punt(PuntReason::KernelLink),
            false => OutcomeKind::By(0),
        };
        assert_eq!(OutcomeKind::of(&path_bench(&tables).send(PORT, &frame)), kind);
    }
}

#[test]
fn unknown_links_and_vrfs_are_refused() {
    let mut tables = Linux { routes: Vec::new(), next: vec![None] }.compiled();
    let rule = |vrf| PolicyRule {
        src: None,
        dst: None,
        mark: None,
        action: PolicyAction::View(VrfId(vrf)),
    };
    assert_eq!(tables.set_policy(LinkId(99), vec![rule(0)]), Err(TablesError::Unknown));
    assert_eq!(tables.set_policy(LINK, vec![rule(0), rule(1)]), Err(TablesError::Unknown));
    assert!(tables.routes.policies.is_none());
    assert_eq!(tables.resolve(VrfId(7), ip("10.0.0.1")), NextHopId::NO_ROUTE);
}
