//! A client, a router and a server, and the kinds of routers.

use std::net::IpAddr;

use super::super::program::{self, Tollway};
use super::super::topology::{A0, B0, LEFT, Mac, R0, R1, RIGHT, Topology, mac_text};
use super::super::traffic::Server;

/// Addresses of A, and the router's on the same wire.
const LEFT_V6: [&str; 2] = ["fd00:1::2", "fd00:1::1"];
/// Addresses of B, and the router's on the same wire.
const RIGHT_V6: [&str; 2] = ["fd00:2::2", "fd00:2::1"];
/// Tollway's control socket; the host has its own /run.
const SOCKET: &str = "/run/lab.sock";
/// Path of its configuration, if it has one.
const CONFIG: &str = "/run/lab-rr.toml";

/// The kind of router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Router {
    /// The kernel.
    Kernel,
    /// Tollway with every packet on the user path.
    UserSpace,
    /// Tollway with its XDP path.
    Xdp,
    /// Tollway with a configuration file, every packet on the user path.
    File,
    /// Like `File`, with everything in a VRF.
    Vrf,
}

impl Router {
    /// All of them, by name.
    pub(super) const ALL: [(&'static str, Self); 5] = [
        ("kernel", Self::Kernel),
        ("tollway", Self::UserSpace),
        ("xdp", Self::Xdp),
        ("file", Self::File),
        ("vrf", Self::Vrf),
    ];

    /// Tollway's arguments; `None` for the kernel.
    fn arguments(self) -> Option<Vec<&'static str>> {
        let xdp_path = match self {
            Self::Kernel => return None,
            Self::File | Self::Vrf => return Some(vec!["run", "--config", CONFIG]),
            Self::UserSpace => "off",
            Self::Xdp => "on",
        };
        Some(vec!["run", "r0", "r1", "--socket", SOCKET, "--xdp", xdp_path])
    }

    /// The configuration file, if there is one.
    fn config(self) -> Option<String> {
        let vrf = match self {
            Self::File => "",
            Self::Vrf => "vrf = \"red\"\n",
            _ => return None,
        };
        let mut text = "xdp = \"off\"\n".to_owned();
        for (port, v4, v6, mac) in [("r0", LEFT, LEFT_V6, A0), ("r1", RIGHT, RIGHT_V6, B0)] {
            text += &format!(
                "[ports.{port}]\nkind = \"af_xdp\"\n{vrf}addresses = [\"{}/24\", \"{}/64\"]\n",
                v4[1], v6[1]
            );
            for peer in [v4[0], v6[0]] {
                text += &format!(
                    "[[neighbours]]\ndev = \"{port}\"\naddress = \"{peer}\"\nmac = \"{}\"\n",
                    mac_text(mac)
                );
            }
        }
        if !vrf.is_empty() {
            text += "[vrfs.red]\n";
        }
        Some(text)
    }
}

/// A topology with its running router.
pub(super) struct Testbed {
    pub(super) topology: Topology,
    pub(super) server: Server,
    router: Router,
    tollway: Option<Tollway>,
}

impl Testbed {
    /// Creates the topology and starts its router.
    pub(super) fn new(router: Router) -> Result<Self, String> {
        let topology = Topology::new()?;
        let Topology { a, r, b } = &topology;
        for host in [a, r, b] {
            for name in ["all", "default"] {
                host.sysctl(&format!("ipv6/conf/{name}/disable_ipv6"), "0")?;
            }
        }
        r.sysctl("ipv6/conf/all/forwarding", "1")?;
        for (host, device, own, peer, mac) in [
            (a, "a0", LEFT_V6[0], LEFT_V6[1], R0),
            (r, "r0", LEFT_V6[1], LEFT_V6[0], A0),
            (r, "r1", RIGHT_V6[1], RIGHT_V6[0], B0),
            (b, "b0", RIGHT_V6[0], RIGHT_V6[1], R1),
        ] {
            let mac: Mac = mac;
            host.sysctl(&format!("ipv6/conf/{device}/disable_ipv6"), "0")?;
            host.sh(&format!("ip address add {own}/64 dev {device} nodad"))?;
            host.sh(&format!(
                "ip neigh replace {peer} lladdr {} dev {device} nud permanent",
                mac_text(mac)
            ))?;
        }
        a.sh(&format!("ip route add default via {}", LEFT_V6[1]))?;
        b.sh(&format!("ip route add default via {}", RIGHT_V6[1]))?;
        // A closes many connections in succession, so it needs many ports and reuses them soon.
        a.sysctl("ipv4/ip_local_port_range", "1024 65535")?;
        a.sysctl("ipv4/tcp_tw_reuse", "1")?;
        // The path metrics of one connection must not affect the next measurement.
        a.sysctl("ipv4/tcp_no_metrics_save", "1")?;
        for (host, device) in [(a, "a0"), (b, "b0")] {
            // Checksums that are left to a device stay incomplete between two veths. Also, one
            // packet for the kernel's router must be one packet for any router.
            host.sh(&format!("ethtool -K {device} tx off"))?;
        }
        let server = Server::start(b)?;
        let mut testbed = Self { topology, server, router, tollway: None };
        if let Some(config) = router.config() {
            let written = testbed.topology.r.run(move || std::fs::write(CONFIG, config))?;
            written.map_err(|error| format!("cannot write {CONFIG}: {error}"))?;
        }
        if let Some(arguments) = router.arguments() {
            let mut tollway = Tollway::launch(&testbed.topology, &arguments, false)?;
            tollway.until_forwarding()?;
            testbed.tollway = Some(tollway);
        }
        Ok(testbed)
    }

    /// The server's address.
    pub(super) fn server_address(v6: bool) -> Result<IpAddr, String> {
        let text = if v6 { RIGHT_V6[0] } else { RIGHT[0] };
        text.parse().map_err(|error| format!("{text}: {error}"))
    }

    /// Number of packets of both families that the router's kernel has forwarded.
    pub(super) fn kernel_forwarded(&self) -> Result<u64, String> {
        let path = "/proc/thread-self/net/snmp6";
        let text = self.topology.r.run(move || std::fs::read_to_string(path))?;
        let text = text.map_err(|error| format!("cannot read {path}: {error}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
        let v6: u64 = line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0);
        Ok(self.topology.kernel_forwarded()? + v6)
    }

    /// Whether the kernel is the router, and so may forward these packets.
    pub(super) const fn is_the_kernels(&self) -> bool {
        matches!(self.router, Router::Kernel)
    }

    /// Ends the router.
    pub(super) fn end(mut self) -> Result<(), String> {
        if let Some(tollway) = self.tollway.take() {
            tollway.stop()?;
            program::clear(&self.topology)?;
        }
        Ok(())
    }
}
