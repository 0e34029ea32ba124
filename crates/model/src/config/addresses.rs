//! Checks the relations between the addresses of different links.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::raw::bare;
use super::topology::{Arranged, Topology};
use super::values::is_link_local;
use super::vrfs::Vrfs;
use crate::VrfIndex;
use tollway_firewall::mistake::{Ledger, Span};

/// One address of one link. Link-local addresses are left out, because each link has its own.
struct Entry<'a> {
    vrf: VrfIndex,
    net: IpNet,
    link: usize,
    name: &'a str,
    span: Span,
}

/// Checks the addresses of all links against each other, and builds the topology.
pub(super) fn check<'a>(
    links: Vec<Arranged<'a>>,
    vrfs: Vrfs,
    ledger: &mut Ledger<'_>,
) -> Topology<'a> {
    check_link_local(&links, ledger);
    let mut entries = unique_entries(&links, &vrfs, ledger);
    check_overlaps(&mut entries, &vrfs, ledger);
    Topology::new(links, vrfs)
}

fn check_link_local(links: &[Arranged<'_>], ledger: &mut Ledger<'_>) {
    for link in links {
        let mut seen: HashMap<IpAddr, &Span> = HashMap::new();
        for at in link.addresses.iter().filter(|at| is_link_local(at.value.addr())) {
            if let Some(first) = seen.insert(at.value.addr(), &at.span) {
                report_twice(at.value.addr(), link.name, first, &at.span, ledger);
            }
        }
    }
}

/// Reports addresses that occur twice in a VRF; returns each once, in file order.
fn unique_entries<'a>(
    links: &[Arranged<'a>],
    vrfs: &Vrfs,
    ledger: &mut Ledger<'_>,
) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    for (index, link) in links.iter().enumerate() {
        let Some(vrf) = link.vrf.filter(|vrf| vrf.0 < vrfs.list.len()) else { continue };
        for at in link.addresses.iter().filter(|at| !is_link_local(at.value.addr())) {
            let (net, span) = (at.value, at.span.clone());
            entries.push(Entry { vrf, net, link: index, name: link.name, span });
        }
    }
    entries.sort_by_key(|entry| entry.span.start);
    let mut seen: HashMap<(VrfIndex, IpAddr), (&str, Span)> = HashMap::new();
    entries.retain(|entry| match seen.get(&(entry.vrf, entry.net.addr())) {
        Some((name, first)) => {
            report_twice(entry.net.addr(), name, first, &entry.span, ledger);
            false
        }
        None => {
            seen.insert((entry.vrf, entry.net.addr()), (entry.name, entry.span.clone()));
            true
        }
    });
    entries
}

fn report_twice(
    address: IpAddr,
    owner: &str,
    first: &Span,
    second: &Span,
    ledger: &mut Ledger<'_>,
) {
    let line = ledger.line(first.start);
    ledger.relation(
        second.clone(),
        format!("{address} is already an address of {} (line {line})", bare(owner)),
        "give each address once in a vrf",
    );
}

/// Reports links with overlapping subnets, because they leave open which link a neighbour is on.
fn check_overlaps(entries: &mut [Entry<'_>], vrfs: &Vrfs, ledger: &mut Ledger<'_>) {
    entries.sort_by_key(|e| (e.vrf, e.net.network(), e.net.prefix_len(), e.span.start));
    // Prefixes are nested or disjoint. In sorted order, the last prefix that still contains an
    // entry is the innermost one.
    let mut around: Vec<&Entry<'_>> = Vec::new();
    for entry in entries.iter() {
        while around.pop_if(|outer| !holds(outer, entry)).is_some() {}
        if let Some(outer) = around.last().filter(|outer| outer.link != entry.link) {
            report_overlap(outer, entry, vrfs, ledger);
        }
        around.push(entry);
    }
}

fn holds(outer: &Entry<'_>, inner: &Entry<'_>) -> bool {
    outer.vrf == inner.vrf && outer.net.contains(&inner.net.trunc())
}

fn report_overlap(a: &Entry<'_>, b: &Entry<'_>, vrfs: &Vrfs, ledger: &mut Ledger<'_>) {
    let (first, second) = if a.span.start <= b.span.start { (a, b) } else { (b, a) };
    let line = ledger.line(first.span.start);
    let (other, vrf) = (bare(first.name), bare(vrfs.name(first.vrf)));
    ledger.relation(
        second.span.clone(),
        format!("{} overlaps {} of {other} (line {line}) in vrf {vrf}", second.net, first.net),
        "give each link its own subnet, or put one of them into another vrf",
    );
}
