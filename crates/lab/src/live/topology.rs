//! Two hosts and a router between them: A, R and B, with veth pairs a0-r0 and r1-b0. Hosts with devices as the kernel makes
//! them have the pair a1-b1 beside the router.

use super::host::Host;

/// Addresses of A's interface and the router's on the same wire.
pub(super) const LEFT: [&str; 2] = ["10.1.0.2", "10.1.0.1"];
/// Addresses of B's interface and the router's on the same wire.
pub(super) const RIGHT: [&str; 2] = ["10.2.0.2", "10.2.0.1"];
/// Addresses of A's and B's interfaces on the wire between them, where there is no router.
pub(super) const DIRECT: [&str; 2] = ["10.3.0.2", "10.3.0.1"];
/// Destinations of the generator's frames, behind B.
pub(super) const DESTINATIONS: &str = "198.19.0.0/16";
/// VLANs left and right of a router that uses VLANs.
pub(super) const VIDS: [u16; 2] = [100, 200];

/// An interface's Ethernet address.
pub(super) type Mac = [u8; 6];

/// MAC address of a0.
pub(super) const A0: Mac = [2, 0, 0, 0, 1, 2];
/// MAC address of r0.
pub(super) const R0: Mac = [2, 0, 0, 0, 1, 1];
/// MAC address of r1.
pub(super) const R1: Mac = [2, 0, 0, 0, 2, 1];
/// MAC address of b0.
pub(super) const B0: Mac = [2, 0, 0, 0, 2, 2];

/// MAC addresses of a1 and b1.
const BESIDE: [Mac; 2] = [[2, 0, 0, 0, 3, 2], [2, 0, 0, 0, 3, 1]];

/// An Ethernet address as `ip link` writes it.
pub(super) fn mac_text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The hosts.
pub(super) struct Topology {
    /// Sends frames and pings.
    pub(super) a: Host,
    /// Runs the router.
    pub(super) r: Host,
    /// Receives frames and answers pings.
    pub(super) b: Host,
}

impl Topology {
    /// Creates hosts and wires, and configures R's kernel as a router.
    ///
    /// The kernel is configured for its best performance, and equally wherever it is compared: one
    /// queue, no packet filter or connection tracking, known neighbours. GRO is on, since a veth
    /// without it drops what is redirected into its peer.
    pub(super) fn new() -> Result<Self, String> {
        Self::with_queues(1)
    }

    /// The same with interfaces as the kernel makes them: they merge nothing that they receive, and leave checksums and
    /// segmentation to each other.
    pub(super) fn with_default_devices() -> Result<Self, String> {
        Self::with(1, false)
    }

    /// The same with a number of queues for each interface. A frame that the generator sends by processor P
    /// comes to the router's queue P modulo this number.
    pub(super) fn with_queues(queues: usize) -> Result<Self, String> {
        Self::with(queues, true)
    }

    /// Creates the hosts. `tuned` interfaces suit the generator's frames, as [`Topology::new`] says.
    fn with(queues: usize, tuned: bool) -> Result<Self, String> {
        let hosts = Self { a: Host::new("A")?, r: Host::new("R")?, b: Host::new("B")? };
        let Self { a, r, b } = &hosts;
        for host in [a, r, b] {
            host.sysctl("ipv6/conf/all/disable_ipv6", "1")?;
            host.sysctl("ipv6/conf/default/disable_ipv6", "1")?;
        }
        for (host, near, far) in [
            (a, ("a0", A0, LEFT[0]), ("r0", R0, LEFT[1])),
            (b, ("b0", B0, RIGHT[0]), ("r1", R1, RIGHT[1])),
        ] {
            wire(host, near, r, far, queues)?;
            if tuned {
                tune(host, near.0, "tx", queues)?;
                tune(r, far.0, "rx", queues)?;
            }
        }
        if !tuned {
            let [near, far] = [("a1", BESIDE[0], DIRECT[0]), ("b1", BESIDE[1], DIRECT[1])];
            wire(a, near, b, far, queues)?;
        }
        a.sh(&format!("ip route add default via {}", LEFT[1]))?;
        b.sh(&format!("ip route add default via {}", RIGHT[1]))?;
        r.sh(&format!("ip route add {DESTINATIONS} via {}", RIGHT[0]))?;
        hosts.kernel_forwards(true)?;
        Ok(hosts)
    }

    /// Turns forwarding by R's kernel on or off.
    pub(super) fn kernel_forwards(&self, on: bool) -> Result<(), String> {
        self.r.sysctl("ipv4/ip_forward", if on { "1" } else { "0" })
    }

    /// Number of packets that R's kernel has forwarded.
    pub(super) fn kernel_forwarded(&self) -> Result<u64, String> {
        self.r.snmp("Ip", "ForwDatagrams")
    }
}

/// The parameters of an interface: name, Ethernet address and IPv4 address.
type End<'a> = (&'a str, Mac, &'a str);

/// Connects two hosts with a veth pair and makes them permanent neighbours.
fn wire(
    host: &Host,
    near: End<'_>,
    other: &Host,
    far: End<'_>,
    count: usize,
) -> Result<(), String> {
    let queues = format!("numrxqueues {count} numtxqueues {count}");
    let namespace = other.namespace();
    host.sh(&format!(
        "ip link add {} address {} {queues} type veth peer name {} address {} {queues} netns {}",
        near.0,
        mac_text(near.1),
        far.0,
        mac_text(far.1),
        namespace.display()
    ))?;
    for (host, own, peer) in [(host, near, far), (other, far, near)] {
        let (name, _, address) = own;
        host.sysctl(&format!("ipv4/conf/{name}/rp_filter"), "0")?;
        host.sh(&format!("ip address add {address}/24 dev {name}"))?;
        host.sh(&format!("ip link set {name} up"))?;
        let mac = mac_text(peer.1);
        host.sh(&format!("ip neigh replace {} lladdr {mac} dev {name} nud permanent", peer.2))?;
    }
    Ok(())
}

/// Makes an interface suit the generator's frames; `checksums` are those that it must not leave to its peer, or
/// expect from it.
pub(super) fn tune(host: &Host, name: &str, checksums: &str, queues: usize) -> Result<(), String> {
    // Only an interface that is up notifies its peer of being a redirect target. Frames carry
    // their VLAN tags in the data, and Tollway's controller must see from the settings that they do.
    let tags = "txvlan off tx-vlan-stag-hw-insert off rxvlan off";
    // Hosts complete their checksums, and the controller must see that from the settings, too.
    host.sh(&format!("ethtool -K {name} gro on {tags} {checksums} off"))?;
    for queue in 0..queues {
        let rps_cpus = format!("/sys/class/net/{name}/queues/rx-{queue}/rps_cpus");
        host.run(move || std::fs::write(rps_cpus, "0"))?
            .map_err(|error| format!("cannot switch off RPS of {name}: {error}"))?;
    }
    Ok(())
}
