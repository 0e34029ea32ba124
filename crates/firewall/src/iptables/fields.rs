//! Matches on a field of the packet, and the rate limit of packets.

use super::Family;
use super::check::Check;
use super::names;
use super::value;
use super::words::{Cursor, Word};
use crate::ir::{Field, Key, Limit, LimitUnit, Match, Range};
use crate::mistake::{SpannedFault, quoted, wrong};

/// Units per second in which `xt_limit` counts: `XT_LIMIT_SCALE`.
const LIMIT_SCALE: u64 = 10_000;

/// Says whether this module parses a match.
pub(super) fn parses(name: &str, family: Family) -> bool {
    match name {
        "comment" | "dscp" | "iprange" | "length" | "mac" | "mark" | "pkttype" | "tos" => true,
        "ttl" => family == Family::Ip,
        "hl" => family == Family::Ip6,
        _ => false,
    }
}

/// Parses an option of a match; `None` if the match has no such option.
pub(super) fn option(
    name: &str,
    option: &Word,
    negate: bool,
    words: &mut Cursor<'_>,
    family: Family,
) -> Result<Option<Vec<Check>>, SpannedFault> {
    let six = family == Family::Ip6;
    let of = |key: Key, ranges: Vec<Range>| Check::one(Match::in_ranges(key, ranges), negate);
    let number = |number: u64| vec![Range::one(number.into())];
    let check = match (name, option.text.as_str()) {
        ("comment", "--comment") => {
            reject_negation(option, negate)?;
            words.value(option)?;
            return Ok(Some(Vec::new()));
        }
        ("mark", "--mark") => {
            let all = u32::MAX.into();
            let (mark, mask) = value::masked(words.value(option)?, all, all)?;
            of(Key::masked(Field::Mark, mask.into()), number(mark))
        }
        ("dscp", "--dscp") => {
            let dscp = value::number(words.value(option)?, 63)?;
            of(Key::masked(Field::TrafficClass, 0xfc), number(dscp << 2))
        }
        ("dscp", "--dscp-class") => {
            let dscp = dscp_class(words.value(option)?)?;
            of(Key::masked(Field::TrafficClass, 0xfc), number(u64::from(dscp) << 2))
        }
        ("tos", "--tos") => {
            let (tos, mask) = value::masked(words.value(option)?, 255, 255)?;
            of(Key::masked(Field::TrafficClass, mask.into()), number(tos))
        }
        ("length", "--length") => {
            of(Field::Length.into(), vec![value::range(words.value(option)?, 0xffff)?])
        }
        ("mac", "--mac-source") => {
            let mac = value::mac(words.value(option)?)?;
            of(Field::EtherSource.into(), vec![Range::one(mac)])
        }
        ("iprange", "--src-range") => {
            let field = if six { Field::Source6 } else { Field::Source4 };
            of(field.into(), vec![value::address_range(words.value(option)?, family)?])
        }
        ("iprange", "--dst-range") => {
            let field = if six { Field::Destination6 } else { Field::Destination4 };
            of(field.into(), vec![value::address_range(words.value(option)?, family)?])
        }
        ("ttl", "--ttl-eq" | "--ttl") | ("hl", "--hl-eq" | "--hl") => {
            of(Field::Ttl.into(), number(value::number(words.value(option)?, 255)?))
        }
        ("ttl", "--ttl-lt") | ("hl", "--hl-lt") => {
            match (reject_negation(option, negate)?, value::number(words.value(option)?, 255)?) {
                ((), 0) => Check::Never,
                ((), ttl) => of(Field::Ttl.into(), vec![Range::new(0, u128::from(ttl) - 1)]),
            }
        }
        ("ttl", "--ttl-gt") | ("hl", "--hl-gt") => {
            match (reject_negation(option, negate)?, value::number(words.value(option)?, 255)?) {
                ((), 255) => Check::Never,
                ((), ttl) => of(Field::Ttl.into(), vec![Range::new(u128::from(ttl) + 1, 255)]),
            }
        }
        ("pkttype", "--pkt-type") => packet_type(words.value(option)?, negate)?,
        _ => return Ok(None),
    };
    Ok(Some(vec![check]))
}

/// The DSCP of a class name.
pub(super) fn dscp_class(word: &Word) -> Result<u8, SpannedFault> {
    match names::dscp_class(&word.text) {
        Some(dscp) => Ok(dscp),
        None => wrong(
            &word.span,
            format!("{} is no class of DSCP", quoted(&word.text)),
            "write one like AF21, CS3, EF or BE",
        ),
    }
}

/// Rejects the negation of an option that does not allow it.
fn reject_negation(option: &Word, negate: bool) -> Result<(), SpannedFault> {
    if negate {
        return wrong(&option.span, format!("{} cannot be negated", option.text), "take the ! out");
    }
    Ok(())
}

/// The kind of destination, by the frame's MAC address.
fn packet_type(word: &Word, negate: bool) -> Result<Check, SpannedFault> {
    let all = Field::EtherDestination.max();
    let group = Key::masked(Field::EtherDestination, 1 << 40);
    let is_all = Match::is(Field::EtherDestination, all);
    Ok(match (word.text.as_str(), negate) {
        ("unicast" | "host", negate) => Check::one(Match::is(group, 0), negate),
        ("broadcast", negate) => Check::one(is_all, negate),
        ("multicast", false) => Check::Holds(crate::ir::Step::Any(vec![vec![
            Match::is(group, 1 << 40),
            is_all.negated(),
        ]])),
        ("multicast", true) => {
            Check::Holds(crate::ir::Step::Any(vec![vec![Match::is(group, 0)], vec![is_all]]))
        }
        _ => {
            return wrong(
                &word.span,
                format!("{} is no type of packet", quoted(&word.text)),
                "write unicast, broadcast or multicast",
            );
        }
    })
}

/// A `limit`: a number of packets per period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// The cost of a packet, in units of [`LIMIT_SCALE`].
    cost: u64,
    burst: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { cost: LIMIT_SCALE * 3600 / 3, burst: 5 }
    }
}

impl Rate {
    /// Parses an option. Returns whether it is one of these.
    pub(super) fn option(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
    ) -> Result<bool, SpannedFault> {
        match option.text.as_str() {
            "--limit" => {
                reject_negation(option, negate)?;
                self.cost = cost(words.value(option)?)?;
            }
            "--limit-burst" => {
                reject_negation(option, negate)?;
                self.burst = value::number(words.value(option)?, 10_000)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) const fn check(self) -> Check {
        if self.burst == 0 {
            return Check::Never;
        }
        Check::Limit(Limit {
            rate: LIMIT_SCALE,
            period_ns: self.cost * 1_000_000_000,
            burst: self.burst,
            unit: LimitUnit::Packets,
        })
    }
}

/// The cost of a packet at a rate, rounded as by iptables.
fn cost(word: &Word) -> Result<u64, SpannedFault> {
    let (count, unit) = word.text.split_once('/').unwrap_or((&word.text, "second"));
    let units = [("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400)];
    let unit = unit.to_ascii_lowercase();
    let found = units.iter().find(|(name, _)| !unit.is_empty() && name.starts_with(&*unit));
    let count = value::in_word(word, count, u32::MAX.into())?;
    match (found, count) {
        (Some((_, seconds)), 1..) if LIMIT_SCALE * seconds / count > 0 => {
            Ok(LIMIT_SCALE * seconds / count)
        }
        _ => wrong(
            &word.span,
            format!("{} is no rate from 1/day to 10000/second", quoted(&word.text)),
            "write one like 5/minute",
        ),
    }
}
