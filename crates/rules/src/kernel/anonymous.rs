//! Verifies the elements of anonymous sets in nft's listing against the kernel's.

use std::collections::HashMap;

use super::condition::{Datum, Entry, Load};
use super::elements::{in_one_form, is_number_of_device};
use super::listed::{Site, name_range};
use tollway_firewall::ir::{
    Datum as ListedDatum, Elements, Field, Item, Key, LinkPattern, Range, Verdict,
};

/// Stands for a verdict that is unsupported in any case.
const ANY: Datum = Datum::Verdict { code: i32::MIN, chain: None };

impl Site<'_> {
    /// Says whether a set has the same elements for keys of these loads.
    pub(super) fn has(
        &self,
        elements: &Elements,
        keys: &[Key],
        loads: &[Load],
        own: &[Entry],
    ) -> bool {
        let entries: Option<Vec<_>> = match (elements, keys, loads) {
            (Elements::Ranges(ranges), [key], [load]) => {
                return self.has_ranges(ranges, key, load, own);
            }
            (Elements::Ranges(_), ..) => return false,
            (Elements::Tuples(tuples), ..) => tuples
                .iter()
                .map(|tuple| {
                    let parts = tuple.key.iter().zip(keys.iter().zip(loads));
                    let key = parts.map(|(item, (key, load))| self.item(item, key, load));
                    Some((
                        key.collect::<Option<Vec<_>>>()?,
                        tuple.datum.as_ref().map(|one| self.datum(one)),
                    ))
                })
                .collect(),
        };
        entries.is_some_and(|entries| self.are_same(entries, keys, loads, own))
    }

    /// Like [`Site::has`], for ranges of one load.
    pub(super) fn has_ranges(
        &self,
        ranges: &[Range],
        key: &Key,
        load: &Load,
        own: &[Entry],
    ) -> bool {
        let entries = ranges.iter().map(|range| Some((vec![self.range(*range, key, load)?], None)));
        let entries: Option<Vec<_>> = entries.collect();
        entries.is_some_and(|entries| self.are_same(entries, &[*key], &[*load], own))
    }

    /// Like [`Site::has`], for devices.
    pub(super) fn has_links(
        &self,
        patterns: &[LinkPattern],
        key: &Key,
        load: &Load,
        own: &[Entry],
    ) -> bool {
        let entries = patterns.iter().map(|pattern| Some((vec![name_range(pattern)?], None)));
        let entries: Option<Vec<_>> = entries.collect();
        entries.is_some_and(|entries| self.are_same(entries, &[*key], &[*load], own))
    }

    fn are_same(&self, listed: Vec<Entry>, keys: &[Key], loads: &[Load], own: &[Entry]) -> bool {
        let own_loads = keys.iter().zip(loads).map(|(key, load)| self.load_of_key(key, load));
        let Some(own_loads) = own_loads.collect::<Option<Vec<_>>>() else { return false };
        let count = listed.len();
        let listed = in_one_form(listed, &own_loads);
        if loads.iter().any(is_number_of_device) {
            return are_same_but_for_devices((&listed, count), loads, own);
        }
        listed.len() == own.len() && listed.iter().zip(own).all(|(one, other)| is_same(one, other))
    }

    /// The load of all bytes that nft's key consists of.
    fn load_of_key(&self, key: &Key, load: &Load) -> Option<Load> {
        match key.field {
            Field::Input | Field::Output | Field::IpVersion => Some(*load),
            _ => self.place_of(key, load).map(|place| place.load),
        }
    }

    fn item(&self, item: &Item, key: &Key, load: &Load) -> Option<(u128, u128)> {
        match item {
            Item::Link(pattern) => name_range(pattern),
            Item::Range(range) => self.range(*range, key, load),
        }
    }

    fn range(&self, range: Range, key: &Key, load: &Load) -> Option<(u128, u128)> {
        if key.field == Field::IpVersion {
            return match (range.first, range.last) {
                (4, 4) => Some((2, 2)),
                (6, 6) => Some((10, 10)),
                _ => None,
            };
        }
        let place = self.place_of(key, load)?;
        Some((place.number(range.first)?, place.number(range.last)?))
    }

    fn datum(&self, datum: &ListedDatum) -> Datum {
        let chain = |id: &tollway_firewall::ir::ChainId| {
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
                Verdict::Reject(_) | Verdict::Nat(_) | Verdict::Unsupported(_) => ANY,
            },
        }
    }
}

fn is_same(listed: &Entry, own: &Entry) -> bool {
    listed.0 == own.0 && is_same_datum(listed.1.as_ref(), own.1.as_ref())
}

