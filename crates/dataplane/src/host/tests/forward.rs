//! Fragments, IPv4 options and hop-by-hop headers in transit.

use super::*;

fn with_options(dst: Ipv4Addr, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut header = header4(ALICE4, dst);
    let mut padded = options.to_vec();
    padded.resize(options.len().next_multiple_of(4), 0);
    header.options = padded[..].try_into().unwrap();
    udp4(header, payload)
}

fn hop_by_hop(dst: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    let udp = udp6(ALICE6, dst, 64, b"hello")[40..].to_vec();
    let mut header = vec![17, 0];
    header.extend_from_slice(options);
    assert_eq!(header.len() % 8, 0);
    header[1] = (header.len() / 8 - 1) as u8;
    raw6(ALICE6, dst, 0, 64, &[header, udp].concat())
}

#[test]
fn a_large_packet_is_fragmented() {
    let mut lab = Lab::with_neighbours();
    let payload: Vec<u8> = (0..1400_u16).map(|n| n as u8).collect();
    let packet = udp4(header4(ALICE4, CAROL4), &payload);
    let sent = lab.receive(A, &ip_frame(ALICE, &packet));
    let mut whole = Vec::new();
    for (n, fragment) in sent.iter().enumerate() {
        let (header, data) = fragment.ipv4();
        assert_eq!((fragment.port, fragment.dst_mac()), (NARROW, CAROL.mac));
        assert!(fragment.packet().len() <= 600);
        assert_eq!((header.time_to_live, header.identification), (63, 4711));
        assert_eq!(usize::from(header.fragment_offset.value()) * 8, whole.len());
        assert_eq!(header.more_fragments, n + 1 < sent.len());
        whole.extend_from_slice(data);
    }
    assert_eq!((sent.len(), &whole[..]), (3, &packet[20..]));
    assert_eq!((lab.punts(PuntReason::MtuExceeded), lab.worker.counters.originated), (1, 3));
    assert_eq!((lab.host().fragmented, lab.host().fragments_made), (1, 3));
    assert_eq!(lab.worker.counters.sent, 0);
}

#[test]
fn the_router_fills_in_record_route() {
    let mut lab = Lab::with_neighbours();
    let packet = with_options(DAVE4, &[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0], b"hello");
    let sent = only(lab.receive(A, &ip_frame(ALICE, &packet)));
    let (header, payload) = sent.ipv4();
    assert_eq!((sent.dst_mac(), sent.vids(), header.time_to_live), (DAVE.mac, vec![VID], 63));
    assert_eq!(header.options.as_slice(), [7, 11, 8, 10, 0, 4, 254, 0, 0, 0, 0, 0]);
    assert_eq!(udp_payload(payload), b"hello");
    assert_eq!((lab.punts(PuntReason::IpOptions), lab.host().forwarded), (1, 1));
}

#[test]
fn options_pass_in_fragments_to_unknown_neighbours_and_to_the_router_itself() {
    let mut lab = Lab::with_neighbours();
    let packet = with_options(CAROL4, &[148, 4, 0, 0], &[9; 800]);
    let sent = lab.receive(A, &ip_frame(ALICE, &packet));
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|one| one.ipv4().0.options.as_slice() == [148, 4, 0, 0]));
    // To an unknown neighbour.
    let nobody = Ipv4Addr::new(10, 0, 1, 50);
    let packet = with_options(nobody, &[1, 1, 1, 0], b"hello");
    lab.receive(A, &ip_frame(ALICE, &packet));
    assert_eq!((lab.worker.counters.held, lab.worker.lock().host.originated_waiting()), (0, 1));
    let sent = lab.pass(3 * S + S / 5);
    assert_eq!(sent.last().unwrap().icmp_kind(), (3, 1));
    // To the router.
    let mut header = header4(ALICE4, own4(0));
    header.options = [148, 4, 0, 0].into();
    let mut echo = Vec::new();
    PacketBuilder::ip(IpHeaders::Ipv4(header, Default::default()))
        .icmpv4_echo_request(1, 2)
        .write(&mut echo, b"x")
        .unwrap();
    assert_eq!(only(lab.receive(A, &ip_frame(ALICE, &echo))).icmp_kind(), (0, 0));
    assert_eq!(lab.punts(PuntReason::IpOptions), 3);
}

