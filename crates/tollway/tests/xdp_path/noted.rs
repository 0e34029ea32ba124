//! What programs note of a connection's way: its next hop, and that its packets may take it.

use std::sync::Arc;

use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::source_check::{Rpf, SourceCheck};
use tollway_xdp::Action;
use tollway_xdp::connections::Treatment;
use tollway_xdp::counts::PassReason;
use tollway_xdp::xdp_path::Outdated;

use crate::testkit::wires::LinkVariant;
use crate::tracked::{OUT, Tracked, Version};

/// What voids decisions that predate the last changes; the first time, all.
fn voiding() -> impl FnMut(&Tracked) {
    let mut outdated = Outdated::new(Arc::default());
    move |tracked: &Tracked| {
        outdated.void(&tracked.compared.tables.epochs.changes, &tracked.compared.programs.state());
    }
}

/// The frame that leaves in XDP for one that arrives, if one does.
fn leaves(tracked: &Tracked, frame: &[u8]) -> Option<Vec<u8>> {
    let run = tracked.compared.run(0, frame);
    (run.action == Action::Redirect).then_some(run.output)
}

/// The program notes the next hop of a connection until a route to its destination changes, or a next hop does.
pub fn next_hop(tracked: &mut Tracked, version: Version) {
    let vrf = LinkVariant::Plain.vrf();
    let destination = RoutePrefix::host(version.destination().0);
    let frame = version.frame(&version.packet());
    let forwarded = OUT.forwarded(1, &frame);
    let leaves = |tracked: &Tracked| leaves(tracked, &frame);
    let mut void = voiding();
    // The first time, all entries are void.
    void(tracked);
    tracked.insert(version, Treatment::Forwarded(OUT.link(1)), version.source());
    assert_eq!(leaves(tracked), Some(forwarded.clone()));
    // The rules have not been evaluated for the other link.
    let next = tracked.compared.tables.lookup(vrf, version.host(LinkVariant::Plain, 2));
    tracked.compared.tables.insert(vrf, destination, next).unwrap();
    assert_eq!(leaves(tracked), Some(forwarded.clone()), "{version:?}: noted");
    void(tracked);
    assert_eq!(leaves(tracked), None, "{version:?}: the other route");
    let output = LinkVariant::Plain.link(2);
    tracked.insert(version, Treatment::Forwarded(output), version.source());
    assert_eq!(leaves(tracked), Some(LinkVariant::Plain.forwarded(2, &frame)));
    // What is noted for one entry is not for the next one in its place.
    assert!(tracked.compared.tables.remove(vrf, destination).unwrap());
    tracked.insert(version, Treatment::Forwarded(OUT.link(1)), version.source());
    assert_eq!(leaves(tracked), Some(forwarded.clone()), "{version:?}: the next entry");
    void(tracked);
    // A route that does not cover it, and a neighbour that moves.
    let other = RoutePrefix::host(version.host(LinkVariant::Plain, 1));
    tracked.compared.tables.insert(vrf, other, next).unwrap();
    void(tracked);
    assert_eq!(leaves(tracked), Some(forwarded.clone()));
    assert!(tracked.compared.tables.remove(vrf, other).unwrap());
    let mac = [4, 0, 0, 0, 0, 1];
    let (link, neighbour) = (OUT.link(1), version.gateway());
    tracked.compared.tables.set_neigh(link, neighbour, Some(mac)).unwrap();
    void(tracked);
    assert_eq!(leaves(tracked).unwrap()[..6], mac, "{version:?}: the neighbour has moved");
    let before: [u8; 6] = forwarded[..6].try_into().unwrap();
    tracked.compared.tables.set_neigh(link, neighbour, Some(before)).unwrap();
    void(tracked);
    assert_eq!(leaves(tracked), Some(forwarded.clone()), "{version:?}");
    // A connection with a mark is looked up for each packet.
    version.set_mark(7);
    tracked.insert_marked(version, Treatment::Forwarded(link), version.source(), 7);
    assert_eq!(leaves(tracked), Some(forwarded.clone()), "{version:?}: marked");
    tracked.compared.tables.insert(vrf, destination, next).unwrap();
    assert_eq!(leaves(tracked), None, "{version:?}: marked, the other route");
    assert!(tracked.compared.tables.remove(vrf, destination).unwrap());
    assert_eq!(leaves(tracked), Some(forwarded), "{version:?}: marked, as before");
    version.set_mark(0);
    tracked.insert(version, Treatment::Forwarded(link), version.source());
    void(tracked);
}

/// What a program notes holds for packets that come after it by the same engine, and while the source is valid.
pub fn conditions(tracked: &mut Tracked, version: Version) {
    let (vrf, output) = (LinkVariant::Plain.vrf(), OUT.link(1));
    let frame = version.frame(&version.packet());
    let mut void = voiding();
    let leaves = |tracked: &Tracked| leaves(tracked, &frame);
    let forwarded = Some(OUT.forwarded(1, &frame));
    void(tracked);
    tracked.insert(version, Treatment::Forwarded(output), version.source());
    // The tc program sends what takes the kernel path in XDP.
    tracked.compared.leave_to_kernel(1, true);
    assert_eq!(tracked.compared.run(0, &frame).reason, Some(PassReason::KernelExit));
    assert_eq!(tracked.compared.run_by_tc(0, &frame).action, Action::Redirect);
    assert_eq!(tracked.compared.run(0, &frame).reason, Some(PassReason::KernelExit), "{version:?}");
    tracked.compared.leave_to_kernel(1, false);
    assert_eq!(leaves(tracked), forwarded);
    if version == Version::V6 {
        return;
    }
    // A source counts while the route back leaves by its link.
    let strict = SourceCheck { rpf: Rpf::Strict, ..SourceCheck::default() };
    tracked.compared.set_source(LinkVariant::Plain.link(0).0, strict);
    tracked.compared.tables.write_engines();
    void(tracked);
    tracked.insert(version, Treatment::Forwarded(output), version.source());
    let back = |tracked: &mut Tracked, port| {
        let next = tracked.compared.tables.lookup(vrf, version.host(LinkVariant::Plain, port));
        let source = RoutePrefix::host(version.source().0);
        tracked.compared.tables.insert(vrf, source, next).unwrap();
    };
    for (port, is_valid) in [(0, true), (2, false), (0, true)] {
        back(tracked, port);
        void(tracked);
        for _ in 0..2 {
            assert_eq!(leaves(tracked), forwarded.clone().filter(|_| is_valid), "back by {port}");
        }
    }
    tracked.compared.set_source(LinkVariant::Plain.link(0).0, SourceCheck::default());
    let source = RoutePrefix::host(version.source().0);
    assert!(tracked.compared.tables.remove(vrf, source).unwrap());
    tracked.compared.tables.write_engines();
    void(tracked);
    tracked.insert(version, Treatment::Forwarded(output), version.source());
}
