use std::sync::Arc;

use super::*;
use crate::host::Host;
use crate::id::{NextHopId, VrfId};
use crate::router::Router;
use crate::stages::filter::{
    Address, Condition, FIRST_COUNTER, Field, Filter, LINE, LiveSet, Op, Point, Rule, Rules,
};
use crate::stages::rule::{PolicyAction, PolicyRule};
use crate::stages::source_check::{SourceCheck, SourceLookup};
use crate::tables::Tables;
use crate::testkit::lender::{PlainLender, SharedLink};
use crate::testkit::wires::{LinkVariant, PORTS, tables_in};

const BOTH: u32 = DECIDES4 | DECIDES6;

fn network() -> (Arc<PlainLender>, Tables) {
    let lender = PlainLender::small();
    let tables = tables_in(&lender.memory());
    (lender, tables)
}

/// Writes the links, and asserts what a change has made of the first port's link for untagged frames, and that the
/// other links are as before.
#[track_caller]
fn expect(lender: &PlainLender, tables: &Tables, flags: u32) {
    tables.write_engines();
    for port in 0..PORTS {
        for variant in LinkVariant::ALL {
            let is_changed = port == 0 && variant == LinkVariant::Plain;
            let usual = if variant == LinkVariant::Red { 0 } else { BOTH };
            let flags = if is_changed { flags } else { usual };
            assert_eq!(lender.link(variant.link(port)).flags, flags, "{variant:?} of {port}");
        }
    }
}

const LINK: LinkId = LinkVariant::Plain.link(0);

#[test]
fn links_have_the_roots_of_their_vrfs() {
    let (lender, tables) = network();
    let nothing = SharedLink { root4: 0, root6: 0, flags: 0, rules: 0 };
    assert_eq!(lender.link(LinkVariant::Qinq.link(1)), nothing, "nothing is written yet");
    expect(&lender, &tables, BOTH);
    for variant in LinkVariant::ALL {
        let record = tables.routes.vrfs[usize::from(variant.vrf().0)];
        let link = lender.link(variant.link(1));
        assert_eq!((link.root4, link.root6), (record.root4.0, record.root6.0), "{variant:?}");
    }
    assert_eq!(lender.link(LinkId(7 * u16::from(PORTS))), nothing, "there is no such link");
}

/// Rules that accept everything, after so many counters.
fn counting(counters: u32) -> Arc<Filter> {
    let mut filter = Filter::new(counters as usize, Vec::new());
    let ops = (0..counters).map(Op::Count).chain([Op::Accept]).collect();
    let rules = Rules { rules: vec![Rule { ops, next: 1, ..Rule::default() }], end: 0 };
    filter.set(Point::Forward, 4, &rules).expect("these rules compile");
    Arc::new(filter)
}

#[test]
fn rules_are_placed_for_the_programs() {
    let (lender, mut tables) = network();
    expect(&lender, &tables, BOTH);
    assert_eq!(lender.link(LINK).rules, 0);
    let _programs = tables.epochs.join_programs();
    tables.filter = Some(counting(2));
    expect(&lender, &tables, BOTH);
    let first = lender.link(LINK).rules;
    assert_ne!(first, 0);
    let word = |line: u32, word: usize| {
        let long = lender.word(Part::Rules, (line as usize * LINE + word) / 2);
        (long >> (word % 2 * 32)) as u32
    };
    // IPv4 packets have rules at hook forward alone.
    let lines = [0, 1, 2, 3, 4, 5].map(|place| word(first, place));
    assert_eq!(lines.map(|line| line != 0), [false, false, false, false, true, false]);
    // Others come to another place, and count elsewhere.
    tables.filter = Some(counting(3));
    expect(&lender, &tables, BOTH);
    let second = lender.link(LINK).rules;
    assert_ne!(first, second);
    assert_eq!((word(first, FIRST_COUNTER), word(second, FIRST_COUNTER)), (0, 2));
    tables.filter = None;
    expect(&lender, &tables, BOTH);
    assert_eq!(lender.link(LINK).rules, 0);
}

