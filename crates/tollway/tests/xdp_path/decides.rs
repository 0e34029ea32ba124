//! Compares the XDP programs, which decide by the tables of user space, with the user path: first packets included.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use etherparse::IpNumber;
use tollway_capture::CaptureReader;
use tollway_dataplane::stages::ecmp::Hash;
use tollway_dataplane::stages::source_check::{Rpf, SourceCheck};
use tollway_net::KernelPath;
use tollway_xdp::Action;
use tollway_xdp::counts::PassReason;

use crate::bench::exit;
use crate::compared::{Compared, arriving};
use crate::testkit::dice::Dice;
use crate::testkit::mixed;
use crate::testkit::packet::{DOT1Q, Ip, Packet, ip};
use crate::testkit::wires::{LinkVariant, MTU, PORTS, Special, give_default_routes};

/// Links whose frames the XDP program takes: those with the port's address.
pub const IN: [LinkVariant; 6] = [
    LinkVariant::Plain,
    LinkVariant::Vlan,
    LinkVariant::Service,
    LinkVariant::Qinq,
    LinkVariant::Outer,
    LinkVariant::Stacked,
];

/// From every link to every link, by another author than the user path.
pub fn first() {
    let mut compared = Compared::new();
    for variant in IN {
        for (to, out) in (0..PORTS).flat_map(|to| LinkVariant::ALL.map(|out| (to, out))) {
            for dst in [out.host4(to), out.host6(to)] {
                let frame = arriving(variant, 0, dst);
                let run = compared.run(0, &frame);
                // The kernel may send a redirect.
                if out.link(to) == variant.link(0) {
                    assert_eq!(run.reason, Some(PassReason::NoSocket), "{variant:?}");
                } else {
                    assert_eq!(run.action, Action::Redirect, "{variant:?} to {out:?} of {to}");
                    assert_eq!(run.egress, Some(to.into()));
                    assert_eq!(run.output, out.forwarded(to, &frame));
                }
                compared.both([(0, &frame[..])]);
            }
        }
    }
    // User space finds the link behind priority tags, and says that of others there is none.
    let to = || LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1));
    for inner in [0, 301] {
        let two_tags = to().tagged(&[LinkVariant::Qinq.tags()[0], (DOT1Q, inner)]).build();
        assert_eq!(compared.run(0, &two_tags).reason, Some(PassReason::NoSocket));
        compared.both([(0, &two_tags[..])]);
    }
    assert_eq!(compared.programs.flows().len(), (0, 0));
}

/// The reason for which the kernel gets each kind of packet that is its own.
pub fn kernels() {
    let mut compared = Compared::new();
    let own = [ip("198.51.100.1"), ip("198.51.100.255"), ip("2001:db8:fe::1")];
    compared.set_locals(&own);
    let is_passed = |compared: &mut Compared, packet: Packet, reason: PassReason| {
        let frame = packet.build();
        assert_eq!(compared.run(0, &frame).reason, Some(reason), "{packet:?}");
        compared.both([(0, &frame[..])]);
    };
    let plain = |dst| LinkVariant::Plain.packet(0, dst);
    for is_ipv4 in [true, false] {
        let host = |special: Special| if is_ipv4 { special.host4() } else { special.host6() };
        let there = LinkVariant::Vlan;
        let far = if is_ipv4 { there.host4(1) } else { there.host6(1) };
        let cases = [
            (plain(host(Special::Unreachable)), PassReason::KernelRoute),
            (plain(host(Special::Prohibit)), PassReason::KernelRoute),
            (plain(host(Special::Nowhere)), PassReason::KernelRoute),
            (plain(host(Special::KernelExit)), PassReason::KernelExit),
            (plain(host(Special::Glean)), PassReason::NeighUnresolved),
            (plain(host(Special::Resolve)), PassReason::NeighUnresolved),
            (plain(host(Special::Local)), PassReason::Local),
            (plain(host(Special::Local)).ttl(1), PassReason::Local),
            (plain(far).ttl(1), PassReason::Ttl),
            (plain(far).ttl(0), PassReason::Ttl),
            (plain(host(Special::Glean)).ttl(1), PassReason::Ttl),
            (plain(far).size(9001), PassReason::MtuExceeded),
        ];
        for (packet, reason) in cases {
            is_passed(&mut compared, packet, reason);
        }
    }
    let far = LinkVariant::Vlan.host4(1);
    let between = |src: &str, dst: IpAddr| Packet::between(ip(src), dst).to([2, 0, 0, 0, 0, 0]);
    for src in ["198.51.100.1", "198.51.100.255", "127.0.0.1", "0.0.0.0", "224.0.0.1"] {
        is_passed(&mut compared, between(src, far), PassReason::Special);
    }
    is_passed(&mut compared, plain(ip("169.254.1.1")), PassReason::LinkLocal);
    is_passed(&mut compared, plain(ip("fe80::7")), PassReason::LinkLocal);
    let six = LinkVariant::Vlan.host6(1);
    is_passed(&mut compared, between("fe80::7", six), PassReason::LinkLocal);
    for src in ["::", "::1", "ff02::1"] {
        is_passed(&mut compared, between(src, six), PassReason::Special);
    }
    is_passed(&mut compared, plain(far).options(&[1; 4]), PassReason::Options);
    let mut wrong = plain(far).build();
    wrong[24] ^= 1;
    assert_eq!(compared.run(0, &wrong).reason, Some(PassReason::Malformed));
    compared.both([(0, &wrong[..])]);
    // An address that is no longer the router's.
    compared.set_locals(&own[1..]);
    let frame = between("198.51.100.1", far).build();
    assert_eq!(compared.run(0, &frame).action, Action::Redirect);
}

