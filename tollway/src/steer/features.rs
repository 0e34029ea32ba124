//! What devices tell of themselves (`ethtool -k`, `ethtool -i`): whether VLAN tags are hidden from XDP, whether
//! checksums may be unfinished, and by what flows are told apart.

use std::io;

use super::sys;

/// Whether a device takes VLAN tags off frames before XDP sees them, of whichever protocol.
///
/// # Errors
/// There is no such device, or it does not tell.
pub fn strips_tags(device: &str) -> io::Result<bool> {
    has_feature(device, &["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"])
}

/// Whether a device is given frames with the VLAN tags beside them: who takes what a veth sends sees no tags.
///
/// # Errors
/// There is no such device, or it does not tell.
pub fn sends_tags_beside(device: &str) -> io::Result<bool> {
    has_feature(device, &["tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"])
}

/// Whether `rxvlan` is on at a device: of a veth, which takes no tags off, it is what somebody has said.
///
/// # Errors
/// There is no such device, or it does not tell.
pub fn rxvlan(device: &str) -> io::Result<bool> {
    has_feature(device, &["rx-vlan-hw-parse"])
}

/// Whether a device is given packets whose checksums are left to it: who takes what a veth sends has to finish
/// them.
///
/// # Errors
/// There is no such device, or it does not tell.
pub fn leaves_checksums(device: &str) -> io::Result<bool> {
    let names =
        ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6", "tx-checksum-sctp"];
    has_feature(device, &names)
}

/// Whether `rx` is on at a device: of a veth, which checks no checksums, it is what somebody has said.
///
/// # Errors
/// There is no such device, or it does not tell.
pub fn rx_checksums(device: &str) -> io::Result<bool> {
    has_feature(device, &["rx-checksum"])
}

/// Whether what a device receives may come from a sender who left a checksum to it: there is no wire in between
/// that would need it. The loopback device has no driver.
pub(super) fn passes_unfinished(device: &str) -> bool {
    /// veth, tun and TAP, virtio-net, Xen's.
    const DRIVERS: [&str; 4] = ["veth", "tun", "virtio_net", "vif"];
    sys::driver(device).is_ok_and(|driver| DRIVERS.contains(&driver.as_str()))
}

/// Whether a device gives packets a hash of their flow.
///
/// # Errors
/// There is no such device, or it does not tell.
pub fn hashes(device: &str) -> io::Result<bool> {
    has_feature(device, &["rx-hashing"])
}

fn has_feature(device: &str, names: &[&str]) -> io::Result<bool> {
    let on = sys::features(device)?;
    Ok(on.iter().any(|feature| names.contains(&feature.as_str())))
}
