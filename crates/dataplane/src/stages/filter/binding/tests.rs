//! Choices compared with a plain list of what is taken, and with what the kernel's hash gives.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::super::flows::Query;
use super::hash::choose_address;
use super::*;
use crate::testkit::dice::Dice;
use crate::wire::l4;

/// Flows that are taken, by what identifies their answers.
#[derive(Default)]
struct List {
    taken: BTreeSet<(u128, u128, u16, u16, u8)>,
    dice: RefCell<Option<Dice>>,
}

fn key(flow: &FlowId) -> (u128, u128, u16, u16, u8) {
    (flow.source, flow.destination, flow.source_port, flow.destination_port, flow.protocol)
}

impl Tuples for List {
    fn is_taken(&self, leaves: &FlowId) -> bool {
        self.taken.contains(&key(leaves))
    }

    fn random(&self) -> u16 {
        self.dice.borrow_mut().get_or_insert(Dice(7)).roll() as u16
    }
}

fn flow(protocol: u8, source: u128, source_port: u16) -> FlowId {
    let query = matches!(protocol, l4::ICMP).then_some(Query { kind: 8, code: 0, inverse: 0 });
    let destination_port = if query.is_some() { source_port } else { 80 };
    let (version, destination) = (4, 0x0a00_0001);
    FlowId { source, destination, source_port, destination_port, protocol, version, zone: 0, query }
}

const fn range(addresses: Option<(u128, u128)>, ports: Option<(u16, u16)>) -> BindingRange {
    BindingRange { addresses, ports, is_random: false, is_persistent: false }
}

#[test]
fn what_a_connection_gets() {
    let nat = 0xc000_0201;
    let one = Some((nat, nat));
    let list = List::default();
    let tcp = flow(l4::TCP, 1, 5000);
    let source = |flow: &FlowId, range| choose(flow, &range, Manip::Source, &list);
    let destination = |flow: &FlowId, range| choose(flow, &range, Manip::Destination, &list);
    for (chosen, expected) in [
        // The port stays where it may.
        (source(&tcp, range(one, None)), (nat, 5000)),
        (source(&tcp, range(one, Some((4000, 6000)))), (nat, 5000)),
        (source(&tcp, range(None, Some((7, 7)))), (1, 7)),
        (source(&tcp, BindingRange::keeping(1)), (1, 5000)),
        // It is not one of the protocol's.
        (source(&flow(l4::GRE, 1, 0), range(one, Some((7, 9)))), (nat, 0)),
        (source(&flow(l4::ICMP, 1, 9), range(one, None)), (nat, 9)),
        (source(&flow(l4::ICMP, 1, 9), range(one, Some((7, 7)))), (nat, 7)),
    ] {
        assert_eq!((chosen.source, chosen.source_port), expected);
    }
    let to = destination(&tcp, range(one, Some((8080, 8080))));
    assert_eq!((to.destination, to.destination_port, to.source_port), (nat, 8080, 5000));
    assert_eq!(destination(&tcp, range(None, Some((81, 81)))).destination, tcp.destination);
    let id = destination(&flow(l4::ICMP, 1, 9), range(one, Some((7, 7))));
    assert_eq!(
        (id.source_port, id.destination_port),
        (7, 7),
        "an identifier is that of both sides"
    );
}

#[test]
fn ports_stay_in_their_class_and_unlike_all_others() {
    let nat = 0xc000_0201;
    for (port, class) in [(22, 1..=511), (600, 600..=1023), (5000, 1024..=65535)] {
        let mut list = List::default();
        let mut clients = 0;
        for client in 1..=200 {
            let chosen = choose(
                &flow(l4::UDP, client, port),
                &range(Some((nat, nat)), None),
                Manip::Source,
                &list,
            );
            let is_free = list.taken.insert(key(&chosen));
            assert!(is_free || class.clone().count() < 600, "{client}: {chosen:?}");
            assert!(class.contains(&chosen.source_port) || client == 1, "{chosen:?}");
            clients += u32::from(is_free);
        }
        assert!(clients > 190, "{clients} of {class:?}");
    }
    // All ports of a range are found, and not one more.
    let mut list = List::default();
    let of_range = range(Some((nat, nat)), Some((2000, 2009)));
    for client in 1..=11 {
        let chosen = choose(&flow(l4::TCP, client, 5000), &of_range, Manip::Source, &list);
        assert_eq!(list.taken.insert(key(&chosen)), client <= 10);
    }
}

