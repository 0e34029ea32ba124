//! Two networks that are the same: three hosts around a router, which is the kernel alone in one of them, and the kernel
//! with Tollway in the other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use tollway_commands::control::ShowRequest;

use crate::namespaces::{Host, sh};
use crate::running::{KernelRouter, plug};
use crate::socket::{Wire, within};

/// The numbers of the twins in every pair.
pub const ALONE: usize = 0;
pub const WITH: usize = 1;

/// The family of a script's sockets and of its rules about addresses. Scripts have the addresses of IPv4 throughout, each of
/// which stands for one of IPv6, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V4,
    V6,
}

impl Version {
    /// The address that another one stands for: 10.0.1.2 for fd00:1::2.
    pub fn address(self, address: Ipv4Addr) -> IpAddr {
        let [_, _, net, host] = address.octets();
        match self {
            Self::V4 => address.into(),
            Self::V6 => Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, 0, host.into()).into(),
        }
    }

    pub fn socket(self, address: SocketAddrV4) -> SocketAddr {
        SocketAddr::new(self.address(*address.ip()), address.port())
    }
}

/// Where a socket of a conversation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A host; 0 is behind the router, 1 outside, 2 in a third network.
    Host(usize),
    Router,
}

/// A network: its cable, `ra` at the router, and its host. The last host has two: no stack there, but the test, sends
/// and takes packets ([`phantom`]).
const NETS: [(&str, usize); 5] = [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("f", 3)];

/// The router's address in a network.
pub const fn router(net: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, net as u8 + 1, 1)
}

/// The addresses of a network's host: it has two.
pub const fn host(net: usize, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, net as u8 + 1, 2 + number)
}

/// Addresses that the router has beside its own in the outer network, for sources.
pub const OUTSIDE: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 0, 2, 10), Ipv4Addr::new(10, 0, 2, 11), Ipv4Addr::new(10, 0, 2, 12)];

/// The neighbours without a stack, behind the router and outside: network and Ethernet address.
pub const PHANTOMS: [(usize, [u8; 6]); 2] = [(3, [6, 0, 0, 0, 0, 3]), (4, [6, 0, 0, 0, 0, 4])];

/// The address of one of them.
pub const fn phantom(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, PHANTOMS[number].0 as u8 + 1, 100)
}

/// The router's Ethernet address in a network.
pub const fn router_mac(net: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, 0x10 + net as u8]
}

/// One network.
pub struct Twin {
    hosts: [Host; 4],
    /// Its namespace; none for that of the test.
    router: Option<Host>,
    pub tollway: Option<KernelRouter>,
    pub version: Version,
}