/// Flows to a next-hop group take the member of the user path, from the first packet on.
pub fn groups() {
    let mut compared = Compared::new();
    let mut dice = Dice(77);
    for (hash, seed) in [(Hash::L4, 1), (Hash::L3, 1), (Hash::L3, 0xdead_beef), (Hash::L4, 9)] {
        compared.set_multipath(hash, seed);
        let mut flows = [0; PORTS as usize];
        for number in 0..300_u16 {
            let dst = [Special::Group.host4(), Special::Group.host6()][usize::from(number % 2)];
            let src = match dst {
                IpAddr::V4(_) => IpAddr::from([192, 0, 2, dice.below(200) as u8 + 20]),
                IpAddr::V6(_) => {
                    let low = u128::from(dice.roll());
                    IpAddr::V6((0x2001_0db8 << 96 | low).into())
                }
            };
            let packet = Packet::between(src, dst).to([2, 0, 0, 0, 0, 0]).ports(number, 53);
            let mut frame = packet.build();
            if dst.is_ipv6() {
                // The flow label of every third packet stays 0.
                frame[16..18].copy_from_slice(&(number % 3 * 0x111).to_be_bytes());
            }
            let run = compared.run(0, &frame);
            assert_eq!(run.action, Action::Redirect, "{hash:?}: {packet:?}");
            flows[usize::from(run.egress.unwrap())] += 1;
            compared.both([(0, &frame[..])]);
            if dst.is_ipv4() {
                let piece = packet.fragment(0, true).build();
                assert_eq!(compared.run(0, &piece).action, Action::Redirect, "{hash:?}");
                compared.both([(0, &piece[..])]);
            }
        }
        assert!(flows[1] > 0 && flows[2] > flows[1], "{flows:?}");
    }
    // An ICMP error would have the hash of the packet that it is about.
    let mut frame = LinkVariant::Plain.packet(0, Special::Group.host6()).build();
    frame[20] = 58;
    assert_eq!(compared.run(0, &frame).reason, Some(PassReason::NoSocket));
    compared.both([(0, &frame[..])]);
}

