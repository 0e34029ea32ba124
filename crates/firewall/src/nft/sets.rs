//! Named and anonymous sets and maps.

use serde_json::Value;

use super::json::{inner, pair, several};
use super::listing::{Data, Listing, Reading, Site};
use super::named_bits::{Kind, NamedBits};
use super::value;
use crate::ir::{
    Datum, Element, Elements, Item, LinkPattern, Match, Range, Set, SetId, Test, Verdict,
};

impl Listing<'_> {
    /// A named set, for a lookup by these bits.
    pub(super) fn named_set(
        &mut self,
        site: &Site,
        name: &str,
        named: &[NamedBits],
        data: Data,
    ) -> Result<SetId, String> {
        let layout = named.iter().map(|bits| (bits.kind, bits.shift, bits.width)).collect();
        let reading: Reading = (site.table.clone(), name.to_owned(), layout, data);
        if let Some(known) = self.read_sets.get(&reading) {
            return known.clone();
        }
        let read = self.read_set(site, name, named, data);
        self.read_sets.insert(reading, read.clone());
        read
    }

    fn read_set(
        &mut self,
        site: &Site,
        name: &str,
        named: &[NamedBits],
        data: Data,
    ) -> Result<SetId, String> {
        let key = (site.table.clone(), name.to_owned());
        let set = *self.sets.get(&key).ok_or_else(|| format!("set {name} is not in the table"))?;
        if self.filled.contains(&key) {
            return Err(format!("set {name} is filled by packets"));
        }
        if set.get("stmt").is_some_and(|all| several(all).iter().any(is_stateful)) {
            return Err(format!("elements of set {name} are more than keys"));
        }
        let flags = set.get("flags").map(several).unwrap_or_default();
        let comes_and_goes = |flag: &Value| matches!(flag.as_str(), Some("dynamic" | "timeout"));
        let dynamic = flags.iter().any(comes_and_goes) || set.get("timeout").is_some();
        let elements = set.get("elem").map(several).unwrap_or_default();
        let elements = self.elements(site, elements, named, data)?;
        Ok(self.rules.add_set(Set {
            name: format!("{} {name}", site.table),
            key: named.iter().map(|bits| bits.key).collect(),
            dynamic,
            elements,
        }))
    }

    /// A set that is written where it is used.
    pub(super) fn anonymous_set(
        &mut self,
        site: &Site,
        elements: &[Value],
        named: &[NamedBits],
        data: Data,
    ) -> Result<SetId, String> {
        let elements = self.elements(site, elements, named, data)?;
        let key = named.iter().map(|bits| bits.key).collect();
        Ok(self.rules.add_set(Set { name: String::new(), key, dynamic: false, elements }))
    }

    /// A test of bits against values written in the rule.
    pub(super) fn one_of(&self, bits: &NamedBits, elements: &[Value]) -> Result<Match, String> {
        let keys = vec![bits.key];
        let elements = elements.iter().map(bare).collect::<Result<Vec<_>, _>>()?;
        let test = match bits.kind {
            Kind::Link => {
                let links = elements.into_iter().map(value::link);
                Test::Link(links.collect::<Result<Vec<LinkPattern>, _>>()?)
            }
            _ => {
                let ranges = elements.into_iter().map(|element| value::range(bits, element));
                Test::Ranges(ranges.collect::<Result<Vec<Range>, _>>()?)
            }
        };
        Ok(Match { keys, test, negate: false })
    }

    fn elements(
        &self,
        site: &Site,
        elements: &[Value],
        named: &[NamedBits],
        data: Data,
    ) -> Result<Elements, String> {
        if let ([bits], Data::None) = (named, data)
            && bits.kind != Kind::Link
        {
            let ranges = elements.iter().map(|element| value::range(bits, bare(element)?));
            return Ok(Elements::Ranges(ranges.collect::<Result<_, String>>()?));
        }
        let mut tuples = Vec::with_capacity(elements.len());
        let mut catch_all = None;
        for element in elements {
            let (key, datum) = match data {
                Data::None => (element, None),
                data => {
                    let (key, datum) =
                        pair(element).ok_or_else(|| format!("{element} is no map's element"))?;
                    (key, Some(self.datum(site, data, datum)?))
                }
            };
            let key = bare(key)?;
            let element = Element { key: items(named, key)?, datum };
            if key.as_str() == Some("*") {
                catch_all = Some(element);
            } else {
                tuples.push(element);
            }
        }
        // It matches what no other element matches.
        tuples.extend(catch_all);
        Ok(Elements::Tuples(tuples))
    }

    fn datum(&self, site: &Site, data: Data, datum: &Value) -> Result<Datum, String> {
        Ok(match data {
            Data::Numbers(kind) => Datum::Number(value::number(kind, datum)?),
            Data::Nat(map) => Datum::Verdict(map.verdict(datum)?),
            Data::None | Data::Verdicts => {
                let verdict = self.verdict(site, datum);
                Datum::Verdict(verdict.unwrap_or_else(Verdict::Unsupported))
            }
        })
    }
}

/// The keys of an element.
fn items(named: &[NamedBits], key: &Value) -> Result<Vec<Item>, String> {
    if key.as_str() == Some("*") {
        return named.iter().map(every).collect();
    }
    let parts = match inner(key, "concat") {
        Some(parts) => several(parts),
        None => std::slice::from_ref(key),
    };
    if parts.len() != named.len() {
        return Err(format!("{key} has not one part for each of {}", named.len()));
    }
    named.iter().zip(parts).map(|(bits, part)| value::item(bits, bare(part)?)).collect()
}

fn every(bits: &NamedBits) -> Result<Item, String> {
    match bits.kind {
        Kind::Link => Ok(Item::Link(LinkPattern::Prefix(String::new()))),
        _ => value::item(bits, &Value::String("*".to_owned())),
    }
}

/// An element without its additional properties.
fn bare(element: &Value) -> Result<&Value, String> {
    let Some(outer) = inner(element, "elem") else { return Ok(element) };
    let stateful = ["limit", "quota", "ct count", "last"];
    if let Some(found) = stateful.iter().find(|name| outer.get(**name).is_some()) {
        return Err(format!("an element with {found} is more than a key"));
    }
    outer.get("val").ok_or_else(|| format!("{element} is no element"))
}

fn is_stateful(statement: &Value) -> bool {
    inner(statement, "counter").is_none()
}
