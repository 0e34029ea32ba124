//! `tollway show`: queries a running router, and prints the answers as tables or JSON.

mod connection_rows;
mod connections;
mod filter;
mod metrics;
mod pages;
mod routes;
mod tables;
mod workers;

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{CliError, text};
use crate::control::{Client, ShowRequest};

/// Arguments of `tollway show`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
    /// Use this control socket [default: as `tollway run`]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Show ports: how they are driven, their state, packets in and out
    Ports,
    /// Show what decides about packets on each device, and how it is attached
    Engines,
    /// Show workers and queues: load, bursts, packets, drops
    Workers,
    /// Show links with their addresses, VLANs and VRFs
    Links,
    /// Show routes, or the route to an address
    Routes(routes::Args),
    /// Show the connections that the kernel tracks, with their paths
    Connections(connections::Args),
    /// Show the known neighbours of each link
    #[command(alias = "neighbors")]
    Neighbours,
    /// Show dropped packets by reason, and totals of the others
    Drops,
    /// Show packets punted to the slow path by reason, and other totals
    Punts,
    /// Show the state and counters of the XDP path
    Xdp,
    /// Show the firewall's chains and rules with their counters
    Filter,
    /// Show the toll of each stage: what it costs a packet
    Tolls,
    /// Show counts as metrics, in the text format of Prometheus
    Metrics,
    /// Show the kernel's configuration, and how much of it is active
    Controller,
    /// Show which traffic takes which path, why, and how much
    Offload,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let control = Client::connect(args.socket.as_deref());
    let mut control = control.map_err(|error| CliError::control(&error))?;
    let mut client = ShowClient { control: &mut control, json: args.json };
    match &args.what {
        What::Ports => client.show(&ShowRequest::Ports, |all| tables::ports(all, None)),
        What::Engines => client.show(&ShowRequest::Engines, |all| tables::engines(all, None)),
        What::Workers => client.show(&ShowRequest::Workers, |all| workers::workers(all, None)),
        What::Links => client.show(&ShowRequest::Links, |all| tables::links(all, None)),
        What::Routes(args) => routes::run(&mut client, args),
        What::Connections(args) => connections::run(&mut client, args),
        What::Neighbours => client.show(&ShowRequest::Neighbours, tables::neighbours),
        What::Drops => client.show(&ShowRequest::Drops, tables::drops),
        What::Punts => client.show(&ShowRequest::Punts, tables::punts),
        What::Xdp => client.show(&ShowRequest::Xdp, tables::xdp),
        What::Filter => client.show(&ShowRequest::Filter, |all| filter::filter(all, text::width())),
        What::Controller => client.show(&ShowRequest::Controller, tables::controller),
        What::Offload => {
            client.show(&ShowRequest::Offload, |all| super::offload::text(all, text::width()))
        }
        What::Metrics => client.show(&ShowRequest::All, metrics::metrics),
        What::Tolls => client.show(&ShowRequest::Tolls, tables::tolls),
    }
}

/// A connection to a router's control socket, and the format in which to print its answers.
struct ShowClient<'a> {
    control: &'a mut Client,
    json: bool,
}

impl ShowClient<'_> {
    /// Sends a query and prints the answer: as received, or as text.
    fn show<T: DeserializeOwned>(
        &mut self,
        show: &ShowRequest,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let failed = |error| CliError::control(&error);
        if self.json {
            let answer: Value = self.control.show(show).map_err(failed)?;
            return super::print(format_args!("{answer:#}\n"));
        }
        let answer = self.control.show(show).map_err(failed)?;
        super::print(text(&answer))
    }
}
