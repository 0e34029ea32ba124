//! Turns a rule's statements into steps.

use serde_json::Value;
use tollway_dataplane::wire::eth::ethertype;
use tollway_dataplane::wire::l4;

use super::MEANING;
use super::json::{inner, number, only, set_name, text};
use super::listing::Data;
use super::named_bits::{Kind, NamedBits};
use super::nat::is_nat;
use super::refusal::refusal;
use super::rule::Rule;
use super::value;
use crate::ir::{
    Action, Counter, Field, Key, Limit, LimitUnit, Log, Match, Range, Reject, Step, Test, Verdict,
};

impl Rule<'_, '_> {
    /// Adds the steps of a statement. Returns whether more may follow.
    pub(super) fn statement(&mut self, statement: &Value) -> Result<bool, String> {
        let (name, inner) = only(statement)
            .ok_or_else(|| format!("{statement} is no statement that is known here"))?;
        match name {
            "match" => self.relation(inner)?,
            "counter" => self.counter(inner)?,
            "limit" => self.limit(inner)?,
            "log" => self.steps.push(Step::Do(Action::Log(log(inner)))),
            "mangle" => self.mangle(inner)?,
            "xt" if inner.get(MEANING).is_some() => self.module(inner)?,
            "notrack" => self.steps.push(Step::Do(Action::NoTrack)),
            "vmap" => {
                let lookup = self.lookup(inner, Data::Verdicts)?;
                if let Some((keys, map)) = lookup {
                    self.steps.push(Step::VerdictMap { keys, map });
                }
            }
            "reject" => {
                let reject = self.reject(inner)?;
                self.steps.push(Step::Verdict(Verdict::Reject(reject)));
                return Ok(false);
            }
            name if self.listing.translates && is_nat(name) => return self.nat(name, inner),
            // What the kernel's flowtable takes is the kernel's, and so are the packets by which it does. For all other flows,
            // the rule ends here (`nft_flow_offload_eval`).
            "flow" if !self.listing.translates => {
                self.note_connection(refusal("flow add", inner));
                return Ok(false);
            }
            // The kernel continues with the next statement.
            "continue" => {}
            _ => {
                let verdict = self.listing.verdict(self.site, statement)?;
                self.steps.push(Step::Verdict(verdict));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds a condition.
    pub(super) fn relation(&mut self, relation: &Value) -> Result<(), String> {
        let none = Value::Null;
        let left = relation.get("left").unwrap_or(&none);
        let right = relation.get("right").unwrap_or(&none);
        let operator = text(relation, "op");
        if let Some(header) = inner(left, "exthdr").filter(|header| header.get("field").is_none()) {
            return self.presence(text(header, "name"), operator, right);
        }
        let named = self.named(left)?;
        let negate = operator == "!=";
        if let Some(holds) = self.without_link(&named, negate)? {
            if !holds {
                self.never();
            }
            return Ok(());
        }
        let mut one = self.test(&named, operator, right)?;
        one.negate = negate;
        self.note_version(&named, &one);
        // The rule itself may have written the field before it tests the field again.
        self.steps.push(Step::Match(one));
        Ok(())
    }

    /// A test for the presence of an extension header.
    fn presence(&mut self, name: &str, operator: &str, right: &Value) -> Result<(), String> {
        let wanted = matches!(operator, "==" | "in") && right.as_bool() == Some(true);
        if name != "frag" || !wanted {
            return Err(format!("exthdr {name} {operator} {right} is not known here"));
        }
        self.need_version(6);
        let all = Range::new(0, Field::Fragment.max());
        self.need(Match::in_ranges(Field::Fragment, [all]));
        Ok(())
    }

    /// The test of bits, not negated.
    fn test(
        &mut self,
        named: &[NamedBits],
        operator: &str,
        right: &Value,
    ) -> Result<Match, String> {
        let keys = || named.iter().map(|bits| bits.key).collect::<Vec<Key>>();
        let test = |test| Match { keys: keys(), test, negate: false };
        let is_equality = matches!(operator, "==" | "!=" | "in");
        if let Some(name) = set_name(right).filter(|_| is_equality) {
            let set = self.listing.named_set(self.site, name, named, Data::None)?;
            return Ok(test(Test::Set(set)));
        }
        let elements = inner(right, "set").map(super::json::several);
        let [bits] = named else {
            let elements = elements.filter(|_| is_equality);
            let elements = elements.unwrap_or(std::slice::from_ref(right));
            let set = self.listing.anonymous_set(self.site, elements, named, Data::None)?;
            return Ok(test(Test::Set(set)));
        };
        if let Some(elements) = elements.filter(|_| is_equality) {
            return self.listing.one_of(bits, elements);
        }
        match operator {
            "==" | "!=" => self.listing.one_of(bits, std::slice::from_ref(right)),
            "in" | "!" if bits.are_flags() => {
                let mask = value::number(bits.kind, right)?;
                let none = operator == "!";
                let all = if none { Range::one(0) } else { Range::new(1, bits.key.field.max()) };
                Ok(Match::in_ranges(bits.masked(mask).key, [all]))
            }
            "in" => self.listing.one_of(bits, std::slice::from_ref(right)),
            _ => order(bits, operator, right),
        }
    }

    /// Records what a condition implies about the version of IP.
    fn note_version(&mut self, named: &[NamedBits], one: &Match) {
        let ([bits], Test::Ranges(ranges), false) = (named, &one.test, one.negate) else {
            return;
        };
        let is = |number| ranges[..] == [Range::one(number)];
        match bits.kind {
            Kind::Nfproto if is(4) => self.version = Some(4),
            Kind::Nfproto if is(6) => self.version = Some(6),
            Kind::EtherType if is(ethertype::IPV4.into()) => self.version = Some(4),
            Kind::EtherType if is(ethertype::IPV6.into()) => self.version = Some(6),
            _ => {}
        }
    }

    fn counter(&mut self, inner: &Value) -> Result<(), String> {
        let counter = match inner {
            Value::String(name) => self.listing.named_counter(self.site, name)?,
            Value::Object(members) if members.contains_key("map") => {
                return Err("a map of counters is not known here".to_owned());
            }
            _ => {
                let count = |name| number(inner, name).unwrap_or(0);
                let (packets, bytes) = (count("packets"), count("bytes"));
                self.listing.rules.add_counter(Counter { name: None, packets, bytes })
            }
        };
        self.steps.push(Step::Do(Action::Count(counter)));
        Ok(())
    }

    fn limit(&mut self, inner: &Value) -> Result<(), String> {
        let (limit, over) = match inner {
            Value::String(name) => self.listing.named_limit(self.site, name)?,
            Value::Object(members) if members.contains_key("map") => {
                return Err("a map of limits is not known here".to_owned());
            }
            _ => {
                let (limit, over) = limit(inner)?;
                (self.listing.rules.add_limit(limit), over)
            }
        };
        self.steps.push(Step::Limit { limit, over });
        Ok(())
    }

    fn reject(&mut self, inner: &Value) -> Result<Reject, String> {
        let code = |kind, default| match inner.get("expr") {
            Some(code) => value::number(kind, code)
                .ok()
                .and_then(|code| u8::try_from(code).ok())
                .ok_or_else(|| format!("reject with {code} is not known here")),
            None => Ok(default),
        };
        let kind = match (text(inner, "type"), self.site.family) {
            ("", crate::ir::Family::Ip) => "icmp",
            ("", crate::ir::Family::Ip6) => "icmpv6",
            ("", _) => "icmpx",
            (kind, _) => kind,
        };
        Ok(match kind {
            "icmp" => {
                self.need_version(4);
                Reject::Icmp(code(Kind::IcmpCode, 3)?)
            }
            "icmpv6" => {
                self.need_version(6);
                Reject::Icmp6(code(Kind::Icmp6Code, 4)?)
            }
            "icmpx" => Reject::Icmpx(code(Kind::IcmpxCode, 1)?),
            "tcp reset" => {
                self.need(Match::is(Field::Protocol, l4::TCP.into()));
                Reject::TcpReset
            }
            kind => return Err(format!("reject with {kind} is not known here")),
        })
    }
}

/// Less than or greater than a number.
fn order(bits: &NamedBits, operator: &str, right: &Value) -> Result<Match, String> {
    if matches!(bits.kind, Kind::Link | Kind::Nfproto) {
        return Err(format!("{operator} is not known for this"));
    }
    let number = value::number(bits.kind, right)?;
    let all = value::all(bits);
    let range = match operator {
        "<" => number.checked_sub(1).map(|last| Range::new(0, last)),
        "<=" => Some(Range::new(0, number)),
        ">" => (number < all).then(|| Range::new(number + 1, all)),
        ">=" => Some(Range::new(number, all)),
        _ => return Err(format!("operator {operator:?} is not known here")),
    };
    let ranges = range.map(|range| value::shifted(bits, range)).transpose()?;
    Ok(Match::in_ranges(bits.key, ranges.into_iter().collect::<Vec<_>>()))
}

/// A limit, and whether packets beyond it go on (`net/netfilter/nft_limit.c`).
pub(super) fn limit(inner: &Value) -> Result<(Limit, bool), String> {
    let seconds = match text(inner, "per") {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        "week" => 604_800,
        per => return Err(format!("a rate per {per:?} is not known here")),
    };
    let units = |name: &str, unit: &str| {
        let scale = match text(inner, unit) {
            "" | "packets" | "bytes" => 1,
            "kbytes" => 1 << 10,
            "mbytes" => 1 << 20,
            "gbytes" => 1 << 30,
            unit => return Err(format!("a rate of {unit:?} is not known here")),
        };
        let number = number(inner, name).unwrap_or(0);
        number.checked_mul(scale).ok_or_else(|| format!("{number} {name} is too much"))
    };
    let (rate, burst) = (units("rate", "rate_unit")?, units("burst", "burst_unit")?);
    let bytes = !matches!(text(inner, "rate_unit"), "" | "packets");
    // The kernel's bucket for bytes also holds what arrives in one period.
    let (unit, burst) = match (bytes, burst) {
        (true, burst) => (LimitUnit::Bytes, rate.saturating_add(burst)),
        (false, 0) => (LimitUnit::Packets, 5),
        (false, burst) => (LimitUnit::Packets, burst),
    };
    if rate == 0 {
        return Err("a rate of nothing is not known here".to_owned());
    }
    let over = inner.get("inv").and_then(Value::as_bool).unwrap_or(false);
    Ok((Limit { rate, period_ns: seconds * 1_000_000_000, burst, unit }, over))
}

fn log(inner: &Value) -> Log {
    let group = number(inner, "group").and_then(|group| u16::try_from(group).ok());
    Log { prefix: text(inner, "prefix").to_owned(), group }
}
