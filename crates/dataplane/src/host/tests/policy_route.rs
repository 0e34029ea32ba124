//! Packets that firewall rules redirect away from their route.

use std::sync::Arc;

use super::*;
use crate::id::NextHopId;
use crate::stages::filter::{Filter, Op, Point, Rule, Rules};

/// A router with one rule for all packets.
fn ruled(mut lab: Lab, point: Point, op: Op, hops: Vec<NextHopId>) -> Lab {
    let rule = |ops| Rule { ops, next: 1, ..Rule::default() };
    let rules = Rules { rules: vec![rule(vec![op, Op::Accept]), rule(vec![Op::Accept])], end: 1 };
    let mut filter = Filter::new(0, Vec::new());
    for version in [4, 6] {
        filter.set(point, version, &rules).unwrap();
    }
    lab.worker.set_filter(Some(Arc::new(filter.with_hops(hops))), &[]);
    lab
}

fn to_bob() -> Vec<u8> {
    ip_frame(ALICE, &udp4(header4(ALICE4, BOB4), b"data"))
}

#[test]
fn a_packet_goes_to_the_neighbour_that_a_rule_names() {
    for point in [Point::Prerouting, Point::Forward] {
        let lab = Lab::with_neighbours();
        let carol = lab.worker.lock().tables.neigh(LinkId(2), CAROL4.into()).unwrap();
        let mut lab = ruled(lab, point, Op::Forward(0), vec![carol]);
        let sent = only(lab.receive(A, &to_bob()));
        assert_eq!((sent.port, sent.dst_mac()), (NARROW, CAROL.mac));
        assert_eq!((sent.addresses().1, sent.ipv4().0.time_to_live), (BOB4.into(), 63));
        // Larger than its link's MTU, and with options: off the path, with the same destination.
        let big = ip_frame(ALICE, &udp4(header4(ALICE4, BOB4), &[1; 900]));
        let sent = lab.receive(A, &big);
        assert_eq!(sent.iter().map(|sent| sent.port).collect::<Vec<_>>(), [NARROW; 2]);
        let mut header = header4(ALICE4, BOB4);
        header.options = [1; 8][..].try_into().unwrap();
        let sent = only(lab.receive(A, &ip_frame(ALICE, &udp4(header, b"data"))));
        assert_eq!((sent.port, sent.dst_mac()), (NARROW, CAROL.mac));
    }
}

#[test]
fn a_packet_waits_for_the_neighbour_that_a_rule_names() {
    let lab = Lab::with_neighbours();
    let via = Ipv4Addr::new(10, 0, 2, 77);
    let next = lab.worker.lock().tables.neigh(LinkId(2), via.into()).unwrap();
    let mut lab = ruled(lab, Point::Prerouting, Op::Forward(0), vec![next]);
    let request = only(lab.receive(A, &to_bob()));
    assert_eq!((request.port, request.arp().target_protocol_addr()), (NARROW, &via.octets()[..]));
    assert_eq!(lab.worker.counters.held, 1);
}

#[test]
fn a_packet_is_routed_by_the_vrf_that_a_rule_names() {
    let vrf = |lab: &Lab| lab.worker.lock().tables.link(LinkId(3)).vrf;
    let lab = Lab::with_neighbours();
    let red = vrf(&lab);
    let mut lab = ruled(lab, Point::Prerouting, Op::Fib(red), Vec::new());
    let frame = ip_frame(ALICE, &udp4(header4(ALICE4, "10.0.0.9".parse().unwrap()), b"data"));
    let request = only(lab.receive(A, &frame));
    assert_eq!((request.port, request.arp().target_protocol_addr()), (RED, &[10, 0, 0, 9][..]));
    assert!(lab.receive(A, &to_bob()).iter().all(|sent| sent.port != B), "no route there");
    assert_eq!(lab.punts(PuntReason::NoRoute), 1);
    // Too late: the packet already has its route.
    let mut lab = ruled(Lab::with_neighbours(), Point::Forward, Op::Fib(red), Vec::new());
    assert_eq!(only(lab.receive(A, &to_bob())).port, B);
}

#[test]
fn a_missing_next_hop_takes_the_kernel_path() {
    let mut lab = ruled(Lab::with_neighbours(), Point::Prerouting, Op::Forward(0), Vec::new());
    assert_eq!(lab.receive(A, &to_bob()), []);
    assert_eq!(lab.punts(PuntReason::FilterUnsupported), 1);
}
