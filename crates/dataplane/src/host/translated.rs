//! Packets of translated connections that the router itself makes (`nf_nat_ipv4_local_fn`, `nf_nat_ipv6_local_fn`).

use std::net::IpAddr;

use super::Context;
use crate::ip;
use crate::stages::filter;

/// Translates a packet that the router has made; returns where it goes then, if there are rules.
pub(super) fn translate_own(context: &Context<'_>, packet: &mut [u8]) -> Option<IpAddr> {
    let filter = context.tables.filter.as_ref()?;
    filter::translate_own(filter, packet, context.now_ns);
    ip::endpoints(packet).map(|(_, to)| to)
}

/// Gives a packet that nobody could receive the addresses with which it has come.
pub(super) fn restored(context: &Context<'_>, packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(filter) = &context.tables.filter {
        filter::restore(filter, &mut packet, context.now_ns);
    }
    packet
}
