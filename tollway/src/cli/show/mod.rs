//! `tollway show`: asks a running router, and prints what it says as tables or as JSON.

mod filter;
mod routes;
mod tables;

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{CliError, text};
use crate::control::{Ask, Client};

/// Arguments of `tollway show`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
    /// The router's control socket (default: where `tollway run` has it if nobody says otherwise)
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Ports: how they are driven, whether they work, what they received and sent
    Ports,
    /// Links: addresses, VLANs, VRFs
    Links,
    /// Routes, or the route that an address takes
    Routes(routes::Args),
    /// Neighbours: who is known on which link
    #[command(alias = "neighbors")]
    Neighbours,
    /// Dropped packets by reason, and what became of the others
    Drops,
    /// Packets handed to the slow path by reason, and what became of the others
    Punts,
    /// The express lane
    Express,
    /// The firewall: chains and rules with what they have counted
    Filter,
    /// What each stage costs a packet
    Tolls,
    /// What the kernel is configured with, and what of it is in force
    Mirror,
    /// Which traffic takes which road, why, and how much has
    Coverage,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let client = Client::connect(args.socket.as_deref());
    let mut client = client.map_err(|error| CliError::control(&error))?;
    let mut talk = Talk { client: &mut client, json: args.json };
    match &args.what {
        What::Ports => talk.show(&Ask::Ports, |all| tables::ports(all, None)),
        What::Links => talk.show(&Ask::Links, |all| tables::links(all, None)),
        What::Routes(args) => routes::run(&mut talk, args),
        What::Neighbours => talk.show(&Ask::Neighbours, tables::neighbours),
        What::Drops => talk.show(&Ask::Drops, tables::drops),
        What::Punts => talk.show(&Ask::Punts, tables::punts),
        What::Express => talk.show(&Ask::Express, tables::express),
        What::Filter => talk.show(&Ask::Filter, |all| filter::filter(all, text::width())),
        What::Mirror => talk.show(&Ask::Mirror, tables::mirror),
        What::Coverage => {
            talk.show(&Ask::Coverage, |all| super::coverage::text(all, text::width()))
        }
        What::Tolls => talk.show(&Ask::Tolls, tables::tolls),
    }
}

/// A talk with a router whose answers are printed.
struct Talk<'a> {
    client: &'a mut Client,
    json: bool,
}

impl Talk<'_> {
    /// Asks, and prints the answer: as it came, or as text.
    fn show<T: DeserializeOwned>(
        &mut self,
        ask: &Ask,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let failed = |error| CliError::control(&error);
        if self.json {
            let answer: Value = self.client.ask(ask).map_err(failed)?;
            return super::print(format_args!("{answer:#}\n"));
        }
        let answer = self.client.ask(ask).map_err(failed)?;
        super::print(text(&answer))
    }
}
