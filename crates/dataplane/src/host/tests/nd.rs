//! Neighbour discovery, end to end.

use super::*;
use crate::host::addresses::{multicast_mac, solicited_node};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn option(kind: u8, mac: [u8; 6]) -> Vec<u8> {
    [&[kind, 1], &mac[..]].concat()
}

fn body(target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    [&target.octets()[..], options].concat()
}

/// A station's solicitation for an address of the router, to the address's group.
fn solicit(from: LanHost, src: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let dst = solicited_node(target);
    let options = if src.is_unspecified() { vec![] } else { option(1, from.mac) };
    let packet = icmp6((src, dst), 255, 135, [0; 4], &body(target, &options));
    frame_to(multicast_mac(dst), from, 0x86dd, &packet)
}

pub(super) fn advert(from: LanHost, src: Ipv6Addr, dst: Ipv6Addr, flags: u8) -> Vec<u8> {
    let packet = icmp6((src, dst), 255, 136, [flags, 0, 0, 0], &body(src, &option(2, from.mac)));
    ip_frame(from, &packet)
}

#[test]
fn a_solicitation_is_answered_and_its_sender_learned() {
    let mut lab = Lab::new();
    for (target, flags) in [(own6(0), 0xe0), (own_link_local(A), 0xe0)] {
        let answer = only(lab.receive(A, &solicit(ALICE, ALICE6, target)));
        assert_eq!((answer.port, answer.dst_mac()), (A, ALICE.mac));
        assert_eq!(answer.addresses(), (target.into(), ALICE6.into()));
        assert_eq!(answer.ipv6().0.hop_limit, 255);
        assert_eq!(answer.icmp_kind(), (136, 0));
        assert_eq!(answer.icmp6().bytes5to8(), [flags, 0, 0, 0]);
        assert_eq!(answer.icmp6().payload(), body(target, &option(2, router_mac(A))));
    }
    let sent = lab.receive(B, &ip_frame(BOB, &udp6(BOB6, ALICE6, 64, b"hello")));
    assert_eq!(only(sent).dst_mac(), ALICE.mac);
    // This link does not answer for another link's address.
    assert_eq!(lab.receive(A, &solicit(ALICE, ALICE6, own6(1))), []);
    assert_eq!(lab.host().nd_adverts_sent, 2);
}

#[test]
fn a_unicast_solicitation_is_answered_without_override() {
    let mut lab = Lab::with_neighbours();
    let target = own6(0);
    let packet = icmp6((ALICE6, target), 255, 135, [0; 4], &body(target, &[]));
    let answer = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!(answer.icmp6().bytes5to8(), [0xc0, 0, 0, 0]);
    assert_eq!(answer.icmp6().payload(), body(target, &[]));
}

#[test]
fn a_solicitation_to_a_group_without_a_mac_gets_no_answer() {
    let target = own6(0);
    let packet = icmp6((ALICE6, solicited_node(target)), 255, 135, [0; 4], &body(target, &[]));
    let frame = frame_to(multicast_mac(solicited_node(target)), ALICE, 0x86dd, &packet);
    let mut lab = Lab::new();
    assert_eq!(lab.receive(A, &frame), []);
    assert_eq!(lab.neighbours(), 0);
    assert_eq!(Lab::with_neighbours().receive(A, &frame).len(), 1);
}

#[test]
fn a_check_for_duplicates_is_answered_to_all() {
    let mut lab = Lab::new();
    let answer = only(lab.receive(A, &solicit(ALICE, Ipv6Addr::UNSPECIFIED, own6(0))));
    assert_eq!(answer.dst_mac(), multicast_mac(ALL_NODES));
    assert_eq!(answer.addresses(), (own6(0).into(), ALL_NODES.into()));
    assert_eq!(answer.icmp6().bytes5to8(), [0xa0, 0, 0, 0]);
    assert_eq!(lab.neighbours(), 0);
}

