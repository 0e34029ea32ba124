//! Provokes every reason for which a packet exits the path, one by one.

use std::net::Ipv4Addr;
use std::sync::Arc;

use etherparse::IpNumber;
use tollway_dataplane::burst::Burst;
use tollway_dataplane::counters::{Counters, Traffic};
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::id::{LinkId, PortId, VrfId};
use tollway_dataplane::port::Port;
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::bridge::{BridgePortSettings, BridgeSettings};
use tollway_dataplane::stages::filter::{Filter, Op, Point, Reject, Rule, Rules};
use tollway_dataplane::stages::rule::{PolicyAction, PolicyRule};
use tollway_dataplane::stages::source_check::{Rpf, SourceCheck};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use crate::testkit::net::Net;
use crate::testkit::packet::{DOT1Q, Packet, link_header};
use crate::testkit::wires::{LinkVariant, Special};
use crate::translated::to_destination;

/// A function that provokes a reason once.
type Case = fn(&mut Net);

/// A port that reports one frame that does not fit its memory.
struct Oversized;

impl Port for Oversized {
    fn receive(&mut self, _umem: &mut Umem, _burst: &mut Burst) {}

    fn transmit(&mut self, _umem: &mut Umem, _frames: &[Descriptor]) -> usize {
        0
    }

    fn oversized(&mut self) -> Traffic {
        Traffic { packets: 1, bytes: 70_000 }
    }
}

/// A port with a kernel behind it, which accepts punted packets or refuses them; some packets wait
/// to be received.
struct Kernel {
    waiting: usize,
    takes: bool,
}

impl Port for Kernel {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        let mut frame = good().ttl(1).build();
        if umem.limit() > umem.room() {
            frame.resize(umem.room() + 1, 0);
        }
        while self.waiting > 0 {
            let Some(stored) = umem.store(&frame) else { return };
            if !burst.push(stored.addr, stored.len as u16) {
                umem.free(stored.addr);
                return;
            }
            self.waiting -= 1;
        }
    }

    fn transmit(&mut self, _umem: &mut Umem, _frames: &[Descriptor]) -> usize {
        0
    }

    fn has_kernel(&self) -> bool {
        true
    }

    fn punt(&mut self, umem: &mut Umem, frame: Descriptor) -> bool {
        if self.takes {
            umem.free(frame.addr);
        }
        self.takes
    }
}

fn from_kernel(net: &mut Net, mut port: Kernel) {
    while net.worker.turn(PortId(0), std::slice::from_mut(&mut port), net.now_ns) > 0 {}
}

/// The number of packets that the router hands to the kernel at once for one reason.
const PUNTS: usize = 1000;

/// The number of packets for one neighbour, more than can wait for it; and seconds, more than any
/// packet waits.
const MANY: u64 = 2000;
const LONG_S: u64 = 30;

fn good() -> Packet {
    LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1))
}

/// The source of [`good`].
const SRC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);

/// Sets the source check of the first link: the default check, and this reverse path filter.
fn set_source_check(net: &mut Net, rpf: Rpf) {
    let check = SourceCheck { own: true, rpf, martians_to_kernel: false };
    net.worker.lock().tables.set_source(LinkId(0), check).expect("a link");
}

/// Sends a packet through a firewall with one rule, which applies to every packet in hook forward.
fn under_rule(net: &mut Net, op: Op) {
    let rules = Rules { rules: vec![Rule { ops: vec![op], next: 1, ..Rule::default() }], end: 0 };
    let mut filter = Filter::new(0, Vec::new());
    filter.set(Point::Forward, 4, &rules).expect("it compiles");
    net.worker.set_filter(Some(Arc::new(filter)), &[]);
    net.send(0, &good().build());
}

/// Makes ports a bridge and sends this frame by the first one.
fn bridged(net: &mut Net, ports: &[u16], (dst, src): ([u8; 6], [u8; 6]), copies: usize) {
    let port = |id: &u16| BridgePortSettings {
        storm_limit: Some(1),
        ..BridgePortSettings::new(PortId(*id))
    };
    let bridge = BridgeSettings {
        ports: ports.iter().map(port).collect(),
        ageing_s: 300,
        max_entries: 10,
        entries: vec![(STATION, PortId(2))],
    };
    net.worker.lock().tables.set_bridges(&[bridge]).expect("room");
    for _ in 0..copies {
        assert!(net.inject(0, &good().from(src).to(dst).build()));
    }
}

const STATION: [u8; 6] = [6, 0, 0, 0, 0, 2];
const BROADCAST: [u8; 6] = [0xff; 6];

