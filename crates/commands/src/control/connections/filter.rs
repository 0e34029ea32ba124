//! Which connections a client wants, and in which order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tollway_conntrack::{Connection, Family};

use super::message::{Connection as Described, ConnectionEntry};
use super::protocol::Protocol;
use super::state::state;

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum IpVersion {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// By what connections are sorted; the largest come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionOrder {
    /// Bytes a second, measured over an interval.
    Rate,
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
}

/// The connections to show: those to which each given member applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionFilter {
    /// Any address is in this prefix, before or after NAT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<IpNet>,
    /// The original source is in this prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpNet>,
    /// The original destination is in this prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<IpNet>,
    /// Any port is this one, before or after NAT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The state, in upper or lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<u32>,
    /// The version of IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<IpVersion>,
    /// A link that packets with an entry arrive on or leave by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The path: `fast`, `kernel` or `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The keyword of the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The order; that of the kernel's table without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<ConnectionOrder>,
    /// How many to show; all without one, or 20 if they are sorted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The time over which to measure rates, a second without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
}

impl ConnectionFilter {
    /// The family of all that it selects, if that is one.
    pub(super) fn family(&self) -> Option<Family> {
        let nets = [self.within, self.source, self.destination];
        let of_nets = nets.into_iter().flatten().next().map(|net| Family::of(net.addr()));
        let of_version = self.version.map(|version| match version {
            IpVersion::Ipv4 => Family::of(Ipv4Addr::UNSPECIFIED.into()),
            IpVersion::Ipv6 => Family::of(Ipv6Addr::UNSPECIFIED.into()),
        });
        of_version.or(of_nets)
    }

    /// Whether it selects a connection, as far as the kernel's entry says.
    pub(super) fn selects(&self, connection: &Connection) -> bool {
        let tuples = [&connection.original, &connection.reply];
        let is_in =
            |net: Option<IpNet>, address: IpAddr| net.is_none_or(|net| net.contains(&address));
        let is_within =
            |net| tuples.iter().any(|one| is_in(net, one.source) || is_in(net, one.destination));
        let has_port = |port| {
            let ports = tuples.iter().flat_map(|one| [one.source_port(), one.destination_port()]);
            ports.flatten().any(|one| one == port)
        };
        let original = &connection.original;
        is_within(self.within)
            && is_in(self.source, original.source)
            && is_in(self.destination, original.destination)
            && self.port.is_none_or(has_port)
            && self.protocol.is_none_or(|one| one.0 == original.protocol)
            && self.mark.is_none_or(|mark| mark == connection.mark)
            && self.state.as_ref().is_none_or(|one| one.eq_ignore_ascii_case(state(connection)))
            && self.version.is_none_or(|one| original.source.is_ipv6() == (one == IpVersion::Ipv6))
    }

    /// Whether it selects a connection that [`ConnectionFilter::selects`] has selected, by what the programs do with it.
    pub(super) fn selects_described(&self, connection: &Described) -> bool {
        let entries = [&connection.original_entry, &connection.reply_entry];
        let has = |device: &String| {
            let is_of = |entry: &ConnectionEntry| {
                entry.device == *device || entry.output.as_ref() == Some(device)
            };
            entries.into_iter().flatten().any(is_of)
        };
        self.path.as_ref().is_none_or(|path| *path == connection.path)
            && self.reason.as_ref().is_none_or(|reason| *reason == connection.reason)
            && self.device.as_ref().is_none_or(has)
    }
}