#[test]
fn nothing_is_decided_by_rules_without_room() {
    let (lender, mut tables) = network();
    let programs = tables.epochs.join_programs();
    let many = counting(MOST_ENGINE_COUNTERS as u32);
    for (filter, is_placed) in [(many, true), (counting(1), false)] {
        tables.filter = Some(filter);
        tables.write_engines();
        let link = lender.link(LINK);
        assert_eq!((link.flags & BOTH != 0, link.rules != 0), (is_placed, is_placed));
    }
    // Nor while programs may still read the rules before.
    tables.filter = Some(counting(MOST_ENGINE_COUNTERS as u32));
    tables.write_engines();
    assert_eq!(lender.link(LINK).flags & BOTH, 0);
    programs.pass();
    tables.write_engines();
    assert_eq!(lender.link(LINK).flags & BOTH, BOTH);
}

#[test]
fn what_programs_count_is_added_to_the_rules() {
    let (lender, mut tables) = network();
    let _programs = tables.epochs.join_programs();
    tables.filter = Some(counting(2));
    let router = Router::new(tables, Host::new());
    let count = |first: usize, packets| lender.set_word(Part::RuleCounts, 2 * first, packets);
    let packets = || router.rule_counts().iter().map(|count| count.packets).collect::<Vec<_>>();
    assert_eq!(packets(), [0, 0]);
    count(1, 7);
    // The other processor.
    count(MOST_ENGINE_COUNTERS, 5);
    assert_eq!(packets(), [5, 7]);
    assert_eq!(packets(), [5, 7]);
    // The second counter continues as the first of the next rules; a program that still has the old ones counts there.
    router.lock().set_filter(Some(counting(1)), &[Some(1)]);
    assert_eq!(packets(), [7]);
    count(1, 8);
    count(2, 100);
    assert_eq!(packets(), [108]);
    let others = network();
    let replaced = router.lock().replace(others.1, Host::new(), &[], &[]);
    count(2, 200);
    assert!(packets().is_empty());
    drop(replaced);
    assert!(router.synchronize(std::time::Duration::from_secs(1)));
    assert!(packets().is_empty());
}

/// The rules of a link for IPv4, as far as there are some: their numbers, and whether they are of next hops.
fn route_rules(lender: &PlainLender, link: LinkId) -> Vec<(u32, bool)> {
    let root = lender.link(link).root4;
    let mut rules = Vec::new();
    if root & ROOT_RULES == 0 {
        return rules;
    }
    for rule in (root & !ROOT_RULES) as usize.. {
        let word = |at: usize| lender.word(Part::RouteRules, 8 * rule + at);
        let [_, _, is_next_hop, more, ..] = word(4).to_ne_bytes();
        let [.., a, b, c, d] = word(5).to_ne_bytes();
        rules.push((u32::from_ne_bytes([a, b, c, d]), is_next_hop != 0));
        if more == 0 {
            break;
        }
    }
    rules
}

const NO_ROUTE: (u32, bool) = (NextHopId::NO_ROUTE.0, true);

#[test]
fn programs_decide_by_policies() {
    let (lender, mut tables) = network();
    let roots = [0, 1].map(|vrf: usize| tables.routes.vrfs[vrf].root4.0);
    let rule = |action| PolicyRule { src: None, dst: None, mark: None, action };
    let views = [VrfId(1), VrfId(0)].map(|vrf| rule(PolicyAction::View(vrf)));
    let other = LinkVariant::Vlan.link(0);
    for link in [LINK, other] {
        tables.set_policy(link, views.to_vec()).unwrap();
    }
    expect(&lender, &tables, BOTH);
    assert_eq!(route_rules(&lender, LINK), [(roots[1], false), (roots[0], false), NO_ROUTE]);
    assert_eq!(lender.link(LINK).root4, lender.link(other).root4, "they share their rules");
    // A kernel-path link has no policy.
    tables.set_kernel_link(LINK, true, false).unwrap();
    expect(&lender, &tables, BOTH);
    assert_eq!(lender.link(LINK).root4, tables.link(LINK).root4);
    tables.set_kernel_link(LINK, false, false).unwrap();
    tables.set_policy(LINK, vec![rule(PolicyAction::Blackhole); 63]).unwrap();
    expect(&lender, &tables, BOTH);
    assert_eq!(route_rules(&lender, LINK).len(), 64);
    tables.set_policy(LINK, vec![rule(PolicyAction::Blackhole); 64]).unwrap();
    expect(&lender, &tables, 0);
    tables.set_policy(LINK, Vec::new()).unwrap();
    expect(&lender, &tables, BOTH);
    assert_eq!(lender.link(LINK).root4, roots[0]);
}

