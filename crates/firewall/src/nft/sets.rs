//! Named and anonymous sets and maps.

use serde_json::Value;

use super::fields::{Field, Kind};
use super::json::{inner, pair, several};
use super::listing::{Data, Listing, Reading, Site};
use super::value;
use crate::ir::{
    Datum, Element, Elements, Item, LinkPattern, Match, Range, Set, SetId, Test, Verdict,
};

impl Listing<'_> {
    /// A named set, for a lookup by these fields.
    pub(super) fn named_set(
        &mut self,
        site: &Site,
        name: &str,
        fields: &[Field],
        data: Data,
    ) -> Result<SetId, String> {
        let layout = fields.iter().map(|field| (field.kind, field.shift, field.bits)).collect();
        let reading: Reading = (site.table.clone(), name.to_owned(), layout, data);
        if let Some(known) = self.read_sets.get(&reading) {
            return known.clone();
        }
        let read = self.read_set(site, name, fields, data);
        self.read_sets.insert(reading, read.clone());
        read
    }

    fn read_set(
        &mut self,
        site: &Site,
        name: &str,
        fields: &[Field],
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
        let elements = self.elements(site, elements, fields, data)?;
        Ok(self.rules.add_set(Set {
            name: format!("{} {name}", site.table),
            key: fields.iter().map(|field| field.key).collect(),
            dynamic,
            elements,
        }))
    }

    /// A set that is written where it is used.
    pub(super) fn nameless_set(
        &mut self,
        site: &Site,
        elements: &[Value],
        fields: &[Field],
        data: Data,
    ) -> Result<SetId, String> {
        let elements = self.elements(site, elements, fields, data)?;
        let key = fields.iter().map(|field| field.key).collect();
        Ok(self.rules.add_set(Set { name: String::new(), key, dynamic: false, elements }))
    }

    /// A test of one field against values written in the rule.
    pub(super) fn one_of(&self, field: &Field, elements: &[Value]) -> Result<Match, String> {
        let keys = vec![field.key];
        let elements = elements.iter().map(bare).collect::<Result<Vec<_>, _>>()?;
        let test = match field.kind {
            Kind::Link => {
                let links = elements.into_iter().map(value::link);
                Test::Link(links.collect::<Result<Vec<LinkPattern>, _>>()?)
            }
            _ => {
                let ranges = elements.into_iter().map(|element| value::range(field, element));
                Test::Ranges(ranges.collect::<Result<Vec<Range>, _>>()?)
            }
        };
        Ok(Match { keys, test, negate: false })
    }

    fn elements(
        &self,
        site: &Site,
        elements: &[Value],
        fields: &[Field],
        data: Data,
    ) -> Result<Elements, String> {
        if let ([field], None) = (fields, data)
            && field.kind != Kind::Link
        {
            let ranges = elements.iter().map(|element| value::range(field, bare(element)?));
            return Ok(Elements::Ranges(ranges.collect::<Result<_, String>>()?));
        }
        let mut tuples = Vec::with_capacity(elements.len());
        let mut catch_all = None;
        for element in elements {
            let (key, datum) = match data {
                None => (element, None),
                Some(data) => {
                    let (key, datum) =
                        pair(element).ok_or_else(|| format!("{element} is no map's element"))?;
                    (key, Some(self.datum(site, data, datum)?))
                }
            };
            let key = bare(key)?;
            let element = Element { key: items(fields, key)?, datum };
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

    fn datum(&self, site: &Site, data: Option<Kind>, datum: &Value) -> Result<Datum, String> {
        Ok(match data {
            Some(kind) => Datum::Number(value::number(kind, datum)?),
            None => {
                let verdict = self.verdict(site, datum);
                Datum::Verdict(verdict.unwrap_or_else(Verdict::Unsupported))
            }
        })
    }
}

/// The keys of an element.
fn items(fields: &[Field], key: &Value) -> Result<Vec<Item>, String> {
    if key.as_str() == Some("*") {
        return fields.iter().map(every).collect();
    }
    let parts = match inner(key, "concat") {
        Some(parts) => several(parts),
        None => std::slice::from_ref(key),
    };
    if parts.len() != fields.len() {
        return Err(format!("{key} has not one part for each of {}", fields.len()));
    }
    fields.iter().zip(parts).map(|(field, part)| value::item(field, bare(part)?)).collect()
}

fn every(field: &Field) -> Result<Item, String> {
    match field.kind {
        Kind::Link => Ok(Item::Link(LinkPattern::Prefix(String::new()))),
        _ => value::item(field, &Value::String("*".to_owned())),
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
