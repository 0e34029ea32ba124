//! Mappings, redirects, errors, fragments, lifetimes, room; and random packets beside a plain model of libalias.

mod libalias;
mod random;

use std::sync::{Arc, Barrier};
use std::thread;

use etherparse::PacketBuilder;

use super::super::TcpConnectionState;
use super::*;
use crate::wire::l4;

const START: u64 = 1000 * S;

const INSIDE: [u8; 4] = [10, 0, 0, 5];
const OTHER: [u8; 4] = [10, 0, 0, 6];
const ALIAS: [u8; 4] = [192, 0, 2, 1];
const REMOTE: [u8; 4] = [198, 51, 100, 9];

const SYN: u8 = 2;
const ACK: u8 = 16;
const FIN: u8 = 17;

/// An address and a port.
type End = ([u8; 4], u16);

fn number(address: [u8; 4]) -> u32 {
    u32::from_be_bytes(address)
}

fn end((address, port): End) -> AliasEnd {
    AliasEnd { address: number(address), port }
}

fn udp(source: End, destination: End) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(source.0, destination.0, 64)
        .udp(source.1, destination.1)
        .write(&mut packet, b"data")
        .unwrap();
    packet
}

fn tcp(source: End, destination: End, flags: u8) -> Vec<u8> {
    let mut builder =
        PacketBuilder::ipv4(source.0, destination.0, 64).tcp(source.1, destination.1, 1, 1000);
    if flags & 1 != 0 {
        builder = builder.fin();
    }
    if flags & 2 != 0 {
        builder = builder.syn();
    }
    if flags & 4 != 0 {
        builder = builder.rst();
    }
    if flags & 16 != 0 {
        builder = builder.ack(5);
    }
    let mut packet = Vec::new();
    builder.write(&mut packet, b"data").unwrap();
    packet
}

/// An echo request, or its answer.
fn echo(source: [u8; 4], destination: [u8; 4], id: u16, is_answer: bool) -> Vec<u8> {
    let builder = PacketBuilder::ipv4(source, destination, 64);
    let builder = match is_answer {
        true => builder.icmpv4_echo_reply(id, 1),
        false => builder.icmpv4_echo_request(id, 1),
    };
    let mut packet = Vec::new();
    builder.write(&mut packet, b"ping").unwrap();
    packet
}

/// An error about a packet: its destination is unreachable.
fn unreachable(source: [u8; 4], destination: [u8; 4], about: &[u8]) -> Vec<u8> {
    let kind = etherparse::Icmpv4Type::DestinationUnreachable(
        etherparse::icmpv4::DestUnreachableHeader::Port,
    );
    let mut packet = Vec::new();
    PacketBuilder::ipv4(source, destination, 64)
        .icmpv4(kind)
        .write(&mut packet, &about[..28.min(about.len())])
        .unwrap();
    packet
}

fn gre(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut packet = udp((source, 0), (destination, 0));
    packet[9] = l4::GRE;
    packet[20..28].fill(9);
    sign(&mut packet);
    packet
}

/// A fragment, by the bits of its field.
fn fragment(mut packet: Vec<u8>, field: u16, id: u16) -> Vec<u8> {
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&field.to_be_bytes());
    sign(&mut packet);
    packet
}

