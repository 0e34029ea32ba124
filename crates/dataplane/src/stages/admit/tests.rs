use crate::id::LinkId;
use crate::testkit::packet::{Packet, link_header};
use crate::testkit::path_bench::{Outcome, PathBench};
use crate::testkit::wires::{LinkVariant, PORTS};
use crate::verdict::DropReason;

const BROADCAST: [u8; 6] = [0xff; 6];
const ALL_HOSTS: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

fn good() -> Packet {
    LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1))
}

#[test]
fn only_frames_for_the_ports_address_go_on() {
    let mut path_bench = PathBench::new();
    for port in 0..PORTS {
        let own = good().to(LinkVariant::Plain.mac(port)).build();
        assert!(matches!(path_bench.send(port, &own), Outcome::Sent(1, _)));
        let other = path_bench.send((port + 1) % PORTS, &own);
        assert_eq!(other, Outcome::Drop(DropReason::OtherHost));
    }
    for byte in 0..6 {
        let mut mac = LinkVariant::Plain.mac(0);
        mac[byte] ^= 0x40;
        let outcome = path_bench.send(0, &good().to(mac).build());
        assert_eq!(outcome, Outcome::Drop(DropReason::OtherHost), "byte {byte}");
    }
}

#[test]
fn group_addresses_are_for_the_router_itself() {
    let mut path_bench = PathBench::new();
    let local = Outcome::Local(LinkId(0), 14);
    for mac in [BROADCAST, ALL_HOSTS, [0x33, 0x33, 0, 0, 0, 1]] {
        for dst in [LinkVariant::Plain.host4(1), LinkVariant::Plain.host6(1)] {
            assert_eq!(
                path_bench.send(0, &LinkVariant::Plain.packet(0, dst).to(mac).build()),
                local
            );
        }
    }
}

#[test]
fn ethertypes_that_are_not_spoken_are_dropped() {
    let mut path_bench = PathBench::new();
    for ethertype in 0..=u16::MAX {
        let mut frame = link_header(LinkVariant::Plain.mac(0), [6; 6], &[], ethertype);
        frame.resize(60, 0);
        let expected = match ethertype {
            0x0806 => Outcome::Local(LinkId(0), 14),
            0x0800 | 0x86dd => Outcome::Drop(DropReason::IpInhdr),
            0x8100 | 0x88a8 => Outcome::Drop(DropReason::UnhandledProto),
            _ => Outcome::Drop(DropReason::UnhandledProto),
        };
        assert_eq!(path_bench.send(0, &frame), expected, "{ethertype:#06x}");
        frame[..6].copy_from_slice(&[6; 6]);
        if !matches!(ethertype, 0x8100 | 0x88a8) {
            assert_eq!(path_bench.send(0, &frame), Outcome::Drop(DropReason::OtherHost));
        }
        if cfg!(miri) && ethertype > 16 {
            return;
        }
    }
}

#[test]
fn a_runt_is_too_small_whatever_lies_behind_it() {
    let whole = good().build();
    let tagged = LinkVariant::Qinq.packet(0, LinkVariant::Plain.host6(1)).build();
    let other = good().to([6; 6]).build();
    let broadcast = good().to(BROADCAST).build();
    for stale in [&whole, &tagged, &other, &broadcast] {
        let mut path_bench = PathBench::new().with_stale(stale);
        for len in 0..14 {
            let outcome = path_bench.send(0, &stale[..len]);
            assert_eq!(outcome, Outcome::Drop(DropReason::PktTooSmall), "{len} bytes");
        }
    }
}
