//! ARP, end to end.

use etherparse::{ArpHardwareId, ArpOperation, ArpPacket, EtherType};

use super::*;

const ALL: [u8; 6] = [0xff; 6];

fn message(op: u16, (mac, ip): ([u8; 6], Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let (op, zero) = (ArpOperation(op), [0; 6]);
    ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        op,
        &mac,
        &ip.octets(),
        &zero,
        &target.octets(),
    )
    .unwrap()
    .to_bytes()
    .to_vec()
}

pub(super) fn request(from: LanHost, ip: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    frame_to(ALL, from, 0x0806, &message(1, (from.mac, ip), target))
}

pub(super) fn reply(from: LanHost, ip: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    frame(from, 0x0806, &message(2, (from.mac, ip), target))
}

fn known(lab: &Lab, link: LinkId, address: IpAddr) -> Option<[u8; 6]> {
    let tables = &lab.worker.lock().tables;
    let next = tables.next_hop(tables.lookup(tables.link(link).vrf, address));
    let start = next.header.len() - usize::from(next.header_len);
    let mac = next.header[start..].first_chunk().copied();
    mac.filter(|_| next.action == crate::next_hops::Action::Forward)
}

#[test]
fn every_address_of_the_vrf_is_answered_for() {
    let mut lab = Lab::new();
    for target in [own4(0), own4(1), own4(4)] {
        let answer = only(lab.receive(A, &request(ALICE, ALICE4, target)));
        assert_eq!((answer.port, answer.dst_mac()), (A, ALICE.mac));
        let arp = answer.arp();
        assert_eq!(arp.operation, ArpOperation::REPLY);
        assert_eq!(arp.sender_hw_addr(), router_mac(A));
        assert_eq!(arp.sender_protocol_addr(), target.octets());
        assert_eq!(arp.target_hw_addr(), ALICE.mac);
        assert_eq!(arp.target_protocol_addr(), ALICE4.octets());
    }
    for target in [BOB4, Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 255)] {
        assert_eq!(lab.receive(A, &request(ALICE, ALICE4, target)), []);
    }
    // The red VRF has none of the other links' addresses.
    assert_eq!(lab.receive(RED, &request(RITA, ALICE4, own4(1))), []);
    assert_eq!(lab.receive(RED, &request(RITA, ALICE4, own4(0))).len(), 1);
    assert_eq!(lab.host().arp_replies_sent, 4);
}

#[test]
fn senders_of_requests_are_learned_and_probed() {
    let mut lab = Lab::new();
    lab.receive(A, &request(ALICE, ALICE4, own4(0)));
    assert_eq!(known(&lab, LinkId(0), ALICE4.into()), Some(ALICE.mac));
    let sent = lab.receive(B, &ip_frame(BOB, &udp4(header4(BOB4, ALICE4), b"hello")));
    assert_eq!(only(sent).dst_mac(), ALICE.mac);
    // Five seconds later, the host probes it three times by unicast.
    let probes = lab.pass(8 * S);
    assert_eq!(probes.len(), 3);
    assert!(probes.iter().all(|probe| probe.dst_mac() == ALICE.mac));
    assert_eq!(probes[0].arp().sender_protocol_addr(), own4(0).octets());
    assert_eq!(known(&lab, LinkId(0), ALICE4.into()), Some(ALICE.mac));
    assert_eq!(lab.pass(S), []);
    assert_eq!(known(&lab, LinkId(0), ALICE4.into()), None);
    assert_eq!((lab.host().neigh_failed, lab.neighbours()), (1, 0));
}

