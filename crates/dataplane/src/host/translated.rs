//! Packets of translated connections that the router itself makes (`nf_nat_ipv4_local_fn`, `nf_nat_ipv6_local_fn`).

use std::net::IpAddr;

use super::Context;
use crate::ip;
use crate::stages::filter;
use crate::wire::translate::{Translation, translate, translate_quoted};

/// Translates a packet that the router has made; returns where it goes then, if there are rules.
pub(super) fn translate_own(context: &Context<'_>, packet: &mut [u8]) -> Option<IpAddr> {
    let filter = context.tables.filter.as_ref()?;
    filter::translate_own(filter, packet, context.now_ns);
    if let Some((address, port)) = context.came {
        let (address, port) = (Some(address), port);
        let asked =
            Translation { destination: address, destination_port: port, ..Translation::default() };
        let answers = Translation { source: address, source_port: port, ..Translation::default() };
        // What is truncated stays.
        let _ = translate_quoted(packet, &asked).or_else(|_| translate(packet, &answers));
    }
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
