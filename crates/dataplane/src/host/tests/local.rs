//! Packets for the router itself.

use super::*;

fn echo4(src: Ipv4Addr, dst: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut header = header4(src, dst);
    header.dscp = etherparse::IpDscp::try_new(10).unwrap();
    let mut bytes = Vec::new();
    PacketBuilder::ip(IpHeaders::Ipv4(header, Default::default()))
        .icmpv4_echo_request(7, 9)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

fn echo6(src: Ipv6Addr, dst: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ipv6(src.octets(), dst.octets(), 3)
        .icmpv6_echo_request(7, 9)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

fn tcp4(dst: Ipv4Addr, flags: impl Fn(&mut TcpHeader), payload: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(4000, 22, 1000, 512);
    flags(&mut header);
    let mut ip = header4(ALICE4, dst);
    (ip.dscp, ip.ecn) = (10.try_into().unwrap(), 3.try_into().unwrap());
    let mut bytes = Vec::new();
    PacketBuilder::ip(IpHeaders::Ipv4(ip, Default::default()))
        .tcp_header(header)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

#[test]
fn echo_is_answered_from_the_requested_address() {
    let mut lab = Lab::with_neighbours();
    for (n, target) in [own4(0), own4(1), own4(4)].into_iter().enumerate() {
        // The packet is shorter than an Ethernet frame; the reply does not contain the padding.
        let answer = only(lab.receive(A, &ip_frame(ALICE, &echo4(ALICE4, target, b"ping"))));
        assert_eq!((answer.port, answer.dst_mac()), (A, ALICE.mac));
        let (header, _) = answer.ipv4();
        assert_eq!(answer.addresses(), (target.into(), ALICE4.into()));
        assert_eq!((header.time_to_live, header.dscp.value()), (64, 10));
        assert_eq!((header.identification, header.dont_fragment), (n as u16 + 1, false));
        assert_eq!(answer.icmp_kind(), (0, 0));
        assert_eq!(answer.icmp4().bytes5to8(), [0, 7, 0, 9]);
        assert_eq!(answer.icmp4().payload(), b"ping");
    }
    for target in [own6(0), own6(1)] {
        let answer = only(lab.receive(A, &ip_frame(ALICE, &echo6(ALICE6, target, b"ping"))));
        assert_eq!(answer.addresses(), (target.into(), ALICE6.into()));
        assert_eq!(answer.ipv6().0.hop_limit, 64);
        assert_eq!((answer.icmp_kind(), answer.icmp6().payload()), ((129, 0), &b"ping"[..]));
    }
    assert_eq!((lab.host().echo_answered, lab.worker.counters.delivered), (5, 5));
    assert_eq!(lab.worker.counters.originated, 5);
}

#[test]
fn echo_to_groups_is_ignored_except_for_all_nodes() {
    let mut lab = Lab::with_neighbours();
    for (mac, dst) in [
        ([0xff; 6], [10, 0, 0, 255]),
        ([0xff; 6], [255; 4]),
        ([1, 0, 0x5e, 0, 0, 1], [224, 0, 0, 1]),
    ] {
        let packet = echo4(ALICE4, dst.into(), b"ping");
        assert_eq!(lab.receive(A, &frame_to(mac, ALICE, 0x0800, &packet)), []);
    }
    let all = "ff02::1".parse().unwrap();
    let to_all = frame_to([0x33, 0x33, 0, 0, 0, 1], ALICE, 0x86dd, &echo6(ALICE6, all, b"x"));
    assert_eq!(only(lab.receive(A, &to_all)).addresses(), (own6(0).into(), ALICE6.into()));
    // Nothing handles a packet for another station in a group-addressed frame.
    let stray = frame_to([0xff; 6], ALICE, 0x0800, &echo4(ALICE4, BOB4, b"x"));
    assert_eq!(lab.receive(A, &stray), []);
    let stray = frame_to([0x33; 6], ALICE, 0x86dd, &echo6(ALICE6, BOB6, b"x"));
    assert_eq!(lab.receive(A, &stray), []);
    assert_eq!((lab.host().echo_answered, lab.host().ignored), (1, 3));
    assert_eq!(lab.drops(DropReason::UnicastInL2Multicast), 2);
}

#[test]
fn echo_to_a_narrow_link_comes_in_fragments() {
    let mut lab = Lab::with_neighbours();
    let packet = echo4(CAROL4, own4(0), &[5; 1000]);
    let sent = lab.receive(NARROW, &ip_frame(CAROL, &packet));
    assert_eq!(sent.len(), 2);
    let (first, second) = (sent[0].ipv4(), sent[1].ipv4());
    assert!(first.0.more_fragments && !second.0.more_fragments);
    assert_eq!(first.0.identification, second.0.identification);
    let message = [first.1, second.1].concat();
    let icmp = Icmpv4Slice::from_slice(&message).unwrap();
    assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
    assert_eq!(icmp.payload(), &[5; 1000]);
}

#[test]
fn fragments_and_broken_messages_are_ignored() {
    let mut lab = Lab::with_neighbours();
    let mut header = header4(ALICE4, own4(0));
    header.more_fragments = true;
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &udp4(header, &[0; 16]))), []);
    let fragment6 = [17, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &raw6(ALICE6, own6(0), 44, 64, &fragment6))), []);
    assert_eq!(lab.host().fragments_ignored, 2);
    let mut broken = echo4(ALICE4, own4(0), b"ping");
    broken[22] ^= 1;
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &broken)), []);
    let mut broken = udp4(header4(ALICE4, own4(0)), b"hello");
    broken[30] ^= 1;
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &broken)), []);
    let mut zero = udp6(ALICE6, own6(0), 64, b"hello");
    zero[46..48].fill(0);
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &zero)), []);
    assert_eq!(lab.host().malformed, 3);
}

