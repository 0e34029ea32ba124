//! The links with their parents, and lookups on them for routes and neighbours.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::links::{Draft, DraftKind};
use super::nearest::did_you_mean;
use super::raw::{At, Section, Setting, bare};
use super::values::{derived_mac, edge, is_link_local};
use super::vrfs::Vrfs;
use crate::{Link, LinkIndex, LinkKind, Vrf, VrfIndex};
use tollway_firewall::mistake::{Fault, Ledger, Span, quoted};
use tollway_net::{KernelPath, Mac};

const DEFAULT_MTU: u16 = 1500;
/// The least MTU for IPv6 (RFC 8200, section 5); the kernel disables IPv6 below it.
pub(super) const IPV6_MIN_MTU: u16 = 1280;

/// A link in its final position, with everything that it inherits from its parent.
pub(super) struct Arranged<'a> {
    pub(super) name: &'a str,
    pub(super) span: Span,
    pub(super) kind: LinkKind,
    pub(super) mac: Mac,
    pub(super) mac_given: bool,
    pub(super) mtu: u16,
    pub(super) vrf: Option<VrfIndex>,
    pub(super) addresses: Vec<At<IpNet>>,
    pub(super) sound: bool,
}

impl<'a> Arranged<'a> {
    /// Completes a link from its parent `above`, which carries it.
    pub(super) fn below(
        draft: Draft<'a>,
        parent: Option<usize>,
        above: Option<&Self>,
        ledger: &mut Ledger<'_>,
    ) -> Self {
        let At { value: name, span } = draft.name;
        let mtu = draft.mtu.as_ref().map(|mtu| mtu.value);
        if let (Some(At { value: mtu, span }), Some(above)) = (&draft.mtu, above)
            && *mtu > above.mtu
        {
            let (parent, limit) = (bare(above.name), above.mtu);
            ledger.relation(
                span.clone(),
                format!("mtu {mtu} is above the {limit} of the parent {parent}"),
                format!("write at most {limit}, or raise the mtu of {parent}"),
            );
        }
        let link = Self {
            name,
            span,
            kind: link_kind(draft.kind, parent),
            mac: draft.mac.or(above.map(|a| a.mac)).unwrap_or_else(|| derived_mac(name)),
            mac_given: draft.mac.is_some(),
            mtu: mtu.or(above.map(|a| a.mtu)).unwrap_or(DEFAULT_MTU),
            vrf: draft.vrf,
            addresses: draft.addresses,
            sound: draft.sound,
        };
        link.check_ipv6_mtu(draft.mtu.map(|at| at.span), ledger);
        link
    }

    fn check_ipv6_mtu(&self, mtu_span: Option<Span>, ledger: &mut Ledger<'_>) {
        let mut addresses = self.addresses.iter();
        let Some(address) = addresses.find(|at| at.value.addr().is_ipv6()) else { return };
        if self.mtu >= IPV6_MIN_MTU {
            return;
        }
        let (mtu, name, net) = (self.mtu, bare(self.name), &address.value);
        let whose = if mtu_span.is_some() { "" } else { " from its parent" };
        ledger.relation(
            mtu_span.unwrap_or(address.span.clone()),
            format!("{name} has mtu {mtu}{whose}, too small for its IPv6 address {net}"),
            "raise the mtu to 1280 or more, or remove the address",
        );
    }

    /// The prefix of this link that contains an address, if any.
    pub(super) fn covering(&self, address: IpAddr) -> Option<&IpNet> {
        self.addresses.iter().map(|at| &at.value).find(|net| net.contains(&address))
    }

    fn into_link(self) -> Link {
        Link {
            name: self.name.to_owned(),
            kind: self.kind,
            mac: self.mac,
            mac_given: self.mac_given,
            mtu: self.mtu,
            vrf: self.vrf.unwrap_or(VrfIndex::MAIN),
            addresses: self.addresses.into_iter().map(|at| at.value).collect(),
            kernel_path: KernelPath::default(),
        }
    }
}

/// Defaults stand in for missing values; those were reported, so the model is discarded.
fn link_kind(kind: DraftKind<'_>, parent: Option<usize>) -> LinkKind {
    match kind {
        DraftKind::Port(port) => LinkKind::Port(port),
        DraftKind::Vlan { vid, protocol, .. } => LinkKind::Vlan {
            parent: LinkIndex(parent.unwrap_or_default()),
            vid: vid.map_or(1, |at| at.value),
            protocol: protocol.unwrap_or_default(),
        },
    }
}

/// All links and VRFs, with indexes for lookups.
pub(super) struct Topology<'a> {
    pub(super) links: Vec<Arranged<'a>>,
    pub(super) vrfs: Vrfs,
    by_name: HashMap<&'a str, usize>,
    /// The link that has a prefix. Link-local prefixes are absent, because they do not identify a
    /// link.
    connected: HashMap<(VrfIndex, IpNet), usize>,
    own: HashMap<(VrfIndex, IpAddr), usize>,
    /// VRFs with links whose addresses are partly unknown; `None` means an unknown VRF.
    doubtful: Vec<Option<VrfIndex>>,
}

