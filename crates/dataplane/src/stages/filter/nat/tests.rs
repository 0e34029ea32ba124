//! Packets of translated connections, there and back: answers arrive as if nothing had been translated, and no two
//! connections leave alike.

use std::collections::BTreeSet;

use super::super::binding::{BindingRange, Manip};
use super::super::tracking::{Connections, Lookup};
use super::super::{ConnectionState, FlowConnection, Tracker};
use super::stage::write;
use crate::testkit::dice::Dice;
use crate::wire::{checksum, l4};

const S: u64 = 1_000_000_000;

/// Addresses and ports of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ends {
    is_six: bool,
    protocol: u8,
    source: (u128, u16),
    destination: (u128, u16),
}

impl Ends {
    fn back(self) -> Self {
        Self { source: self.destination, destination: self.source, ..self }
    }

    /// The header, with the payload behind it.
    fn around(&self, payload: &[u8]) -> Vec<u8> {
        let length = payload.len() as u16;
        if self.is_six {
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend(length.to_be_bytes());
            packet.extend([self.protocol, 64]);
            packet.extend(self.source.0.to_be_bytes());
            packet.extend(self.destination.0.to_be_bytes());
            packet.extend(payload);
            return packet;
        }
        let mut packet = vec![0x45, 0];
        packet.extend((20 + length).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, self.protocol, 0, 0]);
        packet.extend((self.source.0 as u32).to_be_bytes());
        packet.extend((self.destination.0 as u32).to_be_bytes());
        let sum = !checksum::sum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(payload);
        packet
    }

    /// The checksum of a payload of a protocol.
    fn sum(&self, payload: &[u8]) -> u16 {
        let mut bytes = payload.to_vec();
        if self.protocol != l4::ICMP {
            bytes.extend(vec![0; bytes.len() % 2]);
            bytes.extend(self.source.0.to_be_bytes());
            bytes.extend(self.destination.0.to_be_bytes());
            bytes.extend(u32::from(self.protocol).to_be_bytes());
            bytes.extend((payload.len() as u32).to_be_bytes());
        }
        match !checksum::sum(&bytes) {
            0 if self.protocol == l4::UDP => 0xffff,
            sum => sum,
        }
    }

    /// A datagram of UDP, or a query of ICMP whose identifier is the client's port, or the answer to it.
    fn packet(&self, data: u8, is_answer: bool) -> Vec<u8> {
        let (at, mut payload) = if self.protocol == l4::UDP {
            let mut payload =
                [self.source.1.to_be_bytes(), self.destination.1.to_be_bytes()].concat();
            payload.extend([0, 10, 0, 0, data, data]);
            (6, payload)
        } else {
            let kind = match (self.is_six, is_answer) {
                (false, false) => 8,
                (false, true) => 0,
                (true, false) => 128,
                (true, true) => 129,
            };
            let id = if is_answer { self.destination.1 } else { self.source.1 };
            let [high, low] = id.to_be_bytes();
            (2, vec![kind, 0, 0, 0, high, low, 0, data])
        };
        let sum = self.sum(&payload);
        payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        self.around(&payload)
    }

    /// An error about a packet that had these ends.
    fn error(&self, from: u128, quoted: &[u8]) -> Vec<u8> {
        let protocol = if self.is_six { l4::ICMPV6 } else { l4::ICMP };
        let back = Self { protocol, source: (from, 0), destination: self.source, ..*self };
        let kind = if self.is_six { 1 } else { 3 };
        let mut payload = [&[kind, 1, 0, 0, 0, 0, 0, 0], quoted].concat();
        let sum = back.sum(&payload);
        payload[2..4].copy_from_slice(&sum.to_be_bytes());
        back.around(&payload)
    }
}

/// How a connection is translated.
#[derive(Clone, Copy)]
struct Ranges {
    destination: BindingRange,
    source: BindingRange,
}

fn range(address: u128, ports: Option<(u16, u16)>) -> BindingRange {
    BindingRange { ports, ..BindingRange::keeping(address) }
}

/// Sends a packet through; returns what leaves, and its state.
fn pass(
    tracker: &Tracker,
    packet: &[u8],
    ranges: Ranges,
    now_ns: u64,
) -> Option<(Vec<u8>, ConnectionState)> {
    let version = packet[0] >> 4;
    let mut connections = Connections::default();
    connections.begin();
    let found = connections.track(tracker, (version, packet), 3, now_ns);
    let FlowConnection::Tracked(connection) = connections.of(3) else { return None };
    assert_eq!(found, Lookup::Found);
    let mut packet = packet.to_vec();
    if connections.has_new() {
        connections.bind_destination(tracker, 3, &ranges.destination, now_ns);
    }
    let mut apply = |connections: &Connections, manip| match connections.nat_end(3, manip) {
        Some(end) => write(&mut packet, end, manip),
        None => true,
    };
    let arrives = apply(&connections, Manip::Destination);
    let arrived = (version, &packet.clone()[..]);
    if connections.has_new()
        && connections.confirm_bound(tracker, 3, &ranges.source, arrived, now_ns).is_err()
    {
        return None;
    }
    let mut apply = |connections: &Connections, manip| match connections.nat_end(3, manip) {
        Some(end) => write(&mut packet, end, manip),
        None => true,
    };
    let leaves = arrives && apply(&connections, Manip::Source);
    leaves.then_some((packet, connection.state))
}

