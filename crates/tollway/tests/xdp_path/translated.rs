//! Packets of connections that the kernel translates leave the programs as they leave the kernel, byte for byte.

use std::net::IpAddr;

use etherparse::{IpHeaders, Ipv4Header, Ipv6Header, PacketBuilder, PacketBuilderStep, TcpHeader};
use tollway_conntrack::{Change, Conntrack, TcpFlags, Tuple};
use tollway_xdp::Action;
use tollway_xdp::connections::{Connection, ConnectionKey, Track, Translation, Treatment};
use tollway_xdp::counts::PassReason;

use crate::namespaces::sh;
use crate::tcp_windows::{Kernel, OUT, PORTS_OUT, SETTINGS, hosts};
use crate::testkit::dice::Dice;
use crate::testkit::wires::LinkVariant;
use crate::tracked::{Tracked, Version};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Packets of each connection.
const PACKETS: u32 = 60;

/// A connection: how its packets arrive, and how they leave.
struct Scene {
    version: Version,
    protocol: u8,
    arrives: [(IpAddr, u16); 2],
    leaves: [(IpAddr, u16); 2],
}

impl Scene {
    /// `changes`: whether source and destination change.
    fn new(version: Version, protocol: u8, changes: [bool; 2], dice: &mut Dice) -> Self {
        let mut own = || match version {
            Version::V4 => IpAddr::from((0xc633_6400 | dice.below(256) as u32).to_be_bytes()),
            Version::V6 => {
                IpAddr::from((0x2001_0db8 << 96 | u128::from(dice.roll())).to_be_bytes())
            }
        };
        let (outside, service) = (own(), own());
        let [client, server] = hosts(version);
        let [sport, dport] = [1025, 1].map(|least| least + dice.below(30_000) as u16);
        let (new_sport, service_port) = (sport + 1, dport + 30_000);
        Self {
            version,
            protocol,
            arrives: [
                (client, sport),
                if changes[1] { (service, service_port) } else { (server, dport) },
            ],
            leaves: [
                if changes[0] { (outside, new_sport) } else { (client, sport) },
                (server, dport),
            ],
        }
    }

    fn tuple(&self) -> Tuple {
        Tuple::with_ports(self.protocol, self.arrives[0], self.arrives[1])
    }

    /// Makes the connection in the kernel, and its entries.
    fn make(&self, tracked: &mut Tracked, conntrack: &mut Conntrack) {
        let nat_of = |nat: &str, [arrives, leaves]: [(IpAddr, u16); 2]| match leaves {
            _ if arrives == leaves => String::new(),
            (IpAddr::V4(ip), port) => format!("--{nat} {ip}:{port}"),
            (IpAddr::V6(ip), port) => format!("--{nat} [{ip}]:{port}"),
        };
        let [(from, sport), (to, dport)] = self.arrives;
        let nat = [0, 1].map(|at: usize| {
            nat_of(["src-nat", "dst-nat"][at], [self.arrives[at], self.leaves[at]])
        });
        let state = if self.protocol == TCP { "tcp --state ESTABLISHED" } else { "udp" };
        sh(&format!(
            "conntrack -I -p {state} -s {from} -d {to} --sport {sport} --dport {dport} -t 30 \
             -u SEEN_REPLY,ASSURED {} {}",
            nat[0], nat[1]
        ));
        let track = (self.protocol == TCP).then(|| {
            let (mask, flags) = (TcpFlags::LIBERAL, TcpFlags::LIBERAL);
            let change = Change::TcpFlags { mask, flags };
            assert!(conntrack.change(&self.tuple(), 0, change).unwrap());
            tracked.table.begin_track(&self.key(0), false).unwrap()
        });
        for way in [0, 1] {
            self.enter(tracked, way, track.map(|track| (track, way == 1)));
        }
    }

    /// How the packets of a way arrive and leave.
    fn ends(&self, way: usize) -> [[(IpAddr, u16); 2]; 2] {
        let swapped = |[from, to]: [(IpAddr, u16); 2]| [to, from];
        match way {
            0 => [self.arrives, self.leaves],
            _ => [swapped(self.leaves), swapped(self.arrives)],
        }
    }

    fn key(&self, way: usize) -> ConnectionKey {
        let [[from, to], _] = self.ends(way);
        ConnectionKey::new(LinkVariant::Plain.link(0), self.protocol, from, to).unwrap()
    }

    /// Makes the entry of a way.
    fn enter(&self, tracked: &mut Tracked, way: usize, track: Option<(Track, bool)>) {
        let [_, [source, destination]] = self.ends(way);
        let generation = tracked.compared.programs.state().connections_generation();
        let entry = Connection {
            generation,
            treatment: Treatment::Forwarded(OUT[way].link(PORTS_OUT[way])),
            translation: Translation { source, destination },
            mark: 0,
            track,
        };
        assert!(tracked.table.insert(&self.key(way), &entry, generation));
    }

    /// A packet of the original direction, with drawn data, so that its checksum is any.
    fn packet(&self, dice: &mut Dice, seq: &mut u32) -> Vec<u8> {
        let data: Vec<u8> = (0..dice.below(40)).map(|_| dice.roll() as u8).collect();
        if self.protocol == TCP {
            let packet = self.segment(0, (*seq, 7), &data);
            *seq += data.len() as u32;
            return packet;
        }
        let mut bytes = Vec::new();
        let [_, (_, to)] = self.arrives;
        self.builder(0).udp(self.arrives[0].1, to).write(&mut bytes, &data).unwrap();
        bytes
    }

