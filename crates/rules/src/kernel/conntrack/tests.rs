//! Compares what the matches mean with the kernel's own code, for all kinds of packets.

use super::*;

/// What connection tracking says of a packet; `None` without a connection.
#[derive(Clone, Copy, Debug)]
struct Packet {
    /// `enum ip_conntrack_info`: established, related and new, the same for replies, and untracked.
    info: u32,
    connection: Option<(u32, u8)>,
}

const UNTRACKED: u32 = 7;
const REPLY: u32 = 3;

fn packets() -> Vec<Packet> {
    let mut packets = vec![Packet { info: 0, connection: None }];
    packets.push(Packet { info: UNTRACKED, connection: None });
    for info in 0..5 {
        for status in [0, 2, 0x0e, 0x18, 0x2c, 0x3e] {
            let of = |protocol| Packet { info, connection: Some((status, protocol)) };
            packets.extend([6, 17].map(of));
        }
    }
    packets
}

/// `conntrack_mt` of `net/netfilter/xt_conntrack.c`, line by line.
fn conntrack_mt(packet: &Packet, info: &[u8], state_mask: u32, status_mask: u32) -> bool {
    let half = |at: usize| u16::from_ne_bytes([info[at], info[at + 1]]);
    let (flags, inverted) = (half(146), half(148));
    let inverts = |flag: u16| inverted & flag != 0;
    let mut statebit = match (packet.connection, packet.info) {
        (Some(_), info) => 1 << (info % REPLY + 1),
        (None, UNTRACKED) => 1 << 8,
        (None, _) => 1,
    };
    if flags & 1 != 0 {
        if let Some((status, _)) = packet.connection {
            statebit |= if status & 1 << 4 != 0 { 1 << 6 } else { 0 };
            statebit |= if status & 1 << 5 != 0 { 1 << 7 } else { 0 };
        }
        if (state_mask & statebit != 0) ^ !inverts(1) {
            return false;
        }
    }
    let Some((status, protocol)) = packet.connection else { return flags & 1 != 0 };
    if flags & 1 << 12 != 0 && (packet.info < REPLY) ^ !inverts(1 << 12) {
        return false;
    }
    if flags & 2 != 0 && (u16::from(protocol) == half(136)) ^ !inverts(2) {
        return false;
    }
    !(flags & 1 << 6 != 0 && (status_mask & status != 0) ^ !inverts(1 << 6))
}

/// The properties of a packet, as rules of nftables see them.
fn number(packet: &Packet, field: Field) -> Option<u128> {
    let Field::Connection(field) = field else { panic!("{field:?}") };
    let state = match (packet.connection, packet.info) {
        (Some(_), info) => 1 << (info % REPLY + 1),
        (None, UNTRACKED) => 64,
        (None, _) => 1,
    };
    if field == ConnectionField::State {
        return Some(state);
    }
    let (status, protocol) = packet.connection?;
    Some(match field {
        ConnectionField::Direction => (packet.info >= REPLY).into(),
        ConnectionField::Status => status.into(),
        ConnectionField::Protocol => protocol.into(),
        field => panic!("{field:?}"),
    })
}

fn holds(one: &Match, packet: &Packet) -> bool {
    let ([key], Test::Ranges(ranges)) = (&one.keys[..], &one.test) else { panic!("{one:?}") };
    let number = number(packet, key.field).map(|number| number & key.mask);
    number.is_some_and(|number| ranges.iter().any(|range| range.has(number)) != one.negate)
}

fn info(flags: u16, inverted: u16, states: u16, status: u16) -> Vec<u8> {
    let mut info = vec![0; 164];
    let mut put = |at: usize, number: u16| {
        info[at..at + 2].copy_from_slice(&number.to_ne_bytes());
    };
    put(136, 6);
    put(146, flags);
    put(148, inverted);
    put(150, states);
    put(152, status);
    info
}

