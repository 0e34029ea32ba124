//! Address translation: other addresses and ports in a packet, from layer 3 on, with all its checksums.
//!
//! Kernel equivalent: `nf_nat_manip_pkt` and `nf_nat_icmp_reply_translation` (`net/netfilter/nf_nat_proto.c`).
//!
//! - Checksums change by the difference (RFC 1624), so a wrong one stays wrong. A checksum of UDP that is 0 stays
//!   so; one that becomes 0 is written as all ones.
//! - TCP, UDP, UDP-Lite and DCCP have ports. Queries of ICMP and ICMPv6 and their answers have an identifier instead.
//!   In other packets, and in later fragments, only the addresses change.
//! - A packet that cannot be translated stays as it is.

mod layout;
#[cfg(test)]
mod tests;

use layout::{Layout, Transport};

use super::checksum::{self, Change};
use super::{ipv4, l4};

/// What changes in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Translation {
    /// The source address; of IPv4, the low 32 bits count.
    pub source: Option<u128>,
    /// The destination address.
    pub destination: Option<u128>,
    /// The source port; in a query of ICMP, its identifier.
    pub source_port: Option<u16>,
    /// The destination port; in a query of ICMP, its identifier, unless a source port says it.
    pub destination_port: Option<u16>,
}

/// Why a packet could not be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untranslatable {
    /// Its headers are cut off, or contradict themselves.
    Truncated,
    /// It is no error of ICMP or ICMPv6.
    NoError,
}

/// Bytes of the header of an ICMP error, before the packet that it is about.
const ICMP_LEN: usize = 8;

/// The most bytes of a transport header that a translation changes.
const MOST_CHANGED: usize = 20;

/// Translates a packet. Its first byte is that of layer 3; bytes may follow it.
///
/// # Errors
///
/// The packet is truncated, and unchanged.
pub fn translate(packet: &mut [u8], new: &Translation) -> Result<(), Untranslatable> {
    let layout = Layout::whole(packet).ok_or(Untranslatable::Truncated)?;
    apply(packet, layout, new);
    Ok(())
}

/// Translates the packet that an error of ICMP or ICMPv6 is about, and neither source nor destination of the error.
///
/// # Errors
///
/// The packet is truncated, or no such error, and unchanged.
pub fn translate_quoted(packet: &mut [u8], new: &Translation) -> Result<(), Untranslatable> {
    let outer = Layout::whole(packet).ok_or(Untranslatable::Truncated)?;
    let (at, sum_at) = match outer.transport {
        Transport::Icmp { at, sum_at, is_query: false, .. } => (at, sum_at),
        _ => return Err(Untranslatable::NoError),
    };
    let is_error = match (packet[0] >> 4, packet[at]) {
        (4, kind) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        (_, kind) => kind < 128,
    };
    if !is_error {
        return Err(Untranslatable::NoError);
    }
    let quoted = packet.get_mut(at + ICMP_LEN..outer.end).ok_or(Untranslatable::Truncated)?;
    let layout = Layout::quoted(quoted, outer.version).ok_or(Untranslatable::Truncated)?;
    let changed = quoted.len().min(layout.changed_len());
    let before = checksum::sum(&quoted[..changed]);
    apply(quoted, layout, new);
    let after = checksum::sum(&quoted[..changed]);
    let mut change = Change::default();
    change.replace(&before.to_be_bytes(), &after.to_be_bytes());
    update(packet, sum_at, &change);
    Ok(())
}

fn apply(packet: &mut [u8], layout: Layout, new: &Translation) {
    let mut addresses = Change::default();
    let (source_at, destination_at, len) = layout.addresses();
    for (at, address) in [(source_at, new.source), (destination_at, new.destination)] {
        if let Some(address) = address {
            let bytes = address.to_be_bytes();
            replace(packet, at, &bytes[bytes.len() - len..], &mut addresses);
        }
    }
    if layout.version == 4 {
        update(packet, 10, &addresses);
    }
    let (ports, sum_at) = match layout.transport {
        Transport::None => return,
        Transport::Ports { at, sum_at } => {
            ([(at, new.source_port), (at + 2, new.destination_port)], sum_at)
        }
        Transport::Icmp { at, sum_at, is_query, has_pseudo_header } => {
            if !has_pseudo_header {
                addresses = Change::default();
            }
            let id = new.source_port.or(new.destination_port).filter(|_| is_query);
            ([(at + 4, id), (at, None)], Some(sum_at))
        }
    };
    for (at, port) in ports {
        if let Some(port) = port {
            replace(packet, at, &port.to_be_bytes(), &mut addresses);
        }
    }
    if let Some(sum_at) = sum_at {
        update_transport(packet, sum_at, &addresses, layout.protocol);
    }
}

/// Replaces bytes, and notes the change.
fn replace(packet: &mut [u8], at: usize, after: &[u8], change: &mut Change) {
    if let Some(before) = packet.get_mut(at..at + after.len()) {
        change.replace(before, after);
        before.copy_from_slice(after);
    }
}

fn update_transport(packet: &mut [u8], at: usize, change: &Change, protocol: u8) {
    let has_no_sum = protocol == l4::UDP && packet.get(at..at + 2) == Some(&[0, 0]);
    if has_no_sum {
        return;
    }
    update(packet, at, change);
    if matches!(protocol, l4::UDP | l4::UDP_LITE)
        && let Some(sum @ [0, 0]) = packet.get_mut(at..at + 2)
    {
        sum.fill(0xff);
    }
}

fn update(packet: &mut [u8], at: usize, change: &Change) {
    if let Some(sum) = packet.get_mut(at..at + 2) {
        let after = change.apply(u16::from_be_bytes([sum[0], sum[1]]));
        sum.copy_from_slice(&after.to_be_bytes());
    }
}
