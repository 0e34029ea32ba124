//! What sets without names have as nft lists it, held against the kernel's.

use super::elements::{Datum, Entry, in_one_form, is_number_of_device};
use super::field::Field;
use super::listed::{Site, name_range};
use crate::filter::ir::{
    Datum as ListedDatum, Elements, Item, Key, LinkPattern, Range, Selector, Verdict,
};

/// Stands for a verdict that is the kernel's in any case.
const ANY: Datum = Datum::Verdict { code: i32::MIN, chain: None };

impl Site<'_> {
    /// Says if a set has the same for keys that are these fields.
    pub(super) fn has(
        &self,
        elements: &Elements,
        keys: &[Key],
        fields: &[Field],
        own: &[Entry],
    ) -> bool {
        let entries: Option<Vec<_>> = match (elements, keys, fields) {
            (Elements::Ranges(ranges), [key], [field]) => {
                return self.has_ranges(ranges, key, field, own);
            }
            (Elements::Ranges(_), ..) => return false,
            (Elements::Tuples(tuples), ..) => tuples
                .iter()
                .map(|tuple| {
                    let parts = tuple.key.iter().zip(keys.iter().zip(fields));
                    let key = parts.map(|(item, (key, field))| self.item(item, key, field));
                    Some((
                        key.collect::<Option<Vec<_>>>()?,
                        tuple.datum.as_ref().map(|one| self.datum(one)),
                    ))
                })
                .collect(),
        };
        entries.is_some_and(|entries| self.are_same(entries, keys, fields, own))
    }

    /// The same of ranges of one field.
    pub(super) fn has_ranges(
        &self,
        ranges: &[Range],
        key: &Key,
        field: &Field,
        own: &[Entry],
    ) -> bool {
        let entries =
            ranges.iter().map(|range| Some((vec![self.range(*range, key, field)?], None)));
        let entries: Option<Vec<_>> = entries.collect();
        entries.is_some_and(|entries| self.are_same(entries, &[*key], &[*field], own))
    }

    /// The same of devices.
    pub(super) fn has_links(
        &self,
        patterns: &[LinkPattern],
        key: &Key,
        field: &Field,
        own: &[Entry],
    ) -> bool {
        let entries = patterns.iter().map(|pattern| Some((vec![name_range(pattern)?], None)));
        let entries: Option<Vec<_>> = entries.collect();
        entries.is_some_and(|entries| self.are_same(entries, &[*key], &[*field], own))
    }

    fn are_same(&self, listed: Vec<Entry>, keys: &[Key], fields: &[Field], own: &[Entry]) -> bool {
        let as_they_lie = keys.iter().zip(fields).map(|(key, field)| self.lies(key, field));
        let Some(as_they_lie) = as_they_lie.collect::<Option<Vec<_>>>() else { return false };
        if fields.iter().any(is_number_of_device) {
            // nft has asked for the devices' names.
            return listed.len() == own.len();
        }
        let listed = in_one_form(listed, &as_they_lie);
        let is_same = |(one, other): (&Entry, &Entry)| {
            one.0 == other.0 && (one.1 == other.1 || one.1.as_ref() == Some(&ANY))
        };
        listed.len() == own.len() && listed.iter().zip(own).all(is_same)
    }

    /// The field with all bytes that nft knows the key by.
    fn lies(&self, key: &Key, field: &Field) -> Option<Field> {
        match key.selector {
            Selector::Input | Selector::Output | Selector::IpVersion => Some(*field),
            _ => self.place_of(key, field).map(|place| place.field),
        }
    }

    fn item(&self, item: &Item, key: &Key, field: &Field) -> Option<(u128, u128)> {
        match item {
            Item::Link(pattern) => name_range(pattern),
            Item::Range(range) => self.range(*range, key, field),
        }
    }

    fn range(&self, range: Range, key: &Key, field: &Field) -> Option<(u128, u128)> {
        if key.selector == Selector::IpVersion {
            return match (range.first, range.last) {
                (4, 4) => Some((2, 2)),
                (6, 6) => Some((10, 10)),
                _ => None,
            };
        }
        let place = self.place_of(key, field)?;
        Some((place.number(range.first)?, place.number(range.last)?))
    }

    fn datum(&self, datum: &ListedDatum) -> Datum {
        let chain = |id: &crate::filter::ir::ChainId| {
            let name = self.names.get(id.0).and_then(|name| name.strip_prefix(self.table));
            name.map(str::to_owned)
        };
        let verdict = |code, chain| Datum::Verdict { code, chain };
        match datum {
            ListedDatum::Number(number) => Datum::Number((*number as u32).to_ne_bytes().to_vec()),
            ListedDatum::Verdict(one) => match one {
                Verdict::Drop => verdict(0, None),
                Verdict::Accept => verdict(1, None),
                Verdict::Continue => verdict(-1, None),
                Verdict::Jump(id) => verdict(-3, chain(id)),
                Verdict::Goto(id) => verdict(-4, chain(id)),
                Verdict::Return => verdict(-5, None),
                Verdict::Reject(_) | Verdict::Unsupported(_) => ANY,
            },
        }
    }
}
