//! Tracking compared with a plain list; times, room, and who replaces whom. TCP is compared with the kernel's, by
//! conversations in the tests of the whole system.

use super::super::connection::{ConnectionState, FlowConnection};
use super::super::flows::Size;
use super::table::{Confirmed, Found, Tracker};
use super::*;
use crate::testkit::dice::Dice;
use crate::wire::{checksum, l4};

const START: u64 = 1000 * S;

/// A packet of IPv4 from one host to another.
fn packet(protocol: u8, [source, destination]: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len() as u16).to_be_bytes();
    let mut packet = vec![0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend([10, 0, 0, source, 10, 0, 0, destination]);
    packet.extend(payload);
    packet
}

fn udp(hosts: [u8; 2], ports: [u16; 2]) -> Vec<u8> {
    let [source, destination] = ports.map(u16::to_be_bytes);
    packet(l4::UDP, hosts, &[&source[..], &destination, &[0, 8, 0, 0]].concat())
}

fn icmp(hosts: [u8; 2], kind: u8, id: u16, rest: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 0], rest].concat();
    let sum = !checksum::sum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(l4::ICMP, hosts, &message)
}

fn tracker() -> Tracker {
    Tracker::new((0, 1), [false; 2])
}

/// What a packet is to its connection, whose first packet passes or not.
fn see(tracker: &Tracker, packet: &[u8], passes: bool, now_ns: u64) -> Option<ConnectionState> {
    match tracker.find(4, packet, now_ns) {
        Found::Known(FlowConnection::Tracked(connection), _) => Some(connection.state),
        Found::New(new) => {
            let confirmed = passes.then(|| tracker.confirm(*new, (4, packet), now_ns));
            assert!(!matches!(confirmed, Some(Confirmed::Full | Confirmed::Clash)));
            Some(ConnectionState::New)
        }
        _ => None,
    }
}

/// A connection of the plain list.
#[derive(Debug)]
struct Plain {
    protocol: u8,
    hosts: [u8; 2],
    /// Of ICMP, twice the identifier.
    ports: [u16; 2],
    begun_ns: u64,
    is_answered: bool,
    ends_ns: u64,
}

#[test]
fn random_packets_find_what_a_plain_list_has() {
    let mut dice = Dice(1);
    let (tracker, mut list) = (tracker(), Vec::<Plain>::new());
    let mut now_ns = START;
    let (mut found, mut ended) = (0, 0);
    for _ in 0..if cfg!(miri) { 200 } else { 30_000 } {
        now_ns += dice.roll() % (dice.pick(&[1, 1, 1, 10, 40]) * S);
        tracker.sweep(now_ns);
        let before = list.len();
        list.retain(|one| one.ends_ns > now_ns);
        ended += before - list.len();
        let hosts = dice.pick(&[[1, 2], [2, 1], [1, 3], [3, 1]]);
        let protocol = dice.pick(&[l4::UDP, l4::UDP, l4::ICMP, 99]);
        let (ports, is_answer, bytes) = match protocol {
            l4::UDP => {
                let ports = dice.pick(&[[7, 8], [8, 7], [9, 8], [8, 9]]);
                (ports, false, udp(hosts, ports))
            }
            l4::ICMP => {
                let (id, is_answer) = (dice.below(2) as u16, dice.one_in(2));
                ([id; 2], is_answer, icmp(hosts, if is_answer { 0 } else { 8 }, id, b""))
            }
            _ => ([0; 2], false, packet(protocol, hosts, b"x")),
        };
        let is_icmp = protocol == l4::ICMP;
        let [back_hosts, back_ports] = [[hosts[1], hosts[0]].map(u16::from), [ports[1], ports[0]]];
        let known = list.iter_mut().find_map(|one| {
            let is_forward = one.hosts == hosts && one.ports == ports && !is_answer;
            let is_back = one.hosts.map(u16::from) == back_hosts
                && one.ports == back_ports
                && (is_answer || !is_icmp);
            (one.protocol == protocol && (is_forward || is_back)).then_some((one, !is_forward))
        });
        let passes = dice.one_in(2);
        let state = see(&tracker, &bytes, passes, now_ns);
        let expected = match known {
            Some((one, is_back)) => {
                found += 1;
                let state = match one.is_answered || is_back {
                    true => ConnectionState::Established,
                    false => ConnectionState::New,
                };
                let lives = match protocol {
                    l4::UDP if one.is_answered && now_ns > one.begun_ns + 2 * S => 120,
                    l4::UDP | l4::ICMP => 30,
                    _ => 600,
                };
                one.ends_ns = now_ns + lives * S;
                one.is_answered |= is_back;
                Some(state)
            }
            None if is_answer => None,
            None => {
                let lives = if protocol == 99 { 600 } else { 30 };
                let (begun_ns, ends_ns) = (now_ns, now_ns + lives * S);
                if passes {
                    let is_answered = false;
                    list.push(Plain { protocol, hosts, ports, begun_ns, is_answered, ends_ns });
                }
                Some(ConnectionState::New)
            }
        };
        assert_eq!(state, expected, "{protocol} {hosts:?} {ports:?} of {list:?}");
        let mut times: Vec<_> = list.iter().map(|one| one.ends_ns - now_ns).collect();
        let mut own: Vec<_> = tracker.list(now_ns).iter().map(|one| one.expires_in_ns).collect();
        times.sort_unstable();
        own.sort_unstable();
        assert_eq!(own, times);
    }
    assert!(cfg!(miri) || found > 10_000 && ended > 100, "{found} found, {ended} ended");
}

