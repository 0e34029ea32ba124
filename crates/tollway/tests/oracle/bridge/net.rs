//! The ports of the oracle's bridges, and the hosts behind them.

/// The ports; the last one is never Tollway's.
pub const PORTS: [&str; 5] = ["lan0", "lan1", "wan0", "dmz0", "ext0"];
/// Number of hosts.
pub const HOSTS: usize = 9;
/// The address that some bridges are given.
pub const BRIDGE: [u8; 6] = [2, 0, 0, 0, 0xb0, 0];

/// The address of a host.
pub const fn host(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, number as u8]
}

/// The address of a port.
pub const fn port_mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0x10, number as u8]
}