fn is_same_datum(listed: Option<&Datum>, own: Option<&Datum>) -> bool {
    listed == own || listed == Some(&ANY)
}

/// Says whether entries are the same, as far as possible: nft has replaced device numbers by names. So the
/// number of devices must be the same, and the parts of entries beside the devices. `count` is the number of
/// listed entries.
fn are_same_but_for_devices(
    (listed, count): (&[Entry], usize),
    loads: &[Load],
    own: &[Entry],
) -> bool {
    if loads.len() == 1 && own.iter().all(|(_, datum)| datum.is_none()) {
        // Adjacent numbers form one range.
        let numbers = own.iter().flat_map(|(key, _)| key);
        let all = numbers.fold(0_u128, |all, (first, last)| {
            all.saturating_add(last.saturating_sub(*first)).saturating_add(1)
        });
        return all == count as u128;
    }
    let without_devices = |(key, _): &Entry| -> Vec<_> {
        let key = key.iter().zip(loads);
        key.map(|(range, load)| if is_number_of_device(load) { (0, 0) } else { *range }).collect()
    };
    let mut rest: HashMap<_, Vec<_>> = HashMap::new();
    for entry in own {
        rest.entry(without_devices(entry)).or_default().push(&entry.1);
    }
    let mut take = |entry: &Entry| {
        let data = rest.get_mut(&without_devices(entry))?;
        let at = data.iter().position(|own| is_same_datum(entry.1.as_ref(), own.as_ref()))?;
        Some(data.swap_remove(at))
    };
    listed.len() == own.len() && listed.iter().all(|entry| take(entry).is_some())
}

#[cfg(test)]
mod tests {
    use super::super::condition::{IIF, IIFNAME};
    use super::*;
    use tollway_firewall::ir::PayloadBase;

    fn drop_or_accept(accept: bool) -> Option<Datum> {
        Some(Datum::Verdict { code: accept.into(), chain: None })
    }

    fn is_same(loads: &[Load], listed: &[Entry], own: &[Entry]) -> bool {
        are_same_but_for_devices((listed, listed.len()), loads, own)
    }

    #[test]
    fn devices_are_counted() {
        let load = [Load::meta(IIF)];
        assert!(is_number_of_device(&load[0]) && !is_number_of_device(&Load::meta(IIFNAME)));
        // nft lists names, regardless of the devices' numbers.
        let names = |count: u128| -> Vec<Entry> {
            (0..count).map(|name| (vec![(900 + name, 900 + name)], None)).collect()
        };
        for (listed, own, same) in [
            (2, vec![(5, 6)], true),
            (2, vec![(5, 5), (9, 9)], true),
            (3, vec![(5, 6), (9, 9)], true),
            (1, vec![(5, 6)], false),
            (2, vec![(5, 5)], false),
            (2, vec![(5, 7)], false),
            (2, vec![(0, u128::MAX)], false),
        ] {
            let own: Vec<Entry> = own.into_iter().map(|range| (vec![range], None)).collect();
            assert_eq!(is_same(&load, &names(listed), &own), same, "{listed} {own:?}");
        }
    }

    #[test]
    fn entries_are_compared_apart_from_their_devices() {
        let loads = [Load::meta(IIF), Load::payload(PayloadBase::Transport, 2, 2)];
        let ports = |ports: &[u128]| -> Vec<Entry> {
            let entry = |(at, port): (usize, &u128)| (vec![(at as u128, 0), (*port, *port)], None);
            ports.iter().enumerate().map(entry).collect()
        };
        assert!(is_same(&loads, &ports(&[22, 80]), &ports(&[80, 22])));
        assert!(is_same(&loads, &ports(&[22, 22]), &ports(&[22, 22])));
        for (listed, own) in
            [(&[22, 80][..], &[22, 81][..]), (&[22, 22], &[22, 80]), (&[22], &[22, 22])]
        {
            assert!(!is_same(&loads, &ports(listed), &ports(own)), "{listed:?} {own:?}");
        }
        let load = [Load::meta(IIF)];
        let verdicts = |verdicts: &[Option<Datum>]| -> Vec<Entry> {
            let entry = |(at, one): (usize, &Option<Datum>)| (vec![(at as u128, 0)], one.clone());
            verdicts.iter().enumerate().map(entry).collect()
        };
        let [drops, accepts] = [false, true].map(drop_or_accept);
        let both = verdicts(&[drops.clone(), accepts.clone()]);
        assert!(is_same(&load, &both, &verdicts(&[accepts.clone(), drops])));
        assert!(!is_same(&load, &both, &verdicts(&[accepts.clone(), accepts.clone()])));
        assert!(is_same(&load, &verdicts(&[Some(ANY)]), &verdicts(&[accepts])));
    }
}
