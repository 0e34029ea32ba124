use super::condition::{IIFNAME, LEN, Load, Location, Test};
use super::expression::{Expression, expressions};
use super::program::{Act, Scope, SetContents, Sets, parts};
use super::{match_set, multiport};
use tollway_firewall::ir::PayloadBase;
use tollway_linux::netlink::push;

struct NoSets;

impl Sets for NoSets {
    fn version(&self) -> Option<u8> {
        None
    }

    fn find(&self, _: &str) -> Option<SetContents<'_>> {
        None
    }

    fn ipset(&self, _: u16) -> Option<(String, u8)> {
        None
    }
}

#[test]
fn conditions_that_mean_the_same_are_the_same() {
    let location = Location::Payload(PayloadBase::Network);
    let network = |offset, bytes, mask| Load { location, offset, bytes, mask };
    let whole = |offset, bytes| Load::payload(PayloadBase::Network, offset, bytes);
    for (one, other) in [
        // 10.0.0.0/8, by its first byte and by its range.
        (
            Test::range(whole(12, 1), 10, 10, false),
            Test::range(whole(12, 4), 0x0a00_0000, 0x0aff_ffff, false),
        ),
        // 10.16.0.0/12, masked.
        (
            Test::range(network(12, 4, 0xfff0_0000), 0x0a10_0000, 0x0a10_0000, true),
            Test::range(whole(12, 4), 0x0a10_0000, 0x0a1f_ffff, true),
        ),
        // Some bit is set, or not all are clear.
        (Test::range(network(13, 1, 2), 1, 255, false), Test::range(network(13, 1, 2), 0, 0, true)),
        // DSCPs greater than 5, by the whole byte and by the field.
        (
            Test::range(network(1, 1, 0xfc), 0x15, 0xff, false),
            Test::range(network(1, 1, 0xfc), 6 << 2, 63 << 2, false),
        ),
        // Lengths have no upper bound, but packets do.
        (
            Test::range(Load::meta(LEN), 61, u32::MAX.into(), false),
            Test::range(Load::meta(LEN), 61, 0xffff, false),
        ),
    ] {
        assert_eq!(one, other);
    }
    let ports = Load::payload(PayloadBase::Transport, 2, 2);
    assert_ne!(Test::range(ports, 10, 20, false), Test::range(ports, 10, 20, true));
    assert_ne!(Test::range(ports, 10, 20, false), Test::range(ports, 10, 21, false));
}

#[test]
fn names_end_with_a_zero() {
    let compare = |data: &[u8]| {
        let expressions = [
            Expression::Meta { to: 0, key: IIFNAME },
            Expression::Compare { from: 0, operator: 0, data: data.to_vec() },
        ];
        parts(&expressions, &NoSets, Scope::Packets).remove(0).tests
    };
    // As nft and as iptables compare a whole name.
    assert_eq!(compare(b"eth0\0\0\0\0\0\0\0\0\0\0\0\0"), compare(b"eth0\0"));
    // The beginning of a name.
    assert_ne!(compare(b"eth0"), compare(b"eth0\0"));
}

#[test]
fn ports_of_a_module() {
    let info = |flags: u8, ports: &[(u16, u8)], invert: u8| {
        let mut info = vec![flags, ports.len() as u8];
        (0..15).for_each(|at| info.extend(ports.get(at).map_or(0, |port| port.0).to_ne_bytes()));
        info.extend((0..15).map(|at| ports.get(at).map_or(0, |port| port.1)));
        info.push(invert);
        info
    };
    let read = |info: &[u8]| multiport::read("multiport", 1, info);
    let some = info(1, &[(22, 0), (1000, 1), (2000, 0)], 0);
    let ports = read(&some).unwrap();
    assert_eq!((ports.ranges, ports.negate), (vec![(22, 22), (1000, 2000)], false));
    assert!(read(&info(0, &[(53, 0)], 1)).unwrap().negate);
    assert!(read(&info(2, &[(53, 0)], 0)).is_none(), "of either side");
    assert!(read(&info(0, &[(53, 1)], 0)).is_none(), "a range without an end");
    assert!(read(&info(0, &[], 0)).is_none());
    assert!(multiport::read("multiport", 0, &some).is_none());
    (0..some.len()).for_each(|end| assert!(read(&some[..end]).is_none(), "{end}"));
}

#[test]
fn lookups_of_one_address_in_a_set_are_read() {
    let info = |dimensions: u8, flags: u8, more: u32| {
        let mut info = vec![0; 48];
        info[..2].copy_from_slice(&7_u16.to_ne_bytes());
        (info[2], info[3]) = (dimensions, flags);
        info[40..44].copy_from_slice(&more.to_ne_bytes());
        info
    };
    let read = |info: &[u8]| match_set::read("set", 4, info);
    let lookup = read(&info(1, 2, 8)).unwrap();
    assert_eq!((lookup.index, lookup.field(), lookup.negate), (7, "saddr", false));
    let lookup = match_set::read("set", 1, &info(1, 1, 0)[..8]).unwrap();
    assert_eq!((lookup.field(), lookup.negate), ("daddr", true));
    assert!(read(&info(2, 2, 0)).is_none(), "two loads");
    assert!(read(&info(1, 2, 0x80)).is_none(), "--return-nomatch");
    assert!(match_set::read("set", 2, &info(1, 0x82, 0)[..8]).is_none(), "--return-nomatch");
    let mut counted = info(1, 2, 0);
    counted[16] = 1;
    assert!(read(&counted).is_none(), "--packets-eq");
    assert!(match_set::read("set", 3, &info(1, 2, 0)).is_none());
    (0..44).for_each(|end| assert!(read(&info(1, 2, 0)[..end]).is_none(), "{end}"));
}

fn expression(name: &str, data: &[(u16, &[u8])]) -> Vec<u8> {
    let (mut inner, mut element, mut all) = (Vec::new(), Vec::new(), Vec::new());
    data.iter().for_each(|(kind, value)| push(&mut inner, *kind, value));
    push(&mut element, 1, format!("{name}\0").as_bytes());
    push(&mut element, 2, &inner);
    push(&mut all, 1, &element);
    all
}

#[test]
fn unknown_parts_of_an_expression_make_it_unknown() {
    let (one, two) = (1_u32.to_be_bytes(), 2_u32.to_be_bytes());
    let load: [(u16, &[u8]); 4] = [(1, &one), (2, &two), (3, &one), (4, &two)];
    let known = expressions(&expression("payload", &load));
    assert_eq!(known, [Expression::Payload { to: 0, base: 2, offset: 1, len: 2 }]);
    let more = [&load[..], &[(77, &one)]].concat();
    for (name, data) in [("payload", &more[..]), ("payload", &load[..3]), ("no_such", &load)] {
        let other = expressions(&expression(name, data));
        assert_eq!(other, [Expression::Other(name.to_owned())]);
        let parts = parts(&other, &NoSets, Scope::Connections);
        assert_eq!(parts[0].act, Some(Act::Unknown(name.to_owned())));
    }
    // A broken expression is unknown, and affects nothing but itself.
    let whole = [expression("payload", &load), expression("counter", &[])].concat();
    (0..whole.len())
        .for_each(|end| drop(parts(&expressions(&whole[..end]), &NoSets, Scope::Connections)));
}
