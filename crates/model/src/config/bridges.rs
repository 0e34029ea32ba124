//! `[bridges.NAME]`: ports that are a bridge, which Tollway itself is.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::DeValue;

use super::links::clash;
use super::nearest::did_you_mean;
use super::raw::{At, Section, Setting, bare};
use super::topology::Topology;
use super::values::{device_name, mac};
use crate::{
    LearningBridge, LearningPort, LinkIndex, LinkKind, Port, PortIndex, PortKind, StaticEntry,
    VrfIndex,
};
use tollway_firewall::mistake::{Fault, Ledger, Span, quoted};

/// That of the kernel (`BR_DEFAULT_AGEING_TIME`).
const DEFAULT_AGEING_S: u32 = 300;
const AGEING_S: RangeInclusive<u32> = 1..=1_000_000;
/// Half of the slots of the table, which all bridges share: of so many, 4 in 10,000 find no room.
const MOST_ENTRIES: u32 = 1 << 17;

/// Reads the bridges. Checks their ports against the links, and against each other.
pub(super) fn read(
    root: &Section<'_>,
    ports: &[Port],
    topology: &Topology<'_>,
    ledger: &mut Ledger<'_>,
) -> Vec<LearningBridge> {
    let mut reader = Reader { ports, topology, taken: HashMap::new() };
    let tables = root.tables("bridges", "bridge", ledger);
    tables.iter().map(|(name, section)| reader.read(name, section, ledger)).collect()
}

struct Reader<'a> {
    ports: &'a [Port],
    topology: &'a Topology<'a>,
    /// The ports of all bridges, and where they are named.
    taken: HashMap<PortIndex, Span>,
}