#[test]
fn invalid_messages_are_counted_and_ignored() {
    let mut lab = Lab::new();
    let (target, group) = (own6(0), solicited_node(own6(0)));
    let any = Ipv6Addr::UNSPECIFIED;
    let good = body(target, &option(1, ALICE.mac));
    let packets = [
        icmp6((ALICE6, group), 254, 135, [0; 4], &good),
        icmp6((ALICE6, group), 255, 135, [0; 4], &body(ALL_NODES, &[])),
        icmp6((ALICE6, group), 255, 135, [0; 4], &good[..12]),
        icmp6((ALICE6, group), 255, 135, [0; 4], &body(target, &[1, 0, 0, 0, 0, 0, 0, 0])),
        icmp6((ALICE6, group), 255, 135, [0; 4], &body(target, &[1, 2, 0, 0, 0, 0, 0, 0])),
        icmp6((ALICE6, group), 255, 135, [0; 4], &body(target, &[7])),
        icmp6((ALICE6, group), 255, 135, [0; 4], &body(target, &option(1, [3, 0, 0, 0, 0, 1]))),
        icmp6((any, group), 255, 135, [0; 4], &good),
        icmp6((any, ALL_NODES), 255, 135, [0; 4], &body(target, &[])),
        icmp6((ALICE6, ALL_NODES), 255, 136, [0x40, 0, 0, 0], &body(ALICE6, &option(2, ALICE.mac))),
    ];
    let count = packets.len() as u64;
    for packet in packets {
        assert_eq!(lab.receive(A, &frame_to([0x33; 6], ALICE, 0x86dd, &packet)), []);
    }
    let invalid = lab.host().neigh_invalid;
    // Some are so short that the wire library reports them as malformed.
    assert_eq!(invalid + lab.host().malformed, count, "{:?}", lab.host());
    let mut corrupt = icmp6((ALICE6, group), 255, 135, [0; 4], &good);
    corrupt[50] ^= 1;
    lab.receive(A, &frame_to([0x33; 6], ALICE, 0x86dd, &corrupt));
    assert_eq!(lab.host().malformed + lab.host().neigh_invalid, count + 1);
    assert_eq!(lab.neighbours(), 0);
}

#[test]
fn an_unsolicited_advertisement_adds_no_neighbour() {
    let mut lab = Lab::new();
    assert_eq!(lab.receive(A, &advert(ALICE, ALICE6, own6(0), 0x60)), []);
    assert_eq!(lab.neighbours(), 0);
    for kind in [133, 134, 137] {
        let packet = icmp6((eui64(ALICE.mac), ALL_NODES), 255, kind, [0; 4], &[0; 32]);
        assert_eq!(lab.receive(A, &frame_to([0x33; 6], ALICE, 0x86dd, &packet)), []);
    }
    assert_eq!(lab.host().nd_router_ignored, 3);
}

#[test]
fn a_destination_is_solicited_and_its_packet_released() {
    let mut lab = Lab::new();
    let query = only(lab.receive(A, &ip_frame(ALICE, &udp6(ALICE6, DAVE6, 64, b"hello"))));
    assert_eq!((query.port, query.vids()), (B, vec![VID]));
    assert_eq!(query.dst_mac(), multicast_mac(solicited_node(DAVE6)));
    assert_eq!(query.addresses(), (own_link_local(B).into(), solicited_node(DAVE6).into()));
    assert_eq!(query.ipv6().0.hop_limit, 255);
    assert_eq!(query.icmp_kind(), (135, 0));
    assert_eq!(query.icmp6().payload(), body(DAVE6, &option(1, router_mac(B))));
    assert_eq!(lab.worker.counters.held, 1);
    let sent = only(lab.receive(B, &advert(DAVE, DAVE6, own_link_local(B), 0x60)));
    assert_eq!((sent.port, sent.vids(), sent.dst_mac()), (B, vec![VID], DAVE.mac));
    assert_eq!(sent.ipv6().0.hop_limit, 63);
    assert_eq!(udp_payload(sent.ipv6().1), b"hello");
    assert_eq!((lab.worker.counters.held, lab.worker.counters.sent), (0, 1));
    // After its time, the host probes it by itself.
    assert_eq!(lab.pass(35 * S - S / 5), []);
    let probe = only(lab.pass(S / 2));
    assert_eq!((probe.dst_mac(), probe.vids()), (DAVE.mac, vec![VID]));
    assert_eq!(probe.addresses(), (own_link_local(B).into(), DAVE6.into()));
}

#[test]
fn a_link_local_neighbour_is_spoken_to_on_its_link() {
    let mut lab = Lab::new();
    let alice = eui64(ALICE.mac);
    let mut packet = Vec::new();
    PacketBuilder::ipv6(alice.octets(), own_link_local(A).octets(), 64)
        .icmpv6_echo_request(1, 2)
        .write(&mut packet, b"x")
        .unwrap();
    // The reply waits for the neighbour, and does not count as held.
    let query = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!((query.port, query.icmp_kind()), (A, (135, 0)));
    assert_eq!((lab.worker.counters.held, lab.worker.lock().host.originated_waiting()), (0, 1));
    let answer = only(lab.receive(A, &advert(ALICE, alice, own_link_local(A), 0x60)));
    assert_eq!(answer.addresses(), (own_link_local(A).into(), alice.into()));
    assert_eq!(answer.icmp_kind(), (129, 0));
    // The same address on another link does not belong to the router.
    assert_eq!(lab.receive(B, &ip_frame(BOB, &packet)), []);
}
