//! The addresses that a rule means for one connection.

use std::net::IpAddr;

use super::super::flows::FlowId;
use super::{BindingRange, Manip, NatRange, NatTarget, bits};

/// An address of a link, with the length of its prefix.
pub type LinkAddress = (IpAddr, u8);

/// The addresses of the links that the first packet of a connection comes and goes by.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Site<'a> {
    pub(in super::super) ingress: &'a [LinkAddress],
    pub(in super::super) egress: &'a [LinkAddress],
}

/// What a rule means for a connection, whose packets have left so; none if the link has no address.
pub(in super::super) fn range_of(
    range: &NatRange,
    current: &FlowId,
    site: Site<'_>,
) -> Option<BindingRange> {
    let version = current.version;
    let one = |address: u128| Some((address, address));
    let network = |manip: Manip, first: u128, last: u128| {
        let host = first ^ last;
        one(first & !host | manip.address(current) & host)
    };
    let addresses = match range.target {
        NatTarget::Source(addresses) | NatTarget::Destination(addresses) => addresses,
        NatTarget::Masquerade => one(masquerade(site.egress, version, current.destination)?),
        NatTarget::Redirect => one(first(site.ingress, version)?),
        NatTarget::SourceNetwork(first, last) => network(Manip::Source, first, last),
        NatTarget::DestinationNetwork(first, last) => network(Manip::Destination, first, last),
    };
    let NatRange { ports, is_random, is_persistent, .. } = *range;
    Some(BindingRange { addresses, ports, is_random, is_persistent })
}

fn is_of(version: u8, address: IpAddr) -> bool {
    address.is_ipv4() == (version == 4)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The link's address towards a destination: of IPv4, that in whose prefix it is, else the first; of IPv6, the global
/// one that has the most bits in common with it.
fn masquerade(addresses: &[LinkAddress], version: u8, destination: u128) -> Option<u128> {
    let own = addresses.iter().filter(|(own, _)| is_of(version, *own) && !is_link_local(*own));
    let width = if version == 4 { 32 } else { 128 };
    let shared = |own: u128, len: u8| {
        let same = (own ^ destination).leading_zeros() - (128 - width);
        same.min(len.into())
    };
    let mut best: Option<(u32, u128)> = None;
    for (own, len) in own {
        let own = bits(*own);
        let rank = match shared(own, *len) {
            all if version == 4 => u32::from(all == u32::from(*len)),
            some => some,
        };
        if best.is_none_or(|(before, _)| rank > before) {
            best = Some((rank, own));
        }
    }
    best.map(|(_, own)| own)
}

/// The link's first address, of IPv6 a global one if it has one.
fn first(addresses: &[LinkAddress], version: u8) -> Option<u128> {
    let own = addresses.iter().map(|(own, _)| *own).filter(|own| is_of(version, *own));
    own.min_by_key(|own| is_link_local(*own)).map(bits)
}