/// Configures the router of this thread's namespace, with hosts around it.
fn build(engine: &str, version: Version, sysctls: &[(String, u64)]) -> [Host; 4] {
    sh("ip link set lo up");
    sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    // Of the messages that a test provokes, none may be missing.
    let unlimited = "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv4.icmp_msgs_per_sec=10000 net.ipv6.icmp.ratelimit=0";
    sh(unlimited);
    for (name, value) in sysctls {
        sh(&format!("sysctl -qw net.netfilter.nf_conntrack_{name}={value}"));
    }
    let hosts = [Host::new(), Host::new(), Host::new(), Host::new()];
    for (net, (cable, number)) in NETS.into_iter().enumerate() {
        let host = &hosts[number];
        plug(host, cable, net as u8 + 1);
        sh(&format!("ip link set r{cable} address {}", text(router_mac(net))));
        host.sh(&format!("ip address add {}/24 dev h{cable}", self::host(net, 1)));
        let second = Version::V6.address(self::host(net, 1));
        host.sh(&format!("ip address add {second}/64 dev h{cable} nodad"));
        if engine == "tc" {
            host.sh(&format!("ethtool -K h{cable} tx on"));
            sh(&format!("ethtool -K r{cable} rx on"));
        }
    }
    // Not all that comes in can leave.
    sh("ip link set rf mtu 1400");
    for (number, (net, mac)) in PHANTOMS.into_iter().enumerate() {
        let (mac, cable) = (text(mac), NETS[net].0);
        for address in [Version::V4, Version::V6].map(|version| version.address(phantom(number))) {
            sh(&format!("ip neigh replace {address} lladdr {mac} dev r{cable} nud permanent"));
        }
    }
    for address in OUTSIDE {
        sh(&format!("ip address add {address}/24 dev rb"));
        sh(&format!("ip address add {}/64 dev rb nodad", Version::V6.address(address)));
    }
    // Nothing is to wait for a neighbour, nor for messages that are limited.
    for (net, host) in hosts[..3].iter().enumerate() {
        host.sh(unlimited);
        for number in [0, 1] {
            let [from, to] = [self::host(net, number), router(net)].map(|ip| version.address(ip));
            host.sh(&format!("ping -n -c 1 -W 2 -I {from} {to}"));
        }
    }
    hosts
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl Twin {
    /// Builds both networks, with an engine for the second one, and Tollway there.
    pub fn pair(engine: &'static str, version: Version, sysctls: &[(String, u64)]) -> [Self; 2] {
        let router = Host::new();
        let own = sysctls.to_vec();
        let hosts = within(router.0.0.id(), move || Ok(build(engine, version, &own))).unwrap();
        let alone = Self { hosts, router: Some(router), tollway: None, version };
        let hosts = build(engine, version, sysctls);
        let tollway = KernelRouter::start(&format!("ra rb rc rd rf --engine {engine}"));
        [alone, Self { hosts, router: None, tollway: Some(tollway), version }]
    }

    /// Runs a command in the router's namespace.
    pub fn sh(&self, line: &str) -> String {
        self.router.as_ref().map_or_else(|| sh(line), |router| router.sh(line))
    }

    /// The command for the router's namespace, not yet started.
    pub fn command(&self, line: &str) -> std::process::Command {
        if let Some(router) = &self.router {
            return router.command(line);
        }
        let mut words = line.split_whitespace();
        let mut command = std::process::Command::new(words.next().unwrap());
        command.args(words);
        command
    }

    /// Runs a function in the namespace of a place: sockets that it opens stay there.
    pub fn within<T: Send + 'static>(
        &self,
        place: Place,
        does: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let host = match place {
            Place::Host(number) => Some(&self.hosts[number]),
            Place::Router => self.router.as_ref(),
        };
        match host {
            Some(host) => within(host.0.0.id(), does),
            None => does(),
        }
    }

    /// The packets that hosts have sent to the router.
    pub fn arrived(&self) -> u64 {
        let sent = |(cable, number): (&str, usize)| {
            // Sent packets lie behind the sent bytes.
            self.hosts[number].counts(&format!("h{cable}"))[9]
        };
        NETS.into_iter().map(sent).sum()
    }

    /// The cable of a neighbour without a stack, as a wire.
    pub fn wire(&self, phantom: usize) -> Wire {
        let (cable, number) = NETS[PHANTOMS[phantom].0];
        Wire::at(&self.hosts[number], &format!("h{cable}"))
    }

    /// Directions that Tollway forwards untracked.
    pub fn untracked(&self) -> u64 {
        let Some(tollway) = &self.tollway else { return 0 };
        let totals = tollway.show(&ShowRequest::ConnectionTotals);
        totals["directions_untracked"].as_u64().unwrap()
    }

    /// Packets on the kernel path because the router was late.
    pub fn late(&self) -> u64 {
        let Some(tollway) = &self.tollway else { return 0 };
        let offload = tollway.show(&ShowRequest::Offload);
        let ports = offload["counts"]["ports"].as_array().unwrap();
        let late =
            ports.iter().flat_map(|port| ["bypass", "stale"].map(|why| &port["kernel"][why]));
        late.filter_map(serde_json::Value::as_u64).sum()
    }
}