#[test]
fn programs_look_up_what_a_vrf_falls_back_to() {
    let (lender, mut tables) = network();
    tables.set_fallback(VrfId(1), Some(VrfId(0))).unwrap();
    expect(&lender, &tables, BOTH);
    let roots = [1, 0].map(|vrf: usize| (tables.routes.vrfs[vrf].root4.0, false));
    for variant in LinkVariant::ALL {
        let falls_back = variant.vrf() == VrfId(1);
        let rules = [roots[0], roots[1], NO_ROUTE];
        let expected = if falls_back { &rules[..] } else { &[] };
        assert_eq!(route_rules(&lender, variant.link(2)), expected, "{variant:?}");
    }
    // A policy that selects the VRF falls back, too.
    let view = PolicyAction::View(VrfId(1));
    tables
        .set_policy(LINK, vec![PolicyRule { src: None, dst: None, mark: None, action: view }])
        .unwrap();
    expect(&lender, &tables, BOTH);
    assert_eq!(route_rules(&lender, LINK), [roots[0], roots[1], NO_ROUTE]);
    tables.set_policy(LINK, Vec::new()).unwrap();
    tables.set_fallback(VrfId(1), None).unwrap();
    expect(&lender, &tables, BOTH);
    assert_eq!(route_rules(&lender, LinkVariant::Outer.link(2)), []);
}

#[test]
fn rules_of_routes_take_the_place_of_others_when_no_program_reads_these() {
    let (lender, mut tables) = network();
    let programs = tables.epochs.join_programs();
    let policy = |tables: &mut Tables, mark| {
        let action = PolicyAction::View(VrfId(1));
        let rule = PolicyRule { src: None, dst: None, mark: Some((mark, !0)), action };
        tables.set_policy(LINK, vec![rule; 63]).unwrap();
        tables.write_engines();
    };
    let room = (MOST_ROUTE_RULES / 64) as u32;
    for mark in 0..room {
        policy(&mut tables, mark);
        assert_eq!(lender.link(LINK).flags, BOTH, "{mark}");
    }
    policy(&mut tables, room);
    assert_eq!(lender.link(LINK).flags, 0, "programs may still read the first ones");
    assert!(tables.have_waiting_rules());
    programs.pass();
    tables.write_engines();
    assert_eq!(lender.link(LINK).flags, BOTH);
    assert!(!tables.have_waiting_rules());
    // A router places them without any other change.
    let router = Router::new(tables, Host::new());
    for mark in 0..room {
        policy(&mut router.lock().tables, mark);
    }
    router.place_waiting_rules();
    assert!(lender.link(LINK).flags == 0 && router.has_rules_to_place());
    programs.pass();
    router.place_waiting_rules();
    assert!(lender.link(LINK).flags == BOTH && !router.has_rules_to_place());
}

/// The program finds there that the kernel gets everything.
#[test]
fn a_kernel_link_has_a_root_of_its_own() {
    let (lender, mut tables) = network();
    expect(&lender, &tables, BOTH);
    let before = lender.link(LINK);
    tables.set_kernel_link(LINK, true, false).unwrap();
    expect(&lender, &tables, BOTH);
    let link = lender.link(LINK);
    assert!(link.root4 != before.root4 && link.root6 == before.root6, "{link:?}");
    assert_eq!(link.root4, tables.link(LINK).root4);
    tables.set_kernel_link(LINK, false, true).unwrap();
    expect(&lender, &tables, BOTH);
    let link = lender.link(LINK);
    assert!(link.root4 == before.root4 && link.root6 != before.root6, "{link:?}");
    tables.set_kernel_link(LINK, false, false).unwrap();
    expect(&lender, &tables, BOTH);
    assert_eq!(lender.link(LINK), before);
}