#[test]
fn the_match_means_what_the_kernel_does() {
    let flags = [STATE, PROTOCOL, STATUS, DIRECTION];
    let some = |bits: usize| {
        (0..4).filter(|bit| bits >> bit & 1 != 0).fold(0, |all, bit| all | flags[bit])
    };
    let mut compared = 0;
    for (which, inverted) in
        (1..16).flat_map(|which| (0..16).map(move |inverted| (which, inverted)))
    {
        if inverted & !which != 0 {
            continue;
        }
        for states in [0, 1, 2, 6, 8, 9, 0x40, 0x82, 0xc1, 0x100, 0x101, 0x1cf] {
            for status in [0, 4, 0x30] {
                let info = info(some(which), some(inverted), states, status);
                let alternatives = read(("conntrack", 3), &info, None).unwrap();
                for packet in packets() {
                    let expected = conntrack_mt(&packet, &info, states.into(), status.into());
                    let any =
                        alternatives.iter().any(|all| all.iter().all(|one| holds(one, &packet)));
                    assert_eq!(
                        any, expected,
                        "{which:#x} {inverted:#x} {states:#x} {status:#x} {packet:?}"
                    );
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 100_000, "{compared}");
}

#[test]
fn other_revisions_and_the_older_match() {
    let mut first = info(STATE | STATUS, 0, 0, 0);
    (first[150], first[151]) = (6, 4);
    let second = info(STATE | STATUS, 0, 6, 4);
    assert_eq!(
        read(("conntrack", 1), &first[..152], None),
        read(("conntrack", 2), &second[..154], None)
    );
    assert!(read(("conntrack", 1), &first, None).is_some());
    let alias = info(STATE | ALIAS, 0, 6, 0);
    let state = read(("state", 0), &6_u32.to_ne_bytes(), None);
    assert!(state.is_some());
    assert_eq!(read(("conntrack", 3), &alias, None), state);
    assert_eq!(
        read(("state", 0), &64_u32.to_ne_bytes(), None),
        read(("conntrack", 3), &info(STATE, 0, 0x100, 0), None)
    );
    for unknown in [0, ALIAS, STATE | 1 << 2, STATE | 1 << 7, STATE | 1 << 14] {
        assert!(read(("conntrack", 3), &info(unknown, 0, 6, 0), None).is_none(), "{unknown:#x}");
    }
    for (name, revision) in [("conntrack", 0), ("conntrack", 4), ("state", 1), ("helper", 0)] {
        assert!(read((name, revision), &second, None).is_none(), "{name} {revision}");
    }
    (0..154)
        .for_each(|end| assert!(read(("conntrack", 3), &second[..end], None).is_none(), "{end}"));
}

/// `struct xt_conntrack_mtinfo3` with bytes of addresses and ports at their places.
fn tuple_info(flags: u16, inverted: u16, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut info = info(flags, inverted, 0, 0);
    for (at, bytes) in parts {
        info[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    info
}

#[test]
fn tuples_are_compared_by_prefixes_and_ranges_of_ports() {
    use Direction::{Original, Reply};
    let of = |direction, field| Field::Connection(ConnectionField::Tuple(direction, field));
    let is = |direction, field, first, last| {
        Match::in_ranges(of(direction, field), [Range::new(first, last)])
    };
    // --ctorigsrc 10.1.0.0/16, ! --ctrepldst 192.0.2.7
    let four = tuple_info(
        1 << 2 | 1 << 5,
        1 << 5,
        &[(0, &[10, 1, 9, 9]), (16, &[255, 255]), (96, &[192, 0, 2, 7]), (112, &[255; 4])],
    );
    let source = is(Original, TupleField::Source4, 0x0a01_0000, 0x0a01_ffff);
    let destination = is(Reply, TupleField::Destination4, 0xc000_0207, 0xc000_0207).negated();
    let expected = vec![vec![source, destination]];
    assert_eq!(read(("conntrack", 3), &four, Some(4)), Some(expected.clone()));
    assert_eq!(read(("conntrack", 1), &four, Some(4)), Some(expected.clone()));
    assert_eq!(read(("conntrack", 3), &four, None), None, "of any version");
    let condition = |op: &str, key: &str, direction: &str, ends: [Value; 2]| {
        json!({"match": {"op": op, "left": {"ct": {"key": key, "dir": direction}},
            "right": {"set": [{"range": ends}]}}})
    };
    let (first, last) = (json!("10.1.0.0"), json!("10.1.255.255"));
    let own = [json!("192.0.2.7"), json!("192.0.2.7")];
    let both = [
        condition("==", "ip saddr", "original", [first, last]),
        condition("!=", "ip daddr", "reply", own),
    ];
    assert_eq!(listed(&expected), json!({ "any": [both] }));
    // --ctorigdst 2001:db8::/32
    let six = tuple_info(1 << 3, 0, &[(32, &[0x20, 1, 0xd, 0xb8, 1]), (48, &[255; 4])]);
    let net = 0x2001_0db8 << 96;
    let net = is(Original, TupleField::Destination6, net, net | u128::MAX >> 32);
    assert_eq!(read(("conntrack", 3), &six, Some(6)), Some(vec![vec![net.clone()]]));
    let text = listed(&[vec![net]]).to_string();
    assert!(text.contains("2001:db8::") && text.contains("2001:db8:ffff:ffff:"), "{text}");
    // --ctorigdstport 80:90, --ctreplsrcport 7; before revision 3, a single port as in the packet
    let port = |number: u16| number.to_ne_bytes();
    let ports = tuple_info(
        1 << 9 | 1 << 10,
        0,
        &[(140, &port(80)), (156, &port(90)), (142, &port(7)), (158, &port(7))],
    );
    let to = is(Original, TupleField::DestinationPort, 80, 90);
    let from = is(Reply, TupleField::SourcePort, 7, 7);
    assert_eq!(read(("conntrack", 3), &ports, None), Some(vec![vec![to, from]]));
    let one = tuple_info(1 << 8, 0, &[(138, &443_u16.to_be_bytes())]);
    let from = is(Original, TupleField::SourcePort, 443, 443);
    assert_eq!(read(("conntrack", 2), &one, None), Some(vec![vec![from]]));
    // Not those of a prefix, and no range.
    let holes = tuple_info(1 << 2, 0, &[(16, &[255, 0, 255])]);
    assert_eq!(read(("conntrack", 3), &holes, Some(4)), None);
    let empty = tuple_info(1 << 8, 0, &[(138, &port(90)), (154, &port(80))]);
    assert_eq!(read(("conntrack", 3), &empty, None), None);
}

#[test]
fn marks_are_tested_and_set() {
    let words = |words: [u32; 3], rest: &[u8]| {
        let mut info: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        info.extend(rest);
        info
    };
    let mark = |invert: u8| {
        let mut info = words([5, 0xff, 0], &[]);
        info[8] = invert;
        read(("connmark", 1), &info, None)
    };
    let is = Match::is(key(ConnectionField::Mark, 0xff), 5);
    assert_eq!(mark(0), Some(vec![vec![is.clone()]]));
    assert_eq!(mark(1), Some(vec![vec![is.negated()]]));
    let update = |target, packet, connection, flip| {
        Some(MarkUpdate { target, packet, connection: Some(connection), flip })
    };
    let all = u32::MAX;
    for (numbers, mode, expected) in [
        // --set-mark 5, --set-xmark 5/0xf.
        ([5, all, 0], 0, update(MarkOf::Connection, 0, 0, 5)),
        ([5, 0xf, 0], 0, update(MarkOf::Connection, 0, !0xf, 5)),
        // --save-mark, --restore-mark, and the same with masks.
        ([0, all, all], 1, update(MarkOf::Connection, all, 0, 0)),
        ([0, 0xf, 0xff], 1, update(MarkOf::Connection, 0xff, !0xf, 0)),
        ([0, all, all], 2, update(MarkOf::Packet, 0, all, 0)),
        ([0, 0xf, 0xff], 2, update(MarkOf::Packet, !0xff, 0xf, 0)),
        ([0, all, all], 3, None),
    ] {
        assert_eq!(target("CONNMARK", 1, &words(numbers, &[mode])), expected, "{mode} {numbers:?}");
        let second = words(numbers, &[0, 0, mode]);
        assert_eq!(target("CONNMARK", 2, &second), expected, "{mode} {numbers:?}");
    }
    assert_eq!(target("CONNMARK", 2, &words([5, all, 0], &[0, 1, 0])), None, "shifted by a bit");
    assert_eq!(target("MARK", 2, &words([5, all, 0], &[0, 0, 0])), None);
}

#[test]
fn a_target_for_new_connections_keeps_their_timeouts_without_a_policy() {
    let mut info = [0_u8; 72];
    // --helper ftp
    info[12..15].copy_from_slice(b"ftp");
    let keeps = |revision, info: &[u8]| keeps_timeouts("CT", revision, info);
    assert!(keeps(0, &info[..40]) && keeps(1, &info) && keeps(2, &info));
    info[28] = b'p';
    assert!(!keeps(1, &info) && !keeps(2, &info), "--timeout p");
    for (flags, is_kept_out) in [(0, false), (1, true), (3, true), (4, false)] {
        info[0] = flags;
        for revision in 0..=2 {
            assert_eq!(is_notrack("CT", revision, &info), is_kept_out, "{flags}");
        }
        assert!(!is_notrack("CT", 3, &info) && !is_notrack("CT", 2, &[]), "{flags}");
    }
    assert!(!keeps(3, &[0; 72]) && !keeps(2, &[0; 59]) && !keeps_timeouts("SYNPROXY", 0, &[0; 72]));
}
