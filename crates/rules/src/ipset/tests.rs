use std::collections::{HashMap, HashSet};

use super::message::Head;
use super::watch::WatchedSet;
use super::*;
use crate::elements::SetUse;
use tollway_linux::netlink::push;

fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    parts.iter().for_each(|(kind, value)| push(&mut bytes, *kind, value));
    bytes
}

/// A list as the kernel sends it: of a type and a family, with more attributes of the set, and elements.
fn listed(kind: &str, family: u8, more: &[(u16, &[u8])], elements: &[&[(u16, &[u8])]]) -> Vec<u8> {
    let count = (elements.len() as u32).to_be_bytes();
    let data = nested(&[&[(24, &count[..])], more].concat());
    let elements: Vec<_> = elements.iter().map(|element| nested(element)).collect();
    let elements: Vec<_> = elements.iter().map(|element| (7, &element[..])).collect();
    let kind = format!("{kind}\0");
    let list = nested(&elements);
    nested(&[(2, b"bad\0"), (3, kind.as_bytes()), (5, &[family]), (7, &data), (8 | 0x8000, &list)])
}

fn contents(list: &[u8]) -> Result<Contents, IpSetFault> {
    Head::read(list).and_then(|head| head.contents(list))
}

#[test]
fn a_list_is_read_as_the_kernel_sends_it() {
    let (one, two) = (nested(&[(1, &[192, 0, 2, 9])]), nested(&[(1, &[10, 0, 0, 0])]));
    let timeout = 5_u32.to_be_bytes();
    let elements: [&[(u16, &[u8])]; 2] =
        [&[(1, &one), (6, &timeout)], &[(1, &two), (26, b"why\0")]];
    let of = |kind, more| contents(&listed(kind, 2, more, &elements));
    let ranges = |ranges: &[Element]| Ok(Contents { version: 4, elements: ranges.to_vec() });
    assert_eq!(
        of("hash:ip", &[]),
        ranges(&[(0x0a00_0000, 0x0a00_0000), (0xc000_0209, 0xc000_0209)])
    );
    let short = listed("bitmap:ip", 2, &[(20, &[24])], &[&[(1, &two)]]);
    assert_eq!(contents(&short), ranges(&[(0x0a00_0000, 0x0a00_00ff)]));
    let nets = [&[(1, &two[..]), (3, &[8])][..], &[(1, &one), (3, &[32])]];
    let list = listed("hash:net", 2, &[], &nets);
    let found = ranges(&[(0x0a00_0000, 0x0aff_ffff), (0xc000_0209, 0xc000_0209)]);
    assert_eq!(contents(&list), found);
    assert_eq!(message::name(&list).as_deref(), Some("bad"));
    (0..list.len()).for_each(|end| drop(contents(&list[..end])));
    let six = nested(&[(2, &[0xfe; 16])]);
    let list = listed("hash:ip", 10, &[], &[&[(1, &six)]]);
    let all = u128::from_be_bytes([0xfe; 16]);
    assert_eq!(contents(&list), Ok(Contents { version: 6, elements: vec![(all, all)] }));
}

#[test]
fn unknown_sets_take_the_kernel_path() {
    let address = nested(&[(1, &[192, 0, 2, 9])]);
    let (no_match, counters) = (4_u32.to_be_bytes(), 8_u32.to_be_bytes());
    let plain: &[(u16, &[u8])] = &[(1, &address)];
    let why = |list: &[u8]| contents(list).unwrap_err().to_string();
    assert_eq!(why(&listed("hash:ip,port", 2, &[], &[plain])), "is of type hash:ip,port");
    assert_eq!(why(&listed("hash:ip", 2, &[(12, &address)], &[plain])), "has a bit mask");
    assert_eq!(why(&listed("hash:ip", 2, &[(8, &counters)], &[plain])), "counts packets");
    let excepted: &[(u16, &[u8])] = &[(1, &address), (3, &[32]), (8, &no_match)];
    assert_eq!(why(&listed("hash:net", 2, &[], &[excepted])), "has elements with nomatch");
    for (element, what) in [
        (&[(1, &address[..]), (2, &address)][..], "two ends"),
        (&[(1, &address), (3, &[33])], "too long a prefix"),
        (&[(3, &[32])], "no address"),
        (&[(1, &address), (3, &[24])], "bits behind the prefix"),
    ] {
        assert_eq!(
            why(&listed("hash:net", 2, &[], &[element])),
            "has elements in an unknown format",
            "{what}"
        );
    }
    assert_eq!(why(&listed("hash:ip", 7, &[], &[])), "is listed in an unknown format");
    assert_eq!(why(&listed("bitmap:port", 0, &[], &[])), "is of type bitmap:port");
}

