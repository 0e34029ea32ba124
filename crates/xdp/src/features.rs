//! Features that devices report (`ethtool -k`, `ethtool -i`): whether VLAN tags are hidden from
//! XDP, whether checksums may be unfinished, and whether packets get a hash of their flow.

use std::io;

use super::ethtool;

/// Whether a device removes VLAN tags of any protocol from frames before XDP sees them.
///
/// # Errors
/// There is no such device, or it does not report this.
pub fn strips_tags(device: &str) -> io::Result<bool> {
    has_feature(device, &["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"])
}

/// Whether a device receives frames to send with the VLAN tags beside them. If so, the peer of a
/// veth sees no tags.
///
/// # Errors
/// There is no such device, or it does not report this.
pub fn sends_tags_beside(device: &str) -> io::Result<bool> {
    has_feature(device, &["tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"])
}

/// Whether `rxvlan` is on. A veth removes no tags, so there this is only what a user has set.
///
/// # Errors
/// There is no such device, or it does not report this.
pub fn rxvlan(device: &str) -> io::Result<bool> {
    has_feature(device, &["rx-vlan-hw-parse"])
}

/// Whether a device receives packets to send with unfinished checksums. If so, the receiver at a
/// veth's peer has to finish them.
///
/// # Errors
/// There is no such device, or it does not report this.
pub fn leaves_checksums(device: &str) -> io::Result<bool> {
    let names =
        ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6", "tx-checksum-sctp"];
    has_feature(device, &names)
}

/// Whether `rx` is on. A veth verifies no checksums, so there this is only what a user has set.
///
/// # Errors
/// There is no such device, or it does not report this.
pub fn rx_checksums(device: &str) -> io::Result<bool> {
    has_feature(device, &["rx-checksum"])
}

/// The name of a device's driver.
///
/// # Errors
/// There is no such device, or it does not report this.
pub fn driver(device: &str) -> io::Result<String> {
    ethtool::driver(device)
}

/// Whether packets that a device receives may have unfinished checksums, since no wire in between
/// requires finished ones. The loopback device has no driver.
pub(super) fn passes_unfinished(device: &str) -> bool {
    /// veth, tun and TAP, virtio-net, Xen's.
    const DRIVERS: [&str; 4] = ["veth", "tun", "virtio_net", "vif"];
    ethtool::driver(device).is_ok_and(|driver| DRIVERS.contains(&driver.as_str()))
}

/// Whether a device provides a hash of each packet's flow.
///
/// # Errors
/// There is no such device, or it does not report this.
pub fn hashes(device: &str) -> io::Result<bool> {
    has_feature(device, &["rx-hashing"])
}

fn has_feature(device: &str, names: &[&str]) -> io::Result<bool> {
    let on = ethtool::features(device)?;
    Ok(on.iter().any(|feature| names.contains(&feature.as_str())))
}