#[test]
fn neighbours_that_answer_stay() {
    let mut lab = Lab::new();
    lab.receive(A, &request(ALICE, ALICE4, own4(0)));
    let next = lab.worker.lock().tables.find_neigh(LinkId(0), ALICE4.into());
    assert_eq!(lab.pass(5 * S + S / 2).len(), 1);
    for _ in 0..10 {
        lab.receive(A, &reply(ALICE, ALICE4, own4(0)));
        assert_eq!(lab.pass(35 * S - S / 10), []);
        assert_eq!(lab.pass(S / 2).len(), 1);
    }
    assert_eq!(known(&lab, LinkId(0), ALICE4.into()), Some(ALICE.mac));
    assert_eq!(lab.worker.lock().tables.find_neigh(LinkId(0), ALICE4.into()), next);
}

#[test]
fn a_duplicate_probe_is_answered_and_not_learned() {
    let mut lab = Lab::new();
    let probe = request(ALICE, Ipv4Addr::UNSPECIFIED, own4(0));
    let answer = only(lab.receive(A, &probe)).arp();
    assert_eq!(answer.target_protocol_addr(), [0; 4]);
    assert_eq!(lab.neighbours(), 0);
}

#[test]
fn gratuitous_messages_change_what_is_known_and_no_more() {
    let mut lab = Lab::new();
    let moved = LanHost { mac: [2, 0, 0, 0, 9, 9], ..ALICE };
    let gratuitous = request(moved, ALICE4, ALICE4);
    assert_eq!(lab.receive(A, &gratuitous), []);
    assert_eq!(lab.neighbours(), 0);
    lab.receive(A, &request(ALICE, ALICE4, own4(0)));
    assert_eq!(lab.receive(A, &gratuitous), []);
    assert_eq!(known(&lab, LinkId(0), ALICE4.into()), Some(moved.mac));
    // An unsolicited reply has no effect before LOCKTIME has passed; then it replaces the address.
    lab.receive(A, &reply(ALICE, ALICE4, own4(0)));
    assert_eq!(known(&lab, LinkId(0), ALICE4.into()), Some(moved.mac));
    lab.pass(S + S / 5);
    lab.receive(A, &reply(ALICE, ALICE4, own4(0)));
    assert_eq!(known(&lab, LinkId(0), ALICE4.into()), Some(ALICE.mac));
}

#[test]
fn impossible_senders_are_ignored() {
    let mut lab = Lab::new();
    let group = LanHost { mac: [3, 0, 0, 0, 0, 1], ..ALICE };
    for frame in [
        request(group, ALICE4, own4(0)),
        request(ALICE, Ipv4Addr::new(224, 0, 0, 1), own4(0)),
        request(ALICE, Ipv4Addr::new(127, 0, 0, 1), own4(0)),
        request(ALICE, Ipv4Addr::new(10, 0, 0, 255), own4(0)),
        request(ALICE, BOB4, own4(0)),
        request(LanHost { mac: [0; 6], ..ALICE }, ALICE4, own4(0)),
        request(ALICE, own4(0), own4(0)),
        request(ALICE, own4(1), own4(0)),
        frame_to(ALL, ALICE, 0x0806, &[0, 1, 8, 0, 6, 4]),
        frame_to(ALL, ALICE, 0x0806, &[0xff; 28]),
        frame_to(ALL, ALICE, 0x0806, &message(9, (ALICE.mac, ALICE4), own4(0))),
    ] {
        assert_eq!(lab.receive(A, &frame), []);
    }
    assert_eq!((lab.host().neigh_invalid, lab.neighbours()), (11, 0));
}

#[test]
fn on_a_vlan_every_message_carries_the_tag() {
    let mut lab = Lab::new();
    let answer = only(lab.receive(B, &request(DAVE, DAVE4, own4(4))));
    assert_eq!((answer.port, answer.vids()), (B, vec![VID]));
    assert_eq!(answer.arp().operation, ArpOperation::REPLY);
    let query = only(lab.receive(
        A,
        &ip_frame(ALICE, &udp4(header4(ALICE4, Ipv4Addr::new(10, 0, 4, 77)), b"hello")),
    ));
    assert_eq!((query.port, query.vids()), (B, vec![VID]));
    assert_eq!((query.dst_mac(), query.src_mac()), (ALL, router_mac(B)));
    assert_eq!(query.arp().sender_protocol_addr(), own4(4).octets());
    assert_eq!(query.arp().target_hw_addr(), [0; 6]);
}