/// Packets that end before their ports, in frames whose padding looks like ports.
pub fn short() {
    let mut compared = Compared::new();
    let mut dice = Dice(4);
    compared.set_multipath(Hash::L4, 1);
    let groups = [Special::Group.host4(), Special::Group.host6()];
    let sources = [ip("192.0.2.77"), ip("2001:db8::77")];
    let mut redirected = 0;
    for number in 0..800 {
        let is_ipv6 = number % 2;
        let packet = Packet::between(sources[is_ipv6], groups[is_ipv6]);
        let mut packet = packet.to([2, 0, 0, 0, 0, 0]).ports(dice.roll() as u16, 53);
        let protocol = dice.pick(&[IpNumber::TCP, IpNumber::UDP]);
        match &mut packet.ip {
            Ip::V4(header) => header.protocol = protocol,
            Ip::V6 { header, .. } => header.next_header = protocol,
        }
        packet.body.truncate(dice.below(6));
        let mut frame = packet.build();
        frame.extend(dice.wide().to_be_bytes());
        frame.extend(dice.wide().to_be_bytes());
        frame.truncate(60.max(frame.len() - 32));
        redirected += u32::from(compared.run(0, &frame).action == Action::Redirect);
        compared.both([(0, &frame[..])]);
    }
    assert!(redirected > 100, "{redirected}");
}

pub fn mixture() {
    let mut compared = Compared::new();
    let mut dice = Dice(815);
    let frames: Vec<_> = (0..30_000)
        .map(|_| {
            let port = dice.below(PORTS.into()) as u8;
            (port, mixed::frame(port, dice.roll()))
        })
        .collect();
    compared.both(frames.iter().map(|(port, frame)| (*port, &frame[..])));
    println!("{:?}", compared.tally);
    assert!(compared.tally.forwarded > 2500 && compared.tally.by_tc > 500, "{:?}", compared.tally);
    for reason in ["local", "ttl", "mtu_exceeded", "kernel_route", "neigh_unresolved", "special"] {
        assert!(compared.tally.passed.contains_key(reason), "{reason}: {:?}", compared.tally);
    }
}

/// Fragments, and IPv6 with extension headers, on a link whose fragments are the kernel's, and on others.
pub fn fragments() {
    let mut compared = Compared::new();
    let kernel_path = KernelPath { fragments4: true, fragments6: true, ..KernelPath::default() };
    let mut port = compared.ports[0].clone();
    for link in &mut port.links {
        if link.link == LinkVariant::Vlan.link(0) {
            link.kernel_path = kernel_path;
        }
    }
    compared.programs.set_port(port.clone()).unwrap();
    compared.reload(0);
    compared.ports[0] = port;
    for variant in [LinkVariant::Plain, LinkVariant::Vlan] {
        for dst in [LinkVariant::Plain.host4(1), LinkVariant::Plain.host6(1)] {
            for (offset, more) in [(0, true), (20, true), (40, false)] {
                let frame = variant.packet(0, dst).fragment(offset, more).build();
                let run = compared.run(0, &frame);
                let offload = (variant == LinkVariant::Vlan).then_some(PassReason::Offload);
                assert_eq!(run.reason, offload, "{variant:?} {dst} {offset}");
                compared.both([(0, &frame[..])]);
            }
        }
    }
    let whole = arriving(LinkVariant::Vlan, 0, LinkVariant::Plain.host4(1));
    assert_eq!(compared.run(0, &whole).action, Action::Redirect);
}

/// A device takes no frame that is longer than its MTU allows, and none after it has refused some.
pub fn exits() {
    let compared = Compared::new();
    let frame = arriving(LinkVariant::Plain, 0, LinkVariant::Vlan.host4(1));
    let port = compared.ports[1].clone();
    // The longest frame of the link has an Ethernet header and a tag; that of the device, too.
    for (mtu, action) in [(MTU[1], Action::Redirect), (MTU[1] - 1, Action::Pass)] {
        compared.exits.set_exit(port.port, exit(&port, mtu));
        assert_eq!(compared.run(0, &frame).action, action, "{mtu}");
        assert_eq!(compared.passed(0, PassReason::NoSocket), u64::from(action == Action::Pass));
    }
    compared.exits.set_exit(port.port, None);
    assert_eq!(compared.run(0, &frame).reason, Some(PassReason::NoSocket));
    compared.exits.set_exit(port.port, exit(&port, u16::MAX));
    assert_eq!(compared.run(0, &frame).action, Action::Redirect);
    compared.programs.state().set_bypass(true);
    assert_eq!(compared.run(0, &frame).reason, Some(PassReason::Bypass));
}