impl Reader<'_> {
    fn read(
        &mut self,
        name: &At<&str>,
        section: &Section<'_>,
        ledger: &mut Ledger<'_>,
    ) -> LearningBridge {
        section.check_keys(&["ports", "ageing_s", "max_entries", "entries"], ledger);
        self.check_name(name, ledger);
        let ageing_s = section.integer("ageing_s", AGEING_S, ledger).given();
        let max_entries = section.integer("max_entries", 1..=MOST_ENTRIES, ledger).given();
        let list = section.list("ports", ledger);
        if list.is_absent() {
            section.missing("ports", "name its ports, as ports = [\"a\", \"b\"]", ledger);
        }
        let ports = self.read_ports(list, ledger);
        let entries = self.read_entries(section, &ports, ledger);
        LearningBridge {
            name: name.value.to_owned(),
            ports: ports.list,
            ageing_s: ageing_s.map_or(DEFAULT_AGEING_S, |at| at.value),
            max_entries: max_entries.map_or(MOST_ENTRIES, |at| at.value),
            entries,
        }
    }

    /// Bridges share the name space of links and VRFs, as devices do in the kernel.
    fn check_name(&self, name: &At<&str>, ledger: &mut Ledger<'_>) {
        if let Err(fault) = device_name("bridge", name.value) {
            return ledger.value(name.span.clone(), fault);
        }
        let link = self.topology.links.iter().find(|link| link.name == name.value);
        let vrf = self.topology.vrfs.defined_at(name.value);
        match (link, vrf) {
            (Some(link), _) => clash(name.value, "a link", &link.span, &name.span, ledger),
            (None, Some(vrf)) => {
                clash(name.value, "a vrf, which is a device too", vrf, &name.span, ledger)
            }
            (None, None) => {}
        }
    }

    fn read_ports(
        &mut self,
        list: Setting<&[Spanned<DeValue<'_>>]>,
        ledger: &mut Ledger<'_>,
    ) -> Members {
        let Some(At { value: items, .. }) = list.given() else { return Members::unknown() };
        let mut members = Members { list: Vec::new(), all_read: true };
        for item in items {
            let read = match item.get_ref() {
                DeValue::String(name) => self
                    .find_port(&At { value: name.as_ref(), span: item.span() }, ledger)
                    .map(LearningPort::new),
                DeValue::Table(table) => {
                    let title = "this port of the bridge".to_owned();
                    self.read_port(&Section::new(title, item.span(), table), ledger)
                }
                _ => {
                    let remedy = "write it as \"a\", or as { port = \"a\", isolated = true }";
                    ledger.value(
                        item.span(),
                        Fault::new("a port of the bridge is neither a name nor a table", remedy),
                    );
                    None
                }
            };
            match read {
                Some(port) => members.list.push(port),
                None => members.all_read = false,
            }
        }
        members
    }

    fn read_port(
        &mut self,
        section: &Section<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Option<LearningPort> {
        section.check_keys(&["port", "isolated", "hairpin", "learning", "storm_limit"], ledger);
        let name = section.text("port", ledger);
        if name.is_absent() {
            section.missing("port", "name the port", ledger);
        }
        let mut flag =
            |key, default| section.boolean(key, ledger).given().map_or(default, |at| at.value);
        let (is_isolated, is_hairpin) = (flag("isolated", false), flag("hairpin", false));
        let learns = flag("learning", true);
        let storm_limit = section.integer("storm_limit", 1..=u32::MAX, ledger).given();
        let port = self.find_port(&name.given()?, ledger)?;
        let storm_limit = storm_limit.map(|at| at.value);
        Some(LearningPort { port, is_isolated, is_hairpin, learns, storm_limit })
    }

    /// The port of a name, if it can belong to the bridge.
    fn find_port(&mut self, name: &At<&str>, ledger: &mut Ledger<'_>) -> Option<PortIndex> {
        let port = find(self.ports, name, ledger)?;
        if let Some(other) = self.taken.get(&port) {
            let line = ledger.line(other.start);
            let what =
                format!("port {} belongs to a bridge already (line {line})", bare(name.value));
            ledger.relation(name.span.clone(), what, "name it once");
            return None;
        }
        self.taken.insert(port, name.span.clone());
        if let Err(fault) = self.check_port(port, ledger) {
            ledger.relation(name.span.clone(), fault.what, fault.remedy);
            return None;
        }
        Some(port)
    }

    /// Checks that nothing but the bridge gets the frames of a port.
    fn check_port(&self, port: PortIndex, ledger: &Ledger<'_>) -> Result<(), Fault> {
        let Some(link) = self.topology.link(port.0) else { return Ok(()) };
        let name = bare(link.name);
        let line = ledger.line(link.span.start);
        if let Some(PortKind::AfXdp { .. }) = self.ports.get(port.0).map(|port| &port.kind) {
            return Fault::err(
                format!(
                    "port {name} is of kind af_xdp (line {line}), whose kernel has what is not for the router"
                ),
                "make it af_packet, or let the kernel have the bridge",
            );
        }
        if let Some(address) = link.addresses.first() {
            return Fault::err(
                format!(
                    "port {name} belongs to a bridge but has the address {} (line {line})",
                    address.value
                ),
                "remove the address, or the port from the bridge",
            );
        }
        if link.vrf.is_some_and(|vrf| vrf != VrfIndex::MAIN) {
            return Fault::err(
                format!("port {name} belongs to a bridge but has a vrf (line {line})"),
                "remove the vrf, or the port from the bridge",
            );
        }
        let on_top =
            |kind| matches!(kind, LinkKind::Vlan { parent, .. } if parent == LinkIndex(port.0));
        if let Some(vlan) = self.topology.links.iter().find(|link| on_top(link.kind)) {
            let line = ledger.line(vlan.span.start);
            return Fault::err(
                format!(
                    "port {name} belongs to a bridge but carries the VLAN link {} (line {line})",
                    bare(vlan.name)
                ),
                "remove the VLAN link, or the port from the bridge",
            );
        }
        Ok(())
    }

    fn read_entries(
        &self,
        section: &Section<'_>,
        members: &Members,
        ledger: &mut Ledger<'_>,
    ) -> Vec<StaticEntry> {
        let sections = match section.list_of_tables("entries", "this entry", ledger) {
            Setting::Given(at) => at.value,
            Setting::Absent | Setting::Bad => return Vec::new(),
        };
        let mut seen = HashMap::new();
        let mut entries = Vec::new();
        for section in &sections {
            let Some(At { value: entry, span }) = self.read_entry(section, members, ledger) else {
                continue;
            };
            if let Some(first) = seen.insert(entry.mac, span.start) {
                let line = ledger.line(first);
                let what =
                    format!("{} has an entry in this bridge already (line {line})", entry.mac);
                ledger.relation(span, what, "remove one of the two");
                continue;
            }
            entries.push(entry);
        }
        entries
    }

    fn read_entry(
        &self,
        section: &Section<'_>,
        members: &Members,
        ledger: &mut Ledger<'_>,
    ) -> Option<At<StaticEntry>> {
        section.check_keys(&["mac", "port"], ledger);
        let mac_text = section.text("mac", ledger);
        let name = section.text("port", ledger);
        if mac_text.is_absent() {
            section.missing("mac", "give the station's Ethernet address", ledger);
        }
        if name.is_absent() {
            section.missing("port", "name the port that the station is behind", ledger);
        }
        let mac = mac_text.read(ledger, mac).given();
        let name = name.given()?;
        let port = find(self.ports, &name, ledger)?;
        let At { value: mac, span } = mac?;
        if members.all_read && !members.list.iter().any(|member| member.port == port) {
            let what = format!("port {} does not belong to this bridge", bare(name.value));
            ledger.relation(name.span, what, "name a port of the bridge");
            return None;
        }
        Some(At { value: StaticEntry { mac, port }, span })
    }
}

/// The ports of a bridge.
struct Members {
    list: Vec<LearningPort>,
    /// Whether they were read without a mistake.
    all_read: bool,
}

impl Members {
    const fn unknown() -> Self {
        Self { list: Vec::new(), all_read: false }
    }
}

fn find(ports: &[Port], name: &At<&str>, ledger: &mut Ledger<'_>) -> Option<PortIndex> {
    let found = ports.iter().position(|port| port.name == name.value);
    if found.is_none() {
        let known: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        let other = || "name one of the [ports.NAME] tables".to_owned();
        let remedy = did_you_mean(name.value, &known, other);
        ledger.relation(name.span.clone(), format!("{} is not a port", quoted(name.value)), remedy);
    }
    found.map(PortIndex)
}
