//! The conditions that the kernel evaluates before a rule's matches: addresses, links, protocol, fragments.

use tollway_dataplane::wire::l4;

use super::check::Check;
use super::once::{Options, Used};
use super::value;
use super::words::{Cursor, Word};
use super::{Family, names};
use crate::ir::{Field, Key, LinkPattern, Match, Range};
use crate::mistake::{SpannedFault, quoted, wrong};

/// Longest name of a link: `IFNAMSIZ` without the NUL.
const LONGEST_NAME: usize = 15;

/// IPv6 extension headers that the kernel skips.
const EXTENSIONS: [u8; 5] = [l4::HOP_BY_HOP, l4::ROUTING, l4::FRAGMENT, l4::AUTH, l4::DEST_OPTIONS];

/// A rule's conditions on the IP header and the links.
#[derive(Clone, Debug, Default)]
pub(super) struct Header {
    source: Option<Check>,
    destination: Option<Check>,
    input: Option<Check>,
    output: Option<Check>,
    fragment: Option<bool>,
    used: Used,
    /// The protocol, and whether it is negated.
    pub(super) protocol: Option<(u8, bool)>,
}

impl Options for Header {
    fn used(&mut self) -> &mut Used {
        &mut self.used
    }

    fn parse_option(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
        family: Family,
    ) -> Result<bool, SpannedFault> {
        let six = family == Family::Ip6;
        match option.text.as_str() {
            "-s" | "--source" | "--src" => {
                let field = if six { Field::Source6 } else { Field::Source4 };
                let check = address(field, words.value(option)?, negate, family)?;
                self.source = Some(check);
            }
            "-d" | "--destination" | "--dst" => {
                let field = if six { Field::Destination6 } else { Field::Destination4 };
                let check = address(field, words.value(option)?, negate, family)?;
                self.destination = Some(check);
            }
            "-i" | "--in-interface" => {
                self.input = link(words.value(option)?)?.map_or(all(negate), |pattern| {
                    Some(Check::one(Match::link(Field::Input, pattern), negate))
                });
            }
            "-o" | "--out-interface" => {
                self.output = link(words.value(option)?)?.map_or(all(negate), |pattern| {
                    Some(if negate {
                        Check::NotOutput(pattern)
                    } else {
                        Check::one(Match::link(Field::Output, pattern), false)
                    })
                });
            }
            "-f" | "--fragment" | "--fragments" if !six => {
                self.fragment = Some(!negate);
            }
            "-p" | "--protocol" | "--proto" => {
                self.protocol = protocol(words.value(option)?, negate)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Header {
    /// The checks in the kernel's order.
    pub(super) fn checks(&self, family: Family) -> Vec<Check> {
        let links = [&self.source, &self.destination, &self.input, &self.output];
        let mut checks: Vec<_> = links.into_iter().flatten().cloned().collect();
        if let Some((protocol, negate)) = self.protocol {
            if family == Family::Ip6 {
                checks.push(Check::Headers6);
            }
            checks.push(Check::one(Match::is(Field::Protocol, protocol.into()), negate));
        }
        if let Some(later) = self.fragment {
            checks.push(Check::one(Match::is(Field::FragmentOffset, 0), later));
        }
        checks
    }

    /// The protocol, if the rule is for a single one.
    pub(super) fn only_protocol(&self) -> Option<u8> {
        self.protocol.filter(|(_, negate)| !negate).map(|(protocol, _)| protocol)
    }
}

/// IPv6 packets that have extension headers.
pub(super) fn has_extensions() -> Match {
    Match::in_ranges(Field::NextHeader6, EXTENSIONS.map(|header| Range::one(header.into())))
}

/// A condition that holds for all packets, or if negated for none.
fn all(negate: bool) -> Option<Check> {
    negate.then_some(Check::Never)
}

fn address(field: Field, word: &Word, negate: bool, family: Family) -> Result<Check, SpannedFault> {
    let (address, mask) = value::network(word, family)?;
    Ok(Check::one(Match::is(Key::masked(field, mask), address), negate))
}

/// A link or a prefix of names; `None` for all links.
fn link(word: &Word) -> Result<Option<LinkPattern>, SpannedFault> {
    let name = word.text.as_str();
    let sound = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.contains(|char: char| char == '/' || char.is_whitespace() || char.is_control());
    if !sound {
        return wrong(
            &word.span,
            format!("{} is no name of a link", quoted(name)),
            format!(
                "write 1 to {LONGEST_NAME} characters, with a + at the end for all names that begin with them"
            ),
        );
    }
    Ok(match name.strip_suffix('+') {
        Some("") => None,
        Some(prefix) => Some(LinkPattern::Prefix(prefix.to_owned())),
        None => Some(LinkPattern::Name(name.to_owned())),
    })
}

fn protocol(word: &Word, negate: bool) -> Result<Option<(u8, bool)>, SpannedFault> {
    let protocol = match names::protocol(&word.text) {
        Some(protocol) => protocol,
        None if word.text.starts_with(|char: char| char.is_ascii_digit()) => {
            value::number(word, 255)? as u8
        }
        None => {
            return wrong(
                &word.span,
                format!("{} is no protocol that is known here", quoted(&word.text)),
                "write its number",
            );
        }
    };
    match (protocol, negate) {
        (0, true) => {
            wrong(&word.span, "every protocol is excluded, so no packet matches", "remove the rule")
        }
        (0, false) => Ok(None),
        _ => Ok(Some((protocol, negate))),
    }
}