#[test]
fn random_ports_are_those_of_the_range() {
    let list = List::default();
    let of_range = BindingRange { is_random: true, ..range(None, Some((2000, 2009))) };
    let ports: BTreeSet<u16> = (0..200)
        .map(|_| choose(&flow(l4::TCP, 1, 2005), &of_range, Manip::Source, &list).source_port)
        .collect();
    assert_eq!(ports.into_iter().collect::<Vec<_>>(), (2000..=2009).collect::<Vec<_>>());
}

#[test]
fn one_of_several_addresses_is_chosen_by_who_asks() {
    let mut dice = Dice(3);
    let (first, last) = (0xc000_0210_u128, 0xc000_0219);
    let mut seen = BTreeSet::new();
    for _ in 0..500 {
        let one = FlowId { destination: dice.roll().into(), ..flow(l4::TCP, 1, 5000) };
        let one = FlowId {
            source: (dice.roll() as u32).into(),
            destination: one.destination & 0xffff_ffff,
            ..one
        };
        let chosen = choose_address(&one, (first, last), Manip::Source, false);
        assert!((first..=last).contains(&chosen));
        assert_eq!(chosen, choose_address(&one, (first, last), Manip::Source, false));
        seen.insert(chosen);
        let persistent = choose_address(&one, (first, last), Manip::Source, true);
        let other = FlowId { destination: 99, ..one };
        assert_eq!(persistent, choose_address(&other, (first, last), Manip::Source, true));
    }
    assert_eq!(seen.len(), 10, "all of them");
    // Of IPv6, the range may be one of any words.
    let six = FlowId { version: 6, ..flow(l4::TCP, 1 << 90, 5000) };
    for (first, last) in [(5 << 64, 9 << 64), (1 << 100 | 3, 1 << 100 | 4), (0, u128::MAX)] {
        for number in 0..200 {
            let one = FlowId { source: number << 70 | number, ..six };
            let chosen = choose_address(&one, (first, last), Manip::Destination, false);
            assert!((first..=last).contains(&chosen), "{chosen:x} of {first:x} to {last:x}");
        }
    }
}

#[test]
fn rules_without_an_address_take_the_link_s() {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let link: Vec<LinkAddress> =
        [("fe80::1", 64), ("192.0.2.1", 24), ("10.0.0.9", 8), ("fd00::1", 64), ("2001:db8::1", 64)]
            .map(|(text, len)| (address(text), len))
            .into();
    let site = Site { ingress: &link, egress: &link };
    let of = |target, version, destination: &str| {
        let destination = bits(address(destination));
        let current = FlowId { version, destination, ..flow(l4::TCP, 1, 5000) };
        range_of(&NatRange::new(target), &current, site).and_then(|range| range.addresses)
    };
    for (target, version, destination, expected) in [
        (NatTarget::Masquerade, 4, "198.51.100.1", "192.0.2.1"),
        (NatTarget::Masquerade, 4, "10.1.2.3", "10.0.0.9"),
        (NatTarget::Masquerade, 6, "2001:db8:7::1", "2001:db8::1"),
        (NatTarget::Masquerade, 6, "fd00::7", "fd00::1"),
        (NatTarget::Redirect, 4, "198.51.100.1", "192.0.2.1"),
        (NatTarget::Redirect, 6, "2001:db8:7::1", "fd00::1"),
    ] {
        let expected = bits(address(expected));
        assert_eq!(of(target, version, destination), Some((expected, expected)), "{destination}");
    }
    let none = Site { ingress: &[], egress: &[] };
    let current = flow(l4::TCP, 1, 5000);
    assert_eq!(range_of(&NatRange::new(NatTarget::Masquerade), &current, none), None);
    let network = NatTarget::SourceNetwork(0xc000_0200, 0xc000_02ff);
    let range = range_of(&NatRange::new(network), &flow(l4::TCP, 0x0a00_0007, 1), none).unwrap();
    assert_eq!(range.addresses, Some((0xc000_0207, 0xc000_0207)));
}
