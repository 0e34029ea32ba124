//! Tests of messages that are written here, whole, cut short and changed at random.

use std::net::IpAddr;

use proptest::prelude::*;
use tollway_linux::netlink::push;

use crate::message::{get, read};
use crate::{
    Connection, Counter, Labels, Malformed, Reason, Status, TcpFlags, TcpState, Tuple, TupleL4,
};

const NESTED: u16 = 0x8000;

/// An attribute.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push(&mut bytes, kind, value);
    bytes
}

/// An attribute with others in it.
fn nest(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &parts.concat())
}

/// A tuple of TCP.
fn tcp_tuple(kind: u16, source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let ip = nest(1, &[attribute(1, &source), attribute(2, &destination)]);
    let [source, destination] = ports.map(u16::to_be_bytes);
    let parts = [attribute(1, &[6]), attribute(2, &source), attribute(3, &destination)];
    nest(kind, &[ip, nest(2, &parts)])
}

fn counters(kind: u16, packets: u64, bytes: u64) -> Vec<u8> {
    nest(kind, &[attribute(1, &packets.to_be_bytes()), attribute(2, &bytes.to_be_bytes())])
}

/// The attributes of an established TCP connection behind NAT, with everything that the kernel may report.
fn parts() -> Vec<Vec<u8>> {
    let tcp = [
        attribute(1, &[3]),
        attribute(2, &[7]),
        attribute(3, &[8]),
        attribute(4, &[0x2b, 0]),
        attribute(5, &[0x23, 0]),
    ];
    vec![
        tcp_tuple(1, [10, 0, 0, 1], [192, 0, 2, 1], [40_000, 80]),
        tcp_tuple(2, [192, 0, 2, 1], [192, 0, 2, 9], [80, 50_000]),
        attribute(3, &0x19e_u32.to_be_bytes()),
        attribute(7, &431_999_u32.to_be_bytes()),
        counters(9, 1 << 40, 3),
        counters(10, 4, 1 << 50),
        nest(4, &[nest(1, &tcp)]),
        nest(5, &[attribute(1, b"ftp\0")]),
        attribute(8, &0xdead_u32.to_be_bytes()),
        attribute(12, &77_u32.to_be_bytes()),
        nest(15, &[attribute(1, &[0; 4])]),
        attribute(18, &5_u16.to_be_bytes()),
        attribute(22, &[2_u64.to_ne_bytes(), 1_u64.to_ne_bytes()].concat()),
        nest(24, &[attribute(1, &[1; 4])]),
        attribute(99, &[1, 2, 3]),
    ]
}

