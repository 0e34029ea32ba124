//! Two hosts and a router between them: A, R and B, with veth pairs a0-r0 and r1-b0.

use super::host::Host;

/// Addresses of A's interface and the router's on the same wire.
pub(super) const LEFT: [&str; 2] = ["10.1.0.2", "10.1.0.1"];
/// Addresses of B's interface and the router's on the same wire.
pub(super) const RIGHT: [&str; 2] = ["10.2.0.2", "10.2.0.1"];
/// Where the generator's frames go; behind B.
pub(super) const DESTINATIONS: &str = "198.19.0.0/16";
/// VLANs left and right of a router that has any.
pub(super) const VIDS: [u16; 2] = [100, 200];

/// An interface's Ethernet address.
pub(super) type Mac = [u8; 6];

/// a0.
pub(super) const A0: Mac = [2, 0, 0, 0, 1, 2];
/// r0.
pub(super) const R0: Mac = [2, 0, 0, 0, 1, 1];
/// r1.
pub(super) const R1: Mac = [2, 0, 0, 0, 2, 1];
/// b0.
pub(super) const B0: Mac = [2, 0, 0, 0, 2, 2];

/// A Ethernet address in letters.
pub(super) fn letters(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The hosts.
pub(super) struct Topology {
    /// Where frames and pings come from.
    pub(super) a: Host,
    /// Where the router lives.
    pub(super) r: Host,
    /// Where frames go and pings are answered.
    pub(super) b: Host,
}

impl Topology {
    /// Makes hosts and wires, and has R's kernel configured as a router.
    ///
    /// The kernel is to be at its best, and alike wherever it is compared: one queue, nothing that
    /// filters or follows connections, neighbours known, and GRO on, without which a veth drops what
    /// is redirected into its peer.
    pub(super) fn new() -> Result<Self, String> {
        let hosts = Self { a: Host::new("A")?, r: Host::new("R")?, b: Host::new("B")? };
        let Self { a, r, b } = &hosts;
        for host in [a, r, b] {
            host.sysctl("ipv6/conf/all/disable_ipv6", "1")?;
            host.sysctl("ipv6/conf/default/disable_ipv6", "1")?;
        }
        wire(a, ("a0", A0, LEFT[0]), r, ("r0", R0, LEFT[1]))?;
        wire(b, ("b0", B0, RIGHT[0]), r, ("r1", R1, RIGHT[1]))?;
        a.sh(&format!("ip route add default via {}", LEFT[1]))?;
        b.sh(&format!("ip route add default via {}", RIGHT[1]))?;
        r.sh(&format!("ip route add {DESTINATIONS} via {}", RIGHT[0]))?;
        hosts.kernel_forwards(true)?;
        Ok(hosts)
    }

    /// Lets R's kernel forward, or keeps it from it.
    pub(super) fn kernel_forwards(&self, on: bool) -> Result<(), String> {
        self.r.sysctl("ipv4/ip_forward", if on { "1" } else { "0" })
    }

    /// Packets that R's kernel has forwarded.
    pub(super) fn kernel_forwarded(&self) -> Result<u64, String> {
        let path = "/proc/thread-self/net/snmp";
        let text = self.r.run(move || std::fs::read_to_string(path))?;
        let text = text.map_err(|error| format!("{path} can not be read: {error}"))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
        let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        let mut pairs = names.split(' ').zip(values.split(' '));
        let found = pairs.find(|(name, _)| *name == "ForwDatagrams");
        found
            .and_then(|(_, value)| value.parse().ok())
            .ok_or_else(|| format!("{path} has no ForwDatagrams"))
    }
}

/// An interface to be: its name, Ethernet address and IPv4 address.
type End<'a> = (&'a str, Mac, &'a str);

/// Puts a veth pair between two hosts, who then know each other.
fn wire(host: &Host, near: End<'_>, router: &Host, far: End<'_>) -> Result<(), String> {
    let queues = "numrxqueues 1 numtxqueues 1";
    let namespace = router.namespace();
    host.sh(&format!(
        "ip link add {} address {} {queues} type veth peer name {} address {} {queues} netns {}",
        near.0,
        letters(near.1),
        far.0,
        letters(far.1),
        namespace.display()
    ))?;
    for (host, own, peer, checksums) in [(host, near, far, "tx"), (router, far, near, "rx")] {
        let (name, _, address) = own;
        host.sysctl(&format!("ipv4/conf/{name}/rp_filter"), "0")?;
        host.sh(&format!("ip address add {address}/24 dev {name}"))?;
        host.sh(&format!("ip link set {name} up"))?;
        // On an interface that is down this would not tell the peer that it may be redirected to.
        // Frames have their VLAN tags in them, if they have any; a mirror is to know.
        let tags = "txvlan off tx-vlan-stag-hw-insert off rxvlan off";
        // Hosts finish their checksums, and a mirror is to know that, too.
        host.sh(&format!("ethtool -K {name} gro on {tags} {checksums} off"))?;
        let steering = format!("/sys/class/net/{name}/queues/rx-0/rps_cpus");
        host.run(move || std::fs::write(steering, "0"))?
            .map_err(|error| format!("RPS of {name} can not be switched off: {error}"))?;
        let mac = letters(peer.1);
        host.sh(&format!("ip neigh replace {} lladdr {mac} dev {name} nud permanent", peer.2))?;
    }
    Ok(())
}