    /// A segment of a way with these numbers.
    fn segment(&self, way: usize, (seq, ack): (u32, u32), data: &[u8]) -> Vec<u8> {
        let [[(_, sport), (_, dport)], _] = self.ends(way);
        let builder = self.builder(way).tcp(sport, dport, seq, 5000).ack(ack);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, data).unwrap();
        bytes
    }

    fn builder(&self, way: usize) -> PacketBuilderStep<IpHeaders> {
        let [[(from, _), (to, _)], _] = self.ends(way);
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                PacketBuilder::ipv4(from.octets(), to.octets(), 64)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                PacketBuilder::ipv6(from.octets(), to.octets(), 64)
            }
            _ => panic!("of two families"),
        }
    }

    /// The frame of a packet.
    fn frame(&self, packet: &[u8]) -> Vec<u8> {
        let ethertype = if self.version == Version::V4 { [8, 0] } else { [0x86, 0xdd] };
        [&LinkVariant::Plain.mac(0)[..], &[6, 0, 0, 0, 0, 9], &ethertype, packet].concat()
    }
}

/// What is out of window, the kernel does not translate, so it is for the router itself: the kernel gets it with flags that
/// make it invalid, and a checksum that is right.
pub fn invalid() {
    let mut tracked = Tracked::new();
    tracked.compared.programs.state().set_tcp(Some(SETTINGS));
    tracked.compared.programs.state().set_verifies_sums(true);
    let mut dice = Dice(8);
    let mut conntrack = Conntrack::open().unwrap();
    for version in Version::ALL {
        for is_tc in [false, true] {
            let scene = Scene::new(version, TCP, [true, false], &mut dice);
            scene.make(&mut tracked, &mut conntrack);
            let run = |packet: &[u8]| match is_tc {
                true => tracked.compared.run_by_tc(0, &scene.frame(packet)),
                false => tracked.compared.run(0, &scene.frame(packet)),
            };
            for (way, numbers) in [(0, (1000, 7)), (1, (7, 1003)), (0, (1003, 10))] {
                let segment = scene.segment(way, numbers, b"abc");
                let run = run(&segment);
                assert_eq!(run.action, Action::Redirect, "{version:?}: {:?}", run.reason);
            }
            let stray = scene.segment(1, (1 << 30, 1003), b"abc");
            let run = run(&stray);
            assert_eq!(run.reason, Some(PassReason::Connection), "{version:?}");
            let packet = &run.output[14..];
            let mut wanted = stray.clone();
            let tcp = version.header_len();
            wanted[tcp + 13] |= 3;
            // The checksum is less by as much.
            wanted[tcp + 16..tcp + 18].copy_from_slice(&packet[tcp + 16..tcp + 18]);
            assert_eq!(packet, wanted);
            let (header, data) = TcpHeader::from_slice(&packet[tcp..]).unwrap();
            let right = match version {
                Version::V4 => {
                    let (ip, _) = Ipv4Header::from_slice(packet).unwrap();
                    header.calc_checksum_ipv4(&ip, data).unwrap()
                }
                Version::V6 => {
                    let (ip, _) = Ipv6Header::from_slice(packet).unwrap();
                    header.calc_checksum_ipv6(&ip, data).unwrap()
                }
            };
            assert_eq!(header.checksum, right, "{version:?}");
        }
    }
}

/// Sources, destinations and both, of UDP and TCP, over IPv4 and IPv6, by both programs.
pub fn as_by_the_kernel() {
    let mut tracked = Tracked::new();
    for line in [
        "table inet nat",
        "chain inet nat pre { type nat hook prerouting priority -100 ; }",
        "chain inet nat post { type nat hook postrouting priority 100 ; }",
    ] {
        sh(&format!("nft add {line}"));
    }
    tracked.compared.programs.state().set_tcp(Some(SETTINGS));
    tracked.compared.programs.state().set_verifies_sums(true);
    let (mut kernel, mut dice) = (Kernel::new(), Dice(7));
    let mut conntrack = Conntrack::open().unwrap();
    for version in Version::ALL {
        for protocol in [UDP, TCP] {
            for changes in [[true, false], [false, true], [true, true]] {
                let scene = Scene::new(version, protocol, changes, &mut dice);
                scene.make(&mut tracked, &mut conntrack);
                compare(&tracked, &mut kernel, &scene, &mut dice);
            }
        }
    }
}

fn compare(tracked: &Tracked, kernel: &mut Kernel, scene: &Scene, dice: &mut Dice) {
    let mut seq = 1;
    for number in 0..PACKETS {
        let packet = scene.packet(dice, &mut seq);
        let mut outputs = kernel.outputs(0, &packet);
        // The kernel may have something to say to its neighbours meanwhile.
        let protocol_at = if scene.version == Version::V4 { 9 } else { 6 };
        outputs.retain(|output| output[protocol_at] == scene.protocol);
        let context = || format!("{:?}, {}, packet {number}", scene.version, scene.protocol);
        assert_eq!(outputs.len(), 1, "{}: {outputs:02x?}", context());
        let frame = scene.frame(&packet);
        // The tag of a packet in tc lies beside the frame.
        let runs =
            [(tracked.compared.run(0, &frame), 18), (tracked.compared.run_by_tc(0, &frame), 14)];
        for (run, at) in runs {
            assert_eq!(run.action, Action::Redirect, "{}: {:?}", context(), run.reason);
            assert_eq!(run.output[at..], outputs[0], "{}", context());
        }
    }
}
