//! Connections that begin and end: one request and one response over each.

use std::net::IpAddr;
use std::time::Duration;

use super::super::topology::{RIGHT, Topology};
use super::super::traffic::{self, Kind, Server};
use super::pairs::Side;

/// Duration of a measurement.
const WINDOW: Duration = Duration::from_millis(800);

/// A client at A, and a server at B.
pub(super) struct Transactions<'a> {
    topology: &'a Topology,
    server: Server,
}

impl<'a> Transactions<'a> {
    /// Starts the server.
    pub(super) fn new(topology: &'a Topology) -> Result<Self, String> {
        // The client closes first and keeps its port for a minute. It has to have enough ports for a row.
        topology.a.sysctl("ipv4/ip_local_port_range", "1024 65535")?;
        topology.a.sysctl("ipv4/tcp_tw_reuse", "1")?;
        Ok(Self { topology, server: Server::start(&topology.b)? })
    }
}

impl Side for Transactions<'_> {
    /// Thousand connections per second.
    fn rate(&self) -> Result<f64, String> {
        let to: IpAddr = RIGHT[0].parse().map_err(|_| format!("{} is no address", RIGHT[0]))?;
        let measured = traffic::measure(&self.topology.a, &self.server, to, Kind::TcpCrr, WINDOW)?;
        Ok(measured.rate / 1e3)
    }
}