#[test]
fn wrong_options_cause_parameter_problems_and_source_routes_are_dropped() {
    let mut lab = Lab::with_neighbours();
    let error = only(lab.receive(A, &ip_frame(ALICE, &with_options(BOB4, &[1, 7, 9, 4], b"x"))));
    assert_eq!((error.icmp_kind(), error.icmp4().bytes5to8()), ((12, 0), [21, 0, 0, 0]));
    let to_group = with_options("224.0.0.1".parse().unwrap(), &[1, 7, 9, 4], b"x");
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &to_group)), []);
    for kind in [131, 137] {
        let routed = with_options(BOB4, &[kind, 7, 4, 10, 0, 1, 9], b"x");
        assert_eq!(lab.receive(A, &ip_frame(ALICE, &routed)), []);
    }
    assert_eq!((lab.drops(DropReason::IpOptions), lab.host().source_routed), (4, 2));
}

#[test]
fn packets_with_options_obey_all_other_rules() {
    let mut lab = Lab::with_neighbours();
    let mut send = |dst: &str, ttl, size| {
        let mut header = header4(ALICE4, dst.parse().unwrap());
        (header.time_to_live, header.dont_fragment) = (ttl, true);
        header.options = [148, 4, 0, 0].into();
        lab.now += 10 * S;
        only(lab.receive(A, &ip_frame(ALICE, &udp4(header, &vec![1; size])))).icmp_kind()
    };
    assert_eq!(send("10.0.1.1", 1, 10), (11, 0));
    assert_eq!(send("10.0.2.1", 64, 900), (3, 4));
    assert_eq!(send("172.16.0.1", 64, 10), (3, 0));
    assert_eq!(send("203.0.113.1", 64, 10), (3, 13));
    assert_eq!(send("10.0.1.254", 64, 10), (3, 3));
    let loopback = with_options("127.0.0.1".parse().unwrap(), &[148, 4, 0, 0], b"x");
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &loopback)), []);
    assert_eq!(lab.drops(DropReason::IpInvalidDest), 1);
}

#[test]
fn the_options_of_a_hop_by_hop_header_decide_whether_it_passes() {
    let mut lab = Lab::with_neighbours();
    for options in
        [&[1, 4, 0, 0, 0, 0][..], &[0, 0, 0, 0, 0, 0], &[5, 2, 0, 0, 1, 0], &[0x1e, 4, 1, 2, 3, 4]]
    {
        let packet = hop_by_hop(DAVE6, options);
        let sent = only(lab.receive(A, &ip_frame(ALICE, &packet)));
        assert_eq!((sent.dst_mac(), sent.vids()), (DAVE.mac, vec![VID]));
        assert_eq!((sent.ipv6().0.hop_limit, sent.ipv6().1), (63, &packet[40..]));
    }
    assert_eq!((lab.punts(PuntReason::HopByHop), lab.host().forwarded), (4, 4));
    for options in [
        // Discarded because of their upper bits, or as a jumbogram, or as malformed.
        &[0x5e, 4, 1, 2, 3, 4][..],
        &[0xc2, 4, 0, 1, 0, 0],
        &[5, 1, 0, 0, 0, 0],
        &[1, 4, 0, 0, 1, 0],
        &[0x1e, 5, 1, 2, 3, 4],
        &[0, 0, 0, 0, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0],
        // More options than Linux accepts.
        &[[0x1e, 0].repeat(9), vec![1, 2, 0, 0]].concat(),
    ] {
        assert_eq!(lab.receive(A, &ip_frame(ALICE, &hop_by_hop(DAVE6, options))), []);
    }
    assert_eq!(lab.drops(DropReason::UnhandledProto), 1);
    assert_eq!(lab.drops(DropReason::IpInhdr), 6);
    let most = [[0x1e, 0].repeat(8), vec![1, 4, 0, 0, 0, 0]].concat();
    assert_eq!(lab.receive(A, &ip_frame(ALICE, &hop_by_hop(DAVE6, &most))).len(), 1);
    for kind in [0x9e, 0xde] {
        let packet = hop_by_hop(DAVE6, &[0, kind, 3, 1, 2, 3]);
        let error = only(lab.receive(A, &ip_frame(ALICE, &packet)));
        assert_eq!((error.icmp_kind(), error.icmp6().bytes5to8()), ((4, 2), [0, 0, 0, 43]));
    }
    // Too large, with its last hop, and to the router itself.
    let padding = [1, 4, 0, 0, 0, 0];
    let mut dying = hop_by_hop(BOB6, &padding);
    dying[7] = 1;
    assert_eq!(only(lab.receive(A, &ip_frame(ALICE, &dying))).icmp_kind(), (3, 0));
    let own = hop_by_hop(own6(0), &padding);
    assert_eq!(only(lab.receive(A, &ip_frame(ALICE, &own))).icmp_kind(), (1, 4));
    let body = [&[17, 0][..], &padding, &[0; 700]].concat();
    let big = raw6(ALICE6, CAROL6, 0, 64, &body);
    assert_eq!(only(lab.receive(A, &ip_frame(ALICE, &big))).icmp_kind(), (2, 0));
}