#[test]
fn lists_of_several_datagrams_are_foreseen() {
    let head =
        |kind, family, more: &[(u16, &[u8])]| Head::read(&listed(kind, family, more, &[])).unwrap();
    let flags = |flags: u32| flags.to_be_bytes();
    let timeout = 0_u32.to_be_bytes();
    assert_eq!(head("hash:ip", 2, &[]).element_bytes, 16);
    assert_eq!(head("hash:ip", 10, &[(6, &timeout)]).element_bytes, 36);
    assert_eq!(head("hash:net", 2, &[]).element_bytes, 32);
    assert_eq!(head("hash:ip", 2, &[(8, &flags(16))]).element_bytes, 280);
    let places = 4096_u32.to_be_bytes();
    let head = head("hash:ip", 2, &[(18, &places)]);
    let mut budget = Budget::new();
    assert_eq!((0..100).take_while(|_| budget.take(&head).is_some()).count(), 16);
}

#[test]
fn changes_are_reported_for_each_live_set() {
    let contents = |elements: &[u128]| {
        let elements = elements.iter().map(|one| (*one, *one)).collect();
        Contents { version: 4, elements }
    };
    let set = |elements: &[u128]| IpSet {
        name: "bad".to_owned(),
        tables: ["ip filter", "ip raw"].map(str::to_owned).into(),
        contents: Ok(contents(elements)),
    };
    let uses = |all: &[(&str, SetUse)]| -> HashMap<_, _> {
        all.iter().map(|(name, of)| ((*name).to_owned(), *of)).collect()
    };
    let lookups = |name: &str| HashSet::from([name.to_owned()]);
    let live = SetUse::Live { version: 4, is_interval: true };
    let both = uses(&[("ip filter ipset bad", live), ("ip raw ipset bad", live)]);
    // Another set, whose name ends alike.
    let other = uses(&[("ip filter ipset x ipset bad", live)]);
    assert!(WatchedSet::new(set(&[]), &lookups("ip filter ipset x ipset bad"), &other).is_none());
    assert!(WatchedSet::new(set(&[]), &lookups("ip filter ipset other"), &both).is_none());
    let filter = lookups("ip filter ipset bad");
    let mut watched = WatchedSet::new(set(&[1, 2]), &filter, &both).unwrap();
    assert_eq!(watched.replace(Ok(contents(&[1, 2]))), Some(Vec::new()));
    let changes = watched.replace(Ok(contents(&[2, 3]))).unwrap();
    assert_eq!(changes.len(), 2, "in both tables");
    assert_eq!((&changes[0].add[..], &changes[0].remove[..]), (&[(3, 3)][..], &[(1, 1)][..]));
    assert_eq!(watched.replace(Ok(contents(&[2, 3]))), Some(Vec::new()), "reported once");
    assert_eq!(watched.replace(Err(IpSetFault::TooLarge)), None);
    let fixed = uses(&[("ip filter ipset bad", SetUse::Fixed), ("ip raw ipset bad", live)]);
    let mut watched = WatchedSet::new(set(&[1]), &filter, &fixed).unwrap();
    assert_eq!(watched.replace(Ok(contents(&[1]))), Some(Vec::new()));
    assert_eq!(watched.replace(Ok(contents(&[2]))), None, "a part of the rules");
}
