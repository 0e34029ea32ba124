//! Messages in the kernel's format.

use super::super::message::{Elements, Key, Message, RulesMessage, Table, read};
use tollway_linux::netlink;

/// The messages of a datagram.
fn messages(mut bytes: &[u8]) -> Vec<RulesMessage> {
    let mut messages = Vec::new();
    while let Some((message, rest)) = netlink::Message::cut(bytes) {
        messages.extend(read(&message));
        bytes = rest;
    }
    messages
}

/// An attribute.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A message of nf_tables, of generation 0x1234.
fn message(kind: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (20 + body.len() as u32).to_ne_bytes().to_vec();
    bytes.extend((10 << 8 | u16::from(kind)).to_ne_bytes());
    bytes.extend([0, 0]);
    bytes.extend(7_u32.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, 0, 0x12, 0x34]);
    bytes.extend(body);
    bytes
}

fn element(parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(1 | 0x8000, &parts.concat())
}

fn data(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | 0x8000, &attribute(1, value))
}

fn set_elements(kind: u8, elements: &[Vec<u8>]) -> Vec<u8> {
    let names = [attribute(1, b"filter\0"), attribute(2, b"bad\0")].concat();
    message(kind, 1, &[names, attribute(3 | 0x8000, &elements.concat())].concat())
}

fn one(bytes: &[u8]) -> Message {
    let mut all = messages(bytes);
    assert_eq!(all.len(), 1);
    let received = all.remove(0);
    assert_eq!((received.sequence, received.generation), (7, 0x1234));
    received.message
}

#[test]
fn generations_and_other_messages_are_read() {
    let generation = message(15, 0, &attribute(1, &99_u32.to_be_bytes()));
    assert_eq!(one(&generation), Message::Generation(99));
    assert_eq!(one(&message(6, 2, &[])), Message::Other);
    assert_eq!(one(&message(9, 2, &[])), Message::Other);
    assert_eq!(one(&message(18, 2, &[])), Message::Object);
    let both = [generation, message(8, 2, &[])].concat();
    assert_eq!(messages(&both).len(), 2);
}

#[test]
fn elements_have_a_key_and_an_end() {
    let plain = element(&[data(1, &[192, 0, 2, 1])]);
    let end = element(&[attribute(3, &1_u32.to_be_bytes()), data(1, &[192, 0, 2, 9])]);
    let comment = element(&[data(1, &[192, 0, 2, 7]), attribute(6, b"hello")]);
    let counter = attribute(7 | 0x8000, &attribute(1, b"counter\0"));
    let counted = element(&[data(1, &[192, 0, 2, 8]), counter]);
    let both = element(&[data(1, &[10, 0, 0, 0]), data(10, &[10, 0, 0, 9])]);
    let key = |value: [u8; 4], last: Option<[u8; 4]>, is_end| Key {
        value: value.to_vec(),
        last: last.map(Vec::from),
        is_end,
    };
    let expected = vec![
        key([192, 0, 2, 1], None, false),
        key([192, 0, 2, 9], None, true),
        key([192, 0, 2, 7], None, false),
        key([192, 0, 2, 8], None, false),
        key([10, 0, 0, 0], Some([10, 0, 0, 9]), false),
    ];
    for (kind, added) in [(12, true), (14, false)] {
        let bytes = set_elements(kind, &[&plain, &end, &comment, &counted, &both].map(Vec::clone));
        let elements =
            Elements { set: "inet filter bad".to_owned(), added, keys: Some(expected.clone()) };
        assert_eq!(one(&bytes), Message::Elements(elements));
    }
}

#[test]
fn elements_that_are_more_than_keys_have_no_keys() {
    let key = || data(1, &[192, 0, 2, 1]);
    for more in [
        attribute(4, &[0; 8]),
        attribute(5, &[0; 8]),
        data(2, &[1, 2, 3, 4]),
        attribute(3, &2_u32.to_be_bytes()),
        attribute(7 | 0x8000, &attribute(1, b"connlimit\0")),
        attribute(9, b"object\0"),
        attribute(77, &[]),
    ] {
        let Message::Elements(elements) = one(&set_elements(12, &[element(&[key(), more])])) else {
            panic!()
        };
        assert_eq!(elements.keys, None);
    }
}

#[test]
fn tables_with_equal_names_differ() {
    let table = |name: &[u8], handle: u64, flags: u32| {
        let parts = [
            attribute(1, name),
            attribute(2, &flags.to_be_bytes()),
            attribute(4, &handle.to_be_bytes()),
        ];
        match one(&message(0, 2, &parts.concat())) {
            Message::Table(table) => table,
            other => panic!("{other:?}"),
        }
    };
    let own = table(b"t\0", 1, 2);
    assert!(own.is_owned());
    for other in
        [table(b"t\0", 2, 2), table(b"u\0", 1, 2), table(b"t\0", 1, 6), table(b"t\0", 1, 1)]
    {
        assert_ne!(own, other);
    }
    assert!(![0, 1, 4, 6].map(|flags| table(b"t\0", 1, flags)).iter().any(Table::is_owned));
}

#[test]
fn broken_messages_are_ignored() {
    let whole = [
        message(15, 0, &attribute(1, &99_u32.to_be_bytes())),
        set_elements(12, &[element(&[data(1, &[192, 0, 2, 1])])]),
    ]
    .concat();
    let mut found = [0; 3];
    for len in 0..=whole.len() {
        found[messages(&whole[..len]).len()] += 1;
    }
    assert!(found.iter().all(|count| *count > 0), "{found:?}");
    // Any byte may change.
    for at in 0..whole.len() {
        for byte in [0, 1, 3, 4, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            assert!(messages(&bytes).len() <= 2);
        }
    }
    let mut refused = 36_u32.to_ne_bytes().to_vec();
    refused.extend(2_u16.to_ne_bytes());
    refused.extend([0; 10]);
    refused.extend((-1_i32).to_ne_bytes());
    refused.extend([0; 16]);
    assert_eq!(messages(&refused)[0].message, Message::Refused(-1));
}

#[test]
fn rules_with_only_tests_and_verdicts_are_plain() {
    let rule = |kind, expressions: &[&str]| {
        let names = [attribute(1, b"filter\0"), attribute(2, b"input\0")].concat();
        let expression = |name: &&str| attribute(1, &attribute(1, format!("{name}\0").as_bytes()));
        let list = expressions.iter().flat_map(expression).collect::<Vec<_>>();
        match one(&message(kind, 2, &[names, attribute(4 | 0x8000, &list)].concat())) {
            Message::Rule(rule) => (rule.chain, rule.is_plain),
            other => panic!("{other:?}"),
        }
    };
    let is = |is_plain| ("ip filter input".to_owned(), is_plain);
    assert_eq!(rule(6, &[]), is(true));
    assert_eq!(rule(6, &["payload", "cmp", "immediate"]), is(true));
    assert_eq!(rule(6, &["payload", "ct"]), is(false));
    assert_eq!(rule(6, &["match"]), is(false));
    assert_eq!(rule(8, &["ct"]), is(true));
}

#[test]
fn sets_are_plain_without_expressions() {
    let names = [attribute(1, b"filter\0"), attribute(2, b"bad\0")].concat();
    assert_eq!(one(&message(9, 1, &names)), Message::Set("inet filter bad".to_owned()));
    assert_eq!(one(&message(11, 1, &names)), Message::Set("inet filter bad".to_owned()));
    let counts = [names, attribute(17, &attribute(1, b"connlimit\0"))].concat();
    assert_eq!(one(&message(9, 1, &counts)), Message::Other);
}