impl<'a> Topology<'a> {
    pub(super) fn new(links: Vec<Arranged<'a>>, vrfs: Vrfs) -> Self {
        let mut new = Self {
            links: Vec::new(),
            vrfs,
            by_name: HashMap::new(),
            connected: HashMap::new(),
            own: HashMap::new(),
            doubtful: Vec::new(),
        };
        for (index, link) in links.iter().enumerate() {
            new.by_name.entry(link.name).or_insert(index);
            if !link.sound && !new.doubtful.contains(&link.vrf) {
                new.doubtful.push(link.vrf);
            }
            let Some(vrf) = link.vrf else { continue };
            for net in link.addresses.iter().map(|at| at.value) {
                if !is_link_local(net.addr()) {
                    new.connected.entry((vrf, net.trunc())).or_insert(index);
                    new.own.entry((vrf, net.addr())).or_insert(index);
                }
            }
        }
        new.links = links;
        new
    }

    pub(super) fn into_model(self) -> (Vec<Link>, Vec<Vrf>) {
        (self.links.into_iter().map(Arranged::into_link).collect(), self.vrfs.list)
    }

    pub(super) fn link(&self, index: usize) -> Option<&Arranged<'a>> {
        self.links.get(index)
    }

    /// Whether some addresses of a VRF are unknown, so that a missing subnet is not a mistake.
    pub(super) fn is_doubtful(&self, vrf: Option<VrfIndex>) -> bool {
        match vrf {
            None => !self.doubtful.is_empty(),
            Some(_) => self.doubtful.contains(&vrf) || self.doubtful.contains(&None),
        }
    }

    /// The link in a VRF whose prefix contains an address.
    pub(super) fn covering(&self, vrf: VrfIndex, address: IpAddr) -> Option<usize> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (0..=longest).rev().find_map(|length| {
            let net = IpNet::new(address, length).ok()?.trunc();
            self.connected.get(&(vrf, net)).copied()
        })
    }

    /// The link that has exactly this prefix.
    pub(super) fn connected(&self, vrf: VrfIndex, net: &IpNet) -> Option<&Arranged<'a>> {
        self.connected.get(&(vrf, *net)).and_then(|index| self.link(*index))
    }

    /// The link that the key `dev` names; reports a wrong name.
    pub(super) fn dev(&self, section: &Section<'_>, ledger: &mut Ledger<'_>) -> Setting<usize> {
        let at = match section.text("dev", ledger) {
            Setting::Absent => return Setting::Absent,
            Setting::Bad => return Setting::Bad,
            Setting::Given(at) => at,
        };
        if let Some(index) = self.by_name.get(at.value) {
            return Setting::Given(At { value: *index, span: at.span });
        }
        let mut known: Vec<&str> = self.by_name.keys().copied().collect();
        known.sort_unstable();
        let remedy = did_you_mean(at.value, &known, || "name a port or a VLAN link".to_owned());
        ledger.relation(at.span, format!("dev {} is not a link", quoted(at.value)), remedy);
        Setting::Bad
    }

    /// Checks that a station on a link can have this address. The address must lie in a prefix of
    /// the link, and must be neither the router's own nor a network or broadcast address.
    pub(super) fn check_host(
        &self,
        what: &str,
        index: usize,
        address: IpAddr,
        ledger: &Ledger<'_>,
    ) -> Result<(), Fault> {
        let Some(link) = self.link(index) else { return Ok(()) };
        let name = bare(link.name);
        if let Some(owner) = self.owner(index, address) {
            let line = ledger.line(owner.span.start);
            return Fault::err(
                format!(
                    "{what} {address} is the router's own, on {} (line {line})",
                    bare(owner.name)
                ),
                "give the address of another station on the link",
            );
        }
        if address.is_ipv6() && link.mtu < IPV6_MIN_MTU {
            let mtu = link.mtu;
            return Fault::err(
                format!("{what} {address} needs IPv6, which {name} cannot carry with mtu {mtu}"),
                format!("raise the mtu of {name} to 1280 or more"),
            );
        }
        if is_link_local(address) {
            return Ok(());
        }
        let Some(net) = link.covering(address) else {
            return self.off_link(what, link, address, ledger);
        };
        match edge(net, address) {
            None => Ok(()),
            Some(kind) => Fault::err(
                format!("{what} {address} is the {kind} address of {} on {name}", net.trunc()),
                "give the address of a station",
            ),
        }
    }

    fn owner(&self, index: usize, address: IpAddr) -> Option<&Arranged<'a>> {
        let link = self.link(index)?;
        if link.addresses.iter().any(|at| at.value.addr() == address) {
            return Some(link);
        }
        self.own.get(&(link.vrf?, address)).and_then(|owner| self.link(*owner))
    }

    fn off_link(
        &self,
        what: &str,
        link: &Arranged<'_>,
        address: IpAddr,
        ledger: &Ledger<'_>,
    ) -> Result<(), Fault> {
        if !link.sound {
            return Ok(());
        }
        let name = bare(link.name);
        let line = ledger.line(link.span.start);
        let has = match link.addresses.iter().map(|at| at.value.to_string()).collect::<Vec<_>>() {
            none if none.is_empty() => "no address".to_owned(),
            some => some.join(", "),
        };
        let elsewhere = link.vrf.and_then(|vrf| self.covering(vrf, address));
        let remedy = match elsewhere.and_then(|index| self.link(index)) {
            Some(other) => format!("write dev = {}, which has its subnet", quoted(other.name)),
            None => format!("correct it, or add an address of its subnet to {name}"),
        };
        Fault::err(
            format!("{what} {address} is in no subnet of {name}, which has {has} (line {line})"),
            remedy,
        )
    }
}