fn message(parts: &[Vec<u8>]) -> Vec<u8> {
    [vec![2, 0, 0, 0], parts.concat()].concat()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn every_attribute_is_read() {
    let connection = read(&message(&parts())).unwrap();
    let tuple = |source, from, destination, to| {
        Tuple::with_ports(6, (ip(source), from), (ip(destination), to))
    };
    assert_eq!(connection.original, tuple("10.0.0.1", 40_000, "192.0.2.1", 80));
    assert_eq!(connection.reply, tuple("192.0.2.1", 80, "192.0.2.9", 50_000));
    assert_eq!(connection.status, Status(0x19e));
    let names: Vec<_> = connection.status.names().collect();
    let expected =
        ["SEEN_REPLY", "ASSURED", "CONFIRMED", "SRC_NAT", "SRC_NAT_DONE", "DST_NAT_DONE"];
    assert_eq!(names, expected);
    assert_eq!(connection.timeout_s, Some(431_999));
    let counters = connection.counters.unwrap();
    assert_eq!(counters.original, Counter { packets: 1 << 40, bytes: 3 });
    assert_eq!(counters.reply, Counter { packets: 4, bytes: 1 << 50 });
    let tcp = connection.tcp.unwrap();
    assert_eq!((tcp.state, tcp.original_wscale), (TcpState::Established, Some(7)));
    assert_eq!((tcp.reply_wscale, tcp.reply_flags), (Some(8), Some(TcpFlags(0x23))));
    let flags = tcp.original_flags.unwrap();
    assert!(flags.is_liberal() && flags.has_max_ack() && flags.has_sack());
    assert!(flags.has_window_scale() && !flags.is_close_init() && !flags.has_unacknowledged());
    assert_eq!(connection.helper.as_deref(), Some("ftp"));
    assert_eq!((connection.mark, connection.id), (0xdead, 77));
    assert_eq!((connection.zone, connection.reply_zone), (5, 5));
    assert_eq!(connection.labels, Labels(1 << 64 | 2));
    assert!(connection.labels.has(1) && connection.labels.has(64) && !connection.labels.has(2));
    assert!(connection.has_seq_adjust && connection.has_synproxy);
    // A connection that a program has made has room for it.
    let mut parts = parts();
    let synproxy = parts.iter_mut().find(|part| part[2] == 24).unwrap();
    synproxy[4..].copy_from_slice(&attribute(1, &[0; 4]));
    assert!(!read(&message(&parts)).unwrap().has_synproxy);
}

#[test]
fn what_the_kernel_leaves_out_is_absent() {
    let connection = read(&message(&parts()[..2])).unwrap();
    assert_eq!((connection.tcp, connection.timeout_s), (None, None));
    assert_eq!((connection.counters, connection.helper), (None, None));
    assert_eq!((connection.mark, connection.zone, connection.id), (0, 0, 0));
    assert!(!connection.has_seq_adjust && !connection.has_synproxy);
}

#[test]
fn a_direction_may_have_a_zone_of_its_own() {
    let mut parts = parts();
    // Without its header, behind which the zone goes.
    let inner = parts[1][4..].to_vec();
    parts[1] = nest(2, &[inner, attribute(3, &9_u16.to_be_bytes())]);
    parts.retain(|part| part[2] != 18);
    let connection = read(&message(&parts)).unwrap();
    assert_eq!((connection.zone, connection.reply_zone), (0, 9));
}

#[test]
fn an_attribute_that_is_too_short_is_an_error() {
    let parts = parts();
    for (kind, bytes) in [(3, 3), (7, 0), (8, 2), (12, 3), (18, 1), (22, 15)] {
        let mut parts = parts.clone();
        parts.push(attribute(kind, &vec![0; bytes]));
        assert_eq!(read(&message(&parts)), Err(Malformed::Attribute(kind)), "{kind}");
    }
    let no_reply = [&parts[..1], &parts[2..]].concat();
    assert_eq!(read(&message(&no_reply)), Err(Malformed::Tuple("reply")));
    assert_eq!(read(&message(&parts[1..])), Err(Malformed::Tuple("original")));
    let mixed = nest(1, &[nest(1, &[attribute(1, &[1; 4]), attribute(4, &[1; 16])])]);
    assert_eq!(read(&message(&[mixed])), Err(Malformed::Attribute(1)));
}

#[test]
fn a_message_may_end_anywhere() {
    let parts = parts();
    let whole = message(&parts);
    // The end of an attribute, with or without its padding.
    let end = |count: usize| {
        let padded = message(&parts[..count]).len();
        let last = &parts[count - 1];
        padded + usize::from(u16::from_ne_bytes([last[0], last[1]])) - last.len()..=padded
    };
    let ends: Vec<_> = (2..=parts.len()).map(end).collect();
    for end in 0..=whole.len() {
        let read = read(&whole[..end]);
        let is_whole = ends.iter().any(|ends| ends.contains(&end));
        assert_eq!(read.is_ok(), is_whole, "{end}: {read:?}");
    }
}

#[test]
fn tuples_are_written_as_they_are_read() {
    let icmp = TupleL4::Icmp { id: 7, kind: 8, code: 1 };
    let ports = TupleL4::Ports { source: 1, destination: 0x1234 };
    let all = [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")]
        .into_iter()
        .flat_map(|ends| [icmp, ports, TupleL4::None].map(|l4| (ends, l4)));
    for ((source, destination), l4) in all {
        let tuple = Tuple { source: ip(source), destination: ip(destination), protocol: 1, l4 };
        let mut written = get(&tuple, 3).unwrap();
        let family = if tuple.source.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        assert_eq!(written[..4], [family as u8, 0, 0, 0]);
        let reply = tcp_tuple(2, [1; 4], [2; 4], [3, 4]);
        written.extend(reply);
        let connection = read(&written).unwrap();
        assert_eq!((connection.original, connection.zone), (tuple, 3));
    }
    let mixed =
        Tuple { source: ip("::1"), destination: ip("10.0.0.1"), protocol: 1, l4: TupleL4::None };
    assert!(get(&mixed, 0).is_none());
}

/// A connection that nothing keeps on the kernel path.
fn free() -> Connection {
    let parts = parts().into_iter().filter(|part| ![5, 15, 24].contains(&part[2]));
    read(&message(&parts.collect::<Vec<_>>())).unwrap()
}

#[test]
fn each_reason_keeps_a_connection_on_the_kernel_path() {
    let free = free();
    assert_eq!(free.offload(), Ok(()));
    let with = |change: &dyn Fn(&mut Connection)| {
        let mut changed = free.clone();
        change(&mut changed);
        changed.offload().unwrap_err()
    };
    let set = |bit: u32| with(&|one| one.status.0 |= 1 << bit);
    let clear = |bit: u32| with(&|one| one.status.0 &= !(1 << bit));
    assert_eq!(clear(2), Reason::NotAssured);
    assert_eq!(clear(3), Reason::NotConfirmed);
    assert_eq!(set(6), Reason::SeqAdjust);
    assert_eq!(set(9), Reason::Dying);
    assert_eq!(set(10), Reason::FixedTimeout);
    assert_eq!(set(11), Reason::Template);
    assert_eq!(set(12), Reason::NatClash);
    assert_eq!(set(13), Reason::Helper);
    assert_eq!((set(14), set(15)), (Reason::Offload, Reason::Offload));
    assert_eq!(with(&|one| one.helper = Some("sip".to_owned())), Reason::Helper);
    assert_eq!(with(&|one| one.has_seq_adjust = true), Reason::SeqAdjust);
    assert_eq!(with(&|one| one.has_synproxy = true), Reason::Synproxy);
    assert_eq!(with(&|one| one.original.protocol = 47), Reason::Protocol(47));
    assert_eq!(with(&|one| one.tcp = None), Reason::TcpState(TcpState::None));
    for (number, state) in TcpState::ALL.into_iter().enumerate() {
        assert_eq!(TcpState::from_number(number as u8), state);
        let mut other = free.clone();
        other.tcp.as_mut().unwrap().state = state;
        let is_free = state == TcpState::Established;
        assert_eq!(other.offload().err(), (!is_free).then_some(Reason::TcpState(state)));
    }
    let udp = Connection { original: Tuple { protocol: 17, ..free.original }, tcp: None, ..free };
    assert_eq!(udp.offload(), Ok(()));
    let sentence = Reason::TcpState(TcpState::FinWait).to_string();
    assert_eq!(sentence, "its TCP state is FIN_WAIT, not ESTABLISHED");
}

proptest! {
    /// Whatever bytes change, and wherever the message ends, nothing panics; what is read has two whole tuples.
    #[test]
    fn changed_messages_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = message(&parts());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let end = end.index(bytes.len() + 1);
        if let Ok(connection) = read(&bytes[..end]) {
            let Tuple { source, destination, .. } = connection.original;
            prop_assert_eq!(source.is_ipv4(), destination.is_ipv4());
            let _ = connection.offload();
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
    }
}
