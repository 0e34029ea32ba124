use etherparse::{EtherType, Ethernet2Header, IpDscp, IpEcn, Ipv4Header, Ipv6Header};

use crate::dispatch::Path;
use crate::testkit::packet::{Packet, layer3};
use crate::testkit::path_bench::{Outcome, PathBench, paths};
use crate::testkit::wires::{LinkVariant, MTU, PORTS, Special, TABLES};
use crate::verdict::{DropReason, PuntReason};
use crate::wire::checksum;

/// Destinations of both families behind one link.
fn hosts(port: u8, variant: LinkVariant) -> [std::net::IpAddr; 2] {
    [variant.host4(port), variant.host6(port)]
}

fn sent(path_bench: &mut PathBench<'_>, port: u8, frame: &[u8]) -> Vec<u8> {
    match path_bench.send(port, frame) {
        Outcome::Sent(1, bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn from_every_link_to_every_link() {
    let mut path_bench = PathBench::new();
    for (from, to) in
        LinkVariant::ALL.iter().flat_map(|from| LinkVariant::ALL.map(|to| (*from, to)))
    {
        for (port_in, port_out) in [(0, 1), (2, 2), (1, 0)] {
            for dst in hosts(port_out, to) {
                let frame = from.packet(port_in, dst).build();
                let expected = Outcome::Sent(port_out.into(), to.forwarded(port_out, &frame));
                assert_eq!(path_bench.send(port_in, &frame), expected, "{from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn etherparse_reads_what_was_written() {
    let mut path_bench = PathBench::new();
    let packet = LinkVariant::Vlan.packet(0, LinkVariant::Qinq.host4(1)).v4(|header| {
        header.dscp = IpDscp::try_new(46).expect("6 bits");
        header.ecn = IpEcn::try_new(2).expect("2 bits");
        header.dont_fragment = true;
        header.identification = 0xbeef;
    });
    let frame = packet.build();
    let out = sent(&mut path_bench, 0, &frame);
    let (ethernet, _) = Ethernet2Header::from_slice(&out).expect("a header");
    assert_eq!(ethernet.destination, LinkVariant::Qinq.peer(1));
    assert_eq!(ethernet.source, LinkVariant::Qinq.mac(1));
    assert_eq!(ethernet.ether_type, EtherType::PROVIDER_BRIDGING);
    let (ether_type, inside) = layer3(&out);
    assert_eq!(ether_type, EtherType::IPV4);
    let (header, body) = Ipv4Header::from_slice(inside).expect("a header");
    let (before, body_before) = Ipv4Header::from_slice(layer3(&frame).1).expect("a header");
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    let header_checksum = header.header_checksum;
    assert_eq!(header, Ipv4Header { time_to_live: 63, header_checksum, ..before });
    assert_eq!(body, body_before);

    let frame = LinkVariant::Vlan.packet(0, LinkVariant::Qinq.host6(1)).build();
    let out = sent(&mut path_bench, 0, &frame);
    let (header, _) = Ipv6Header::from_slice(layer3(&out).1).expect("a header");
    let (before, _) = Ipv6Header::from_slice(layer3(&frame).1).expect("a header");
    assert_eq!(header, Ipv6Header { hop_limit: 63, ..before });
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn hops_run_out() {
    let mut path_bench = PathBench::new();
    for ttl in 0..=u8::MAX {
        for dst in hosts(1, LinkVariant::Vlan) {
            let frame = LinkVariant::Plain.packet(0, dst).ttl(ttl).build();
            match path_bench.send(0, &frame) {
                Outcome::Sent(1, out) if ttl > 1 => {
                    assert_eq!(out, LinkVariant::Vlan.forwarded(1, &frame));
                }
                outcome => {
                    assert!(ttl <= 1, "{ttl} hops left: {outcome:?}");
                    assert_eq!(outcome.punted(), Some(PuntReason::TtlExpired));
                }
            }
        }
    }
}

#[test]
fn hops_matter_only_to_forwarded_packets() {
    let mut path_bench = PathBench::new();
    for ttl in [0, 1, 2] {
        let mut outcome = |special: Special| {
            let [v4, v6] = [special.host4(), special.host6()]
                .map(|dst| path_bench.send(0, &LinkVariant::Plain.packet(0, dst).ttl(ttl).build()));
            assert_eq!(v4, v6);
            v4
        };
        assert!(matches!(outcome(Special::Local), Outcome::Local(..)));
        assert_eq!(outcome(Special::Blackhole), Outcome::Drop(DropReason::Blackhole));
        assert_eq!(outcome(Special::Unreachable).punted(), Some(PuntReason::Unreachable));
        assert_eq!(outcome(Special::Prohibit).punted(), Some(PuntReason::Prohibit));
        assert_eq!(outcome(Special::Nowhere).punted(), Some(PuntReason::NoRoute));
        let held = if ttl < 2 { PuntReason::TtlExpired } else { PuntReason::NeighUnresolved };
        assert_eq!(outcome(Special::Glean).punted(), Some(held));
        assert_eq!(outcome(Special::Resolve).punted(), Some(held));
    }
}

/// Every TTL with every checksum: the identification makes up the difference.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn every_checksum_stays_good() {
    let mut path_bench = PathBench::new();
    let frame = Packet::udp("10.9.8.7", "10.1.0.9").to(LinkVariant::Plain.mac(0)).build();
    let wanted: Vec<u16> = (0..=0xffff).step_by(7).chain(0..0x200).chain(0xfe00..=0xfffe).collect();
    for ttl in [2, 3, 64, 127, 128, 254, 255] {
        let mut frames = wanted.chunks(64).map(|wanted| {
            wanted.iter().map(|wanted| with_checksum(&frame, ttl, *wanted)).collect::<Vec<_>>()
        });
        for frames in &mut frames {
            for (frame, outcome) in frames.iter().zip(path_bench.burst(0, &frames)) {
                assert_eq!(outcome, Outcome::Sent(1, LinkVariant::Plain.forwarded(1, frame)));
            }
        }
    }
}

/// The frame with that TTL, and an identification such that this checksum is right.
fn with_checksum(frame: &[u8], ttl: u8, wanted: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let header = &mut frame[14..34];
    header[8] = ttl;
    header[4..6].fill(0);
    header[10..12].copy_from_slice(&wanted.to_be_bytes());
    let identification = !checksum::sum(header);
    header[4..6].copy_from_slice(&identification.to_be_bytes());
    frame
}

/// The word of TTL, protocol and checksum for every TTL and every checksum.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn every_ttl_with_every_checksum_as_a_number() {
    for checksum in 0..=u16::MAX {
        // The sum of the other words if the checksum is correct; it includes the TTL.
        let rest = u32::from(!checksum);
        let less = if rest >= 0x0100 { rest - 0x0100 } else { rest + 0xffff - 0x0100 };
        // A header with any bit set never sums to 0, only to the other zero, all ones.
        let less = if less == 0 { 0xffff } else { less as u16 };
        let [high, low] = checksum.to_be_bytes();
        let [new_high, new_low] = (!less).to_be_bytes();
        for ttl in 1..=u8::MAX {
            let word = u32::from_le_bytes([ttl, 17, high, low]);
            let after = checksum::after_ttl_decrement(word).to_le_bytes();
            assert_eq!(after, [ttl - 1, 17, new_high, new_low], "{ttl}, {checksum:#06x}");
        }
    }
}

/// All ones is the other zero. It is valid: some senders write it if the sum is zero.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn a_checksum_of_all_ones_is_zero() {
    let mut path_bench = PathBench::new();
    let frame = Packet::udp("10.9.8.7", "10.1.0.9").to(LinkVariant::Plain.mac(0)).build();
    for ttl in 2..=u8::MAX {
        let zero = with_checksum(&frame, ttl, 0);
        let mut ones = zero.clone();
        ones[24..26].fill(0xff);
        assert_eq!(sent(&mut path_bench, 0, &ones), LinkVariant::Plain.forwarded(1, &zero));
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn a_packet_of_the_mtu_passes_and_one_byte_more_does_not() {
    let mut path_bench = PathBench::new();
    for port in 0..PORTS {
        for variant in [LinkVariant::Plain, LinkVariant::Vlan, LinkVariant::Qinq] {
            for dst in hosts(port, variant) {
                let mtu = usize::from(MTU[usize::from(port)]);
                let frame = |size| LinkVariant::Plain.packet(0, dst).size(size).build();
                let fits = frame(mtu);
                let expected = Outcome::Sent(port.into(), variant.forwarded(port, &fits));
                assert_eq!(path_bench.send(0, &fits), expected);
                let padded = LinkVariant::Plain.packet(0, dst).size(mtu).padded(30).build();
                assert_eq!(path_bench.send(0, &padded), expected);
                let outcome = path_bench.send(0, &frame(mtu + 1));
                assert_eq!(outcome.punted(), Some(PuntReason::MtuExceeded), "{mtu}");
                let last = LinkVariant::Plain.packet(0, dst).size(mtu + 1).ttl(1).build();
                assert_eq!(path_bench.send(0, &last).punted(), Some(PuntReason::TtlExpired));
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn giants_exceed_the_mtu() {
    let mut path_bench = PathBench::over(&TABLES, Path::detect(), 65_536);
    for dst in hosts(1, LinkVariant::Stacked) {
        for size in [9001, 16_000, 65_000, 65_266 - 22] {
            let frame = LinkVariant::Stacked.packet(0, dst).size(size).build();
            assert_eq!(
                path_bench.send(0, &frame).punted(),
                Some(PuntReason::MtuExceeded),
                "{size}"
            );
        }
    }
}

#[test]
fn padding_is_cut_off() {
    let mut path_bench = PathBench::new();
    for dst in hosts(1, LinkVariant::Qinq) {
        for padding in [0, 1, 2, 18, 46, 200] {
            let shortest = if dst.is_ipv4() { 20 } else { 40 };
            let frame = LinkVariant::Plain.packet(0, dst).size(shortest).padded(padding).build();
            let out = sent(&mut path_bench, 0, &frame);
            assert_eq!(out, LinkVariant::Qinq.forwarded(1, &frame));
            assert_eq!(out.len(), 22 + shortest);
        }
    }
}

#[test]
fn fragments_are_forwarded_like_any_packet() {
    let mut path_bench = PathBench::new();
    for dst in hosts(1, LinkVariant::Plain) {
        for (offset, more) in [(0, true), (1, true), (185, true), (185, false), (8191, false)] {
            let frame = LinkVariant::Plain.packet(0, dst).fragment(offset, more).build();
            assert_eq!(sent(&mut path_bench, 0, &frame), LinkVariant::Plain.forwarded(1, &frame));
        }
    }
}

#[test]
fn every_instruction_set_writes_the_same() {
    for path in paths() {
        let mut path_bench = PathBench::over(&TABLES, path, 16_384);
        for dst in hosts(1, LinkVariant::Qinq) {
            let frame = LinkVariant::Stacked.packet(0, dst).padded(9).build();
            assert_eq!(sent(&mut path_bench, 0, &frame), LinkVariant::Qinq.forwarded(1, &frame));
        }
    }
}
