use std::net::IpAddr;

use crate::dispatch::Path;
use crate::id::{LinkId, VrfId};
use crate::prefix::RoutePrefix;
use crate::tables::{Tables, TablesError};
use crate::testkit::linux::OutcomeKind;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::path_bench::PathBench;
use crate::testkit::wires::{LinkVariant, Special, tables};
use crate::verdict::PuntReason;

fn kind(tables: &Tables, variant: LinkVariant, packet: &Packet) -> OutcomeKind {
    let packet = packet.clone().to(variant.mac(0)).tagged(variant.tags());
    let mut path_bench = PathBench::over(tables, Path::detect(), 2048);
    OutcomeKind::of(&path_bench.send(0, &packet.build()))
}

fn to(variant: LinkVariant, dst: IpAddr) -> Packet {
    variant.packet(0, dst)
}

#[test]
fn only_packets_that_go_back_take_the_kernel_path() {
    let mut tables = tables();
    for (v4, v6) in [(true, false), (false, true), (true, true), (false, false)] {
        for variant in LinkVariant::ALL {
            tables.set_redirects(variant.link(0), v4, v6).unwrap();
        }
        for from in LinkVariant::ALL {
            for onto in LinkVariant::ALL {
                for (port, back) in [(0, from == onto), (1, false)] {
                    let kind4 = kind(&tables, from, &to(from, onto.host4(port)));
                    let kind6 = kind(&tables, from, &to(from, onto.host6(port)));
                    let expected = |on: bool| match on && back {
                        true => OutcomeKind::Punt(PuntReason::Redirect),
                        false => OutcomeKind::By(port.into()),
                    };
                    assert_eq!((kind4, kind6), (expected(v4), expected(v6)), "{from:?}");
                }
            }
        }
    }
    assert!(tables.redirects.is_none(), "nothing is looked up any more");
    assert_eq!(tables.set_redirects(LinkId(999), true, true), Err(TablesError::Unknown));
}

/// Next hops without a device have the first link's number.
#[test]
fn packets_without_a_next_hop_do_not_go_back() {
    let mut tables = tables();
    tables.set_redirects(LinkId(0), true, true).unwrap();
    for special in Special::ALL {
        let leads = matches!(special, Special::Glean | Special::Resolve);
        for dst in [special.host4(), special.host6()] {
            let kind = kind(&tables, LinkVariant::Plain, &to(LinkVariant::Plain, dst));
            assert_eq!(kind == OutcomeKind::Punt(PuntReason::Redirect), leads, "{special:?}");
        }
    }
}

/// `ip6_forward` only checks the source's scope for packets that do not go back.
#[test]
fn a_source_of_the_link_may_go_back() {
    let mut tables = tables();
    let back = Packet::between(ip("fe80::7"), LinkVariant::Plain.host6(0));
    let on = Packet::between(ip("fe80::7"), LinkVariant::Plain.host6(1));
    assert_eq!(
        kind(&tables, LinkVariant::Plain, &back),
        OutcomeKind::Punt(PuntReason::LinkLocalSource)
    );
    tables.set_redirects(LinkId(0), true, true).unwrap();
    assert_eq!(kind(&tables, LinkVariant::Plain, &back), OutcomeKind::Punt(PuntReason::Redirect));
    assert_eq!(
        kind(&tables, LinkVariant::Plain, &on),
        OutcomeKind::Punt(PuntReason::LinkLocalSource)
    );
}

#[test]
fn a_change_of_the_route_is_seen_at_once() {
    let mut tables = tables();
    tables.set_redirects(LinkId(0), true, true).unwrap();
    let dst = LinkVariant::Plain.host4(1);
    let packet = to(LinkVariant::Plain, dst);
    assert_eq!(kind(&tables, LinkVariant::Plain, &packet), OutcomeKind::By(1));
    let back = tables.lookup(VrfId(0), LinkVariant::Plain.host4(0));
    tables.insert(VrfId(0), RoutePrefix::host(dst), back).unwrap();
    assert_eq!(kind(&tables, LinkVariant::Plain, &packet), OutcomeKind::Punt(PuntReason::Redirect));
}