fn sign(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = !crate::wire::checksum::sum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn config() -> AliasConfig {
    AliasConfig { number: 1, same_ports: true, deny_in: true, ..AliasConfig::default() }
        .with_address(number(ALIAS))
}

fn with(redirects: Vec<Redirect>) -> Aliases {
    let config = AliasConfig { redirects, ..config() };
    Aliases::new(vec![config.with_address(number(ALIAS))])
}

/// What becomes of a packet; none if it is dropped.
fn pass(aliases: &Aliases, pass: AliasPass, packet: &[u8], now_ns: u64) -> Option<Vec<u8>> {
    let mut packet = packet.to_vec();
    match aliases.translate(0, pass, &packet, now_ns) {
        Aliased::Ignored => Some(packet),
        Aliased::Translated(translations) => {
            translations.apply(&mut packet).unwrap();
            Some(packet)
        }
        Aliased::Denied | Aliased::Full => None,
    }
}

fn leaves(aliases: &Aliases, packet: &[u8]) -> Option<Vec<u8>> {
    pass(aliases, AliasPass::Out, packet, START)
}

fn comes(aliases: &Aliases, packet: &[u8]) -> Option<Vec<u8>> {
    pass(aliases, AliasPass::In, packet, START)
}

#[test]
fn what_leaves_has_the_alias_and_its_answer_comes_inside() {
    let aliases = with(vec![]);
    for make in [udp, |source, destination| tcp(source, destination, SYN)] {
        let out = leaves(&aliases, &make((INSIDE, 4000), (REMOTE, 53)));
        assert_eq!(out, Some(make((ALIAS, 4000), (REMOTE, 53))));
        let back = comes(&aliases, &make((REMOTE, 53), (ALIAS, 4000)));
        assert_eq!(back, Some(make((REMOTE, 53), (INSIDE, 4000))));
        assert_eq!(comes(&aliases, &make((REMOTE, 54), (ALIAS, 4000))), None, "another port");
        assert_eq!(comes(&aliases, &make((OTHER, 53), (ALIAS, 4000))), None, "another host");
    }
    let ping = |id| echo(INSIDE, REMOTE, id, false);
    assert_eq!(leaves(&aliases, &ping(7)), Some(echo(ALIAS, REMOTE, 7, false)));
    let back = comes(&aliases, &echo(REMOTE, ALIAS, 7, true));
    assert_eq!(back, Some(echo(REMOTE, INSIDE, 7, true)));
    assert_eq!(comes(&aliases, &echo(REMOTE, ALIAS, 8, true)), None);
    assert_eq!(leaves(&aliases, &gre(INSIDE, REMOTE)), Some(gre(ALIAS, REMOTE)));
    assert_eq!(comes(&aliases, &gre(REMOTE, ALIAS)), Some(gre(REMOTE, INSIDE)));
    assert_eq!(comes(&aliases, &gre(OTHER, ALIAS)), None);
    assert_eq!(aliases.list(START).len(), 4);
}

#[test]
fn a_taken_port_is_given_to_nobody_else() {
    let aliases = with(vec![]);
    let out = |source: End| leaves(&aliases, &udp(source, (REMOTE, 53))).unwrap();
    let port = |packet: &[u8]| u16::from_be_bytes([packet[20], packet[21]]);
    assert_eq!(port(&out((INSIDE, 4000))), 4000);
    let other = port(&out((OTHER, 4000)));
    assert!(other >= 0x8000, "{other}");
    let back = comes(&aliases, &udp((REMOTE, 53), (ALIAS, other)));
    assert_eq!(back, Some(udp((REMOTE, 53), (OTHER, 4000))));
    assert_eq!(port(&out((OTHER, 4000))), other, "it keeps it");
    let elsewhere = leaves(&aliases, &udp((OTHER, 4000), (REMOTE, 54))).unwrap();
    assert_eq!(port(&elsewhere), 4000, "to another port it is free");

    let config = AliasConfig { ports: Some((5000, 5000)), same_ports: false, ..config() };
    let aliases = Aliases::new(vec![config]);
    let first = leaves(&aliases, &udp((INSIDE, 1), (REMOTE, 53)));
    assert_eq!(first, Some(udp((ALIAS, 5000), (REMOTE, 53))));
    assert_eq!(leaves(&aliases, &udp((INSIDE, 2), (REMOTE, 53))), None, "no port is left");
}

#[test]
fn without_deny_in_the_router_itself_is_reached() {
    let config = AliasConfig { deny_in: false, ..config() };
    let aliases = Aliases::new(vec![config]);
    let packet = udp((REMOTE, 53), (ALIAS, 22));
    assert_eq!(comes(&aliases, &packet), Some(packet));
    let answer = udp((ALIAS, 22), (REMOTE, 53));
    assert_eq!(leaves(&aliases, &answer), Some(answer));
    // The port is taken for this remote end.
    let other = leaves(&aliases, &udp((INSIDE, 22), (REMOTE, 53))).unwrap();
    assert_ne!(other, udp((ALIAS, 22), (REMOTE, 53)));
}

fn redirect(inside: &[End], public: u16, count: u16, remote: End) -> Redirect {
    Redirect::Port {
        protocol: l4::UDP,
        inside: inside.iter().copied().map(end).collect(),
        public: AliasEnd { address: 0, port: public },
        count,
        remote: end(remote),
    }
}

#[test]
fn ports_are_redirected_by_the_closest_redirect() {
    const ANY: End = ([0; 4], 0);
    let aliases = with(vec![
        redirect(&[(INSIDE, 80)], 8080, 3, ANY),
        redirect(&[(INSIDE, 1)], 8080, 1, (REMOTE, 0)),
        redirect(&[(INSIDE, 2)], 8080, 1, ([0; 4], 99)),
        redirect(&[(INSIDE, 3)], 8080, 1, (REMOTE, 99)),
        redirect(&[(INSIDE, 4), (OTHER, 5), (INSIDE, 6)], 9000, 1, ANY),
    ]);
    let goes = |from: End, port: u16| {
        let packet = comes(&aliases, &udp(from, (ALIAS, port)))?;
        Some((packet[16..20].try_into().unwrap(), u16::from_be_bytes([packet[22], packet[23]])))
    };
    assert_eq!(goes((OTHER, 50), 8080), Some((INSIDE, 80)));
    assert_eq!(goes((OTHER, 50), 8082), Some((INSIDE, 82)));
    assert_eq!(goes((OTHER, 50), 8083), None);
    assert_eq!(goes((REMOTE, 50), 8080), Some((INSIDE, 1)));
    assert_eq!(goes((OTHER, 99), 8080), Some((INSIDE, 2)));
    assert_eq!(goes((REMOTE, 99), 8080), Some((INSIDE, 3)));
    // Each connection keeps its server; the last one is the first.
    let servers = [(INSIDE, 6), (INSIDE, 4), (OTHER, 5), (INSIDE, 6)];
    for (port, server) in (60..).zip(servers) {
        assert_eq!(goes((OTHER, port), 9000), Some(server));
        assert_eq!(goes((OTHER, port), 9000), Some(server));
    }
    // A server that begins has its public port.
    let out = leaves(&aliases, &udp((INSIDE, 81), (OTHER, 7)));
    assert_eq!(out, Some(udp((ALIAS, 8081), (OTHER, 7))));
}

#[test]
fn addresses_and_protocols_are_redirected() {
    const PUBLIC: [u8; 4] = [192, 0, 2, 7];
    let aliases = with(vec![
        Redirect::Address { inside: vec![number(INSIDE)], public: number(PUBLIC) },
        Redirect::Protocol { protocol: l4::GRE, inside: number(OTHER), public: 0, remote: 0 },
    ]);
    let out = leaves(&aliases, &udp((INSIDE, 4000), (REMOTE, 53)));
    assert_eq!(out, Some(udp((PUBLIC, 4000), (REMOTE, 53))));
    assert_eq!(comes(&aliases, &gre(REMOTE, ALIAS)), Some(gre(REMOTE, OTHER)));
    assert_eq!(comes(&aliases, &udp((REMOTE, 1), (PUBLIC, 2))), None, "as in libalias");
    let config = AliasConfig {
        deny_in: false,
        redirects: vec![Redirect::Address {
            inside: vec![number(INSIDE), number(OTHER)],
            public: number(PUBLIC),
        }],
        ..config()
    };
    let aliases = Aliases::new(vec![config]);
    for (port, server) in (1..).zip([OTHER, INSIDE, OTHER]) {
        let back = comes(&aliases, &udp((REMOTE, port), (PUBLIC, 2)));
        assert_eq!(back, Some(udp((REMOTE, port), (server, 2))));
        let out = leaves(&aliases, &udp((server, 2), (REMOTE, port)));
        assert_eq!(out, Some(udp((PUBLIC, 2), (REMOTE, port))));
    }
}

#[test]
fn registered_addresses_stay() {
    const SHARED: [u8; 4] = [100, 64, 0, 1];
    let out = |unregistered, source| {
        let aliases = Aliases::new(vec![AliasConfig { unregistered, ..config() }]);
        let packet = leaves(&aliases, &udp((source, 4000), (REMOTE, 53))).unwrap();
        packet[12..16] == ALIAS
    };
    for (source, is_private, is_shared) in [
        (INSIDE, true, false),
        ([172, 31, 0, 1], true, false),
        ([172, 32, 0, 1], false, false),
        ([192, 168, 0, 1], true, false),
        (SHARED, false, true),
        (REMOTE, false, false),
    ] {
        assert!(out(Unregistered::All, source));
        assert_eq!(out(Unregistered::Private, source), is_private);
        assert_eq!(out(Unregistered::PrivateOrShared, source), is_private || is_shared);
    }
}

#[test]
fn errors_follow_the_packet_that_they_are_about() {
    const ROUTER: [u8; 4] = [203, 0, 113, 1];
    let aliases = with(vec![redirect(&[(INSIDE, 80)], 8080, 1, ([0; 4], 0))]);
    for (inner, seen) in [
        (udp((INSIDE, 4000), (REMOTE, 53)), udp((ALIAS, 4000), (REMOTE, 53))),
        (tcp((INSIDE, 4001), (REMOTE, 53), SYN), tcp((ALIAS, 4001), (REMOTE, 53), SYN)),
        (echo(INSIDE, REMOTE, 9, false), echo(ALIAS, REMOTE, 9, false)),
    ] {
        assert_eq!(leaves(&aliases, &inner).as_ref(), Some(&seen));
        let back = comes(&aliases, &unreachable(ROUTER, ALIAS, &seen));
        assert_eq!(back, Some(unreachable(ROUTER, INSIDE, &inner)));
    }
    let unknown = unreachable(ROUTER, ALIAS, &udp((ALIAS, 4009), (REMOTE, 53)));
    assert_eq!(comes(&aliases, &unknown), None);
    // The other way: about a packet that has come.
    let came = udp((REMOTE, 5), (ALIAS, 8080));
    let inner = comes(&aliases, &came).unwrap();
    let out = leaves(&aliases, &unreachable(INSIDE, REMOTE, &inner));
    assert_eq!(out, Some(unreachable(ALIAS, REMOTE, &came)));
    let of_router = leaves(&aliases, &unreachable(OTHER, REMOTE, &inner));
    assert_eq!(of_router, Some(unreachable(OTHER, REMOTE, &came)), "of a router on the way");
}

#[test]
fn fragments_follow_their_first_one() {
    const FIRST: u16 = 0x2000;
    const LATER: u16 = 3;
    let aliases = with(vec![]);
    let out = |field| fragment(udp((INSIDE, 4000), (REMOTE, 53)), field, 77);
    let seen = |field, port: u16| fragment(udp((ALIAS, port), (REMOTE, 53)), field, 77);
    assert_eq!(leaves(&aliases, &out(FIRST)), Some(seen(FIRST, 4000)));
    let later = leaves(&aliases, &out(LATER)).unwrap();
    assert_eq!(later[12..20], seen(LATER, 4000)[12..20]);
    assert_eq!(later[20..], out(LATER)[20..], "it has no ports");

    let back = |field, id| fragment(udp((REMOTE, 53), (ALIAS, 4000)), field, id);
    assert_eq!(comes(&aliases, &back(LATER, 78)), None, "before its first one");
    let first = comes(&aliases, &back(FIRST, 78)).unwrap();
    assert_eq!(first, fragment(udp((REMOTE, 53), (INSIDE, 4000)), FIRST, 78));
    let later = comes(&aliases, &back(LATER, 78)).unwrap();
    assert_eq!(later[12..20], first[12..20]);
    assert_eq!(later[20..], back(LATER, 78)[20..]);
    assert_eq!(comes(&aliases, &back(LATER, 79)), None);
    let denied = fragment(udp((REMOTE, 53), (ALIAS, 4009)), FIRST, 80);
    assert_eq!(comes(&aliases, &denied), None);
    assert_eq!(comes(&aliases, &fragment(denied, LATER, 80)), None);
    assert_eq!(pass(&aliases, AliasPass::In, &back(LATER, 78), START + 10 * S), None);
}

#[test]
fn a_mapping_lives_as_long_as_in_libalias() {
    let end_s = |aliases: &Aliases, now_ns| {
        let listed = aliases.list(now_ns);
        assert_eq!(listed.len(), 1);
        listed[0].1.expires_in_ns / S
    };
    for packet in
        [udp((INSIDE, 1), (REMOTE, 2)), echo(INSIDE, REMOTE, 1, false), gre(INSIDE, REMOTE)]
    {
        let aliases = with(vec![]);
        leaves(&aliases, &packet).unwrap();
        assert_eq!(end_s(&aliases, START), 60);
        assert_eq!(aliases.list(START + 60 * S), []);
    }
    let aliases = with(vec![]);
    let out = |flags, at| {
        let packet = tcp((INSIDE, 1), (REMOTE, 2), flags);
        pass(&aliases, AliasPass::Out, &packet, START + at * S).unwrap();
        end_s(&aliases, START + at * S)
    };
    let back = |flags, at| {
        let packet = tcp((REMOTE, 2), (ALIAS, 1), flags);
        pass(&aliases, AliasPass::In, &packet, START + at * S).unwrap();
        end_s(&aliases, START + at * S)
    };
    assert_eq!(out(SYN, 0), 300);
    assert_eq!(back(SYN | ACK, 1), 86_400);
    assert_eq!(aliases.list(START)[0].1.tcp, Some(TcpConnectionState::Established));
    assert_eq!(out(ACK, 2), 86_400);
    assert_eq!(out(FIN, 3), 90);
    assert_eq!(back(ACK, 4), 90);
    assert_eq!(back(FIN, 5), 10);
    assert_eq!(out(ACK, 6), 10);
    assert_eq!(out(SYN, 7), 300, "it begins again");
    let counts = aliases.list(START)[0].1.counts.map(|count| count.packets);
    assert_eq!(counts, [5, 3]);
}

#[test]
fn without_room_there_is_no_mapping() {
    let aliases = with(vec![]);
    let nth = |number: usize| udp((INSIDE, 7), (REMOTE, number as u16));
    for number in 0..MOST_MAPPINGS {
        assert!(leaves(&aliases, &nth(number)).is_some(), "{number}");
    }
    assert_eq!(aliases.table(START).count(), MOST_MAPPINGS);
    let more = udp((INSIDE, 9), (OTHER, 9));
    assert_eq!(aliases.translate(0, AliasPass::Out, &more, START), Aliased::Full);
    assert!(leaves(&aliases, &nth(5)).is_some(), "it has one");
    for seconds in 60..80 {
        aliases.sweep(START + seconds * S);
    }
    for step in 0..2000 {
        aliases.sweep(START + 80 * S + step * S / 16);
    }
    assert_eq!(aliases.table(START).count(), 0);
    assert!(pass(&aliases, AliasPass::Out, &more, START + 300 * S).is_some());
}

#[test]
fn other_rules_take_over_the_mappings_of_equal_instances() {
    let second = AliasConfig { number: 2, ..config() };
    let before = Aliases::new(vec![config(), second.clone()]);
    let packet = udp((INSIDE, 4000), (REMOTE, 53));
    for number in [0, 1] {
        before.translate(number, AliasPass::Out, &packet, START);
    }
    let changed = AliasConfig { deny_in: false, ..config() };
    let after = Aliases::new(vec![changed, second]);
    after.prepare(Some(&before));
    let listed: Vec<_> = after.list(START).iter().map(|(config, _)| config.number).collect();
    assert_eq!(listed, [2]);
    let back = udp((REMOTE, 53), (ALIAS, 4000));
    let inside = Aliased::Translated(Translations {
        packet: Translation {
            destination: Some(number(INSIDE).into()),
            destination_port: Some(4000),
            ..Translation::default()
        },
        quoted: None,
    });
    assert_eq!(after.translate(1, AliasPass::In, &back, START), inside);
}

#[test]
fn global_translates_what_an_instance_knows() {
    let skipped = AliasConfig { number: 2, skip_global: true, ..config() };
    let aliases = Aliases::new(vec![config(), skipped]);
    let packet = |port| udp((INSIDE, port), (REMOTE, 53));
    let global = |port| aliases.translate_global(AliasPass::Out, &packet(port), START);
    assert_eq!(global(1), Aliased::Ignored);
    aliases.translate(1, AliasPass::Out, &packet(1), START);
    assert_eq!(global(1), Aliased::Ignored, "it is passed over");
    let known = aliases.translate(0, AliasPass::Out, &packet(1), START);
    assert_eq!(global(1), known);
    let back = udp((REMOTE, 53), (ALIAS, 1));
    assert_eq!(aliases.translate_global(AliasPass::In, &back, START), Aliased::Ignored);
}

#[test]
fn reverse_translates_what_comes() {
    let aliases = Aliases::new(vec![AliasConfig { reverse: true, ..config() }]);
    let out = comes(&aliases, &udp((INSIDE, 4000), (REMOTE, 53)));
    assert_eq!(out, Some(udp((ALIAS, 4000), (REMOTE, 53))));
    let back = leaves(&aliases, &udp((REMOTE, 53), (ALIAS, 4000)));
    assert_eq!(back, Some(udp((REMOTE, 53), (INSIDE, 4000))));
}

#[test]
fn workers_never_take_one_port_twice() {
    const EACH: u16 = if cfg!(miri) { 20 } else { 1500 };
    let aliases = Arc::new(with(vec![]));
    let started = Arc::new(Barrier::new(3));
    let workers = [1, 2, 3].map(|worker| {
        let (aliases, started) = (Arc::clone(&aliases), Arc::clone(&started));
        thread::spawn(move || {
            started.wait();
            for port in 1..=EACH {
                let packet = udp(([10, 0, 0, worker], port), (REMOTE, 53));
                let out = leaves(&aliases, &packet).unwrap();
                let port = u16::from_be_bytes([out[20], out[21]]);
                let back = comes(&aliases, &udp((REMOTE, 53), (ALIAS, port))).unwrap();
                assert_eq!(back[16..20], packet[12..16]);
                assert_eq!(back[22..24], packet[20..22]);
            }
        })
    });
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(aliases.list(START).len(), 3 * usize::from(EACH));
}

#[test]
fn what_is_not_ipv4_is_ignored() {
    let aliases = with(vec![]);
    let mut six = vec![0x60; 60];
    assert_eq!(aliases.translate(0, AliasPass::Out, &six, START), Aliased::Ignored);
    assert_eq!(aliases.translate(0, AliasPass::In, &six, START), Aliased::Denied);
    six.clear();
    assert_eq!(aliases.translate(0, AliasPass::Out, &six, START), Aliased::Ignored);
}
