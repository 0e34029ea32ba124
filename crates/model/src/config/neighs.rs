//! `[[neighbours]]`: static neighbours.

use std::collections::HashMap;

use super::raw::{At, Section, Setting, bare};
use super::topology::Topology;
use super::values::{host_address, mac};
use crate::{LinkIndex, Neigh};
use tollway_firewall::mistake::{Fault, Ledger};

/// Reads the neighbours. Checks each against its link and against the others.
pub(super) fn read(
    root: &Section<'_>,
    topology: &Topology<'_>,
    ledger: &mut Ledger<'_>,
) -> Vec<Neigh> {
    let sections = match root.list_of_tables("neighbours", "this neighbour", ledger) {
        Setting::Given(at) => at.value,
        Setting::Absent | Setting::Bad => return Vec::new(),
    };
    let mut seen = HashMap::new();
    let mut neighs = Vec::new();
    for section in &sections {
        let Some(At { value: neigh, span }) = read_one(section, topology, ledger) else { continue };
        if let Some(first) = seen.get(&(neigh.link, neigh.address)) {
            let line = ledger.line(*first);
            let dev = topology.link(neigh.link.0).map_or(String::new(), |link| bare(link.name));
            ledger.relation(
                span,
                format!("{} on {dev} is a neighbour already (line {line})", neigh.address),
                "remove one of the two",
            );
            continue;
        }
        seen.insert((neigh.link, neigh.address), span.start);
        neighs.push(neigh);
    }
    neighs
}

fn read_one(
    section: &Section<'_>,
    topology: &Topology<'_>,
    ledger: &mut Ledger<'_>,
) -> Option<At<Neigh>> {
    section.check_keys(&["dev", "address", "mac"], ledger);
    let dev = topology.dev(section, ledger);
    let address = section.text("address", ledger);
    let mac_text = section.text("mac", ledger);
    for (key, absent, remedy) in [
        ("dev", dev.is_absent(), "name the link that it is on"),
        ("address", address.is_absent(), "give its IP address"),
        ("mac", mac_text.is_absent(), "give its Ethernet address"),
    ] {
        if absent {
            section.missing(key, remedy, ledger);
        }
    }
    let address = address.read(ledger, |text| host_address("the neighbour", text)).given();
    let mac = mac_text.read(ledger, mac).given();
    let (dev, address) = (dev.given()?, address?);
    let checked = topology.check_host("the neighbour", dev.value, address.value, ledger);
    if let Err(Fault { what, remedy }) = checked {
        ledger.relation(address.span, what, remedy);
        return None;
    }
    let neigh = Neigh { link: LinkIndex(dev.value), address: address.value, mac: mac?.value };
    Some(At { value: neigh, span: address.span })
}
