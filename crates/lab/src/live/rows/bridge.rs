//! Frames between hosts of a bridge, whose ports are the router's devices, and packets that are routed from one.

use std::fmt::Write as _;

use super::super::generator::{Flows, Stream};
use super::super::host::Host;
use super::super::setups::Topologies;
use super::super::sink::SinkHook;
use super::super::topology::{LEFT, R0, Topology, mac_text};
use super::follow::{self, AS_CARDS};
use super::wire::Wire;
use super::{Bench, Outcome};

/// Flows of packets that are routed.
const FLOWS: u32 = 256;
/// Hosts that send.
const SENDERS: u32 = 256;
/// The bytes by which the addresses of hosts differ that send, and of those that receive (`bpf/frame.h`).
const SENDERS_SIDE: u8 = 2;
pub(in super::super) const HOSTS_SIDE: u8 = 1;

/// Measures where the kernel's bridge knows so many hosts; `calls` says whether it shows packets to the hooks of IP
/// (`br_netfilter`), as it does on hosts with containers.
pub(super) fn measure(bench: &Bench<'_>, hosts: u32, calls: bool) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    let Topologies { kernel, tollway } = topologies;
    let make = |topology| Bridge::make(topology, &["r0", "r1"], hosts, calls);
    let bridges = [kernel, tollway].map(make);
    let [kernel_bridge, tollway_bridge] = bridges;
    let (kernel_bridge, tollway_bridge) = (kernel_bridge?, tollway_bridge?);
    let stream = || Stream { flows: Flows::Bridged(hosts), vid: None, rate: None };
    let wire = |topology| Wire::new(topology, stream(), SinkHook::Xdp, None);
    let outcome = follow::measure(bench, tollway, AS_CARDS, [&wire(kernel)?, &wire(tollway)?])?;
    kernel_bridge.end()?;
    tollway_bridge.end()?;
    Ok(outcome)
}

/// Measures packets from a host behind a bridge's port, which are routed to another device. The bridge shows none to the
/// hooks of IP, which would only cost the kernel more.
pub(super) fn measure_routed(bench: &Bench<'_>) -> Result<Outcome, String> {
    let both = [Topology::new()?, Topology::new()?];
    for topology in &both {
        let r = &topology.r;
        Bridge::make(topology, &["r0"], 0, false)?;
        let own = LEFT[1];
        r.sysctl("ipv4/conf/br0/rp_filter", "0")?;
        for line in [
            format!("ip link set br0 address {}", mac_text(R0)),
            "ip address flush dev r0".to_owned(),
            format!("ip address add {own}/24 dev br0"),
        ] {
            r.sh(&line)?;
        }
    }
    let stream = || Stream { flows: Flows::InTurn(FLOWS), vid: None, rate: None };
    let wire = |topology| Wire::new(topology, stream(), SinkHook::Xdp, None);
    follow::measure(bench, &both[1], AS_CARDS, [&wire(&both[0])?, &wire(&both[1])?])
}

/// A bridge of devices of a router.
pub(in super::super) struct Bridge<'a> {
    topology: &'a Topology,
}

impl<'a> Bridge<'a> {
    /// Makes a bridge that knows the hosts that send at `r0`, and so many that receive at `r1`, or none at all; `calls` says
    /// whether it shows packets to the hooks of IP.
    pub(in super::super) fn make(
        topology: &'a Topology,
        ports: &[&str],
        hosts: u32,
        calls: bool,
    ) -> Result<Self, String> {
        let r = &topology.r;
        r.sh("ip link add br0 type bridge")?;
        for port in ports {
            r.sh(&format!("ip link set {port} master br0"))?;
        }
        r.sh("ip link set br0 up")?;
        // Without the module, no bridge shows packets to the hooks.
        let done = r.sysctl("bridge/bridge-nf-call-iptables", if calls { "1" } else { "0" });
        if calls {
            done?;
        }
        if hosts > 0 {
            learn(r, "r0", SENDERS_SIDE, SENDERS)?;
            learn(r, "r1", HOSTS_SIDE, hosts)?;
        }
        Ok(Self { topology })
    }

    /// Removes the bridge.
    pub(in super::super) fn end(self) -> Result<(), String> {
        self.topology.r.sh("ip link del br0").map(drop)
    }
}

/// Has the bridge know so many hosts behind a port, as if it had learned them; `side` is a byte of their addresses.
fn learn(r: &Host, port: &str, side: u8, hosts: u32) -> Result<(), String> {
    let mut entries = String::new();
    for number in 0..hosts {
        let [_, a, b, c] = number.to_be_bytes();
        let mac = format!("02:00:{side:02x}:{a:02x}:{b:02x}:{c:02x}");
        let _ = writeln!(entries, "fdb replace {mac} dev {port} master dynamic");
    }
    let path = format!("/run/{port}.fdb");
    let file = path.clone();
    let written = r.run(move || std::fs::write(file, entries))?;
    written.map_err(|error| format!("cannot write {path}: {error}"))?;
    r.sh(&format!("bridge -batch {path}")).map(drop)
}
