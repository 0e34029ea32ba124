//! The body of a rule: protocol, addresses and ports.

use super::address::{address, ports, reject_not_any};
use super::names;
use super::options;
use super::rule::{Keep, Side, Term, Test};
use super::states;
use super::words::{Word, Words};
use crate::mistake::{SpannedFault, quoted, wrong};

/// Blocks of a rule: all must hold, each by at least one of its terms.
pub(super) type Blocks = Vec<Vec<Term>>;

/// Parses everything after the action: the blocks, and the state that the rule keeps.
pub(super) fn body(words: &mut Words<'_>) -> Result<(Blocks, Option<Keep>), SpannedFault> {
    let (mut blocks, mut states) = (Blocks::new(), states::Options::default());
    if begins_with_protocol(words) {
        push(&mut blocks, block(words, protocol)?);
        if !words.take("from") {
            return wrong(&words.place(), "from is missing", "write from ADDRESS to ADDRESS");
        }
        end(words, Side::Source, &mut blocks)?;
        if !words.take("to") {
            let what = "to is missing, or what stands here is no port";
            return wrong(&words.place(), what, "write to ADDRESS");
        }
        end(words, Side::Destination, &mut blocks)?;
    }
    while let Some(text) = words.peek() {
        match states::is_option(text) {
            true => states.option(words)?,
            false => push(&mut blocks, block(words, options::option)?),
        }
    }
    Ok((blocks, states.finish()?))
}

/// Says whether the body begins with a protocol: a rule may begin with its options instead.
fn begins_with_protocol(words: &Words<'_>) -> bool {
    let mut ahead = 0;
    while matches!(words.peek_at(ahead), Some("not" | "{" | "(")) {
        ahead += 1;
    }
    words.peek_at(ahead).is_some_and(|text| protocol_test(text).is_some())
        || words.peek_at(ahead + 1) == Some("from")
}

fn protocol_test(text: &str) -> Option<Test> {
    Some(match text {
        "ip" | "all" => Test::Any,
        "ip4" | "ipv4" => Test::Version(4),
        "ip6" | "ipv6" => Test::Version(6),
        _ => Test::Protocol(names::protocol(text)?),
    })
}

fn protocol(words: &mut Words<'_>, not: bool) -> Result<Vec<Term>, SpannedFault> {
    let word = words.need("the protocol")?;
    let remedy = "write ip, tcp, udp, icmp, another name of /etc/protocols, or a number";
    match protocol_test(&word.text) {
        Some(Test::Any) if not => reject_not_any(word),
        Some(test) => Ok(vec![Term { not, test }]),
        None => wrong(&word.span, format!("{} is no protocol", quoted(&word.text)), remedy),
    }
}

/// An address or a block of addresses, with ports if there are any.
fn end(words: &mut Words<'_>, side: Side, blocks: &mut Blocks) -> Result<(), SpannedFault> {
    let addresses = block(words, |words, not| {
        let word = words.need("an address")?;
        let test = address(word, side)?;
        if not && test == Test::Any {
            return reject_not_any(word);
        }
        Ok(vec![Term { not, test }])
    })?;
    push(blocks, addresses);
    let not = usize::from(words.peek() == Some("not"));
    if words.peek_at(not).is_some_and(|text| text == "{" || text == "(") && side == Side::Source {
        push(blocks, block(words, |words, not| one_of_ports(words, not, side))?);
    } else if words.peek_at(not).is_some_and(looks_like_ports) {
        push(blocks, block(words, |words, not| one_of_ports(words, not, side))?);
    }
    Ok(())
}

fn one_of_ports(words: &mut Words<'_>, not: bool, side: Side) -> Result<Vec<Term>, SpannedFault> {
    let word = words.need("a list of ports")?;
    match word.text.as_str() {
        "any" if not => reject_not_any(word),
        "any" => Ok(vec![Term::is(Test::Any)]),
        _ => Ok(vec![Term { not, test: Test::Ports(side, ports(word)?) }]),
    }
}

/// Says whether a word is a list of ports: anything here that is not the name of an option.
fn looks_like_ports(text: &str) -> bool {
    let first = text.split([',', '-']).next().unwrap_or_default();
    text == "any"
        || first.starts_with(|letter: char| letter.is_ascii_digit())
        || names::port(text).is_some() && !options::is_option(text)
        || text.contains(',') && names::port(first).is_some()
}

fn push(blocks: &mut Blocks, block: Vec<Term>) {
    if block != [Term::is(Test::Any)] && !block.is_empty() {
        blocks.push(block);
    }
}

/// A term, or several in `{ a or b }`; `one` parses what follows `not`.
fn block(
    words: &mut Words<'_>,
    mut one: impl FnMut(&mut Words<'_>, bool) -> Result<Vec<Term>, SpannedFault>,
) -> Result<Vec<Term>, SpannedFault> {
    let opened = words.peek().is_some_and(|text| text == "{" || text == "(");
    if !opened {
        let not = words.take("not");
        return one(words, not);
    }
    let open = words.need("a block")?;
    let mut terms = Vec::new();
    loop {
        let not = words.take("not");
        let mut read = one(words, not)?;
        // Several tests in a row cannot be one alternative.
        if read.len() != 1 {
            return wrong(
                &open.span,
                "this option cannot be one of several",
                "write it behind the block",
            );
        }
        terms.append(&mut read);
        match words.next() {
            Some(Word { text, .. }) if text == "or" => {}
            Some(Word { text, .. }) if text == "}" || text == ")" => break,
            _ => return wrong(&open.span, "the block is not closed", "write { this or that }"),
        }
    }
    Ok(terms)
}