fn tracker() -> Tracker {
    Tracker::new((0, 1), [false; 2]).translating([true; 2], 2)
}

#[test]
fn answers_come_back_to_who_has_asked() {
    let mut dice = Dice(11);
    let tracker = tracker();
    let mut leaving = BTreeSet::new();
    let mut now_ns = 1000 * S;
    let (mut passed, mut lost) = (0, 0);
    for number in 0..if cfg!(miri) { 30 } else { 4000_u32 } {
        now_ns += 1000;
        let is_six = dice.one_in(2);
        let protocol = match (dice.one_in(3), is_six) {
            (true, true) => l4::ICMPV6,
            (true, false) => l4::ICMP,
            (false, _) => l4::UDP,
        };
        let address = |last: u32| match is_six {
            true => 0xfd00 << 112 | u128::from(last),
            false => u128::from(0x0a00_0000 | last),
        };
        let client = (address(number + 1), dice.pick(&[9, 700, 5000, 6000]));
        let server = (address(0xff_0000 + dice.below(3) as u32), 53);
        let sees = match dice.below(3) {
            0 => server,
            _ => (address(0xfe_0000 + dice.below(2) as u32), 53),
        };
        let public = if dice.one_in(3) { client.0 } else { address(0xfd_0000) };
        let ports = dice.one_in(4).then_some((20_000, 24_000));
        let asks = Ends { is_six, protocol, source: client, destination: sees };
        let ranges = Ranges { destination: range(server.0, None), source: range(public, ports) };
        let packet = asks.packet(7, false);
        let Some((left, state)) = pass(&tracker, &packet, ranges, now_ns) else {
            lost += 1;
            continue;
        };
        passed += 1;
        assert_eq!(state, ConnectionState::New);
        // With the port that it got, it is the packet that the client would have sent from there.
        let transport = if is_six { 40 } else { 20 };
        let at = if protocol == l4::UDP { transport } else { transport + 4 };
        let port = u16::from_be_bytes([left[at], left[at + 1]]);
        let leaves = Ends { source: (public, port), destination: server, ..asks };
        assert_eq!(left, leaves.packet(7, false), "{asks:?}");
        assert!(leaving.insert(leaves), "two leave alike: {leaves:?}");
        let (back, state) =
            pass(&tracker, &leaves.back().packet(8, true), ranges, now_ns).expect("the answer");
        assert_eq!(back, asks.back().packet(8, true));
        assert_eq!(state, ConnectionState::Established);
        let router = address(0xfc_0000);
        let (error, state) =
            pass(&tracker, &leaves.error(router, &left), ranges, now_ns).expect("the error");
        // From whom the client has asked, if that is another one.
        let from = if sees == server { router } else { sees.0 };
        assert_eq!(error, asks.error(from, &packet));
        assert_eq!(state, ConnectionState::Related);
        // The same question takes the same way again.
        assert_eq!(pass(&tracker, &packet, ranges, now_ns).expect("again").0, left);
        if dice.one_in(500) {
            // All are over.
            now_ns += 1000 * S;
            leaving.clear();
        }
    }
    assert!(cfg!(miri) || passed > 3900, "{passed} passed, {lost} lost");
}

#[test]
fn a_connection_without_a_free_port_is_lost() {
    let tracker = tracker();
    let ranges = Ranges { destination: range(9, None), source: range(5, Some((80, 81))) };
    let ask = |client: u128| {
        let (protocol, source, destination) = (l4::UDP, (client, 5000), (9, 53));
        Ends { is_six: false, protocol, source, destination }.packet(1, false)
    };
    for (client, passes) in [(1, true), (2, true), (3, false), (1, true)] {
        assert_eq!(pass(&tracker, &ask(client), ranges, S).is_some(), passes, "{client}");
    }
    // Later, the ports are free again.
    assert!(pass(&tracker, &ask(3), ranges, 40 * S).is_some());
    assert_eq!(tracker.list(40 * S).len(), 1);
}

#[test]
fn lists_and_other_rules_know_the_translation() {
    let tracker = tracker();
    let ranges = Ranges { destination: range(9, None), source: range(5, None) };
    let asks = Ends { is_six: false, protocol: l4::UDP, source: (1, 5000), destination: (7, 53) };
    assert!(pass(&tracker, &asks.packet(1, false), ranges, S).is_some());
    let [listed] = &tracker.list(S)[..] else { panic!("one") };
    let address = |number: u8| std::net::IpAddr::from([0, 0, 0, number]);
    assert_eq!((listed.source, listed.destination), ((address(1), 5000), (address(7), 53)));
    assert_eq!(listed.reply_source, (address(9), 53));
    assert_eq!(listed.reply_destination, (address(5), 5000));
    // IPS_SRC_NAT and IPS_DST_NAT, both done, confirmed.
    assert_eq!(listed.status, 0x1b8);
    let after = self::tracker();
    after.prepare(Some(&tracker));
    let answer = Ends { source: (9, 53), destination: (5, 5000), ..asks }.packet(2, true);
    let (back, _) = pass(&after, &answer, ranges, S).expect("the answer");
    assert_eq!(back, asks.back().packet(2, true));
}
