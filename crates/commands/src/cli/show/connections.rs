//! `tollway show connections`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use super::ShowClient;
use super::connection_rows::Rows;
use super::pages::{self, Paged};
use crate::cli::{CliError, text};
use crate::control::{CONNECTION_STATES, ConnectionFilter, ConnectionsPage, Protocol, ShowRequest};

/// Arguments of `tollway show connections`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tollway show connections 10.1.2.3                      those of a host
  tollway show connections --protocol tcp --port 443     those of a service
  tollway show connections --state established --json    for a program")]
pub(super) struct Args {
    /// Show connections of an address, before or after NAT
    #[arg(value_name = "PREFIX|ADDRESS", value_parser = net)]
    within: Option<IpNet>,
    /// Show those from an address or prefix, before NAT
    #[arg(long, value_name = "NET", value_parser = net)]
    source: Option<IpNet>,
    /// Show those to an address or prefix, before NAT
    #[arg(long, value_name = "NET", value_parser = net)]
    destination: Option<IpNet>,
    /// Show those from or to a port, before or after NAT
    #[arg(long)]
    port: Option<u16>,
    /// Show those of a protocol, by name or number
    #[arg(long, value_name = "NAME")]
    protocol: Option<Protocol>,
    /// Show those in a state (established, unreplied ...)
    #[arg(long, ignore_case = true, value_name = "STATE")]
    #[arg(value_parser = CONNECTION_STATES, hide_possible_values = true)]
    state: Option<String>,
    /// Show those with a mark (17, 0x11)
    #[arg(long, value_parser = mark)]
    mark: Option<u32>,
}

fn net(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from).ok();
    let net = || text.parse::<IpNet>().ok().map(|net| net.trunc());
    address.or_else(net).ok_or_else(|| "write it as 10.0.0.0/8 or as 10.0.0.1".to_owned())
}

fn mark(text: &str) -> Result<u32, String> {
    let mark = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    mark.map_err(|_| "write it as 17 or as 0x11".to_owned())
}

pub(super) fn run(client: &mut ShowClient<'_>, args: &Args) -> Result<(), CliError> {
    let filter = ConnectionFilter {
        within: args.within,
        source: args.source,
        destination: args.destination,
        port: args.port,
        protocol: args.protocol,
        state: args.state.clone(),
        mark: args.mark,
    };
    let mut rows = Rows::new(text::width());
    pages::print(client, &ShowRequest::Connections(filter), |page: &ConnectionsPage| {
        rows.text(&page.connections)
    })
}

impl Paged for ConnectionsPage {
    const MEMBER: &str = "connections";
    const NONE: &str = "there is no such connection";

    fn more(&self) -> bool {
        self.more
    }

    fn rows(&self) -> impl Iterator<Item = impl Serialize> {
        self.connections.iter()
    }
}
