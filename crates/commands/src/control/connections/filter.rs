//! Which connections a client wants.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tollway_conntrack::{Connection, Family};

use super::protocol::Protocol;
use super::state::state;

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
}

impl ConnectionFilter {
    /// The family of all that it selects, if that is one.
    pub(super) fn family(&self) -> Option<Family> {
        let nets = [self.within, self.source, self.destination];
        nets.into_iter().flatten().next().map(|net| Family::of(net.addr()))
    }

    /// Whether it selects a connection.
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
    }
}
