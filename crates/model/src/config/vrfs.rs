//! `[vrfs.NAME]`: routing tables and their names.

use std::collections::HashMap;

use super::nearest::nearest;
use super::raw::{Section, Setting};
use super::values::device_name;
use crate::{Vrf, VrfIndex};
use tollway_firewall::mistake::{Ledger, Span, quoted};

const MAIN: &str = "main";

/// The VRFs of a configuration, by index and by name.
pub(super) struct Vrfs {
    pub(super) list: Vec<Vrf>,
    by_name: HashMap<String, (VrfIndex, Span)>,
}

pub(super) fn read(root: &Section<'_>, ledger: &mut Ledger<'_>) -> Vrfs {
    let mut vrfs = Vrfs { list: vec![Vrf { name: MAIN.to_owned() }], by_name: HashMap::new() };
    for (name, section) in root.tables("vrfs", "vrf", ledger) {
        section.check_keys(&[], ledger);
        if name.value == MAIN {
            ledger.relation(
                name.span,
                "the vrf main is always there",
                "remove this table; links and routes without a vrf are in main",
            );
            continue;
        }
        if let Err(fault) = device_name("vrf", name.value) {
            ledger.value(name.span.clone(), fault);
        }
        let index = VrfIndex(vrfs.list.len());
        vrfs.list.push(Vrf { name: name.value.to_owned() });
        vrfs.by_name.insert(name.value.to_owned(), (index, name.span));
    }
    vrfs
}

impl Vrfs {
    /// The position of a VRF's name, if the VRF is defined.
    pub(super) fn defined_at(&self, name: &str) -> Option<&Span> {
        self.by_name.get(name).map(|(_, span)| span)
    }

    pub(super) fn name(&self, index: VrfIndex) -> &str {
        self.list.get(index.0).map_or(MAIN, |vrf| &vrf.name)
    }

    /// The VRF that a table names: main if it names none, `None` if the name is wrong.
    pub(super) fn of(&self, section: &Section<'_>, ledger: &mut Ledger<'_>) -> Option<VrfIndex> {
        let at = match section.text("vrf", ledger) {
            Setting::Absent => return Some(VrfIndex::MAIN),
            Setting::Bad => return None,
            Setting::Given(at) => at,
        };
        if at.value == MAIN {
            return Some(VrfIndex::MAIN);
        }
        if let Some((index, _)) = self.by_name.get(at.value) {
            return Some(*index);
        }
        let known: Vec<&str> = self.list.iter().map(|vrf| vrf.name.as_str()).collect();
        let remedy = match nearest(at.value, &known) {
            Some(name) => format!("did you mean {name}?"),
            None => format!("add a [vrfs.{}] table or correct the name", at.value.escape_debug()),
        };
        let what =
            format!("{} is in the vrf {}, which is not defined", section.title, quoted(at.value));
        ledger.relation(at.span, what, remedy);
        None
    }
}