#[test]
fn errors_are_related_by_what_they_quote_and_where_they_go() {
    let tracker = tracker();
    let sent = udp([1, 2], [7, 8]);
    assert_eq!(see(&tracker, &sent, true, START), Some(ConnectionState::New));
    let related = Some(ConnectionState::Related);
    assert_eq!(see(&tracker, &icmp([9, 1], 3, 0, &sent), true, START), related);
    assert_eq!(see(&tracker, &icmp([9, 1], 11, 0, &sent[..28]), true, START), related);
    assert_eq!(see(&tracker, &icmp([9, 4], 3, 0, &sent), true, START), None, "to another host");
    assert_eq!(see(&tracker, &icmp([9, 1], 3, 0, &sent[..23]), true, START), None, "cut off");
    let other = udp([1, 2], [7, 9]);
    assert_eq!(see(&tracker, &icmp([9, 1], 3, 0, &other), true, START), None, "of no connection");
    let mut broken = icmp([9, 1], 3, 0, &sent);
    broken[22] ^= 1;
    assert_eq!(see(&tracker, &broken, true, START), None, "its checksum");
    // They do not make it live longer.
    assert_eq!(see(&tracker, &icmp([9, 1], 3, 0, &sent), true, START + 29 * S), related);
    assert_eq!(see(&tracker, &icmp([9, 1], 3, 0, &sent), true, START + 30 * S), None);
}

#[test]
fn fragments_and_broken_packets_belong_to_no_connection() {
    let tracker = tracker();
    let whole = udp([1, 2], [7, 8]);
    for (at, byte) in [(6, 0x20), (7, 1), (0, 0x4f), (3, 200), (25, 7), (25, 9)] {
        let mut packet = whole.clone();
        packet[at] = byte;
        assert_eq!(see(&tracker, &packet, true, START), None, "{at} {byte}");
    }
    for length in 0..whole.len() {
        assert_eq!(see(&tracker, &whole[..length], true, START), None);
    }
    let mut dice = Dice(2);
    for _ in 0..if cfg!(miri) { 50 } else { 20_000 } {
        // Whatever comes from the wire, nothing panics.
        let mut bytes: Vec<u8> = (0..dice.below(90)).map(|_| dice.roll() as u8).collect();
        if let [first, ..] = &mut bytes[..] {
            *first = dice.pick(&[0x45, 0x46, 0x60]);
        }
        if let [_, _, high, low, ..] = &mut bytes[..] {
            (*high, *low) = (0, dice.below(90) as u8);
        }
        if let Some(protocol) = bytes.get_mut(9) {
            *protocol = dice.pick(&[1, 6, 17, 47, 58, 132, 136]);
        }
        if let Some(protocol) = bytes.get_mut(6) {
            *protocol = dice.pick(&[0, 6, 43, 44, 51, 58, 60]);
        }
        tracker.find(dice.pick(&[4, 6]), &bytes, START);
    }
}

