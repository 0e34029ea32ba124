//! Matches and targets about the packet's connection: `conntrack`, `state`, `connmark` and CONNMARK.

use super::Family;
use super::check::Check;
use super::names;
use super::value;
use super::words::{Cursor, Word};
use crate::conntrack::{ConntrackMatch, ConntrackStates, key};
use crate::ir::{ConnectionField, Direction, Field, MarkOf, MarkUpdate, Match, Step, TupleField};
use crate::mistake::{SpannedFault, quoted, wrong};

/// Says whether this module parses a match.
pub(super) fn parses(name: &str) -> bool {
    matches!(name, "conntrack" | "state" | "connmark")
}

/// The check of a match, whose options are parsed.
pub(super) fn check(conntrack: &ConntrackMatch) -> Check {
    let mut alternatives = conntrack.alternatives();
    Check::Holds(match &mut alternatives[..] {
        [all] if all.len() == 1 => Step::Match(all.remove(0)),
        _ => Step::Any(alternatives),
    })
}

/// Parses an option; says whether the match has it.
pub(super) fn option(
    conntrack: &mut ConntrackMatch,
    name: &str,
    option: &Word,
    negate: bool,
    words: &mut Cursor<'_>,
    family: Family,
) -> Result<bool, SpannedFault> {
    match (name, option.text.as_str()) {
        ("conntrack", "--ctstate") | ("state", "--state") => {
            let states = states(words.value(option)?, name == "conntrack")?;
            conntrack.states = Some((states, negate));
        }
        ("connmark", "--mark") => {
            let all = u32::MAX.into();
            let (mark, mask) = value::masked(words.value(option)?, all, all)?;
            let one = Match::is(key(ConnectionField::Mark, mask.into()), mark.into());
            conntrack.others.push(if negate { one.negated() } else { one });
        }
        ("conntrack", "--ctdir") if !negate => {
            let word = words.value(option)?;
            conntrack.direction(match word.text.as_str() {
                "ORIGINAL" => false,
                "REPLY" => true,
                text => {
                    let what = format!("{} is no direction", quoted(text));
                    return wrong(&word.span, what, "write ORIGINAL or REPLY");
                }
            });
        }
        ("conntrack", "--ctproto") => {
            let word = words.value(option)?;
            let number = match names::protocol(&word.text) {
                Some(protocol) => protocol,
                None => value::number(word, 255)? as u8,
            };
            conntrack.protocol(number, negate);
        }
        ("conntrack", "--ctstatus") => {
            conntrack.status(status(words.value(option)?)?, negate);
        }
        ("conntrack", name) => {
            let Some(one) = tuple(name, option, words, family)? else { return Ok(false) };
            conntrack.others.push(if negate { one.negated() } else { one });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// A condition on a part of a tuple; none for another option.
fn tuple(
    name: &str,
    option: &Word,
    words: &mut Cursor<'_>,
    family: Family,
) -> Result<Option<Match>, SpannedFault> {
    let (direction, part) = match name.strip_prefix("--ct") {
        Some(rest) if rest.starts_with("orig") => (Direction::Original, &rest[4..]),
        Some(rest) if rest.starts_with("repl") => (Direction::Reply, &rest[4..]),
        _ => return Ok(None),
    };
    let is_six = family == Family::Ip6;
    let field = match (part, is_six) {
        ("src", false) => TupleField::Source4,
        ("src", true) => TupleField::Source6,
        ("dst", false) => TupleField::Destination4,
        ("dst", true) => TupleField::Destination6,
        ("srcport", _) => TupleField::SourcePort,
        ("dstport", _) => TupleField::DestinationPort,
        _ => return Ok(None),
    };
    let of = ConnectionField::Tuple(direction, field);
    Ok(Some(match part {
        "src" | "dst" => {
            let (address, mask) = value::network(words.value(option)?, family)?;
            Match::is(key(of, mask), address)
        }
        _ => Match::in_ranges(Field::Connection(of), [value::range(words.value(option)?, 0xffff)?]),
    }))
}

/// States, separated by commas.
fn states(word: &Word, of_conntrack: bool) -> Result<ConntrackStates, SpannedFault> {
    let mut states = ConntrackStates::default();
    for name in word.text.split(',') {
        match name {
            "INVALID" => states.states |= 1,
            "ESTABLISHED" => states.states |= 2,
            "RELATED" => states.states |= 4,
            "NEW" => states.states |= 8,
            "UNTRACKED" => states.states |= 64,
            "SNAT" if of_conntrack => states.translated |= 1 << 4,
            "DNAT" if of_conntrack => states.translated |= 1 << 5,
            _ => {
                let what = format!("{} is no state of a connection", quoted(name));
                let remedy = "write some of NEW,ESTABLISHED,RELATED,INVALID,UNTRACKED";
                return wrong(&word.span, what, remedy);
            }
        }
    }
    Ok(states)
}

/// Bits of the status, separated by commas.
fn status(word: &Word) -> Result<u32, SpannedFault> {
    let mut bits = 0;
    for name in word.text.split(',') {
        bits |= match name {
            "NONE" => 0,
            "EXPECTED" => 1,
            "SEEN_REPLY" => 1 << 1,
            "ASSURED" => 1 << 2,
            "CONFIRMED" => 1 << 3,
            _ => {
                let what = format!("{} is no status of a connection", quoted(name));
                let remedy = "write some of NONE,EXPECTED,SEEN_REPLY,ASSURED,CONFIRMED";
                return wrong(&word.span, what, remedy);
            }
        };
    }
    Ok(bits)
}

/// CONNMARK, option by option (`connmark_tg` in `net/netfilter/xt_connmark.c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkTarget {
    mode: Option<MarkMode>,
    of_packet: Option<u32>,
    of_connection: Option<u32>,
}

/// What CONNMARK does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkMode {
    /// Inverts bits of the connection's mark, of which these others are not kept.
    Set {
        drop: u32,
        flip: u32,
    },
    Save,
    Restore,
}

impl MarkTarget {
    /// Parses an option; says whether CONNMARK has it.
    pub(super) fn option(
        &mut self,
        option: &Word,
        words: &mut Cursor<'_>,
    ) -> Result<bool, SpannedFault> {
        let all = u64::from(u32::MAX);
        let set =
            |drop: u64, flip: u64| Some(MarkMode::Set { drop: drop as u32, flip: flip as u32 });
        match option.text.as_str() {
            "--set-xmark" => {
                let (mark, mask) = value::masked(words.value(option)?, all, all)?;
                self.mode = set(mask, mark);
            }
            "--set-mark" => {
                let (mark, mask) = value::masked(words.value(option)?, all, all)?;
                self.mode = set(mark | mask, mark);
            }
            "--and-mark" => self.mode = set(!value::number(words.value(option)?, all)?, 0),
            "--or-mark" => {
                let bits = value::number(words.value(option)?, all)?;
                self.mode = set(bits, bits);
            }
            "--xor-mark" => self.mode = set(0, value::number(words.value(option)?, all)?),
            "--save-mark" => self.mode = Some(MarkMode::Save),
            "--restore-mark" => self.mode = Some(MarkMode::Restore),
            "--nfmask" => self.of_packet = Some(value::number(words.value(option)?, all)? as u32),
            "--ctmask" => {
                self.of_connection = Some(value::number(words.value(option)?, all)? as u32);
            }
            "--mask" => {
                let mask = value::number(words.value(option)?, all)? as u32;
                (self.of_packet, self.of_connection) = (Some(mask), Some(mask));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What it does; none if it does not say that.
    pub(super) fn update(self) -> Option<MarkUpdate> {
        let of_packet = self.of_packet.unwrap_or(u32::MAX);
        let of_connection = self.of_connection.unwrap_or(u32::MAX);
        let (target, packet, connection, flip) = match self.mode? {
            MarkMode::Set { drop, flip } => (MarkOf::Connection, 0, !drop, flip),
            MarkMode::Save => (MarkOf::Connection, of_packet, !of_connection, 0),
            MarkMode::Restore => (MarkOf::Packet, !of_packet, of_connection, 0),
        };
        Some(MarkUpdate { target, packet, connection: Some(connection), flip })
    }
}
