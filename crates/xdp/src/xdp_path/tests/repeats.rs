//! A naive model of the XDP path, built on another author's parser. If the model forwards or drops a
//! frame, the user path must do the same.

use etherparse::checksum::Sum16BitWords;
use etherparse::{EtherType, IpNumber, Ipv4Header, Ipv6Header, TcpHeaderSlice, UdpHeaderSlice};
use proptest::prelude::*;
use tollway_dataplane::verdict::DropReason;

use super::{Bench, Maps};
use crate::flows::{Flow, Flow4Key, Flow6Key};
use crate::testkit::dice::Dice;
use crate::testkit::packet::{DOT1AD, DOT1Q, Mac, Packet, Tag, layer3};
use crate::testkit::wires::{LinkVariant, Special};
use crate::testkit::{mixed, packet};

/// The link on which the XDP program receives a frame: found by the port's address, under one tag or
/// none.
fn ingress_variant(port: u8, frame: &[u8]) -> Option<LinkVariant> {
    let dst: Mac = *frame.first_chunk()?;
    let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let tag: Option<Tag> = match word(12)? {
        protocol @ (DOT1Q | DOT1AD) => {
            if matches!(word(16)?, DOT1Q | DOT1AD) {
                return None;
            }
            Some((protocol, word(14)? & 0xfff))
        }
        _ => None,
    };
    let tag = tag.filter(|tag| tag.1 != 0);
    let variant = LinkVariant::ALL.into_iter().find(|variant| variant.tags() == tag.as_slice())?;
    (variant.mac(port) == dst).then_some(variant)
}

/// The active flow of a frame, and the length of its packet; `None` if the XDP path does not take
/// it.
pub(super) fn find(maps: &Maps, port: u8, frame: &[u8]) -> Option<(Flow, usize)> {
    let link = ingress_variant(port, frame)?.link(port);
    let (ether_type, packet) = layer3(frame);
    if ether_type == EtherType::IPV4 {
        let (ip, _) = Ipv4Header::from_slice(packet).ok()?;
        let len = usize::from(ip.total_len);
        let transport = packet.get(20..len)?;
        if ip.header_len() > 20
            || ip.is_fragmenting_payload()
            || ip.time_to_live <= 1
            || Sum16BitWords::new().add_slice(&packet[..20]).ones_complement() != 0
        {
            return None;
        }
        let (sport, dport) = ports(ip.protocol, transport, IpNumber::ICMP)?;
        let (src, dst) = (ip.source.into(), ip.destination.into());
        let key = Flow4Key::new(link, ip.protocol.0, (src, sport), (dst, dport));
        let flow = *maps.v4.lock().unwrap().get(&key)?;
        return maps.is_active(&key.src_be, &key.dst_be, &flow).then_some((flow, len));
    }
    if ether_type != EtherType::IPV6 {
        return None;
    }
    let (ip, behind) = Ipv6Header::from_slice(packet).ok()?;
    let transport = behind.get(..usize::from(ip.payload_length))?;
    if ip.hop_limit <= 1 {
        return None;
    }
    let (sport, dport) = ports(ip.next_header, transport, IpNumber::IPV6_ICMP)?;
    let (src, dst) = (ip.source.into(), ip.destination.into());
    let key = Flow6Key::new(link, ip.next_header.0, (src, sport), (dst, dport));
    let flow = *maps.v6.lock().unwrap().get(&key)?;
    maps.is_active(&key.src_be, &key.dst_be, &flow).then_some((flow, 40 + transport.len()))
}

/// A packet's ports; 0 for ICMP. `None` for other protocols, and if the ports are cut off.
fn ports(protocol: IpNumber, transport: &[u8], icmp: IpNumber) -> Option<(u16, u16)> {
    match protocol {
        IpNumber::UDP if transport.len() >= 8 => {
            let udp = UdpHeaderSlice::from_slice(transport).ok()?;
            Some((udp.source_port(), udp.destination_port()))
        }
        IpNumber::TCP if transport.len() >= 20 => {
            // The parser rejects a wrong data offset: the model makes no statement about it.
            let tcp = TcpHeaderSlice::from_slice(transport).ok()?;
            Some((tcp.source_port(), tcp.destination_port()))
        }
        protocol if protocol == icmp => Some((0, 0)),
        _ => None,
    }
}

/// What the XDP path does with a frame that it takes.
#[derive(Debug, PartialEq)]
enum Repeat {
    /// It sends this frame to this port.
    Send(u8, Vec<u8>),
    Drop(DropReason),
}

/// What the XDP path does with a frame; `None` if it does not take it.
fn by_xdp_path(maps: &Maps, port: u8, frame: &[u8]) -> Option<Repeat> {
    let (flow, len) = find(maps, port, frame)?;
    if len > usize::from(flow.mtu) {
        return None;
    }
    if let Some(reason) = flow.drop_reason() {
        return Some(Repeat::Drop(reason));
    }
    let l2 = &flow.l2[..usize::from(flow.l2_len)];
    // TTL, checksum and padding are as in the test kit; the Ethernet header is the flow's.
    let path = packet::forwarded(frame, [0; 6], [0; 6], &[]);
    Some(Repeat::Send(flow.egress_port, [l2, &path[14..]].concat()))
}