#[test]
fn sources_are_checked_as_far_as_a_program_can() {
    let (lender, mut tables) = network();
    let cases = [
        (Rpf::Off, BOTH),
        (Rpf::Loose, BOTH | SOURCE_ROUTE4),
        (Rpf::Strict, BOTH | SOURCE_ROUTE4 | SOURCE_LINK4),
        (Rpf::Kind, BOTH | SOURCE_ROUTE4 | SOURCE_KIND4),
        (Rpf::Unnumbered, DECIDES6),
    ];
    for (rpf, flags) in cases.into_iter().chain(cases.into_iter().rev()) {
        for own in [false, true] {
            let check = SourceCheck { own, rpf, martians_to_kernel: own };
            tables.set_source(LINK, check).unwrap();
            // What the kernel logs, it drops itself.
            let drops = flags & SOURCE_ROUTE4 != 0 && !check.martians_to_kernel;
            expect(&lender, &tables, flags | if drops { SOURCE_DROPS4 } else { 0 });
        }
        let by_mark = SourceLookup { mark: true, ..SourceLookup::default() };
        let by_input = SourceLookup { by_input: true, ..SourceLookup::default() };
        for lookup in [by_mark, by_input] {
            tables.set_source_lookup(LINK, lookup).unwrap();
            expect(&lender, &tables, if rpf == Rpf::Off { BOTH } else { DECIDES6 });
        }
        tables.set_source_lookup(LINK, SourceLookup::default()).unwrap();
    }
}

#[test]
fn a_route_back_may_depend_on_the_vrf_that_a_packet_leaves_by() {
    let (lender, mut tables) = network();
    let strict = SourceCheck { rpf: Rpf::Strict, ..SourceCheck::default() };
    let qinq = LinkVariant::Qinq.link(0);
    for link in [LINK, qinq] {
        tables.set_source(link, strict).unwrap();
    }
    let in_vrf = SourceLookup { vrf_device: Some(9), ..SourceLookup::default() };
    tables.set_source_lookup(qinq, in_vrf).unwrap();
    tables.write_engines();
    let checked = BOTH | SOURCE_ROUTE4 | SOURCE_LINK4 | SOURCE_DROPS4;
    assert_eq!(lender.link(LINK).flags, checked | SOURCE_NOT_TO_VRF4);
    assert_eq!(lender.link(qinq).flags, checked | IN_VRF);
    assert_eq!(lender.link(LinkVariant::Vlan.link(0)).flags, BOTH, "it checks no source");
    // What leaves by the link stays in a VRF, whatever arrives on it.
    tables.filter = Some(counting(MOST_ENGINE_COUNTERS as u32 + 1));
    tables.write_engines();
    assert_eq!(lender.link(qinq).flags & (BOTH | IN_VRF), IN_VRF);
    assert_eq!(lender.link(LINK).flags & BOTH, 0);
}

/// Whoever changes the tables of a router need not think of the programs.
#[test]
fn a_router_writes_links_when_it_publishes() {
    let (lender, tables) = network();
    let router = Router::new(tables, Host::new());
    assert_eq!(lender.link(LINK).flags, BOTH);
    router.lock().set_filter(Some(counting(MOST_ENGINE_COUNTERS as u32 + 1)), &[]);
    assert_eq!(lender.link(LINK).flags, 0);
    router.lock().set_filter(None, &[]);
    assert_eq!(lender.link(LINK).flags, BOTH);
    router.lock().tables.set_kernel_link(LINK, true, true).unwrap();
    let record = &router.state().routes.links[LINK];
    assert_eq!((lender.link(LINK).root4, lender.link(LINK).root6), (record.root4, record.root6));
}

#[test]
fn rules_wait_until_the_programs_have_left_others() {
    let (lender, tables) = network();
    let programs = tables.epochs.join_programs();
    let router = Router::new(tables, Host::new());
    let half = MOST_ENGINE_COUNTERS as u32 / 2;
    router.lock().set_filter(Some(counting(half)), &[]);
    assert_eq!(lender.link(LINK).flags, BOTH);
    router.lock().set_filter(Some(counting(half + 1)), &[]);
    drop(router.lock());
    assert_eq!(lender.link(LINK).flags, 0, "programs may still count by the others");
    programs.pass();
    drop(router.lock());
    assert_eq!(lender.link(LINK).flags, BOTH);
    assert_ne!(lender.link(LINK).rules, 0);
}

#[test]
fn nothing_is_decided_by_tables_that_were_replaced() {
    let ((old, tables), (new, other)) = (network(), network());
    let router = Router::new(tables, Host::new());
    assert_eq!((old.link(LINK).flags, new.link(LINK).flags), (BOTH, 0));
    let replaced = router.lock().replace(other, Host::new(), &[], &[]);
    assert_eq!((old.link(LINK).flags, new.link(LINK).flags), (0, BOTH));
    drop(replaced);
}