#[test]
fn configured_neighbours_and_routes_are_left_alone() {
    let mut lab = Lab::with_neighbours();
    let moved = LanHost { mac: [2, 0, 0, 0, 9, 9], ..ALICE };
    assert_eq!(lab.receive(A, &request(moved, ALICE4, own4(0))).len(), 1);
    assert_eq!(known(&lab, LinkId(0), ALICE4.into()), Some(ALICE.mac));
    assert_eq!(lab.neighbours(), 0);
    lab.worker.lock().host.add_static(LinkId(0), "10.0.0.7".parse().unwrap());
    lab.receive(A, &request(moved, "10.0.0.7".parse().unwrap(), own4(0)));
    assert_eq!(lab.neighbours(), 0);
    // A route to exactly this address stays while a neighbour with that address comes and goes.
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 8));
    let drop = lab.worker.lock().tables.drop(DropReason::Blackhole).unwrap();
    let vrf = lab.worker.lock().tables.link(LinkId(0)).vrf;
    lab.worker.lock().tables.insert(vrf, RoutePrefix::host(address), drop).unwrap();
    lab.receive(A, &request(moved, "10.0.0.8".parse().unwrap(), own4(0)));
    assert_eq!(lab.neighbours(), 1);
    assert_eq!(lab.worker.lock().tables.lookup(vrf, address), drop);
    lab.pass(20 * S);
    assert_eq!(lab.neighbours(), 0);
    assert_eq!(lab.worker.lock().tables.lookup(vrf, address), drop);
    // A route to the address as on the link gives way while the neighbour is known.
    let glean = lab.worker.lock().tables.glean(LinkId(0)).unwrap();
    lab.worker.lock().tables.insert(vrf, RoutePrefix::host(address), glean).unwrap();
    lab.receive(A, &request(moved, "10.0.0.8".parse().unwrap(), own4(0)));
    let next = lab.worker.lock().tables.lookup(vrf, address);
    assert_eq!(lab.worker.lock().tables.next_hop(next).neigh, Some(address));
    let packet = udp4(header4(BOB4, "10.0.0.8".parse().unwrap()), b"hello");
    assert_eq!(only(lab.receive(B, &ip_frame(BOB, &packet))).dst_mac(), moved.mac);
    assert_eq!(lab.worker.counters.sent, 1);
    lab.pass(60 * S);
    assert_eq!(lab.worker.lock().tables.lookup(vrf, address), glean);
}

#[test]
fn forgotten_neighbours_leave_no_next_hop_behind() {
    let mut lab = Lab::new();
    lab.receive(A, &request(ALICE, ALICE4, own4(0)));
    lab.pass(20 * S);
    let next_hops = lab.worker.lock().tables.routes.next_hops.len();
    for last in 1..100 {
        lab.receive(A, &request(ALICE, Ipv4Addr::new(10, 0, 0, last), own4(0)));
        lab.pass(20 * S);
    }
    // A number is reused when the worker has passed, so a second one is in use.
    assert!(lab.worker.state().routes.next_hops.len() <= next_hops + 1);
}

#[test]
fn a_neighbour_on_the_wrong_link_takes_no_traffic() {
    let mut lab = Lab::new();
    // Two links have the same subnet; the routes lead to it by the first link.
    lab.worker.lock().host.add_address(LinkId(1), "10.0.0.253".parse().unwrap(), 24);
    assert_eq!(lab.receive(B, &request(BOB, ALICE4, own4(1))).len(), 1);
    assert_eq!((lab.neighbours(), known(&lab, LinkId(0), ALICE4.into())), (1, None));
}
