//! Connections of the generator's flows, which a kernel gets to know by ctnetlink.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::ops::ControlFlow;

use tollway_conntrack::{Conntrack, Family, Tuple, push_tuple};
use tollway_linux::netlink::{QuerySocket, push};

use super::generator::{Flows, PORT};
use super::host::Host;
use super::topology::RIGHT;

/// The protocol of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Udp,
    Tcp,
}

/// What connections are tracked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracking {
    /// A firewall that accepts packets of established connections, and drops others.
    Stateful,
    /// The same, and the source addresses are translated.
    Translated,
}

/// Established connections, one for each flow of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connections {
    pub(super) protocol: Protocol,
    pub(super) tracking: Tracking,
    /// Their number, a power of two.
    pub(super) count: u32,
}

/// Seconds for which the kernel keeps connections without packets: longer than a row takes.
const TIMEOUT_S: u32 = 3600;
/// The timeouts of these connections: of UDP with answers, and of TCP whose data nobody acknowledges.
const TIMEOUTS: [&str; 2] = ["udp_timeout_stream", "tcp_timeout_unacknowledged"];

impl Connections {
    /// The generator's frames of these connections.
    pub(super) fn flows(self) -> Flows {
        match self.protocol {
            Protocol::Udp => Flows::InTurn(self.count),
            Protocol::Tcp => Flows::TcpInTurn(self.count),
        }
    }

    /// Makes them known to a host's kernel.
    pub(super) fn connect(self, host: &Host) -> Result<(), String> {
        for name in TIMEOUTS {
            host.sysctl(&format!("netfilter/nf_conntrack_{name}"), &TIMEOUT_S.to_string())?;
        }
        let outside: [u8; 4] = address(RIGHT[1])?;
        let connect = move || {
            let mut socket = QuerySocket::open(NETLINK_NETFILTER)?;
            let mut create = |flow| {
                let message = self.message(flow, outside).ok_or(ErrorKind::InvalidInput)?;
                socket.change(NEW, CREATE, &message)
            };
            (0..self.count).try_for_each(&mut create)
        };
        let failed =
            |error: std::io::Error| format!("the kernel does not take connections: {error}");
        host.run(connect)?.map_err(failed)
    }

    /// The message that creates the connection of a flow, for a router with this address outside; none if the kernel has no
    /// such tuples.
    fn message(self, flow: u32, outside: [u8; 4]) -> Option<Vec<u8>> {
        let protocol = match self.protocol {
            Protocol::Udp => 17,
            Protocol::Tcp => 6,
        };
        let own = tuple(protocol, flow);
        let mut body = HEADER.to_vec();
        push_tuple(&mut body, 1, &own)?;
        // Before its translation, a connection has the addresses that it begins with.
        push_tuple(&mut body, 2, &own.swapped()?)?;
        push(&mut body, 3, &STATUS.to_be_bytes());
        push(&mut body, 7, &TIMEOUT_S.to_be_bytes());
        if self.protocol == Protocol::Tcp {
            push(&mut body, 4 | NESTED, &established());
        }
        if self.tracking == Tracking::Translated {
            // One port for each flow to a destination.
            let port = 1024 + (flow & 0xff) as u16 + (flow >> 16 << 8) as u16;
            push(&mut body, 6 | NESTED, &translation(outside, port));
        }
        Some(body)
    }
}

/// Makes a host's kernel forget all connections.
pub(super) fn disconnect(host: &Host) -> Result<(), String> {
    let forget = || QuerySocket::open(NETLINK_NETFILTER)?.change(DELETE, 0, &HEADER);
    host.run(forget)?.map_err(|error| format!("the kernel keeps its connections: {error}"))
}

/// The connections that a host's kernel forwards by a flowtable.
pub(super) fn by_flowtable(host: &Host) -> Result<usize, String> {
    let count = || -> std::io::Result<usize> {
        let mut count = 0;
        Conntrack::open()?.each(Some(Family::Ip), |connection| {
            count += usize::from(connection.status.is_offloaded());
            ControlFlow::Continue(())
        })?;
        Ok(count)
    };
    host.run(count)?.map_err(|error| format!("cannot read the kernel's connections: {error}"))
}

/// The kernel's limit of connections, and the size of its hash table, of all network namespaces.
const LIMITS: [&str; 2] =
    ["/proc/sys/net/netfilter/nf_conntrack_max", "/proc/sys/net/netfilter/nf_conntrack_buckets"];