#[test]
fn tables_without_a_lender_are_nobody_elses() {
    let tables = tables_in(&Memory::default());
    tables.write_engines();
    assert!(tables.engines.links.get().iter().all(|link| link.decision.load(Relaxed) == 0));
}

/// Element of a set, none of which can be joined with others.
fn element(number: u128) -> (u128, u128) {
    (number << 12, number << 12)
}

/// Gives tables rules that drop what comes from a live set's elements, and count and accept all else.
fn dropping_a_set(tables: &mut Tables, counters: usize) -> Arc<LiveSet> {
    let mut filter = Filter::new(counters, Vec::new());
    let set = filter.add_live_set("", 4, &[element(1)], &tables.epochs).expect("room");
    let condition = Condition::new(Field::InSet { set, of: Address::Source }, [(1, 1)]);
    let ops = (0..counters as u32).map(Op::Count).chain([Op::Accept]).collect();
    let rules = vec![
        Rule { conditions: vec![condition], ops: vec![Op::Drop], next: 1 },
        Rule { ops, next: 2, ..Rule::default() },
    ];
    filter.set(Point::Forward, 4, &Rules { rules, end: 1 }).expect("these rules compile");
    let set = Arc::clone(&filter.live_sets()[0]);
    tables.filter = Some(Arc::new(filter));
    tables.write_engines();
    set
}

/// Programs do not go on asking about all packets because of a set that has no room.
#[test]
fn rules_are_written_again_when_a_set_has_no_more_room() {
    let (lender, mut tables) = network();
    let set = dropping_a_set(&mut tables, 1);
    let line = || lender.link(LINK).rules;
    let before = line();
    set.add(&(1..500).map(element).collect::<Vec<_>>()).expect("room");
    tables.write_engines();
    assert_eq!(line(), before, "a change of elements changes no word of the rules");
    let programs = tables.epochs.join_programs();
    set.add(&(500..5000).map(element).collect::<Vec<_>>()).expect("room");
    assert!(tables.engines().rules().sets_have_changed());
    tables.write_engines();
    let without = line();
    assert!(without != before && without != 0 && !tables.engines().rules().sets_have_changed());
    // What was taken out is free then, but it does not suffice: the rules stay.
    programs.pass();
    assert!(tables.engines().rules().sets_have_changed());
    tables.write_engines();
    assert!(line() == without && !tables.engines().rules().sets_have_changed());
    set.add(&[element(6000)]).expect("room");
    programs.pass();
    assert!(!tables.engines().rules().sets_have_changed(), "once only");
    set.remove(&(2..5000).map(element).collect::<Vec<_>>()).expect("they are there");
    tables.write_engines();
    let returned = line();
    assert!(returned != without && returned != 0);
}

/// Nor when there is no room beside the rules: these give way, once.
#[test]
fn rules_without_room_beside_them_give_way_when_a_set_has_no_more_room() {
    let (lender, mut tables) = network();
    let set = dropping_a_set(&mut tables, MOST_ENGINE_COUNTERS);
    let programs = tables.epochs.join_programs();
    let router = Router::new(tables, Host::new());
    let count = |packets| lender.set_word(Part::RuleCounts, 0, packets);
    let link = || lender.link(LINK);
    set.add(&(2..5000).map(element).collect::<Vec<_>>()).expect("room");
    router.place_waiting_rules();
    assert_eq!(link().flags & BOTH, 0, "programs may still count by the others");
    count(7);
    for round in 0..4 {
        // First the rules without the set, then the set tries to return.
        assert_eq!(router.has_rules_to_place(), round < 2, "round {round}");
        programs.pass();
        router.place_waiting_rules();
        assert_eq!(link().flags & BOTH, BOTH, "round {round}");
        count(round + 1);
    }
    // What was counted by all of them is there, though nobody has asked in between.
    set.remove(&(2..5000).map(element).collect::<Vec<_>>()).expect("they are there");
    router.place_waiting_rules();
    programs.pass();
    router.place_waiting_rules();
    assert_eq!(router.rule_counts()[0].packets, 7 + 4);
}
