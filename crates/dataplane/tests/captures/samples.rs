//! The captures that the project ships, and the code that generates them.

use std::fs;
use std::time::Duration;

use etherparse::IpNumber;
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

use crate::testkit::dice::Dice;
use crate::testkit::mixed;
use crate::testkit::packet::{DOT1AD, DOT1Q, Packet, ip, link_header};
use crate::testkit::wires::{LinkVariant, Special};

type Frames = Vec<Vec<u8>>;

fn v4() -> Packet {
    LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1))
}

fn v6() -> Packet {
    LinkVariant::Plain.packet(0, LinkVariant::Plain.host6(1))
}

fn plain() -> Frames {
    let sizes = [28, 46, 100, 576, 1280, 1281, 1500];
    let packets = sizes.iter().flat_map(|size| [v4().size(*size), v6().size(*size + 20)]);
    packets.map(|packet| packet.build()).collect()
}

fn tagged() -> Frames {
    let stacks = [
        &[(DOT1Q, 10)][..],
        &[(DOT1Q, 0xe00a)],
        &[(DOT1Q, 0)],
        &[(DOT1Q, 0), (DOT1Q, 10)],
        &[(DOT1AD, 30)],
        &[(DOT1AD, 30), (DOT1Q, 300)],
        &[(DOT1Q, 40), (DOT1Q, 400)],
        &[(DOT1Q, 40), (DOT1Q, 0), (DOT1Q, 400)],
        &[(DOT1Q, 99)],
        &[(DOT1Q, 0); 5],
    ];
    let packets = stacks.iter().flat_map(|tags| [v4().tagged(tags), v6().tagged(tags)]);
    packets.map(|packet| packet.build()).collect()
}

fn cut(packet: &Packet) -> Frames {
    let frame = packet.build();
    (0..=frame.len()).map(|len| frame[..len].to_vec()).collect()
}

fn hops() -> Frames {
    (0..4).flat_map(|ttl| [v4().ttl(ttl).build(), v6().ttl(ttl).build()]).collect()
}

fn fragments() -> Frames {
    let pieces = [(0, true), (64, true), (128, false), (8191, true), (0, false)];
    pieces
        .iter()
        .flat_map(|(offset, more)| {
            [v4(), v6()].map(|packet| packet.fragment(*offset, *more).build())
        })
        .collect()
}

fn headers() -> Frames {
    let options = (1..=10).map(|words| v4().options(&vec![1; words * 4]));
    let source_route = v4().options(&[131, 7, 4, 10, 0, 0, 1, 0]);
    let kinds = [
        IpNumber::IPV6_HEADER_HOP_BY_HOP,
        IpNumber::IPV6_ROUTE_HEADER,
        IpNumber::IPV6_DESTINATION_OPTIONS,
    ];
    let extensions =
        kinds.iter().flat_map(|kind| [8, 40].map(|bytes| v6().extension(*kind, bytes)));
    let packets = options.chain([source_route]).chain(extensions);
    packets.map(|packet| packet.build()).collect()
}

fn martians() -> Frames {
    let pairs = [
        ("0.0.0.0", "10.1.0.9"),
        ("127.0.0.1", "10.1.0.9"),
        ("224.0.0.1", "10.1.0.9"),
        ("255.255.255.255", "10.1.0.9"),
        ("10.0.0.9", "127.0.0.1"),
        ("10.0.0.9", "0.0.0.0"),
        ("10.0.0.9", "224.0.0.5"),
        ("10.0.0.9", "255.255.255.255"),
        ("::", "2001:db8:1::9"),
        ("::1", "2001:db8:1::9"),
        ("ff02::1", "2001:db8:1::9"),
        ("::ffff:10.0.0.1", "2001:db8:1::9"),
        ("fe80::7", "2001:db8:1::9"),
        ("2001:db8::7", "::1"),
        ("2001:db8::7", "::"),
        ("2001:db8::7", "ff02::1"),
    ];
    let packets =
        pairs.map(|(src, dst)| Packet::udp(src, dst).to(LinkVariant::Plain.mac(0)).build());
    packets.to_vec()
}

fn groups() -> Frames {
    let macs = [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]];
    let packets = macs.iter().flat_map(|mac| {
        let multicast = [ip("224.0.0.1"), ip("ff02::1")];
        let packet = |dst| LinkVariant::Plain.packet(0, dst).to(*mac).build();
        multicast.map(packet).into_iter().chain([v4().to(*mac).build()])
    });
    let mut frames: Frames = packets.collect();
    for ethertype in [0x0806, 0x0026, 0x88cc, 0x8863, 0x9000] {
        let mut frame = link_header([0xff; 6], [2; 6], &[], ethertype);
        frame.resize(60, 1);
        frames.push(frame);
    }
    frames
}

fn specials() -> Frames {
    let hosts = Special::ALL.iter().flat_map(|special| [special.host4(), special.host6()]);
    hosts.map(|host| LinkVariant::Plain.packet(0, host).build()).collect()
}

fn without_link() -> Frames {
    [v4(), v6(), v6().fragment(0, true)].iter().map(|packet| packet.build().split_off(14)).collect()
}

fn noise() -> Frames {
    let dice = &mut Dice(42);
    (0..64).map(|_| (0..dice.below(200)).map(|_| dice.roll() as u8).collect()).collect()
}

fn mixture() -> Frames {
    (0..200).map(|seed| mixed::frame(0, seed)).collect()
}

fn samples() -> Vec<(&'static str, DataLink, Frames)> {
    let ethernet = DataLink::ETHERNET;
    vec![
        ("plain", ethernet, plain()),
        ("tagged", ethernet, tagged()),
        ("cut-ipv4", ethernet, cut(&v4().tagged(LinkVariant::Vlan.tags()))),
        ("cut-ipv6", ethernet, cut(&v6().tagged(LinkVariant::Qinq.tags()))),
        ("hops", ethernet, hops()),
        ("fragments", ethernet, fragments()),
        ("headers", ethernet, headers()),
        ("martians", ethernet, martians()),
        ("groups", ethernet, groups()),
        ("specials", ethernet, specials()),
        ("no-link-header", DataLink::RAW, without_link()),
        ("noise", ethernet, noise()),
        ("mixture", ethernet, mixture()),
    ]
}

fn capture(datalink: DataLink, frames: &[Vec<u8>]) -> Vec<u8> {
    let header = PcapHeader { datalink, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).expect("memory");
    for (n, frame) in frames.iter().enumerate() {
        let time = Duration::from_millis(n as u64);
        let packet = PcapPacket::new(time, frame.len() as u32, frame);
        writer.write_packet(&packet).expect("memory");
    }
    writer.into_writer()
}

/// Compares the sample files with [`samples`]. If `TOLLWAY_WRITE_SAMPLES` is set, writes them
/// first.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn the_samples_are_up_to_date() {
    let folder = super::root().join("tests/samples");
    for (name, datalink, frames) in samples() {
        let (path, bytes) = (folder.join(name).with_extension("pcap"), capture(datalink, &frames));
        if std::env::var_os("TOLLWAY_WRITE_SAMPLES").is_some() {
            fs::write(&path, &bytes).expect("to be written");
        }
        assert!(
            fs::read(&path).is_ok_and(|was| was == bytes),
            "{} is not up to date",
            path.display()
        );
        assert_eq!(super::read(&path), frames);
    }
}
