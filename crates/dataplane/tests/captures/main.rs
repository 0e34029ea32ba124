//! Sends captures of all kinds of traffic, much of it malformed, into every port of a router. The
//! router must not panic, must account for every packet, and must not leak a frame.
//!
//! The captures are in `captures/` of the folder that `TOLLWAY_SHARED_DATA` names. By default, that
//! folder is `../shared/data` beside the repository. Without such captures, the test uses the
//! samples in `tests/samples`.

mod samples;
#[path = "../../src/testkit/mod.rs"]
mod testkit;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use etherparse::{EtherType, Ipv4HeaderSlice};
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use testkit::net::Net;
use testkit::packet::{DOT1Q, Mac, Tag, layer3};
use testkit::wires::{LinkVariant, PORTS, give_default_routes};

/// The root folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of captures: the shared one if it exists, otherwise the samples.
fn folder() -> PathBuf {
    let shared = std::env::var_os("TOLLWAY_SHARED_DATA").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| root().join("../shared/data")).join("captures");
    if shared.is_dir() { shared } else { root().join("tests/samples") }
}

fn captures(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of captures");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "pcap" || end == "pcapng"))
        .collect();
    paths.sort();
    paths
}

/// The frames of a capture, as far as it can be read, whatever its link type.
fn read(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).expect("a capture");
    let mut frames = Vec::new();
    if let Ok(mut reader) = PcapReader::new(&bytes[..]) {
        while let Some(Ok(packet)) = reader.next_raw_packet() {
            frames.push(packet.data.into_owned());
        }
    } else if let Ok(mut reader) = PcapNgReader::new(&bytes[..]) {
        while let Some(Ok(block)) = reader.next_block() {
            match block {
                Block::EnhancedPacket(packet) => frames.push(packet.data.into_owned()),
                Block::SimplePacket(packet) => frames.push(packet.data.into_owned()),
                Block::Packet(packet) => frames.push(packet.data.into_owned()),
                _ => {}
            }
        }
    }
    frames
}

/// The variants of a frame that the test sends: unchanged, or with another address or more tags.
fn variants(port: u8) -> Vec<(Option<Mac>, Vec<Tag>)> {
    let to = |variant: LinkVariant, tags: &[Tag]| (Some(variant.mac(port)), tags.to_vec());
    let mut variants = vec![
        (None, vec![]),
        (None, vec![(DOT1Q, 10)]),
        to(LinkVariant::Plain, &[(DOT1Q, 0)]),
        to(LinkVariant::Vlan, &[(DOT1Q, 0), (DOT1Q, 10)]),
        to(LinkVariant::Vlan, &[(DOT1Q, 99)]),
    ];
    variants.extend(LinkVariant::ALL.map(|variant| to(variant, variant.tags())));
    variants
}

fn variant_of(frame: &[u8], mac: Option<Mac>, tags: &[Tag]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let (Some(mac), Some(dst)) = (mac, frame.first_chunk_mut()) {
        *dst = mac;
    }
    if frame.len() >= 12 {
        let tags = tags.iter().flat_map(|(protocol, control)| {
            [protocol.to_be_bytes(), control.to_be_bytes()].concat()
        });
        frame.splice(12..12, tags);
    }
    frame
}

/// Runs the router on the waiting frames, takes the frames that it sent, and checks them.
fn run(net: &mut Net, seen: &mut BTreeMap<&'static str, u64>) {
    net.run();
    net.check();
    for (port, frame) in net.take_all() {
        assert!(
            LinkVariant::ALL.iter().any(|variant| frame[6..12] == variant.mac(port)),
            "a source address that is not the router's"
        );
        let (ether_type, packet) = layer3(&frame);
        if ether_type == EtherType::IPV4 {
            let header = Ipv4HeaderSlice::from_slice(packet).expect("a valid header");
            let sum = header.to_header().calc_header_checksum();
            // The header type of etherparse does not contain the reserved bit.
            if packet[6] & 0x80 == 0 {
                assert_eq!(header.header_checksum(), sum);
            }
            assert!(header.ttl() > 0);
            assert_eq!(usize::from(header.total_len()), packet.len());
            *seen.entry("IPv4").or_default() += 1;
        } else if ether_type == EtherType::IPV6 {
            assert!(packet[7] > 0, "a packet without a hop left");
            *seen.entry("IPv6").or_default() += 1;
        }
    }
}

/// A router with default routes in every VRF, so that it forwards as many frames as possible.
fn router() -> Net {
    let net = Net::with_memory(512, 65_536);
    give_default_routes(&mut net.worker.lock().tables, LinkVariant::Plain.vrf());
    net
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn every_capture_into_every_port() {
    let folder = folder();
    let paths = captures(&folder);
    // The test harness hides the output of `println` if the test passes.
    let _ = writeln!(std::io::stderr(), "{} captures of {}", paths.len(), folder.display());
    assert!(paths.len() >= 10, "no captures in {}", folder.display());
    let (mut net, mut seen) = (router(), BTreeMap::new());
    let (mut injected, mut too_big) = (0_u64, 0_u64);
    for path in &paths {
        let frames = read(path);
        for port in 0..PORTS {
            for (mac, tags) in variants(port) {
                for (n, frame) in frames.iter().enumerate() {
                    let frame = variant_of(frame, mac, &tags);
                    if frame.len() > net.worker.umem.room() {
                        too_big += 1;
                        continue;
                    }
                    // Frames that wait for a neighbour occupy the memory until the wait ends.
                    while !net.inject(port, &frame) {
                        run(&mut net, &mut seen);
                        net.pass(1);
                    }
                    injected += 1;
                    if n % 100 == 99 {
                        run(&mut net, &mut seen);
                    }
                }
                run(&mut net, &mut seen);
            }
        }
        net.pass(1);
        run(&mut net, &mut seen);
        assert_eq!(net.counters().received_packets(), injected, "{}", path.display());
    }
    let counters = net.counters();
    println!("{injected} frames, {too_big} that fit no chunk; sent {seen:?}; {counters:?}");
    assert!(counters.sent > 0 && counters.dropped_packets() > 0 && counters.delivered > 0);
}
