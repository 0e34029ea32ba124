//! Random instances and random packets of both directions, beside the model.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::libalias::{LibAlias, Packet};
use super::*;

const INSIDES: [[u8; 4]; 4] = [[10, 0, 0, 5], [10, 0, 0, 6], [172, 32, 0, 1], ALIAS];
const PUBLICS: [[u8; 4]; 3] = [ALIAS, [192, 0, 2, 7], [192, 0, 2, 8]];
const REMOTES: [[u8; 4]; 3] = [REMOTE, [198, 51, 100, 10], [203, 0, 113, 4]];
const PROTOCOLS: [u8; 4] = [l4::TCP, l4::UDP, l4::ICMP, l4::GRE];

fn an_end(addresses: &'static [[u8; 4]]) -> impl Strategy<Value = AliasEnd> {
    (select(addresses), 20_u16..26).prop_map(end)
}

/// A remote end of which parts may be any.
fn some_remote() -> impl Strategy<Value = AliasEnd> {
    (an_end(&REMOTES), proptest::bool::ANY, proptest::bool::ANY).prop_map(
        |(remote, any_address, any_port)| AliasEnd {
            address: if any_address { 0 } else { remote.address },
            port: if any_port { 0 } else { remote.port },
        },
    )
}

fn a_redirect() -> impl Strategy<Value = Redirect> {
    let address = |addresses: &'static [[u8; 4]]| select(addresses).prop_map(number);
    let ports = (
        select(&[l4::TCP, l4::UDP][..]),
        vec(an_end(&INSIDES), 1..4),
        an_end(&PUBLICS),
        1_u16..4,
        some_remote(),
    );
    prop_oneof![
        2 => ports.prop_map(|(protocol, inside, public, count, remote)| Redirect::Port {
            protocol,
            public,
            remote,
            count: if inside.len() > 1 { 1 } else { count },
            inside,
        }),
        1 => (vec(address(&INSIDES), 1..3), address(&PUBLICS))
            .prop_map(|(inside, public)| Redirect::Address { inside, public }),
        // From any host: of one host, a redirect is a link itself in libalias, which is older than all others. Here it
        // makes a mapping, which is newer, so that answers come to the host that spoke last.
        1 => (address(&INSIDES), address(&PUBLICS)).prop_map(|(inside, public)| {
            Redirect::Protocol { protocol: l4::GRE, inside, public, remote: 0 }
        }),
    ]
}

fn a_config() -> impl Strategy<Value = AliasConfig> {
    let unregistered = prop_oneof![Just(Unregistered::All), Just(Unregistered::Private)];
    (proptest::bool::ANY, proptest::bool::ANY, unregistered, vec(a_redirect(), 0..5)).prop_map(
        |(deny_in, same_ports, unregistered, redirects)| AliasConfig {
            deny_in,
            same_ports,
            unregistered,
            redirects,
            ..config()
        },
    )
}

/// A packet, and whether it comes.
fn a_packet() -> impl Strategy<Value = (Packet, bool)> {
    let near = prop_oneof![an_end(&INSIDES), an_end(&PUBLICS)];
    (select(&PROTOCOLS[..]), near, an_end(&REMOTES), proptest::bool::ANY).prop_map(
        |(protocol, near, remote, comes)| {
            let (source, destination) = if comes { (remote, near) } else { (near, remote) };
            (Packet { protocol, source, destination }, comes)
        },
    )
}

fn bytes(packet: &Packet, comes: bool) -> Vec<u8> {
    let of = |end: AliasEnd| (end.address.to_be_bytes(), end.port);
    let (source, destination) = (of(packet.source), of(packet.destination));
    match packet.protocol {
        l4::TCP => tcp(source, destination, ACK),
        l4::UDP => udp(source, destination),
        l4::ICMP => {
            let id = if comes { destination.1 } else { source.1 };
            echo(source.0, destination.0, id, comes)
        }
        _ => gre(source.0, destination.0),
    }
}

/// Source and destination of a packet's bytes, as far as it has ports.
fn ends(packet: &[u8]) -> (AliasEnd, AliasEnd) {
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let address = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
    let ports = match packet[9] {
        l4::TCP | l4::UDP => (word(20), word(22)),
        l4::ICMP => (word(24), word(24)),
        _ => (0, 0),
    };
    (
        AliasEnd { address: address(12), port: ports.0 },
        AliasEnd { address: address(16), port: ports.1 },
    )
}

fn without_port(end: AliasEnd, protocol: u8) -> AliasEnd {
    if protocol == l4::GRE { AliasEnd { port: 0, ..end } } else { end }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 600 }))]

    #[test]
    fn packets_are_translated_as_by_libalias(
        config in a_config(),
        packets in vec(a_packet(), 1..60),
    ) {
        let aliases = Aliases::new(vec![config.clone()]);
        let mut model = LibAlias::new(&config);
        for (packet, comes) in packets {
            let before = bytes(&packet, comes);
            let way = if comes { AliasPass::In } else { AliasPass::Out };
            let after = pass(&aliases, way, &before, START);
            if comes {
                let expected = model.r#in(&packet).map(|inside| without_port(inside, packet.protocol));
                prop_assert_eq!(after.as_deref().map(|after| ends(after).1), expected, "{:?}", packet);
                continue;
            }
            let after = after.unwrap();
            let (alias, _) = ends(&after);
            let expected = model.out(&packet, alias.port);
            prop_assert_eq!(Ok(alias), expected, "{:?}", packet);
            // The answer comes back to where the packet was from.
            let back = Packet { source: packet.destination, destination: alias, ..packet };
            let back = pass(&aliases, AliasPass::In, &bytes(&back, true), START);
            let back_in_model = model.r#in(&Packet {
                source: packet.destination,
                destination: alias,
                ..packet
            });
            let inside = back.as_deref().map(|back| ends(back).1);
            prop_assert_eq!(inside, back_in_model.map(|inside| without_port(inside, packet.protocol)));
        }
    }

    #[test]
    fn without_redirects_every_answer_comes_back(
        same_ports: bool,
        packets in vec(a_packet(), 1..80),
    ) {
        let aliases = Aliases::new(vec![AliasConfig { same_ports, ..config() }]);
        // Of hosts that speak a protocol without ports to the same one, the last gets the answers.
        let has_ports = |(packet, comes): &(Packet, bool)| !comes && packet.protocol != l4::GRE;
        for (packet, _) in packets.into_iter().filter(has_ports) {
            let before = bytes(&packet, false);
            let out = pass(&aliases, AliasPass::Out, &before, START).unwrap();
            let (alias, remote) = ends(&out);
            prop_assert_eq!(alias.address, number(ALIAS));
            let back = Packet { source: remote, destination: alias, ..packet };
            let back = pass(&aliases, AliasPass::In, &bytes(&back, true), START).unwrap();
            let (came, inside) = ends(&back);
            prop_assert_eq!(inside, ends(&before).0);
            prop_assert_eq!(came.address, packet.destination.address);
        }
    }
}