#[test]
fn unused_ports_and_protocols_are_reported() {
    let mut lab = Lab::with_neighbours();
    let packet = udp4(header4(ALICE4, own4(1)), b"hello");
    let error = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!((error.icmp_kind(), error.addresses().0), ((3, 3), own4(1).into()));
    assert_eq!(error.icmp4().payload(), packet);
    let packet = udp6(ALICE6, own6(1), 64, b"hello");
    let error = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!((error.icmp_kind(), error.addresses().0), ((1, 4), own6(1).into()));
    assert_eq!(error.icmp6().payload(), packet);
    let mut header = header4(ALICE4, own4(0));
    header.protocol = 200.into();
    header.set_payload_len(4).unwrap();
    let packet = [&header.to_bytes()[..], &[1, 2, 3, 4]].concat();
    let mut fixed = packet.clone();
    let sum = Ipv4Header::from_slice(&packet).unwrap().0.calc_header_checksum();
    fixed[10..12].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(only(lab.receive(A, &ip_frame(ALICE, &fixed))).icmp_kind(), (3, 2));
    // The unknown protocol follows destination options, so the pointer leads to their next header.
    let payload = [200, 0, 1, 4, 0, 0, 0, 0, 9, 9];
    let error = only(lab.receive(A, &ip_frame(ALICE, &raw6(ALICE6, own6(0), 60, 64, &payload))));
    assert_eq!((error.icmp_kind(), error.icmp6().bytes5to8()), ((4, 1), [0, 0, 0, 40]));
}

#[test]
fn segments_of_unknown_connections_are_reset() {
    let mut lab = Lab::with_neighbours();
    let reset = only(lab.receive(A, &ip_frame(ALICE, &tcp4(own4(1), |tcp| tcp.syn = true, b""))));
    assert_eq!(reset.addresses(), (own4(1).into(), ALICE4.into()));
    assert!(reset.ipv4().0.dont_fragment);
    // ECN bits belong to the sender and do not come back.
    assert_eq!(reset.packet()[1], 10 << 2);
    let header = tcp(&reset);
    assert_eq!((header.source_port, header.destination_port), (22, 4000));
    assert!(header.rst && header.ack && !header.syn);
    assert_eq!((header.sequence_number, header.acknowledgment_number), (0, 1001));
    let segment = tcp4(own4(1), |tcp| (tcp.ack, tcp.acknowledgment_number) = (true, 77), b"data");
    let header = tcp(&only(lab.receive(A, &ip_frame(ALICE, &segment))));
    assert!(header.rst && !header.ack);
    assert_eq!((header.sequence_number, header.window_size), (77, 0));
    let segment = tcp4(own4(1), |tcp| tcp.fin = true, b"data");
    let header = tcp(&only(lab.receive(A, &ip_frame(ALICE, &segment))));
    assert_eq!(header.acknowledgment_number, 1005);
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &tcp4(own4(1), |tcp| tcp.rst = true, b""))), []);
    let mut packet = Vec::new();
    PacketBuilder::ipv6(ALICE6.octets(), own6(0).octets(), 64)
        .tcp(4000, 22, 5, 9)
        .syn()
        .write(&mut packet, b"")
        .unwrap();
    let reset = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    assert_eq!((tcp(&reset).acknowledgment_number, reset.addresses().0), (6, own6(0).into()));
    assert_eq!(lab.host().resets_sent, 4);
}

#[test]
fn a_vrf_answers_for_itself() {
    let mut lab = Lab::new();
    lab.receive(RED, &arp::request(RITA, ALICE4, own4(0)));
    let answer = only(lab.receive(RED, &ip_frame(RITA, &echo4(ALICE4, own4(0), b"x"))));
    assert_eq!((answer.port, answer.dst_mac()), (RED, RITA.mac));
    // No route leads to the main VRF's addresses.
    assert_eq!(
        only(lab.receive(RED, &ip_frame(RITA, &echo4(ALICE4, own4(1), b"x")))).icmp_kind(),
        (3, 0)
    );
}

#[test]
fn options_of_packets_to_groups_are_evaluated_by_their_bits() {
    let mut lab = Lab::with_neighbours();
    let all = "ff02::1".parse().unwrap();
    let mut send = |kind| {
        let payload = [17, 0, kind, 4, 0, 0, 0, 0, 1, 2, 3, 4, 0, 8, 0, 0];
        let packet = raw6(ALICE6, all, 0, 1, &payload);
        lab.receive(A, &frame_to([0x33, 0x33, 0, 0, 0, 1], ALICE, 0x86dd, &packet))
    };
    assert_eq!(send(0xde), []);
    assert_eq!(only(send(0x9e)).icmp_kind(), (4, 2));
    assert_eq!((lab.host().malformed, lab.host().suppressed), (1, 0));
}
