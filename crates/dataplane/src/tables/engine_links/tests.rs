use std::sync::Arc;

use super::*;
use crate::host::Host;
use crate::id::VrfId;
use crate::router::Router;
use crate::stages::filter::Filter;
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
    tables.write_engine_links();
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
    let nothing = SharedLink { root4: 0, root6: 0, flags: 0 };
    assert_eq!(lender.link(LinkVariant::Qinq.link(1)), nothing, "nothing is written yet");
    expect(&lender, &tables, BOTH);
    for variant in LinkVariant::ALL {
        let record = tables.routes.vrfs[usize::from(variant.vrf().0)];
        let link = lender.link(variant.link(1));
        assert_eq!((link.root4, link.root6), (record.root4.0, record.root6.0), "{variant:?}");
    }
    assert_eq!(lender.link(LinkId(7 * u16::from(PORTS))), nothing, "there is no such link");
}

#[test]
fn nothing_is_decided_while_there_are_rules() {
    let (lender, mut tables) = network();
    expect(&lender, &tables, BOTH);
    tables.filter = Some(Arc::new(Filter::new(0, Vec::new())));
    tables.write_engine_links();
    for port in 0..PORTS {
        for variant in LinkVariant::ALL {
            assert_eq!(lender.link(variant.link(port)).flags, 0);
        }
    }
    tables.filter = None;
    expect(&lender, &tables, BOTH);
}

#[test]
fn a_policy_is_for_user_space() {
    let (lender, mut tables) = network();
    let rule = PolicyRule { src: None, dst: None, mark: None, action: PolicyAction::Blackhole };
    tables.set_policy(LINK, vec![rule]).unwrap();
    expect(&lender, &tables, 0);
    tables.set_policy(LINK, Vec::new()).unwrap();
    expect(&lender, &tables, BOTH);
}

#[test]
fn a_vrf_that_falls_back_is_for_user_space() {
    let (lender, mut tables) = network();
    tables.set_fallback(VrfId(1), Some(VrfId(0))).unwrap();
    tables.write_engine_links();
    let falls_back = |variant: LinkVariant| variant.vrf() == VrfId(1);
    for variant in LinkVariant::ALL {
        let flags = if falls_back(variant) { 0 } else { BOTH };
        assert_eq!(lender.link(variant.link(2)).flags, flags, "{variant:?}");
    }
    tables.set_fallback(VrfId(1), None).unwrap();
    expect(&lender, &tables, BOTH);
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
        (Rpf::Kind, DECIDES6),
        (Rpf::Unnumbered, DECIDES6),
    ];
    for (rpf, flags) in cases.into_iter().chain(cases.into_iter().rev()) {
        for own in [false, true] {
            let check = SourceCheck { own, rpf, martians_to_kernel: own };
            tables.set_source(LINK, check).unwrap();
            expect(&lender, &tables, flags);
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
    tables.write_engine_links();
    let checked = BOTH | SOURCE_ROUTE4 | SOURCE_LINK4;
    assert_eq!(lender.link(LINK).flags, checked | SOURCE_NOT_TO_VRF4);
    assert_eq!(lender.link(qinq).flags, checked | IN_VRF);
    assert_eq!(lender.link(LinkVariant::Vlan.link(0)).flags, BOTH, "it checks no source");
    // What leaves by the link stays in a VRF, whatever arrives on it.
    tables.filter = Some(Arc::new(Filter::new(0, Vec::new())));
    tables.write_engine_links();
    assert_eq!(lender.link(qinq).flags, IN_VRF);
    assert_eq!(lender.link(LINK).flags, 0);
}

/// Whoever changes the tables of a router need not think of the programs.
#[test]
fn a_router_writes_links_when_it_publishes() {
    let (lender, tables) = network();
    let router = Router::new(tables, Host::new());
    assert_eq!(lender.link(LINK).flags, BOTH);
    router.lock().set_filter(Some(Arc::new(Filter::new(0, Vec::new()))), &[]);
    assert_eq!(lender.link(LINK).flags, 0);
    router.lock().set_filter(None, &[]);
    assert_eq!(lender.link(LINK).flags, BOTH);
    router.lock().tables.set_kernel_link(LINK, true, true).unwrap();
    let record = &router.state().routes.links[LINK];
    assert_eq!((lender.link(LINK).root4, lender.link(LINK).root6), (record.root4, record.root6));
}

#[test]
fn nothing_is_decided_by_tables_that_were_replaced() {
    let ((old, tables), (new, other)) = (network(), network());
    let router = Router::new(tables, Host::new());
    assert_eq!((old.link(LINK).flags, new.link(LINK).flags), (BOTH, 0));
    let replaced = router.lock().replace(other, Host::new(), &[], &[]);
    assert_eq!((old.link(LINK).flags, new.link(LINK).flags), (0, BOTH));
    drop(replaced);
    router.lock().set_filter(Some(Arc::new(Filter::new(0, Vec::new()))), &[]);
    assert_eq!((old.link(LINK).flags, new.link(LINK).flags), (0, 0));
}

#[test]
fn tables_without_a_lender_are_nobody_elses() {
    let tables = tables_in(&Memory::default());
    tables.write_engine_links();
    assert!(tables.engine_links.0.get().iter().all(|link| link.flags.load(Relaxed) == 0));
}