fn drop_case(reason: DropReason) -> Case {
    match reason {
        DropReason::PktTooSmall => |net| {
            net.send(0, &good().build()[..30]);
        },
        DropReason::PktTooBig => |net| net.worker.tick(&mut [Oversized], net.now_ns),
        DropReason::OtherHost => |net| {
            net.send(0, &good().to([6; 6]).build());
        },
        DropReason::VlanUnknown => |net| {
            net.send(0, &good().tagged(&[(DOT1Q, 99)]).build());
        },
        DropReason::VlanTooDeep => |net| {
            net.send(0, &good().tagged(&[(DOT1Q, 0); 5]).build());
        },
        DropReason::UnhandledProto => |net| {
            let mut frame = link_header(LinkVariant::Plain.mac(0), [6; 6], &[], 0x88cc);
            frame.resize(60, 0);
            net.send(0, &frame);
        },
        DropReason::IpInhdr => |net| {
            let mut frame = good().build();
            frame[14] = 0x44;
            net.send(0, &frame);
        },
        DropReason::IpCsum => |net| {
            let mut frame = good().build();
            frame[24] ^= 1;
            net.send(0, &frame);
        },
        DropReason::IpInvalidSource => |net| {
            net.send(
                0,
                &Packet::udp("127.0.0.1", "10.1.0.9").to(LinkVariant::Plain.mac(0)).build(),
            );
        },
        DropReason::IpLocalSource => |net| {
            set_source_check(net, Rpf::Off);
            net.worker.lock().tables.set_own_addresses(&[SRC]);
            net.send(0, &good().build());
        },
        DropReason::IpRpfilter => |net| {
            set_source_check(net, Rpf::Strict);
            net.send(0, &good().build());
        },
        DropReason::IpInvalidDest => |net| {
            net.send(
                0,
                &Packet::udp("192.0.2.1", "127.0.0.1").to(LinkVariant::Plain.mac(0)).build(),
            );
        },
        DropReason::Blackhole => |net| {
            net.send(0, &LinkVariant::Plain.packet(0, Special::Blackhole.host6()).build());
        },
        DropReason::UnicastInL2Multicast => |net| {
            net.send(0, &good().to([0xff; 6]).build());
        },
        DropReason::DevTxFailed => |net| {
            net.ports[1].limit_tx(0);
            net.send(0, &good().build());
        },
        DropReason::NeighFailed => |net| {
            net.send(0, &LinkVariant::Plain.packet(0, Special::Glean.host4()).build());
            net.pass(LONG_S);
        },
        DropReason::NeighQueueFull => |net| {
            let packet = LinkVariant::Plain.packet(0, Special::Glean.host6());
            for _ in 0..MANY {
                net.send(0, &packet.build());
                if net.counters().dropped_packets() > 0 {
                    return;
                }
            }
        },
        DropReason::IpOptions => |net| {
            net.send(0, &good().options(&[131, 7, 4, 10, 0, 0, 1, 0]).build());
        },
        DropReason::NetfilterDrop => |net| under_rule(net, Op::Drop),
        DropReason::PuntLimit => |net| {
            from_kernel(net, Kernel { waiting: PUNTS + 1, takes: true });
        },
        DropReason::PuntFailed => |net| {
            from_kernel(net, Kernel { waiting: 1, takes: false });
        },
        // The dispatcher drops these packets; the worker adds them to the counters.
        DropReason::FailClosed => |net| {
            net.worker.counters.received(PortId(0), 1, 60);
            net.worker.counters.drop(DropReason::FailClosed);
        },
        DropReason::NoSocket => |net| {
            net.worker.set_filter(Some(Arc::new(to_destination(Special::Local.host4()))), &[]);
            from_kernel(net, Kernel { waiting: 1, takes: true });
        },
        DropReason::MacInvalidSource => |net| {
            bridged(net, &[0, 1, 2], (STATION, BROADCAST), 1);
            net.run();
        },
        DropReason::MacReserved => |net| {
            bridged(net, &[0, 1, 2], ([1, 0x80, 0xc2, 0, 0, 15], STATION), 1);
            net.run();
        },
        DropReason::NoTxTarget => |net| {
            bridged(net, &[0], (BROADCAST, [6; 6]), 1);
            net.run();
        },
        DropReason::StormLimit => |net| {
            bridged(net, &[0, 1, 2], (BROADCAST, [6; 6]), 2);
            net.run();
        },
        DropReason::NoMem => |net| {
            bridged(net, &[0, 1, 2], (BROADCAST, [6; 6]), 1);
            while net.inject(1, &good().from([8; 6]).to(STATION).build()) {}
            net.run();
        },
    }
}

