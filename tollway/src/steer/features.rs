//! Features of devices (`ethtool -k`) that decide whether XDP sees VLAN tags, and by what flows are told apart.

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
