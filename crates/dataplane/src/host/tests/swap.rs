//! Replaces tables and host while packets flow and wait.

use super::*;
use crate::id::NextHopId;

/// The same links, each mapped to itself.
const SAME: [Option<LinkId>; 5] =
    [Some(LinkId(0)), Some(LinkId(1)), Some(LinkId(2)), Some(LinkId(3)), Some(LinkId(4))];

fn to_bob(n: u8) -> Vec<u8> {
    ip_frame(ALICE, &udp4(header4(ALICE4, BOB4), &[n]))
}

fn swap(lab: &mut Lab, (tables, host): (Tables, Host), links: &[Option<LinkId>]) -> Vec<Sent> {
    lab.worker.swap(&mut lab.ports, tables, host, links, &[]).unwrap();
    lab.drain()
}

#[test]
fn learned_neighbours_stay_known_without_a_request() {
    let mut lab = Lab::new();
    lab.receive(A, &to_bob(0));
    lab.receive(B, &arp::reply(BOB, BOB4, own4(1)));
    for n in 1..4 {
        assert!(swap(&mut lab, configuration(), &SAME).is_empty());
        let sent = lab.receive_all(A, &[to_bob(n), to_bob(n), to_bob(n)]);
        assert_eq!(sent.len(), 3);
        assert!(sent.iter().all(|one| one.dst_mac() == BOB.mac && one.ipv4().0.time_to_live == 63));
        let main = lab.worker.lock().tables.link(LinkId(1)).vrf;
        let next = lab.worker.lock().tables.lookup(main, BOB4.into());
        assert_eq!(
            lab.worker.lock().tables.next_hop(next).neigh,
            Some(BOB4.into()),
            "on the fast path"
        );
    }
    assert_eq!((lab.worker.counters.sent, lab.worker.counters.held), (10, 0));
    assert_eq!(lab.worker.lock().host.counters().arp_requests_sent, 1, "counts go on");
    // The new host forgets Bob as it forgets a neighbour that it has learned itself.
    lab.pass(60 * S);
    assert_eq!(only(lab.receive(A, &to_bob(9))).dst_mac(), [0xff; 6]);
}

#[test]
fn waiting_packets_still_wait_after_a_swap() {
    let mut lab = Lab::new();
    lab.receive_all(A, &[to_bob(0), to_bob(1)]);
    assert!(swap(&mut lab, configuration(), &SAME).is_empty());
    assert_eq!(lab.worker.counters.held, 2);
    let sent = lab.receive(B, &arp::reply(BOB, BOB4, own4(1)));
    assert_eq!(sent.len(), 2);
    assert_eq!((lab.worker.counters.held, lab.worker.counters.sent), (0, 2));
}

#[test]
fn waiting_packets_are_sent_if_the_new_tables_have_the_address() {
    let mut lab = Lab::new();
    lab.receive(A, &to_bob(0));
    let (mut tables, mut host) = configuration();
    host.add_static(LinkId(1), BOB4.into());
    tables.publish_neigh(LinkId(1), BOB4.into(), BOB.mac).unwrap();
    assert_eq!(only(swap(&mut lab, (tables, host), &SAME)).dst_mac(), BOB.mac);
    assert_eq!((lab.worker.counters.held, lab.worker.counters.sent), (0, 1));
    assert_eq!(lab.neighbours(), 0);
}

#[test]
fn links_may_have_other_numbers_or_go() {
    let dave = |n| ip_frame(ALICE, &udp4(header4(ALICE4, DAVE4), &[n]));
    for (number, left) in [(None, 0), (Some(LinkId(1)), 0), (Some(VLAN), 1)] {
        let mut lab = Lab::new();
        lab.receive(A, &dave(0));
        let mut links = SAME;
        links[usize::from(VLAN.0)] = number;
        swap(&mut lab, configuration(), &links);
        assert_eq!(lab.worker.counters.held, left, "{number:?}");
        assert_eq!(lab.drops(DropReason::NeighFailed), 1 - left, "{number:?}");
    }
    // A sender whose link has gone cannot get an error, so its packet is dropped as well.
    let mut lab = Lab::new();
    lab.receive(A, &dave(0));
    let mut links = SAME;
    links[0] = None;
    swap(&mut lab, configuration(), &links);
    assert_eq!((lab.worker.counters.held, lab.drops(DropReason::NeighFailed)), (0, 1));
    // The solicitation goes on: only the packet belonged to the lost link.
    assert_eq!(lab.neighbours(), 1);
}

#[test]
fn other_ports_are_refused() {
    let mut lab = Lab::with_neighbours();
    let next = |lab: &Lab| {
        let tables = lab.worker.state();
        tables.lookup(tables.link(LinkId(0)).vrf, BOB4.into())
    };
    let before = next(&lab);
    let refused = lab.worker.swap(&mut lab.ports, Tables::new(), Host::new(), &SAME, &[]);
    assert!(refused.is_err());
    assert_eq!(next(&lab), before);
    assert_ne!(before, NextHopId::NO_ROUTE);
    assert_eq!(only(lab.receive(A, &to_bob(1))).dst_mac(), BOB.mac);
}
