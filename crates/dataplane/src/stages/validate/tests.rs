use etherparse::IpNumber;

use crate::id::LinkId;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::path_bench::{Outcome, PathBench};
use crate::testkit::wires::{LinkVariant, Special};
use crate::verdict::{DropReason, PuntReason};
use crate::wire::checksum;

/// Bytes before layer 3 of the frames here.
const L3: usize = 14;

fn v4() -> Packet {
    LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1))
}

fn v6() -> Packet {
    LinkVariant::Plain.packet(0, LinkVariant::Plain.host6(1))
}

fn outcome(frame: &[u8]) -> Outcome {
    PathBench::new().send(0, frame)
}

/// Changes an IPv4 header's bytes and corrects its checksum, over the length that the header states.
fn changed(packet: &Packet, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = packet.build();
    change(&mut frame[L3..]);
    let end = frame.len().min(L3 + usize::from(frame[L3] & 15).max(5) * 4);
    frame[L3 + 10..L3 + 12].fill(0);
    let sum = !checksum::sum(&frame[L3..end]);
    frame[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn from4(src: &str) -> Outcome {
    outcome(&Packet::udp(src, "10.1.0.9").to(LinkVariant::Plain.mac(0)).build())
}

fn from6(src: &str) -> Outcome {
    outcome(&Packet::udp(src, "2001:db8:1::9").to(LinkVariant::Plain.mac(0)).build())
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn first_byte_of_ipv4_holds_version_4_and_at_least_five_words() {
    for byte in 0..=u8::MAX {
        let frame = changed(&v4().size(100), |header| header[0] = byte);
        match (byte, outcome(&frame)) {
            (0x45, Outcome::Sent(1, bytes)) => {
                assert_eq!(bytes, LinkVariant::Plain.forwarded(1, &frame))
            }
            (0x46..=0x4f, outcome) => assert_eq!(outcome.punted(), Some(PuntReason::IpOptions)),
            (_, outcome) => assert_eq!(outcome, Outcome::Drop(DropReason::IpInhdr), "{byte:#x}"),
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn every_wrong_bit_of_an_ipv4_header_is_found() {
    let good = v4().build();
    for bit in 0..20 * 8 {
        let mut frame = good.clone();
        frame[L3 + bit / 8] ^= 1 << (bit % 8);
        match outcome(&frame) {
            Outcome::Drop(DropReason::IpCsum | DropReason::IpInhdr | DropReason::PktTooSmall) => {}
            other => panic!("bit {bit}: {other:?}"),
        }
    }
}

#[test]
fn wrong_checksum_with_options_is_dropped() {
    let options = v4().options(&[1; 8]);
    let mut frame = options.build();
    assert_eq!(outcome(&frame).punted(), Some(PuntReason::IpOptions));
    frame[L3 + 21] ^= 1;
    assert_eq!(outcome(&frame), Outcome::Drop(DropReason::IpCsum));
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn every_length_of_options_is_punted() {
    for words in 1..=10 {
        let options = vec![1; words * 4];
        let packet = v4().options(&options);
        let frame = packet.build();
        let punt = Outcome::Punt(PuntReason::IpOptions, LinkId(0), L3 as u8);
        assert_eq!(outcome(&frame), punt);
        let mut path_bench = PathBench::new().with_stale(&frame);
        for len in L3..frame.len() {
            assert_eq!(path_bench.send(0, &frame[..len]), Outcome::Drop(DropReason::PktTooSmall));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn total_length_lies_between_header_and_frame() {
    let packet = v4().size(60);
    for total in 0..=80_u16 {
        let frame = changed(&packet, |header| header[2..4].copy_from_slice(&total.to_be_bytes()));
        let expected = match total {
            0..20 => Outcome::Drop(DropReason::IpInhdr),
            20..=60 => Outcome::Sent(1, LinkVariant::Plain.forwarded(1, &frame)),
            _ => Outcome::Drop(DropReason::PktTooSmall),
        };
        assert_eq!(outcome(&frame), expected, "total length {total}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn payload_length_of_ipv6_fits_the_frame() {
    let packet = v6().size(100);
    for payload in 0..=80_u16 {
        let mut frame = packet.build();
        frame[L3 + 4..L3 + 6].copy_from_slice(&payload.to_be_bytes());
        let expected = if payload <= 60 {
            Outcome::Sent(1, LinkVariant::Plain.forwarded(1, &frame))
        } else {
            Outcome::Drop(DropReason::PktTooSmall)
        };
        assert_eq!(outcome(&frame), expected, "payload length {payload}");
    }
    let mut frame = packet.build();
    frame[L3 + 4..L3 + 6].fill(0xff);
    assert_eq!(outcome(&frame), Outcome::Drop(DropReason::PktTooSmall));
}

#[test]
fn version_of_ipv6_is_6() {
    for version in 0..16 {
        let mut frame = v6().build();
        frame[L3] = version << 4 | 3;
        match (version, outcome(&frame)) {
            (6, Outcome::Sent(1, bytes)) => {
                assert_eq!(bytes, LinkVariant::Plain.forwarded(1, &frame))
            }
            (_, outcome) => assert_eq!(outcome, Outcome::Drop(DropReason::IpInhdr), "{version}"),
        }
    }
}

#[test]
fn a_family_in_the_others_ethertype_is_no_header() {
    let mut frame = v6().build();
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    assert_eq!(outcome(&frame), Outcome::Drop(DropReason::IpInhdr));
    let mut frame = v4().size(60).build();
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert_eq!(outcome(&frame), Outcome::Drop(DropReason::IpInhdr));
}

#[test]
fn martian_ipv4_sources_are_dropped() {
    let martians = [
        "0.0.0.0",
        "127.0.0.1",
        "127.255.255.255",
        "224.0.0.1",
        "239.255.255.255",
        "255.255.255.255",
    ];
    for src in martians {
        assert_eq!(from4(src), Outcome::Drop(DropReason::IpInvalidSource), "{src}");
    }
    let senders = [
        "1.0.0.1",
        "10.0.0.1",
        "126.255.255.255",
        "128.0.0.0",
        "169.254.0.1",
        "192.168.0.1",
        "223.255.255.255",
        "240.0.0.1",
        "255.0.0.1",
        "255.255.255.254",
    ];
    for src in senders {
        assert!(matches!(from4(src), Outcome::Sent(1, _)), "{src}");
    }
}

#[test]
fn martian_ipv6_sources_are_dropped() {
    let martians = ["::1", "ff00::1", "ff02::1", "ff0e::1"];
    for src in martians {
        assert_eq!(from6(src), Outcome::Drop(DropReason::IpInvalidSource), "{src}");
    }
    // The kernel forwards packets from IPv4-mapped sources since Linux 5.12, and refuses them as a
    // host.
    let senders =
        ["::2", "::ffff:10.0.0.1", "1::1", "64:ff9b::1", "2001:db8::1", "fc00::1", "fec0::1"];
    for src in senders {
        assert!(matches!(from6(src), Outcome::Sent(1, _)), "{src}");
    }
}

#[test]
fn sources_bound_to_their_link_do_not_leave_it() {
    for src in ["fe80::1", "febf:ffff::1", "::"] {
        let packet = |dst: &str| Packet::udp(src, dst).to(LinkVariant::Plain.mac(0));
        let punted = |dst: &str| outcome(&packet(dst).build()).punted();
        assert_eq!(punted("2001:db8:1::9"), Some(PuntReason::LinkLocalSource), "{src}");
        let last_hop = outcome(&packet("2001:db8:1::9").ttl(1).build());
        assert_eq!(last_hop.punted(), Some(PuntReason::TtlExpired), "{src}");
        for dst in ["fe80::2", "ff02::1", "2001:db8:ff:5::9"] {
            assert_eq!(outcome(&packet(dst).build()), Outcome::Local(LinkId(0), L3 as u8));
        }
        assert_eq!(punted("2001:db8:ff:1::9"), Some(PuntReason::Unreachable), "{src}");
        assert_eq!(
            outcome(&packet("2001:db8:ff:0::9").build()),
            Outcome::Drop(DropReason::Blackhole)
        );
    }
}

#[test]
fn destinations_that_cannot_be_forwarded_to() {
    let to = |dst: &str| outcome(&LinkVariant::Plain.packet(0, ip(dst)).build());
    for dst in ["127.0.0.1", "127.255.255.255", "0.0.0.0", "::", "::1"] {
        assert_eq!(to(dst), Outcome::Drop(DropReason::IpInvalidDest), "{dst}");
    }
    let own = [
        "224.0.0.1",
        "239.255.255.255",
        "255.255.255.255",
        "fe80::1",
        "febf::1",
        "ff02::1",
        "ff0e::1",
    ];
    for dst in own {
        assert_eq!(to(dst), Outcome::Local(LinkId(0), L3 as u8), "{dst}");
    }
    for dst in [Special::Nowhere.host4(), Special::Nowhere.host6()] {
        let frame = LinkVariant::Plain.packet(0, dst).build();
        assert_eq!(outcome(&frame).punted(), Some(PuntReason::NoRoute));
    }
}

#[test]
fn hop_by_hop_is_punted_unless_it_is_multicast() {
    for bytes in [8, 16, 64] {
        let packet = v6().extension(IpNumber::IPV6_HEADER_HOP_BY_HOP, bytes);
        assert_eq!(outcome(&packet.build()).punted(), Some(PuntReason::HopByHop));
    }
    let packet = LinkVariant::Plain.packet(0, ip("ff02::16"));
    let report = packet.extension(IpNumber::IPV6_HEADER_HOP_BY_HOP, 8).build();
    assert_eq!(outcome(&report), Outcome::Local(LinkId(0), L3 as u8));
}

#[test]
fn other_extension_headers_take_the_fast_path() {
    let chains = [
        vec![IpNumber::IPV6_DESTINATION_OPTIONS],
        vec![IpNumber::IPV6_ROUTE_HEADER],
        vec![IpNumber::IPV6_DESTINATION_OPTIONS, IpNumber::IPV6_ROUTE_HEADER],
    ];
    for chain in chains {
        let packet = chain.iter().fold(v6(), |packet, kind| packet.extension(*kind, 16));
        let frame = packet.fragment(0, true).build();
        assert_eq!(outcome(&frame), Outcome::Sent(1, LinkVariant::Plain.forwarded(1, &frame)));
    }
}