fn punt_case(reason: PuntReason) -> Case {
    match reason {
        PuntReason::IpOptions => |net| {
            net.send(0, &good().options(&[1; 4]).build());
        },
        PuntReason::HopByHop => |net| {
            let packet = LinkVariant::Plain.packet(0, LinkVariant::Plain.host6(1));
            net.send(0, &packet.extension(IpNumber::IPV6_HEADER_HOP_BY_HOP, 8).build());
        },
        PuntReason::TtlExpired => |net| {
            net.send(0, &good().ttl(1).build());
        },
        PuntReason::NoRoute => |net| {
            net.send(0, &LinkVariant::Plain.packet(0, Special::Nowhere.host4()).build());
        },
        PuntReason::Unreachable => |net| {
            net.send(0, &LinkVariant::Plain.packet(0, Special::Unreachable.host4()).build());
        },
        PuntReason::Prohibit => |net| {
            net.send(0, &LinkVariant::Plain.packet(0, Special::Prohibit.host4()).build());
        },
        PuntReason::MtuExceeded => |net| {
            net.send(
                0,
                &LinkVariant::Plain.packet(0, LinkVariant::Plain.host6(2)).size(1281).build(),
            );
        },
        PuntReason::LinkLocalSource => |net| {
            let packet = Packet::udp("fe80::7", "2001:db8:1::9");
            net.send(0, &packet.to(LinkVariant::Plain.mac(0)).build());
        },
        PuntReason::Reject => |net| under_rule(net, Op::Reject(Reject::TcpReset)),
        PuntReason::FilterUnsupported => |net| {
            under_rule(net, Op::Unsupported);
        },
        PuntReason::KernelLink => |net| {
            net.worker.lock().tables.set_kernel_link(LinkId(0), true, false).expect("a link");
            net.send(0, &good().build());
        },
        PuntReason::KernelRoute => |net| {
            let next = net.worker.lock().tables.punt(PuntReason::KernelRoute).expect("a next hop");
            let host = RoutePrefix::host(LinkVariant::Plain.host4(1));
            net.worker.lock().tables.insert(VrfId(0), host, next).expect("a route");
            net.send(0, &good().build());
        },
        PuntReason::KernelExit => |net| {
            let next = net.worker.lock().tables.kernel_exit(LinkId(1)).expect("a next hop");
            let host = RoutePrefix::host(LinkVariant::Plain.host4(1));
            net.worker.lock().tables.insert(VrfId(0), host, next).expect("a route");
            net.send(0, &good().build());
        },
        PuntReason::KernelRule => |net| {
            let rule = PolicyRule { src: None, dst: None, mark: None, action: PolicyAction::Punt };
            net.worker.lock().tables.set_policy(LinkId(0), vec![rule]).expect("a policy");
            net.send(0, &good().build());
        },
        PuntReason::Redirect => |net| {
            net.worker.lock().tables.set_redirects(LinkId(0), true, false).expect("a link");
            net.send(0, &LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(0)).build());
        },
        PuntReason::Martian => |net| {
            let check = SourceCheck { martians_to_kernel: true, ..SourceCheck::default() };
            net.worker.lock().tables.set_source(LinkId(0), check).expect("a link");
            net.send(
                0,
                &Packet::udp("127.0.0.1", "10.1.0.9").to(LinkVariant::Plain.mac(0)).build(),
            );
        },
        PuntReason::KernelSource => |net| {
            net.worker.lock().tables.set_source(LinkId(0), SourceCheck::default()).expect("a link");
            net.worker.lock().tables.set_broadcast_addresses(&[SRC]);
            net.send(0, &good().build());
        },
        PuntReason::NeighUnresolved => |net| {
            net.send(0, &LinkVariant::Plain.packet(0, Special::Glean.host4()).build());
        },
    }
}

/// The counters after `case` has run on a fresh network: with one chunk per frame, and with
/// several.
fn counted(case: Case) -> [Counters; 2] {
    [Net::new(64), Net::in_pieces(1024)].map(|mut net| {
        case(&mut net);
        net.take_all();
        net.check();
        net.counters().clone()
    })
}

#[test]
fn every_drop_reason_is_provoked() {
    let cases = DropReason::ALL
        .iter()
        .flat_map(|reason| counted(drop_case(*reason)).map(|counters| (reason, counters)));
    for (reason, counters) in cases {
        assert_eq!(counters.drops[*reason as usize], 1, "{reason:?}: {counters:?}");
        assert_eq!(counters.dropped_packets(), 1, "{reason:?} and another: {counters:?}");
    }
}

#[test]
fn every_punt_reason_is_provoked() {
    let cases = PuntReason::ALL
        .iter()
        .flat_map(|reason| counted(punt_case(*reason)).map(|counters| (reason, counters)));
    for (reason, counters) in cases {
        // A packet that waits for a neighbour is held instead of punted.
        let held = if *reason == PuntReason::NeighUnresolved { counters.held } else { 0 };
        assert_eq!(counters.punts[*reason as usize] + held, 1, "{reason:?}: {counters:?}");
        assert_eq!(counters.punted_packets() + held, 1, "{reason:?} and another: {counters:?}");
    }
}
