//! IP packets off the hot path: with padding, options and extension headers, and malformed in any way.

pub(crate) mod extension;
pub(crate) mod options;

use std::net::IpAddr;

use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

use crate::wire::{ipv4, ipv6};

/// Whether the router forwards a packet with its IPv4 options or hop-by-hop header.
#[must_use]
pub fn obeys_options(layer3: &[u8]) -> bool {
    trim(layer3).is_some_and(|packet| match packet.first().map(|first| first >> 4) {
        Some(4) => options::read(packet, |_| false).is_ok(),
        _ => extension::options(packet, ipv6::LEN).is_ok(),
    })
}

/// The IP packet in a frame's layer 3, without trailing bytes: Ethernet pads short frames.
pub(crate) fn trim(layer3: &[u8]) -> Option<&[u8]> {
    let len = match layer3.first()? >> 4 {
        4 => {
            let ip = Ipv4Packet::new_checked(layer3).ok()?;
            let sound = usize::from(ip.header_len()) >= ipv4::LEN && ip.verify_checksum();
            sound.then(|| usize::from(ip.total_len()))?
        }
        6 => Ipv6Packet::new_checked(layer3).ok()?.total_len(),
        _ => return None,
    };
    layer3.get(..len)
}

/// Source and destination of an IP packet.
pub(crate) fn endpoints(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    if packet.first()? >> 4 == 4 {
        let ip = Ipv4Packet::new_checked(packet).ok()?;
        return Some((ip.src_addr().into(), ip.dst_addr().into()));
    }
    let ip = Ipv6Packet::new_checked(packet).ok()?;
    Some((ip.src_addr().into(), ip.dst_addr().into()))
}
