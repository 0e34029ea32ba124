//! Tests packets whose checksum the sender left to a network card (`CHECKSUM_PARTIAL`).

use std::net::IpAddr;

use tollway_dataplane::id::PortId;
use tollway_dataplane::wire::checksum;
use tollway_xdp::counts::PassReason;
use tollway_xdp::{Mode, Options, XdpPort, XdpPrograms};

use super::frames::{Bench, ICMP, Packet, TCP, UDP, port};
use super::namespaces::{ifindex, sh};

const SCTP: u8 = 132;
const IPIP: u8 = 4;
const ESP: u8 = 50;

/// Returns the frame of a packet whose checksum, at byte `at` of the transport header, is `field`.
fn frame(packet: &Packet, at: usize, field: u16) -> Vec<u8> {
    let mut frame = packet.frame();
    let header = if packet.src.is_ipv4() { 20 + packet.options } else { 40 };
    let at = packet.l3() + header + at;
    frame[at..at + 2].copy_from_slice(&field.to_be_bytes());
    frame
}

/// Returns what the kernel writes into the field of a partial checksum: the sum of the pseudo-header (RFC 9293, 3.1; RFC
/// 8200, 8.1).
fn pseudo(packet: &Packet) -> u16 {
    let mut bytes = Vec::new();
    for address in [packet.src, packet.dst] {
        match address {
            IpAddr::V4(v4) => bytes.extend(v4.octets()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
    }
    bytes.extend((8 + packet.payload as u16).to_be_bytes());
    bytes.extend([0, packet.protocol]);
    checksum::sum(&bytes)
}

/// Returns TCP and UDP packets, each with the offset of the checksum in its transport header.
fn packets() -> Vec<(Packet, usize)> {
    let mut packets = Vec::new();
    for packet in [Packet::v4(), Packet::v6()] {
        for tags in [&[][..], &[(0x8100, 10)], &[(0x88a8, 20), (0x8100, 99)]] {
            for (protocol, at) in [(TCP, 16), (UDP, 6)] {
                let packet = Packet { protocol, ..packet.clone().tagged(tags) };
                packets.push((packet, at));
            }
        }
    }
    packets
}

/// Loads a program for an existing device.
fn bench(device: &str) -> Bench {
    let port = XdpPort { device: device.to_owned(), ifindex: ifindex(device), ..port() };
    let options = Options { flows4: 4096, flows6: 4096, ..Options::default() };
    let programs = XdpPrograms::load(&[port], &options).unwrap();
    programs.state().set_bypass(false);
    let program = programs.program(PortId(0), Mode::Native, true).unwrap();
    Bench::of(programs, program)
}

/// At a veth, the XDP program passes packets with partial checksums to the kernel. At a bridge, no sender can
/// leave a checksum partial, so the same packets take the user path.
pub fn checksums() {
    sh("ip link add x0 type veth peer name x1");
    sh("ip link add b0 type bridge");
    // These packets take the user path, but there is no socket.
    let user = PassReason::NoSocket;
    for (device, partial) in [("x0", PassReason::Checksum), ("b0", user)] {
        let mut bench = bench(device);
        for (packet, at) in packets() {
            let sum = pseudo(&packet);
            let describe = |what: &str| format!("{what} at {device}: {packet:?}");
            assert_eq!(bench.passes(&frame(&packet, at, sum)), partial, "{}", describe("partial"));
            for other in [!sum, sum.wrapping_add(1), sum.swap_bytes()] {
                assert_eq!(
                    bench.passes(&frame(&packet, at, other)),
                    user,
                    "{}",
                    describe("complete")
                );
            }
            if packet.src.is_ipv4() && packet.tags.len() < 2 {
                let options = Packet { options: 8, ..packet.clone() };
                let with_options = frame(&options, at, sum);
                let expected =
                    if partial == user { PassReason::Options } else { PassReason::Checksum };
                assert_eq!(bench.passes(&with_options), expected, "{}", describe("options"));
                // The kernel completes a checksum before it fragments the packet.
                let fragment = Packet { fragment: 0x2000, ..packet.clone() };
                assert_eq!(
                    bench.passes(&frame(&fragment, at, sum)),
                    user,
                    "{}",
                    describe("fragment")
                );
            }
        }
        let v4 = |protocol| Packet { protocol, ..Packet::v4() };
        let vxlan = Packet { ports: (40_000, 4789), ..Packet::v4() };
        let options = Packet { protocol: 60, ..Packet::v6() };
        for (what, frame, expected) in [
            ("ICMP", v4(ICMP).frame(), user),
            ("ESP", v4(ESP).frame(), user),
            ("in a tunnel", v4(IPIP).frame(), partial),
            ("in VXLAN", vxlan.frame(), partial),
            ("behind options", options.frame(), partial),
            ("SCTP without a CRC", with_crc(0), partial),
            ("SCTP", with_crc(7), user),
        ] {
            assert_eq!(bench.passes(&frame), expected, "{what} at {device}");
        }
    }
}

/// Returns an SCTP packet with this CRC.
fn with_crc(crc: u32) -> Vec<u8> {
    let mut frame = Packet { protocol: SCTP, ..Packet::v4() }.frame();
    frame[42..46].copy_from_slice(&crc.to_be_bytes());
    frame
}