/// Sources that the links check, strictly or loosely, and routes back that only user space understands.
pub fn sources() {
    let mut compared = Compared::new();
    let own = [ip("10.1.0.77"), ip("192.0.2.77")];
    compared.set_locals(&own);
    let rpfs = [Rpf::Off, Rpf::Loose, Rpf::Strict, Rpf::Kind, Rpf::Unnumbered];
    let mut dice = Dice(31);
    let sources: Vec<IpAddr> = (0..PORTS)
        .flat_map(|port| LinkVariant::ALL.map(|variant| variant.host4(port)))
        .chain(Special::ALL.map(Special::host4))
        .chain(own)
        .chain(["9.9.9.9", "172.16.5.5", "127.0.0.1", "10.255.1.1"].map(ip))
        .collect();
    for rpf in rpfs {
        for (own, has_vrfs) in [(false, false), (true, false), (true, true)] {
            for port in 0..PORTS {
                for variant in LinkVariant::ALL {
                    let (link, vrf) = (variant.link(port).0, u32::from(variant.vrf().0));
                    let check = SourceCheck { own, rpf, martians_to_kernel: false };
                    compared.set_source(link, check);
                    compared.set_vrf_device(link, (has_vrfs && vrf > 0).then_some(100 + vrf));
                }
            }
            let before = [compared.tally.redirected, compared.tally.dropped];
            let frames: Vec<_> = (0..3000)
                .map(|_| {
                    let (variant, out) = (dice.pick(&IN), dice.pick(&LinkVariant::ALL));
                    let to = out.host4(dice.below(PORTS.into()) as u8);
                    let packet =
                        Packet::between(dice.pick(&sources), to).ttl(dice.pick(&[1, 2, 64]));
                    packet.to(variant.mac(0)).tagged(variant.tags()).build()
                })
                .collect();
            compared.both(frames.iter().map(|frame| (0, &frame[..])));
            let [redirected, dropped] =
                [compared.tally.redirected - before[0], compared.tally.dropped - before[1]];
            assert_eq!(redirected > 0, rpf != Rpf::Unnumbered, "{rpf:?}: {redirected}");
            let filters = matches!(rpf, Rpf::Loose | Rpf::Strict);
            assert_eq!(dropped > 0, filters, "{rpf:?}: {dropped} dropped");
        }
    }
}

/// The folder of captures: the shared one if it exists, otherwise the samples.
fn folder() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared = std::env::var_os("TOLLWAY_SHARED_DATA").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| root.join("../shared/data")).join("captures");
    if shared.is_dir() { shared } else { root.join("tests/samples") }
}

/// A frame of a capture, as it would arrive on a link: for the port, with the link's tags.
fn arrives(frame: &[u8], port: u8, variant: LinkVariant) -> Vec<u8> {
    let tags = variant
        .tags()
        .iter()
        .flat_map(|(protocol, control)| [protocol.to_be_bytes(), control.to_be_bytes()].concat());
    let tags: Vec<u8> = tags.collect();
    [&variant.mac(port)[..], &frame[6..12], &tags, &frame[12..]].concat()
}

pub fn captures() {
    let folder = folder();
    let mut compared = Compared::new();
    give_default_routes(&mut compared.tables, LinkVariant::Plain.vrf());
    let paths = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    // The variants of the frames depend on the order.
    let paths: BTreeSet<PathBuf> = paths.collect();
    let (mut files, mut count) = (0, 0_usize);
    for path in paths {
        let Ok(mut reader) = CaptureReader::open(&path) else { continue };
        files += 1;
        let mut frames = Vec::new();
        while let Ok(Some(captured)) = reader.next_frame() {
            let frame = captured.bytes;
            if frame.len() < 14 {
                continue;
            }
            let variant = IN[count % IN.len()];
            frames.push((0, frame.clone()));
            frames.push((1, arrives(&frame, 1, variant)));
            frames.push((0, arrives(&frame, 0, LinkVariant::Plain)));
            count += 1;
        }
        compared.both(frames.iter().map(|(port, frame)| (*port, &frame[..])));
    }
    println!("{count} frames of {files} captures of {}: {:?}", folder.display(), compared.tally);
    let all = 3 * count as u64;
    assert!(files >= 10 && all > 1000, "{files} files");
    assert!(compared.tally.forwarded > all / 10, "{:?}", compared.tally);
    assert!(compared.tally.by_tc > all / 20, "{:?}", compared.tally);
}
