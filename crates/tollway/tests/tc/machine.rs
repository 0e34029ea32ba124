//! Tests in a virtual machine, whose kernel has VLAN devices, and no tcx (Linux 6.1), or is a newer one of Debian's
//! (`make machines`).

use super::machines::Part;
use super::{beside, bridged, changes, connections, layer3, others, streams};

/// The tests in the machine.
const PARTS: [Part; 11] = [
    ("streams", streams::plain),
    ("connections", connections::tc),
    ("vlans", streams::vlans),
    ("ports of a bridge", bridged::streams),
    ("vlans by a bridge", bridged::vlans),
    ("tunnels", streams::tunnels),
    ("bonds", streams::bonds),
    ("layer-3 devices", layer3::tunnels),
    ("devices", changes::devices),
    ("a stop", changes::stop),
    ("a kill", changes::kill),
];

/// With tcx, and without it.
const NEWER: [Part; 5] = [
    ("connections by XDP", connections::xdp),
    ("programs of others", others::tcx),
    ("streams from a card", beside::streams),
    ("VLANs at a card", beside::vlans),
    ("programs at a card", beside::ends),
];
const OLDER: [Part; 1] = [("filters of others", others::filters_first)];

/// The tests that suit the kernel.
pub fn parts() -> Vec<Part> {
    // Any device will do: the loopback device is always there.
    let has_tcx = tollway_xdp::tcx(1).unwrap().is_some();
    let more: &[Part] = if has_tcx { &NEWER } else { &OLDER };
    [&PARTS, more].concat()
}