/// Room for connections, until dropped.
pub(super) struct Room(Vec<(&'static str, String)>);

impl Room {
    /// Makes room for so many connections in each of two hosts, and for some more.
    ///
    /// All hosts have one hash table, in which each connection is twice. In one that is too small, who comes first is
    /// found last.
    pub(super) fn make(connections: u32) -> Result<Self, String> {
        let least = 4 * connections;
        let mut raised = Self(Vec::new());
        for path in LIMITS {
            let failed = |error| format!("cannot set {path}: {error}");
            let before = std::fs::read_to_string(path).map_err(failed)?;
            if before.trim().parse().is_ok_and(|limit: u32| limit < least) {
                std::fs::write(path, least.to_string()).map_err(failed)?;
                raised.0.push((path, before));
            }
        }
        Ok(raised)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for (path, before) in &self.0 {
            let _ = std::fs::write(path, before);
        }
    }
}

/// Messages and attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const NETLINK_NETFILTER: isize = 12;
const NEW: u16 = 1 << 8;
const DELETE: u16 = 1 << 8 | 2;
const NESTED: u16 = 1 << 15;
const CREATE: u16 = 0x400;
/// `struct nfgenmsg` of IPv4.
const HEADER: [u8; 4] = [2, 0, 0, 0];
/// `IPS_SEEN_REPLY`, `IPS_ASSURED` and `IPS_CONFIRMED`.
const STATUS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// `TCP_CONNTRACK_ESTABLISHED`.
const ESTABLISHED: u8 = 3;
/// `IP_CT_TCP_FLAG_WINDOW_SCALE` and `IP_CT_TCP_FLAG_SACK_PERM`.
const TCP_FLAGS: u8 = 1 | 2;
/// The scale that gives windows of 1 GiB (RFC 7323).
const SCALE: u8 = 14;

/// The tuple of a flow (`flow_in_turn` of bpf/generator.c).
fn tuple(protocol: u8, flow: u32) -> Tuple {
    let source = IpAddr::V4((0xc612_0000 + (flow & 0xff)).into());
    let destination = IpAddr::V4((0xc613_0000 + (flow >> 8 & 0xff)).into());
    Tuple::with_ports(protocol, (source, 1024 + (flow >> 16) as u16), (destination, PORT))
}

fn address(text: &str) -> Result<[u8; 4], String> {
    let address: std::net::Ipv4Addr = text.parse().map_err(|_| format!("{text} is no address"))?;
    Ok(address.octets())
}

/// `CTA_PROTOINFO` of TCP. The kernel takes the windows from the first segment, and then checks them.
fn established() -> Vec<u8> {
    let (mut tcp, mut all) = (Vec::new(), Vec::new());
    push(&mut tcp, 1, &[ESTABLISHED]);
    // Of both directions, the scale, and flags with their mask.
    push(&mut tcp, 2, &[SCALE]);
    push(&mut tcp, 3, &[SCALE]);
    push(&mut tcp, 4, &[TCP_FLAGS; 2]);
    push(&mut tcp, 5, &[TCP_FLAGS; 2]);
    push(&mut all, 1 | NESTED, &tcp);
    all
}

/// `CTA_NAT_SRC` with the only address and the only port to choose.
fn translation(address: [u8; 4], port: u16) -> Vec<u8> {
    let (mut ports, mut nat) = (Vec::new(), Vec::new());
    push(&mut ports, 1, &port.to_be_bytes());
    push(&mut ports, 2, &port.to_be_bytes());
    push(&mut nat, 1, &address);
    push(&mut nat, 2, &address);
    push(&mut nat, 3 | NESTED, &ports);
    nat
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::generator::Stream;
    use crate::live::rulesets;
    use crate::live::sink::{Expect, SinkHook};
    use crate::live::tests::{send, send_in_vain, turn};
    use crate::live::topology::Topology;

    const EXPECT: Expect = Expect { vid: None, follow: true, hook: SinkHook::Xdp, bridged: None };

    fn stream(connections: Connections) -> Stream {
        Stream { flows: connections.flows(), vid: None, rate: Some(50_000) }
    }

    fn all_arrive(topology: &Topology, connections: Connections) {
        let (sent, seen) = send(topology, stream(connections), EXPECT);
        assert!(sent.frames > 0);
        assert_eq!((seen.frames, seen.check()), (sent.frames, Ok(())), "{connections:?}");
    }

    #[test]
    fn a_kernel_forwards_the_connections_that_it_knows() {
        let Some(_turn) = turn() else { return };
        let topology = Topology::new().unwrap();
        for (protocol, tracking) in [
            (Protocol::Udp, Tracking::Stateful),
            (Protocol::Tcp, Tracking::Stateful),
            (Protocol::Udp, Tracking::Translated),
            (Protocol::Tcp, Tracking::Translated),
        ] {
            // What is invalid for the kernel, by checksum or by window, is not established either.
            rulesets::load(&topology.r, rulesets::ESTABLISHED).unwrap();
            if tracking == Tracking::Translated {
                rulesets::load(&topology.r, rulesets::MASQUERADE).unwrap();
            }
            let connections = Connections { protocol, tracking, count: 1 << 10 };
            connections.connect(&topology.r).unwrap();
            all_arrive(&topology, connections);
            // These segments follow those of the first generator.
            all_arrive(&topology, connections);
            disconnect(&topology.r).unwrap();
            let (sent, seen) = send_in_vain(&topology, stream(connections), EXPECT);
            assert!(sent.frames > 0);
            assert_eq!(seen.frames, 0, "{connections:?}");
            rulesets::clear(&topology.r).unwrap();
        }
    }
}
