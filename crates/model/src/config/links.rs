//! The keys that ports and VLAN links share: name, Ethernet address, MTU, VRF and addresses.

use std::collections::HashMap;

use ipnet::IpNet;

use super::raw::{At, Section, Setting};
use super::values;
use super::vrfs::Vrfs;
use crate::{PortIndex, VrfIndex};
use tollway_firewall::mistake::{Fault, Ledger, Span};
use tollway_net::{Mac, VlanProtocol};

/// The keys that every link may have.
pub(super) const COMMON_KEYS: [&str; 4] = ["mac", "mtu", "vrf", "addresses"];

/// The kernel's ETH_MIN_MTU, and the largest packet that a frame buffer holds.
const MTU_MIN: u32 = 68;
const MTU_MAX: u32 = 16_000;

/// A link as in the file: its references to other links are names.
pub(super) struct Draft<'a> {
    pub(super) name: At<&'a str>,
    pub(super) kind: DraftKind<'a>,
    pub(super) mac: Option<Mac>,
    pub(super) mtu: Option<At<u16>>,
    /// None if the file names an unknown VRF.
    pub(super) vrf: Option<VrfIndex>,
    pub(super) addresses: Vec<At<IpNet>>,
    /// Whether the VRF and all addresses were read without a mistake.
    pub(super) sound: bool,
}

pub(super) enum DraftKind<'a> {
    Port(PortIndex),
    Vlan {
        /// None if missing or wrong.
        parent: Option<At<&'a str>>,
        vid: Option<At<u16>>,
        protocol: Option<VlanProtocol>,
    },
}

/// Reads the keys that every link may have.
pub(super) fn read_common<'a>(
    name: At<&'a str>,
    kind: DraftKind<'a>,
    section: &Section<'a>,
    vrfs: &Vrfs,
    ledger: &mut Ledger<'_>,
) -> Draft<'a> {
    if let Err(fault) = values::device_name("link", name.value) {
        ledger.value(name.span.clone(), fault);
    }
    let mac = section.text("mac", ledger).read(ledger, values::mac).given();
    let mtu = section.integer("mtu", MTU_MIN..=MTU_MAX, ledger);
    let mtu = mtu.read(ledger, |mtu| narrow("mtu", mtu)).given();
    let vrf = vrfs.of(section, ledger);
    let (addresses, all_read) = read_addresses(section, ledger);
    let sound = vrf.is_some() && all_read;
    Draft { name, kind, mac: mac.map(|mac| mac.value), mtu, vrf, addresses, sound }
}

/// Converts a number that a range check has already limited to 16 bits.
pub(super) fn narrow(key: &str, value: u32) -> Result<u16, Fault> {
    u16::try_from(value).map_err(|_| Fault::new(format!("{key} is too large"), "give less"))
}

fn read_addresses(section: &Section<'_>, ledger: &mut Ledger<'_>) -> (Vec<At<IpNet>>, bool) {
    let list = match section.list("addresses", ledger) {
        Setting::Absent => return (Vec::new(), true),
        Setting::Bad => return (Vec::new(), false),
        Setting::Given(at) => at.value,
    };
    let mut addresses = Vec::new();
    for item in list {
        let read = match item.get_ref().as_str() {
            Some(text) => values::interface_address(text),
            None => Fault::err("an address is not a string", "write it as \"192.0.2.1/24\""),
        };
        match read {
            Ok(value) => addresses.push(At { value, span: item.span() }),
            Err(fault) => ledger.value(item.span(), fault),
        }
    }
    let all_read = addresses.len() == list.len();
    (addresses, all_read)
}

/// Indexes the links by name. Links and VRFs share one namespace, as devices do in the kernel.
pub(super) fn unique_names<'a>(
    drafts: &[Draft<'a>],
    vrfs: &Vrfs,
    ledger: &mut Ledger<'_>,
) -> HashMap<&'a str, usize> {
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        let At { value: name, span } = &draft.name;
        if let Some(first) = names.get(name).and_then(|i| drafts.get(*i)) {
            clash(name, "a link", &first.name.span, span, ledger);
            continue;
        }
        if let Some(vrf) = vrfs.defined_at(name) {
            clash(name, "a vrf, which is a device too", vrf, span, ledger);
        }
        names.insert(name, index);
    }
    names
}

pub(super) fn clash(name: &str, what: &str, first: &Span, second: &Span, ledger: &mut Ledger<'_>) {
    let (first, second) =
        if first.start <= second.start { (first, second) } else { (second, first) };
    let line = ledger.line(first.start);
    ledger.relation(
        second.clone(),
        format!("the name {} is already that of {what} (line {line})", super::raw::bare(name)),
        "rename one of the two",
    );
}
