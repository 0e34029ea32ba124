//! Tests of changes of nothing but elements.

use std::collections::HashMap;

use tollway_dataplane::stages::filter::Element;

use super::super::ElementChange;
use super::super::elements::{ElementsEffect, SetUse, outcome};
use super::super::message::{Elements, Key};

const LAST: u32 = u32::MAX;

fn key(address: u32, is_end: bool) -> Key {
    Key { value: address.to_be_bytes().to_vec(), last: None, is_end }
}

fn uses() -> HashMap<String, SetUse> {
    let live = |is_interval| SetUse::Live { version: 4, is_interval };
    let uses =
        [("ip t single", live(false)), ("ip t many", live(true)), ("ip t fixed", SetUse::Fixed)];
    uses.into_iter().map(|(name, one)| (name.to_owned(), one)).collect()
}

/// Elements from words: `+START` and `-START` are keys added and removed; `e` marks an end.
fn of(set: &str, words: &str) -> Vec<Elements> {
    let one = |word: &str| {
        let (added, digits) = (word.starts_with('+'), &word[1..]);
        let is_end = digits.ends_with('e');
        let number = digits.trim_end_matches('e').parse().unwrap();
        Elements { set: set.to_owned(), added, keys: Some(vec![key(number, is_end)]) }
    };
    words.split_whitespace().map(one).collect()
}

/// The elements added and removed.
fn applies(set: &str, words: &str) -> Option<(Vec<Element>, Vec<Element>)> {
    match outcome(&of(set, words), &uses()) {
        ElementsEffect::Applies(changes) => {
            let [ElementChange { set: name, add, remove }] = &changes[..] else { panic!() };
            assert_eq!(name, set);
            Some((add.clone(), remove.clone()))
        }
        ElementsEffect::Reread(_) => None,
    }
}

#[test]
fn single_addresses_come_and_go() {
    let (add, remove) = applies("ip t single", "+7 -9 +8").unwrap();
    assert_eq!((add, remove), (vec![(7, 7), (8, 8)], vec![(9, 9)]));
    assert_eq!(applies("ip t single", "+7 -7"), None, "by order");
    assert_eq!(applies("ip t single", "+7e"), None, "no end is one");
}

#[test]
fn intervals_are_made_of_their_ends() {
    for (words, add) in [
        ("+16 +32e", vec![(16, 31)]),
        // In any order, adjacent, and an end that ends nothing.
        ("+32e +16 +0e +48e +32", vec![(16, 31), (32, 47)]),
        ("+0 +16e", vec![(0, 15)]),
        ("+16", vec![(16, u128::from(LAST))]),
        ("+1 +2e +16", vec![(1, 1), (16, u128::from(LAST))]),
    ] {
        let (added, removed) = applies("ip t many", words).unwrap();
        assert_eq!((added, removed), (add, vec![]), "{words}");
    }
    // An existing interval grows.
    let (add, remove) = applies("ip t many", "-16 -32e +16 +64e").unwrap();
    assert_eq!((add, remove), (vec![(16, 63)], vec![(16, 31)]));
}

#[test]
fn unclear_changes_cause_a_new_reading() {
    for words in
        ["+16e", "+16 +17", "+16 +20 +32e", "+16 +16 +32e +48e", "+32e +48", "+16 +32e -16 -32e"]
    {
        assert_eq!(applies("ip t many", words), None, "{words}");
    }
    let mut more = of("ip t single", "+7");
    more[0].keys = None;
    assert_eq!(outcome(&more, &uses()), ElementsEffect::Reread(Vec::new()));
    let wide = Key { value: vec![0; 16], last: None, is_end: false };
    more[0].keys = Some(vec![wide]);
    assert_eq!(outcome(&more, &uses()), ElementsEffect::Reread(Vec::new()));
}

#[test]
fn changes_of_unused_sets_are_ignored() {
    assert_eq!(
        outcome(&of("ip t other", "+7 -7 +9e"), &uses()),
        ElementsEffect::Applies(Vec::new())
    );
    let fixed = of("ip t fixed", "+7");
    assert_eq!(outcome(&fixed, &uses()), ElementsEffect::Reread(vec!["ip t fixed".to_owned()]));
}

#[test]
fn both_ends_may_be_in_one() {
    let whole = Key { last: Some(31_u32.to_be_bytes().to_vec()), ..key(16, false) };
    let change = Elements { set: "ip t many".to_owned(), added: true, keys: Some(vec![whole]) };
    let ElementsEffect::Applies(changes) = outcome(&[change], &uses()) else { panic!() };
    assert_eq!(changes[0].add, [(16, 31)]);
}
