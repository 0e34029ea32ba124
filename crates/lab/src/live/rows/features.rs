//! VLANs, a VRF and rules, which both routers have from their kernel.

use super::super::generator::{Flows, Stream};
use super::super::host::Host;
use super::super::rulesets;
use super::super::sink::SinkHook;
use super::super::topology::{A0, B0, DESTINATIONS, LEFT, RIGHT, Topology, VIDS, mac_text};
use super::follow::{self, AS_CARDS};
use super::wire::Wire;
use super::{Bench, Outcome};

/// Number of flows.
const FLOWS: u32 = 1 << 16;
/// Number of rules.
const RULES: usize = 100;

/// Measures, if the kernel has these devices.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Outcome, String> {
    let both = [Topology::new()?, Topology::new()?];
    if let Some(reason) = missing(&both[0].r) {
        return Ok(Outcome::LeftOut(reason));
    }
    for topology in &both {
        configure(&topology.r)?;
        rulesets::load(&topology.r, &rulesets::drops(RULES))?;
    }
    let wire = |topology| {
        let flows = Flows::InTurn(FLOWS);
        let stream = Stream { flows, vid: Some(VIDS[0]), rate: None };
        Wire::new(topology, stream, SinkHook::Xdp, Some(VIDS[1]))
    };
    let (kernel, side) = (wire(&both[0])?, wire(&both[1])?);
    follow::measure(bench, &both[1], AS_CARDS, [&kernel, &side])
}

/// Why a kernel cannot have the devices, if it cannot.
pub(super) fn missing(r: &Host) -> Option<String> {
    let kinds = [
        ("VLAN devices (8021q)", "type vlan id 4000", "link r0"),
        ("VRF devices (vrf)", "type vrf table 4000", ""),
    ];
    kinds.iter().find_map(|(what, kind, link)| {
        let error = r.sh(&format!("ip link add {link} name probe {kind}")).err();
        let removed = error.is_none().then(|| r.sh("ip link del probe"));
        let failed = error.or_else(|| removed.and_then(Result::err))?;
        // The last part is what the kernel says.
        let failed = failed.rsplit("Error: ").next().unwrap_or_default().trim_end_matches('.');
        Some(format!("the kernel has no {what}: {failed}"))
    })
}

/// Moves both of a router's networks into VLANs of a VRF.
fn configure(r: &Host) -> Result<(), String> {
    r.sh("ip link add red type vrf table 10")?;
    r.sh("ip link set red up")?;
    for (port, [peer, own], mac, vid) in [("r0", LEFT, A0, VIDS[0]), ("r1", RIGHT, B0, VIDS[1])] {
        let (dev, mac) = (format!("{port}.{vid}"), mac_text(mac));
        r.sh(&format!("ip address flush dev {port}"))?;
        r.sh(&format!("ip link add link {port} name {dev} type vlan id {vid}"))?;
        r.sysctl(&format!("ipv4/conf/{dev}/rp_filter"), "0")?;
        for line in [
            format!("ip link set {dev} master red"),
            format!("ip address add {own}/24 dev {dev}"),
            format!("ip link set {dev} up"),
            format!("ip neigh replace {peer} lladdr {mac} dev {dev} nud permanent"),
        ] {
            r.sh(&line)?;
        }
    }
    r.sh(&format!("ip route add {DESTINATIONS} via {} vrf red", RIGHT[0])).map(|_| ())
}