/// Sends a frame on the user path, which must do what the XDP path does if that takes the frame. Says whether it does.
pub(super) fn hit(bench: &mut Bench, port: u8, frame: &[u8]) -> bool {
    let found = by_xdp_path(&bench.maps, port, frame);
    let before = bench.net.counters().drops;
    let mut sent = bench.send(port, frame);
    let Some(repeat) = found else { return false };
    let path = match sent.pop() {
        Some((port, bytes)) => Repeat::Send(port, bytes),
        None => {
            let grew = |reason: &&DropReason| {
                let index = **reason as usize;
                bench.net.counters().drops[index] == before[index] + 1
            };
            let reason = DropReason::ALL.iter().find(grew);
            Repeat::Drop(*reason.expect("the path forwards or drops what the XDP path does"))
        }
    };
    assert_eq!(sent, [], "one frame at most");
    assert_eq!(repeat, path, "{frame:02x?}");
    true
}

#[test]
fn the_third_packet_of_a_flow_goes_by_the_xdp_path() {
    let mut bench = Bench::new();
    for variant in LinkVariant::ALL {
        for (to, out) in (0..3).flat_map(|to| LinkVariant::ALL.map(|out| (to, out))) {
            for dst in [out.host4(to), out.host6(to)] {
                let frame = variant.packet(0, dst).build();
                let hits = [(); 4].map(|()| hit(&mut bench, 0, &frame));
                let enters = variant.tags().len() < 2;
                assert_eq!(hits, [false, false, enters, enters], "{variant:?} to {out:?}");
            }
        }
    }
}

#[test]
fn a_group_keeps_each_flow_on_its_member() {
    let mut bench = Bench::new();
    let mut egress = [0; 3];
    for port in 0..200_u16 {
        for dst in [Special::Group.host4(), Special::Group.host6()] {
            let frame = LinkVariant::Plain.packet(0, dst).ports(port, 53).build();
            let hits = [(); 3].map(|()| hit(&mut bench, 0, &frame));
            assert_eq!(hits, [false, false, true]);
            let (flow, _) = find(&bench.maps, 0, &frame).unwrap();
            egress[usize::from(flow.egress_port)] += 1;
        }
    }
    assert!(egress[1] > 0 && egress[2] > egress[1], "{egress:?}");
}

#[test]
fn other_vrfs_with_the_same_addresses_are_other_flows() {
    let mut bench = Bench::new();
    let dst = packet::ip(crate::testkit::wires::OVERLAP4);
    for variant in [LinkVariant::Plain, LinkVariant::Red] {
        let frame = variant.packet(0, dst).build();
        let hits = [(); 3].map(|()| hit(&mut bench, 0, &frame));
        assert_eq!(hits, [false, false, true]);
    }
    assert_eq!(bench.maps.len(), 2);
}

/// A frame of one of a few flows, so that many frames hit an entry. Some are malformed.
fn frame_of_few_flows(dice: &mut Dice) -> (u8, Vec<u8>) {
    let port = dice.below(3) as u8;
    let variant =
        dice.pick(&[LinkVariant::Plain, LinkVariant::Vlan, LinkVariant::Red, LinkVariant::Qinq]);
    let dst = dice.pick(&[
        LinkVariant::Vlan.host4(1),
        LinkVariant::Stacked.host6(2),
        Special::Group.host4(),
        Special::Group.host6(),
    ]);
    let frame: Packet = variant.packet(port, dst).ports(dice.below(2) as u16, 53);
    let is_v4 = dst.is_ipv4();
    let frame = match dice.below(12) {
        0 => frame.ttl(dice.below(4) as u8),
        1 => frame.fragment(dice.pick(&[0, 1]), dice.one_in(2)),
        2 if is_v4 => frame.options(&[1; 8]),
        2 => frame.extension(IpNumber::IPV6_DESTINATION_OPTIONS, 8),
        3 => frame.size(dice.pick(&[40, 48, 1280, 1281, 1500, 1501])),
        4 => frame.padded(dice.below(60)),
        _ => frame,
    };
    let mut bytes = frame.build();
    if dice.one_in(8) {
        let at = dice.below(bytes.len().min(64));
        bytes[at] ^= 1 << dice.below(8);
    }
    (port, bytes)
}

proptest! {
    #[test]
    fn the_xdp_path_never_differs_from_the_user_path(seed in any::<u64>()) {
        let (mut bench, mut dice) = (Bench::new(), Dice(seed));
        let mut hits = 0;
        for _ in 0..400 {
            let (port, frame) = frame_of_few_flows(&mut dice);
            hits += u32::from(hit(&mut bench, port, &frame));
        }
        prop_assert!(hits > 50, "{hits} hits");
    }

    #[test]
    fn the_xdp_path_never_differs_for_any_frame(
        seeds in proptest::collection::vec(any::<u64>(), 1..60),
    ) {
        let mut bench = Bench::new();
        for seed in seeds {
            let frame = mixed::frame(1, seed);
            for _ in 0..3 {
                // The host sends replies too; only what the XDP path takes counts here.
                if by_xdp_path(&bench.maps, 1, &frame).is_some() {
                    assert!(hit(&mut bench, 1, &frame));
                } else {
                    bench.send(1, &frame);
                }
            }
        }
    }
}
