//! Arbitrary bytes: no panic, no lost frame, and all counters add up ([`Lab::drain`] asserts it).

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::router::Control;

/// Frames that reach every part of the host when they are not mutated.
fn seeds() -> Vec<(usize, Vec<u8>)> {
    let mut options = header4(ALICE4, CAROL4);
    options.options = [7, 7, 4, 0, 0, 0, 0, 0, 68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0].into();
    let mut dying = header4(ALICE4, BOB4);
    dying.time_to_live = 1;
    let target = [&own6(0).octets()[..], &[1, 1, 2, 0, 0, 0, 1, 1]].concat();
    let mut tcp = Vec::new();
    PacketBuilder::ipv4(ALICE4.octets(), own4(0).octets(), 9)
        .tcp(1, 2, 3, 4)
        .write(&mut tcp, b"data")
        .unwrap();
    let mut echo = Vec::new();
    PacketBuilder::ipv4(ALICE4.octets(), own4(0).octets(), 9)
        .icmpv4_echo_request(1, 2)
        .write(&mut echo, b"data")
        .unwrap();
    let hop_by_hop = [17, 0, 5, 2, 0, 0, 1, 0, 0, 1, 0, 2, 0, 8, 0, 0];
    vec![
        (A, arp::request(ALICE, ALICE4, own4(0))),
        (A, arp::reply(ALICE, ALICE4, own4(0))),
        (B, arp::reply(BOB, BOB4, own4(1))),
        (B, arp::request(DAVE, DAVE4, own4(4))),
        (B, nd::advert(DAVE, DAVE6, own_link_local(B), 0x60)),
        (A, ip_frame(ALICE, &icmp6((ALICE6, own6(0)), 255, 135, [0; 4], &target))),
        (A, ip_frame(ALICE, &icmp6((ALICE6, own6(0)), 64, 128, [0; 4], &target))),
        (A, ip_frame(ALICE, &udp4(options, &[1; 900]))),
        (A, ip_frame(ALICE, &udp4(dying, b"x"))),
        (A, ip_frame(ALICE, &udp4(header4(ALICE4, CAROL4), &[1; 900]))),
        (A, ip_frame(ALICE, &udp4(header4(ALICE4, BOB4), &[1; 9]))),
        (A, ip_frame(ALICE, &udp4(header4(ALICE4, own4(1)), &[1; 9]))),
        (A, ip_frame(ALICE, &udp4(header4(ALICE4, Ipv4Addr::new(192, 0, 2, 1)), &[1; 9]))),
        (A, ip_frame(ALICE, &udp6(ALICE6, CAROL6, 64, &[1; 900]))),
        (A, ip_frame(ALICE, &udp6(ALICE6, DAVE6, 64, &[1; 9]))),
        (A, ip_frame(ALICE, &raw6(ALICE6, DAVE6, 0, 64, &hop_by_hop))),
        (A, ip_frame(ALICE, &raw6(ALICE6, own6(0), 60, 64, &hop_by_hop))),
        (A, ip_frame(ALICE, &tcp)),
        (A, ip_frame(ALICE, &echo)),
        (B, ip_frame(DAVE, &udp4(header4(DAVE4, ALICE4), &[1; 9]))),
    ]
}

/// Corrects the IPv4 header's checksum, so that a mutated packet gets further.
fn repair(frame: &mut [u8]) {
    let at = if frame.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 };
    if let Some(packet) = frame.get_mut(at..).filter(|p| p.len() >= 20 && p[0] >> 4 == 4) {
        let len = (usize::from(packet[0] & 15) * 4).clamp(20, packet.len());
        packet[10..12].fill(0);
        let sum = !crate::wire::checksum::sum(&packet[..len]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// One step: the seed's number, bytes to overwrite, the length, and the time that passes.
type Step = (usize, Vec<(usize, u8)>, Option<u16>, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop::collection::vec((0..120_usize, any::<u8>()), 0..4);
    prop::collection::vec(
        (any::<usize>(), bytes, prop::option::weighted(0.1, 0..1000_u16), 0..2000_u64),
        1..40,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_frames_do_no_harm(steps in steps(), with_neighbours: bool) {
        let seeds = seeds();
        let mut lab = if with_neighbours { Lab::with_neighbours() } else { Lab::new() };
        for (seed, bytes, len, ms) in steps {
            let (port, mut frame) = seeds[seed % seeds.len()].clone();
            for (at, byte) in bytes {
                // Mostly after the Ethernet header, which the path checks.
                if let Some(old) = frame.get_mut(at + usize::from(at % 8 != 0) * 12) {
                    *old = byte;
                }
            }
            if let Some(len) = len {
                frame.truncate(usize::from(len));
            }
            repair(&mut frame);
            lab.receive(port, &frame);
            lab.pass(ms * 1_000_000);
        }
        lab.pass(200 * S);
        prop_assert_eq!(lab.worker.counters.held, 0);
        prop_assert_eq!(lab.worker.lock().host.originated_waiting(), 0);
    }

    #[test]
    fn random_layer_3_does_no_harm(
        packets in prop::collection::vec((0..3_usize, prop::collection::vec(any::<u8>(), 0..120)), 1..20),
    ) {
        let mut lab = Lab::with_neighbours();
        for (kind, bytes) in packets {
            let ethertype = [0x0800, 0x86dd, 0x0806][kind];
            for dst in [router_mac(A), [0xff; 6]] {
                lab.receive(A, &frame_to(dst, ALICE, ethertype, &bytes));
            }
        }
    }

    /// Calls the host directly, with reasons and offsets that the path would never give.
    #[test]
    fn the_host_accepts_any_reason_and_offset(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        version in prop::option::of(prop::sample::select(vec![0x45_u8, 0x46, 0x60])),
        l3 in 0..40_u8,
        reason in 0..=PuntReason::COUNT,
    ) {
        let mut lab = Lab::with_neighbours();
        let mut bytes = bytes;
        let at = usize::from(l3);
        if let (Some(version), true) = (version, bytes.len() > at + 40) {
            let len = bytes.len() - at;
            bytes[at] = version;
            bytes[at + 2..at + 4].copy_from_slice(&(len as u16).to_be_bytes());
            if version == 0x60 {
                bytes[at + 4..at + 6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
            } else {
                let header = usize::from(version & 15) * 4;
                bytes[at + 10..at + 12].fill(0);
                let sum = !crate::wire::checksum::sum(&bytes[at..at + header]);
                bytes[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
            }
        }
        let Lab { worker, now, .. } = &mut lab;
        let frame = worker.umem.store(&bytes).unwrap();
        worker.counters.received(PortId(0), 1, 0);
        let packet = Packet { addr: frame.addr, len: frame.len as u16, l3, link: LinkId(0), policy_route: PolicyRoute::Not };
        let mut outbox = Vec::new();
        let shared = Arc::clone(worker.router());
        let mut locked = shared.lock();
        let Control { tables, host, .. } = &mut *locked;
        let Worker { umem, counters, .. } = worker;
        let mut context =
            Context { tables, umem, counters, outbox: &mut outbox, came: None, now_ns: *now };
        match PuntReason::ALL.get(reason) {
            Some(reason) => host.punt(&mut context, packet, *reason),
            None => host.deliver(&mut context, packet),
        }
        for outgoing in outbox {
            umem.free(outgoing.frame.addr);
            counters.sent += u64::from(outgoing.released);
            counters.tx[0].packets += 1;
            counters.originated += u64::from(!outgoing.released);
        }
        drop(locked);
        lab.drain();
    }
}
