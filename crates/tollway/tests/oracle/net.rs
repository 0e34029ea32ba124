//! The network around both routers: devices, addresses, neighbours, routes.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The router's devices, by their numbers.
pub const DEVICES: [&str; 4] = ["lan0", "lan1", "wan0", "dmz0"];

/// MTUs of the devices. The last one has no room for some packets that the others may send.
pub const MTU: [u16; 4] = [1500, 1500, 1500, 1280];

/// Neighbours on each device, from the address `FIRST_PEER` on.
pub const PEERS: u8 = 3;
/// The last byte of the first neighbour's address.
pub const FIRST_PEER: u8 = 2;

/// The router's Ethernet address on a device.
pub const fn mac(device: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0x10, device as u8]
}

/// A neighbour's Ethernet address. The devices at the wires' other ends have other addresses, so
/// nothing there answers.
pub const fn peer_mac(device: usize, peer: u8) -> [u8; 6] {
    [6, 0, 0, 0, device as u8, peer]
}

/// The router's IPv4 address on a device: /24.
pub const fn address4(device: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, device as u8 + 1, 0, 1)
}

/// The router's IPv6 address on a device: /64.
pub const fn address6(device: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, device as u16 + 1, 0, 0, 0, 0, 0, 1)
}

/// A neighbour's IPv4 address.
pub const fn peer4(device: usize, peer: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, device as u8 + 1, 0, FIRST_PEER + peer)
}

/// A neighbour's IPv6 address.
pub const fn peer6(device: usize, peer: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, device as u16 + 1, 0, 0, 0, 0, 0, (FIRST_PEER + peer) as u16)
}

/// The IPv4 network (/16) behind the first neighbour of a device.
pub const fn behind4(device: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, device as u8 + 101, 0, 0)
}

/// The IPv6 network (/32) behind the first neighbour of a device.
pub const fn behind6(device: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, device as u16 + 0x101, 0, 0, 0, 0, 0, 0)
}

/// The device with the default routes, which lead to its second neighbour.
pub const DEFAULT: usize = 2;

/// A MAC address in text.
pub fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
