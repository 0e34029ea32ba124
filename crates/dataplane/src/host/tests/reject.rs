//! The host's answers to a rule's `reject`.

use std::sync::Arc;

use super::*;
use crate::burst::Burst;
use crate::port::Port;
use crate::stages::filter::{Filter, Op, Point, Reject, Rule, Rules};

/// A router whose only rule rejects everything that it forwards.
fn rejecting(point: Point, reject: Reject) -> Lab {
    let mut lab = Lab::with_neighbours();
    let rule = |op| Rule { ops: vec![op], next: 1, ..Rule::default() };
    let rules = Rules { rules: vec![rule(Op::Reject(reject)), rule(Op::Accept)], end: 1 };
    let mut filter = Filter::new(0, Vec::new());
    for version in [4, 6] {
        filter.set(point, version, &rules).unwrap();
    }
    lab.worker.set_filter(Some(Arc::new(filter)), &[]);
    lab
}

fn tcp4(src: Ipv4Addr, change: impl Fn(&mut TcpHeader), payload: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(4000, 22, 1000, 512);
    change(&mut header);
    let mut bytes = Vec::new();
    let mut ip = header4(src, BOB4);
    (ip.dscp, ip.ecn) = (10.try_into().unwrap(), 3.try_into().unwrap());
    PacketBuilder::ip(IpHeaders::Ipv4(ip, Default::default()))
        .tcp_header(header)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

fn tcp6(src: Ipv6Addr, dst: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ipv6(src.octets(), dst.octets(), 64)
        .tcp(4000, 22, 5, 9)
        .syn()
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

/// Corrects the TCP checksum.
fn signed(mut packet: Vec<u8>) -> Vec<u8> {
    packet[36..38].fill(0);
    let length = (packet.len() - 20) as u16;
    let pseudo = [&packet[12..20], &[0, 6], &length.to_be_bytes(), &packet[20..]].concat();
    let sum = !crate::wire::checksum::sum(&pseudo);
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn answers(lab: &mut Lab, packet: &[u8]) -> Vec<Sent> {
    lab.now += 10 * S;
    let sent = lab.receive(A, &ip_frame(ALICE, packet));
    assert_eq!(lab.worker.counters.sent, 0, "nothing gets by");
    sent
}

#[test]
fn an_unreachable_comes_from_the_router_with_the_rules_code() {
    for point in [Point::Prerouting, Point::Forward] {
        let mut lab = rejecting(point, Reject::Unreachable(13));
        let packet = udp4(header4(ALICE4, BOB4), &[7; 30]);
        let error = only(answers(&mut lab, &packet));
        assert_eq!((error.port, error.icmp_kind()), (A, (3, 13)));
        assert_eq!(error.addresses(), (own4(0).into(), ALICE4.into()));
        // `ip_forward` has decremented the TTL before hook forward.
        let mut quoted = packet;
        if point == Point::Forward {
            build::decrement_ttl(&mut quoted);
        }
        assert_eq!(error.icmp4().payload(), quoted);
        let packet = udp6(ALICE6, BOB6, 64, b"data");
        let error = only(answers(&mut lab, &packet));
        assert_eq!(
            (error.icmp_kind(), error.addresses()),
            ((1, 13), (own6(0).into(), ALICE6.into()))
        );
        assert_eq!((lab.punts(PuntReason::Reject), lab.worker.counters.originated), (2, 2));
    }
}

#[test]
fn a_reset_comes_from_the_destination_of_the_packet() {
    let mut lab = rejecting(Point::Forward, Reject::TcpReset);
    let reset = only(answers(&mut lab, &tcp4(ALICE4, |tcp| tcp.syn = true, b"abc")));
    let (ip, _) = reset.ipv4();
    assert_eq!((reset.port, reset.addresses()), (A, (BOB4.into(), ALICE4.into())));
    assert_eq!((ip.dscp.value(), ip.ecn.value(), ip.identification), (0, 0, 0));
    assert_eq!((ip.dont_fragment, ip.time_to_live), (true, 64));
    let header = tcp(&reset);
    assert_eq!((header.source_port, header.destination_port), (22, 4000));
    assert!(header.rst && header.ack && !header.syn);
    assert_eq!((header.sequence_number, header.acknowledgment_number), (0, 1004));
    let answer = |tcp: &mut TcpHeader| (tcp.ack, tcp.acknowledgment_number) = (true, 77);
    let header = tcp(&only(answers(&mut lab, &tcp4(ALICE4, answer, b"abc"))));
    assert_eq!((header.ack, header.sequence_number), (false, 77));
    assert_eq!(header.acknowledgment_number, 0);
    let reset = only(answers(&mut lab, &tcp6(ALICE6, BOB6, b"ab")));
    assert_eq!(reset.addresses(), (BOB6.into(), ALICE6.into()));
    assert_eq!(tcp(&reset).acknowledgment_number, 8);
    // An ICMP error would be limited to one at a time.
    assert_eq!(lab.host().resets_sent, 3);
}

#[test]
fn a_header_that_lies_about_its_length_is_answered_as_the_kernel_does() {
    let mut lab = rejecting(Point::Forward, Reject::TcpReset);
    for (doff, data) in [(0_u32, 23), (4, 7), (5, 3), (15, 3 + 20 - 60)] {
        let mut packet = tcp4(ALICE4, |_| {}, b"abc");
        packet[32] = (doff as u8) << 4;
        let header = tcp(&only(answers(&mut lab, &signed(packet))));
        assert_eq!(header.acknowledgment_number, 1000_u32.wrapping_add_signed(data), "{doff}");
    }
    let mut short = tcp4(ALICE4, |_| {}, b"");
    short.truncate(39);
    short[2..4].copy_from_slice(&39_u16.to_be_bytes());
    short[10..12].fill(0);
    let sum = !crate::wire::checksum::sum(&short[..20]);
    short[10..12].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(answers(&mut lab, &signed(short)), []);
}

#[test]
fn packets_without_a_sound_header_get_no_answer() {
    for reject in [Reject::Unreachable(3), Reject::TcpReset] {
        let mut lab = rejecting(Point::Forward, reject);
        let mut wrong = tcp4(ALICE4, |tcp| tcp.syn = true, b"abc");
        wrong[41] ^= 1;
        let mut later = header4(ALICE4, BOB4);
        later.fragment_offset = 9.try_into().unwrap();
        later.protocol = 6.into();
        let later6 = raw6(ALICE6, BOB6, 44, 64, &[6, 0, 0, 0x10, 0, 0, 0, 1, 1, 2, 3, 4]);
        let nothing = raw6(ALICE6, BOB6, 59, 64, &[]);
        let cut = raw6(ALICE6, BOB6, 43, 64, &[6, 4, 0, 0, 0, 0, 0, 0]);
        for packet in [wrong, udp4(later, &[0; 40]), later6, nothing, cut] {
            assert_eq!(answers(&mut lab, &packet), [], "{packet:02x?}");
        }
        assert_eq!((lab.punts(PuntReason::Reject), lab.host().suppressed), (5, 5));
    }
    let mut lab = rejecting(Point::Forward, Reject::TcpReset);
    assert_eq!(answers(&mut lab, &tcp4(ALICE4, |tcp| tcp.rst = true, b"")), []);
    assert_eq!(answers(&mut lab, &udp4(header4(ALICE4, BOB4), b"no TCP")), []);
    assert_eq!(
        answers(&mut lab, &tcp4(Ipv4Addr::new(10, 0, 0, 255), |tcp| tcp.syn = true, b"")),
        []
    );
    let mut lab = rejecting(Point::Forward, Reject::Unreachable(3));
    let error = icmp6((ALICE6, BOB6), 64, 1, [0; 4], &[0; 48]);
    assert_eq!(answers(&mut lab, &error), []);
}

#[test]
fn protocols_without_such_a_checksum_are_answered() {
    let mut lab = rejecting(Point::Forward, Reject::Unreachable(13));
    let mut unsigned = udp4(header4(ALICE4, BOB4), b"data");
    unsigned[26..28].fill(0);
    assert_eq!(answers(&mut lab, &unsigned).len(), 1);
    for (protocol, count) in [(132, 1), (47, 1), (50, 1), (99, 0)] {
        let mut header = header4(ALICE4, BOB4);
        header.protocol = protocol.into();
        header.set_payload_len(9).unwrap();
        header.header_checksum = header.calc_header_checksum();
        let packet = [&header.to_bytes()[..], b"no length"].concat();
        assert_eq!(answers(&mut lab, &packet).len(), count, "{protocol}");
    }
}

#[test]
fn errors_are_limited_as_any_others() {
    let mut lab = rejecting(Point::Forward, Reject::Unreachable(3));
    let packet = ip_frame(ALICE, &udp4(header4(ALICE4, BOB4), b"data"));
    let sent = lab.receive_all(A, &vec![packet; 40]);
    assert_eq!((sent.len(), lab.host().rate_limited), (6, 34));
}

#[test]
fn options_are_no_way_past_a_rule() {
    for point in [Point::Prerouting, Point::Forward] {
        let mut lab = rejecting(point, Reject::Unreachable(13));
        let mut header = header4(ALICE4, BOB4);
        header.options = [1; 8][..].try_into().unwrap();
        assert_eq!(only(answers(&mut lab, &udp4(header, b"data"))).icmp_kind(), (3, 13));
        let udp = &udp6(ALICE6, BOB6, 64, b"data")[40..];
        let behind = [&[17, 0, 1, 4, 0, 0, 0, 0][..], udp].concat();
        let hop_by_hop = raw6(ALICE6, BOB6, 0, 64, &behind);
        assert_eq!(only(answers(&mut lab, &hop_by_hop)).icmp_kind(), (1, 13));
        assert_eq!((lab.punts(PuntReason::Reject), lab.host().forwarded), (2, 0));
    }
}

#[test]
fn options_that_are_not_obeyed_end_the_way_before_the_rule() {
    let mut lab = rejecting(Point::Forward, Reject::Unreachable(13));
    let mut header = header4(ALICE4, BOB4);
    // A recorded route with more bytes than the header has.
    header.options = [7, 40, 4, 0][..].try_into().unwrap();
    assert_eq!(only(answers(&mut lab, &udp4(header, b"data"))).icmp_kind(), (12, 0));
    let mut lab = rejecting(Point::Prerouting, Reject::Unreachable(13));
    let udp = &udp6(ALICE6, BOB6, 64, b"data")[40..];
    let unknown = [&[17, 0, 0x9e, 4, 0, 0, 0, 0][..], udp].concat();
    let packet = raw6(ALICE6, BOB6, 0, 64, &unknown);
    assert_eq!(only(answers(&mut lab, &packet)).icmp_kind(), (4, 2));
}

#[test]
fn bytes_behind_a_packet_do_not_bypass_a_rule() {
    let mut lab = rejecting(Point::Forward, Reject::Unreachable(13));
    let mut header = header4(ALICE4, BOB4);
    header.options = [1; 4][..].try_into().unwrap();
    header.dont_fragment = true;
    // As large as the link's MTU, not counting padding.
    let mut packet = udp4(header, &[0; 1500 - 24 - 8]);
    packet.extend([0; 30]);
    assert_eq!(only(answers(&mut lab, &packet)).icmp_kind(), (3, 13));
    assert_eq!(lab.host().forwarded, 0);
}

#[test]
fn zeros_and_nothing_have_a_right_checksum() {
    let mut lab = rejecting(Point::Forward, Reject::Unreachable(13));
    for payload in [&[][..], &[0; 8]] {
        let mut header = header4(ALICE4, BOB4);
        header.protocol = 99.into();
        header.set_payload_len(payload.len()).unwrap();
        header.header_checksum = header.calc_header_checksum();
        let packet = [&header.to_bytes()[..], payload].concat();
        assert_eq!(answers(&mut lab, &packet).len(), 1, "{payload:?}");
    }
}

#[test]
fn no_error_is_sent_about_a_possible_error() {
    let mut lab = rejecting(Point::Prerouting, Reject::Unreachable(13));
    for kind in 0..=20 {
        let mut header = header4(ALICE4, BOB4);
        header.protocol = 1.into();
        let mut message = [kind, 0, 0, 0, 0, 0, 0, 0];
        let sum = !crate::wire::checksum::sum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        header.set_payload_len(message.len()).unwrap();
        header.header_checksum = header.calc_header_checksum();
        let packet = [&header.to_bytes()[..], &message].concat();
        let is_answered = answers(&mut lab, &packet).len() == 1;
        assert_eq!(is_answered, matches!(kind, 0 | 8 | 13..=18), "{kind}");
    }
    // An ICMPv6 error after a fragment and an authentication header, with its last hop.
    let mut lab = Lab::with_neighbours();
    let auth = [&[58, 4, 0, 0, 0, 0, 0, 1][..], &[0; 16]].concat();
    for (kind, count) in [(1, 0), (128, 1)] {
        let fragment = [&[51, 0, 0, 0, 0, 0, 0, 7][..], &auth, &[kind, 0, 0, 0]].concat();
        let packet = raw6(ALICE6, BOB6, 44, 1, &fragment);
        assert_eq!(answers(&mut lab, &packet).len(), count, "{kind}");
    }
}

/// A port with a kernel behind it.
struct Kernel {
    port: MemoryPort,
    punted: Vec<Descriptor>,
}

impl Port for Kernel {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        self.port.receive(umem, burst);
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        self.port.transmit(umem, frames)
    }

    fn has_kernel(&self) -> bool {
        true
    }

    fn punt(&mut self, _umem: &mut Umem, frame: Descriptor) -> bool {
        self.punted.push(frame);
        true
    }
}

#[test]
fn the_host_answers_for_a_kernel_that_does_not_know_the_rule() {
    let mut lab = rejecting(Point::Forward, Reject::Unreachable(13));
    let kernel = || Kernel { port: MemoryPort::new(64), punted: Vec::new() };
    let mut ports: Vec<_> = (0..4).map(|_| kernel()).collect();
    let expired = Ipv4Header { time_to_live: 1, ..header4(ALICE4, BOB4) };
    for header in [header4(ALICE4, BOB4), expired] {
        let frame = ip_frame(ALICE, &udp4(header, b"data"));
        let stored = lab.worker.umem.store(&frame).unwrap();
        ports[A].port.inject(stored);
    }
    lab.worker.turn(PortId(A as u16), &mut ports, 0);
    assert_eq!(ports[A].punted.len(), 1, "the one whose hops have ended");
    let sent = ports[A].port.take_sent();
    assert_eq!((sent.len(), lab.punts(PuntReason::Reject)), (1, 1));
    lab.worker.counters.check().unwrap();
}
