//! ICMP errors, byte for byte, and their number.

use super::*;

fn with_ttl(dst: Ipv4Addr, ttl: u8) -> Vec<u8> {
    let mut header = header4(ALICE4, dst);
    header.time_to_live = ttl;
    header.dscp = etherparse::IpDscp::try_new(0x2e).unwrap();
    udp4(header, &[0x5a; 40])
}

/// The error that answers a packet: type, code, second word.
fn error(lab: &mut Lab, packet: &[u8]) -> Option<((u8, u8), [u8; 4])> {
    // Long enough for the buckets to fill again.
    lab.now += 10 * S;
    let sent = lab.receive(A, &ip_frame(ALICE, packet));
    sent.first().map(|error| {
        let is_ipv4 = error.packet()[0] >> 4 == 4;
        let rest = if is_ipv4 { error.icmp4().bytes5to8() } else { error.icmp6().bytes5to8() };
        (error.icmp_kind(), rest)
    })
}

#[test]
fn every_reason_has_its_message_v4() {
    let mut lab = Lab::with_neighbours();
    let none = [0; 4];
    for (dst, ttl, kind, reason) in [
        (BOB4, 1, (11, 0), PuntReason::TtlExpired),
        ("172.16.0.1".parse().unwrap(), 64, (3, 0), PuntReason::NoRoute),
        ("198.51.100.1".parse().unwrap(), 64, (3, 1), PuntReason::Unreachable),
        ("203.0.113.1".parse().unwrap(), 64, (3, 13), PuntReason::Prohibit),
    ] {
        assert_eq!(error(&mut lab, &with_ttl(dst, ttl)), Some((kind, none)));
        assert_eq!(lab.punts(reason), 1);
    }
    assert_eq!(lab.host().icmp4_sent, [(3, 3), (11, 1)].into());
}

#[test]
fn every_reason_has_its_message_v6() {
    let mut lab = Lab::with_neighbours();
    let none = [0; 4];
    for (dst, hops, kind) in [
        (BOB6, 1, (3, 0)),
        ("3000::1".parse().unwrap(), 64, (1, 0)),
        ("2001:db8:f0::1".parse().unwrap(), 64, (1, 0)),
        ("2001:db8:f1::1".parse().unwrap(), 64, (1, 1)),
    ] {
        assert_eq!(error(&mut lab, &udp6(ALICE6, dst, hops, b"x")), Some((kind, none)));
    }
    let big = udp6(ALICE6, CAROL6, 64, &[1; 1300]);
    assert_eq!(error(&mut lab, &big), Some(((2, 0), [0, 0, 5, 0])));
    // A link-local source; the error reaches it on its link, once its address is known.
    let alice = eui64(ALICE.mac);
    lab.receive(A, &ip_frame(ALICE, &udp6(alice, BOB6, 64, b"x")));
    let error = only(lab.receive(A, &nd::advert(ALICE, alice, own_link_local(A), 0x60)));
    assert_eq!(
        (error.icmp_kind(), error.addresses()),
        ((1, 2), (own_link_local(A).into(), alice.into()))
    );
}

#[test]
fn an_error_is_what_linux_sends() {
    let mut lab = Lab::with_neighbours();
    let packet = with_ttl(BOB4, 1);
    let error = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!((error.port, error.dst_mac(), error.src_mac()), (A, ALICE.mac, router_mac(A)));
    assert_eq!(error.addresses(), (own4(0).into(), ALICE4.into()));
    let (header, _) = error.ipv4();
    // TOS 0xb8 keeps 0x18, with precedence 6 over it.
    assert_eq!(error.packet()[1], 0xd8);
    assert_eq!((header.time_to_live, header.dont_fragment), (64, false));
    assert_eq!(error.icmp4().payload(), packet);
    let packet = udp6(ALICE6, BOB6, 1, b"hello");
    let error = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!(error.addresses(), (own6(0).into(), ALICE6.into()));
    assert_eq!((error.ipv6().0.hop_limit, error.ipv6().0.traffic_class), (64, 0));
    assert_eq!(error.icmp6().payload(), packet);
}

#[test]
fn as_much_is_quoted_as_the_rfcs_allow() {
    let mut lab = Lab::with_neighbours();
    let mut header = header4(ALICE4, BOB4);
    header.time_to_live = 1;
    let packet = udp4(header, &[3; 1400]);
    let error = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!(error.packet().len(), 576);
    assert_eq!(error.icmp4().payload(), &packet[..548]);
    let packet = udp6(ALICE6, BOB6, 1, &[3; 1400]);
    let error = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!(error.packet().len(), 1280);
    assert_eq!(error.icmp6().payload(), &packet[..1232]);
}

#[test]
fn path_mtu_is_reported_without_a_limit() {
    let mut lab = Lab::with_neighbours();
    let mut header = header4(ALICE4, CAROL4);
    header.dont_fragment = true;
    let packet = udp4(header, &[1; 700]);
    for _ in 0..100 {
        let error = only(lab.receive(A, &ip_frame(ALICE, &packet)));
        assert_eq!((error.icmp_kind(), error.icmp4().bytes5to8()), ((3, 4), [0, 0, 2, 88]));
        let big = udp6(ALICE6, CAROL6, 64, &[1; 700]);
        assert_eq!(only(lab.receive(A, &ip_frame(ALICE, &big))).icmp_kind(), (2, 0));
    }
    assert_eq!((lab.host().rate_limited, lab.punts(PuntReason::MtuExceeded)), (0, 200));
}

