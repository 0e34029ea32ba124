//! Ports with a kernel behind them that has the same rules as the firewall.

use std::sync::Arc;

use etherparse::{IpDscp, IpNumber};
use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::id::{NextHopId, PortId};
use tollway_dataplane::port::{MemoryPort, Port};
use tollway_dataplane::stages::filter::{
    Condition, Count, Field, Filter, Op, Point, Reject, Rule, Rules,
};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use crate::testkit::net::Net;
use crate::testkit::packet::Packet;
use crate::testkit::wires::{LinkVariant, PORTS, Special};

/// A port with a kernel behind it, and the frames handed to that kernel.
pub(super) struct Kernel {
    pub(super) port: MemoryPort,
    pub(super) punted: Vec<Vec<u8>>,
}

impl Kernel {
    pub(super) fn new() -> Self {
        Self { port: MemoryPort::new(64), punted: Vec::new() }
    }
}

impl Port for Kernel {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        self.port.receive(umem, burst);
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        self.port.transmit(umem, frames)
    }

    fn has_kernel(&self) -> bool {
        true
    }

    fn punt(&mut self, umem: &mut Umem, frame: Descriptor) -> bool {
        self.punted.push(umem.frame(frame.addr, frame.len as usize).to_vec());
        umem.free(frame.addr);
        true
    }
}

/// The result for some packets: punted frames, the number of sent frames, and the network.
struct RunResult {
    punted: Vec<Vec<u8>>,
    sent: usize,
    net: Net,
}

fn run(filter: Filter, packets: &[Packet]) -> RunResult {
    let mut net = Net::new(128);
    net.worker.set_filter(Some(Arc::new(filter)), &[]);
    net.worker.kernel_has_rules = true;
    let mut ports: Vec<_> = (0..PORTS).map(|_| Kernel::new()).collect();
    for packet in packets {
        let stored = net.worker.umem.store(&packet.build()).expect("memory");
        ports[0].port.inject(stored);
    }
    net.worker.turn(PortId(0), &mut ports, 0);
    let sent = ports.iter_mut().map(|port| port.port.take_sent().len()).sum();
    net.worker.counters.check().expect("packets add up");
    RunResult { punted: std::mem::take(&mut ports[0].punted), sent, net }
}

/// A filter with one rule at each of these points, which matches every packet of both IP versions.
fn rules(points: &[(Point, Vec<Op>)]) -> Filter {
    let mut filter = Filter::new(1, Vec::new());
    for (point, ops) in points {
        let ops = ops.iter().cloned().chain([Op::Accept]).collect();
        let rules = Rules { rules: vec![Rule { ops, next: 1, ..Rule::default() }], end: 0 };
        for version in [4, 6] {
            filter.set(*point, version, &rules).expect("it compiles");
        }
    }
    filter
}

fn both() -> [Packet; 2] {
    [
        LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)),
        LinkVariant::Plain.packet(0, LinkVariant::Plain.host6(1)),
    ]
}

fn frames(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(Packet::build).collect()
}

#[test]
fn rejected_and_undecided_packets_take_the_kernel_path_unchanged() {
    let reject = Op::Reject(Reject::Unreachable(13));
    for (op, reason) in
        [(reject, PuntReason::Reject), (Op::Unsupported, PuntReason::FilterUnsupported)]
    {
        for point in [Point::Prerouting, Point::Forward] {
            let result = run(rules(&[(point, vec![op.clone()])]), &both());
            assert_eq!(result.punted, frames(&both()), "{op:?} at {point:?}");
            assert_eq!(result.net.counters().punts[reason as usize], 2);
            assert_eq!((result.sent, result.net.counters().originated), (0, 0));
        }
    }
}

#[test]
fn writes_of_rules_are_undone_for_the_kernel_path() {
    let marked = |dscp| Op::Dscp(dscp);
    // The rules write into each packet twice; some packets then have no hop left or no route.
    let filter = || {
        rules(&[
            (Point::Prerouting, vec![marked(10)]),
            (Point::Forward, vec![marked(12), Op::Unsupported]),
        ])
    };
    let expired = both().map(|packet| packet.ttl(1));
    let lost = [Special::Nowhere.host4(), Special::Nowhere.host6()];
    let lost = lost.map(|dst| LinkVariant::Plain.packet(0, dst));
    for packets in [both(), expired, lost] {
        let result = run(filter(), &packets);
        assert_eq!(result.punted, frames(&packets));
    }
    let result = run(rules(&[(Point::Prerouting, vec![marked(10)])]), &both());
    assert_eq!((result.sent, result.punted.len()), (2, 0));
}

#[test]
fn drops_stay_drops() {
    let result = run(rules(&[(Point::Forward, vec![Op::Drop])]), &both());
    assert_eq!((result.sent, result.punted.len()), (0, 0));
    assert_eq!(result.net.counters().drops[DropReason::NetfilterDrop as usize], 2);
}

/// The kernel reroutes these packets by its own rules; here they only exit the path.
#[test]
fn rerouted_packets_that_exit_the_path_take_the_kernel_path_unchanged() {
    let mut filter = rules(&[(Point::Prerouting, vec![Op::Forward(0)])]);
    filter = filter.with_hops(vec![NextHopId::NO_ROUTE]);
    let packet = LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1));
    let result = run(filter, std::slice::from_ref(&packet));
    assert_eq!(result.punted, frames(&[packet]));
}

/// The kernel's own rules count these packets. If the filter evaluated them too, a limit would be
/// charged twice.
#[test]
fn rules_are_not_evaluated_for_packets_that_exit_the_path() {
    let packets = [
        LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).options(&[1; 4]),
        LinkVariant::Plain
            .packet(0, LinkVariant::Plain.host6(1))
            .extension(IpNumber::IPV6_HEADER_HOP_BY_HOP, 8),
    ];
    let filter =
        || rules(&[(Point::Prerouting, vec![Op::Count(0)]), (Point::Forward, vec![Op::Drop])]);
    let mut result = run(filter(), &packets);
    assert_eq!(result.punted, frames(&packets));
    assert_eq!(result.net.worker.rule_counts(), [Count::default()]);
}

/// A condition on a field that a rule has written sees the new value, as in the kernel.
#[test]
fn only_packets_that_were_written_into_are_restored() {
    let is_web = Condition::new(Field::DestinationPort, [(80, 80)]);
    let web = Rule { conditions: vec![is_web], ops: vec![Op::Dscp(46)], next: 1 };
    let last = Rule { ops: vec![Op::Unsupported], next: 2, ..Rule::default() };
    let mut filter = Filter::new(0, Vec::new());
    let rules = Rules { rules: vec![web, last], end: 1 };
    filter.set(Point::Prerouting, 4, &rules).expect("it compiles");
    let packet = |port| LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).ports(7, port);
    let voice = packet(80).v4(|header| header.dscp = IpDscp::try_new(5).expect("6 bits"));
    let packets: Vec<_> = [packet(80), packet(81), voice].into_iter().collect();
    let result = run(filter, &packets);
    assert_eq!(result.punted, frames(&packets));
}