#[test]
fn calls_of_pptp_are_connections_by_their_number() {
    let tracker = tracker();
    let call = |number: u8| packet(l4::GRE, [1, 2], &[0x30, 1, 0x88, 0x0b, 0, 0, 0, number]);
    for (number, now_ns) in [(1, START), (2, START), (1, START + S)] {
        assert_eq!(see(&tracker, &call(number), true, now_ns), Some(ConnectionState::New));
    }
    assert_eq!(tracker.count(), 2);
    let other = packet(l4::GRE, [1, 2], &[0, 1, 8, 0, 0, 0, 0, 1]);
    assert_eq!(see(&tracker, &other, true, START), None, "no PPP");
    let plain = packet(l4::GRE, [1, 2], &[0, 0, 8, 0]);
    assert_eq!(see(&tracker, &plain, true, START), Some(ConnectionState::New));
    assert_eq!(tracker.count(), 3);
}

#[test]
fn a_new_connection_replaces_one_that_is_not_assured() {
    let size = Size { most: 64, parts: 1, lists: 8, sweep_ns: S };
    let tracker = Tracker::of_size(size);
    let port = |number: u16| udp([1, 2], [number, 53]);
    for number in 0..64 {
        assert_eq!(see(&tracker, &port(number), true, START), Some(ConnectionState::New));
    }
    assert_eq!(see(&tracker, &port(64), true, START), Some(ConnectionState::New));
    assert_eq!(tracker.count(), 64, "one has gone");
    // As in a burst: the second one is looked up before the first one takes the room.
    let together = [65, 66].map(|number| (port(number), tracker.find(4, &port(number), START)));
    for (packet, found) in together {
        let Found::New(new) = found else { panic!("{found:?} is no new connection") };
        assert!(matches!(tracker.confirm(*new, (4, &packet), START), Confirmed::Added(_)));
    }
    assert_eq!(tracker.count(), 64, "two have gone");
    // Answered, and again after more than two seconds, they are assured.
    let ports: Vec<u16> = tracker.list(START).iter().map(|one| one.source.1).collect();
    for (number, seconds) in ports.iter().flat_map(|port| [(port, 1), (port, 3)]) {
        let (answer, now_ns) = (udp([2, 1], [53, *number]), START + seconds * S);
        assert_eq!(see(&tracker, &answer, true, now_ns), Some(ConnectionState::Established));
    }
    let now_ns = START + 3 * S;
    assert_eq!(tracker.find(4, &port(100), now_ns), Found::Full);
    let listed = tracker.list(now_ns);
    assert!(listed.iter().all(|one| one.status == SEEN_REPLY | ASSURED | CONFIRMED), "{listed:?}");
    // Their time is over: there is room, before anybody sweeps and after it.
    let later = START + 124 * S;
    assert_eq!(see(&tracker, &port(100), true, later), Some(ConnectionState::New));
    tracker.sweep(later);
    assert_eq!((tracker.count(), tracker.list(later).len()), (1, 1));
}

#[test]
fn marks_stay_with_connections() {
    let tracker = tracker();
    let sent = udp([1, 2], [7, 8]);
    assert_eq!(see(&tracker, &sent, true, START), Some(ConnectionState::New));
    let Found::Known(_, flow) = tracker.find(4, &udp([2, 1], [8, 7]), START) else {
        panic!("the answer belongs to it");
    };
    tracker.set_mark(&flow, 7, START);
    assert_eq!(tracker.list(START)[0].mark, 7);
    // Other rules take the connections over.
    let after = Tracker::new((0, 1), [false; 2]);
    after.prepare(Some(&tracker));
    assert_eq!(after.list(START)[0].mark, 7);
}