#[test]
fn others_are_limited_by_destination() {
    let mut lab = Lab::with_neighbours();
    let frames = vec![ip_frame(ALICE, &with_ttl(BOB4, 1)); 20];
    assert_eq!(lab.receive_all(A, &frames).len(), 6);
    assert_eq!(lab.host().rate_limited, 14);
    lab.now += 2 * S;
    assert_eq!(lab.receive_all(A, &frames).len(), 2);
    let frames = vec![ip_frame(ALICE, &udp6(ALICE6, BOB6, 1, b"x")); 20];
    assert_eq!(lab.receive_all(A, &frames).len(), 6);
    // Echo is not an error.
    let mut echo = Vec::new();
    PacketBuilder::ipv4(ALICE4.octets(), own4(0).octets(), 64)
        .icmpv4_echo_request(1, 1)
        .write(&mut echo, b"")
        .unwrap();
    assert_eq!(lab.receive_all(A, &vec![ip_frame(ALICE, &echo); 200]).len(), 200);
}

/// An ICMP packet of this type whose TTL runs out.
fn dying_icmp4(kind: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ipv4(ALICE4.octets(), BOB4.octets(), 1)
        .icmpv4_raw(kind, 0, [0; 4])
        .write(&mut bytes, &[0; 28])
        .unwrap();
    bytes
}

#[test]
fn no_error_is_sent_about_errors() {
    let mut lab = Lab::with_neighbours();
    for kind in [3, 4, 5, 11, 12, 19, 200] {
        assert_eq!(error(&mut lab, &dying_icmp4(kind)), None, "{kind}");
    }
    for kind in [0, 8, 13, 18] {
        assert_eq!(error(&mut lab, &dying_icmp4(kind)), Some(((11, 0), [0; 4])), "{kind}");
    }
    for kind in [1, 2, 3, 4, 127] {
        let packet = icmp6((ALICE6, BOB6), 1, kind, [0; 4], &[0; 40]);
        assert_eq!(error(&mut lab, &packet), None, "{kind}");
        // Nor if extension headers hide it.
        let options = [&[58, 0, 1, 4, 0, 0, 0, 0][..], &packet[40..]].concat();
        assert_eq!(error(&mut lab, &raw6(ALICE6, BOB6, 60, 1, &options)), None);
        let first = [&[58, 0, 0, 1, 0, 0, 0, 1][..], &packet[40..]].concat();
        assert_eq!(error(&mut lab, &raw6(ALICE6, BOB6, 44, 1, &first)), None);
    }
    // A fragment other than the first does not begin with an ICMPv6 header.
    let second = [&[58, 0, 0, 8, 0, 0, 0, 1][..], &[1; 40]].concat();
    assert!(error(&mut lab, &raw6(ALICE6, BOB6, 44, 1, &second)).is_some());
    let echo = icmp6((ALICE6, BOB6), 1, 128, [0; 4], b"x");
    assert_eq!(error(&mut lab, &echo), Some(((3, 0), [0; 4])));
    assert_eq!(lab.host().suppressed, 7 + 15);
}

#[test]
fn no_error_is_sent_about_fragments_groups_and_strange_sources() {
    let mut lab = Lab::with_neighbours();
    let mut header = header4(ALICE4, BOB4);
    (header.time_to_live, header.fragment_offset) = (1, 8.try_into().unwrap());
    assert_eq!(error(&mut lab, &udp4(header.clone(), b"x")), None);
    header.fragment_offset = 0.try_into().unwrap();
    header.more_fragments = true;
    assert_eq!(error(&mut lab, &udp4(header, b"x")), Some(((11, 0), [0; 4])));
    // From and to a subnet's broadcast address; and a UDP packet in a group-addressed frame.
    let from_all = udp4(header4("10.0.0.255".parse().unwrap(), "172.16.0.1".parse().unwrap()), b"");
    assert_eq!(error(&mut lab, &from_all), None);
    let to_us = udp4(header4(ALICE4, own4(0)), b"x");
    assert_eq!(lab.receive(A, &frame_to([0xff; 6], ALICE, 0x0800, &to_us)), []);
    let to_us = udp6(ALICE6, own6(0), 64, b"x");
    assert_eq!(lab.receive(A, &frame_to([0x33; 6], ALICE, 0x86dd, &to_us)), []);
    assert_eq!(lab.host().suppressed, 4);
    // A sender without a route back gets no error.
    let lost = udp4(header4("172.16.0.9".parse().unwrap(), "172.16.0.1".parse().unwrap()), b"");
    assert_eq!(error(&mut lab, &lost), None);
    assert_eq!(lab.host().unroutable, 1);
}

#[test]
fn an_error_leaves_by_the_vlan_that_its_packet_came_from() {
    let mut lab = Lab::with_neighbours();
    let mut header = header4(DAVE4, ALICE4);
    header.time_to_live = 1;
    let error = only(lab.receive(B, &ip_frame(DAVE, &udp4(header, b"x"))));
    assert_eq!((error.port, error.vids(), error.dst_mac()), (B, vec![VID], DAVE.mac));
    assert_eq!((error.icmp_kind(), error.addresses().0), ((11, 0), own4(4).into()));
}
