//! `tollway show connections`.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use ipnet::IpNet;
use serde::Serialize;

use super::ShowClient;
use super::connection_rows::Rows;
use super::pages::{self, Paged};
use crate::cli::text::{section, table, thousands};
use crate::cli::{CliError, text};
use crate::control::{
    CONNECTION_STATES, ConnectionFilter, ConnectionOrder, ConnectionTotals, ConnectionsPage,
    IpVersion, Protocol, ShowRequest, connection_reasons,
};

/// Arguments of `tollway show connections`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tollway show connections 10.1.2.3                      those of a host
  tollway show connections --protocol tcp --port 443     those of a service
  tollway show connections --sort rate --limit 10        what uses the link now
  tollway show connections --path kernel                 what is not fast, why
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
    /// Show those of IPv4 or IPv6
    #[arg(long, value_name = "VERSION")]
    family: Option<IpVersion>,
    /// Show those that arrive on or leave by a link, if programs know them
    #[arg(long, value_name = "LINK")]
    device: Option<String>,
    /// Show those on a path
    #[arg(long, value_parser = ["fast", "kernel", "user"])]
    path: Option<String>,
    /// Show those that are not fast for a reason, by its keyword
    #[arg(long, value_name = "KEYWORD", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(connection_reasons()))]
    reason: Option<String>,
    /// Show the largest first; rates are measured
    #[arg(long, value_name = "BY")]
    sort: Option<ConnectionOrder>,
    /// Show so many [default: all, or 20 with --sort]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: Option<u32>,
    /// Measure rates over so many seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = interval, requires = "sort")]
    interval: Option<Duration>,
    /// Show only how many there are, by path and reason
    #[arg(long, conflicts_with_all = [
        "within", "source", "destination", "port", "protocol", "state", "mark", "family", "device",
        "path", "reason", "sort", "limit",
    ])]
    totals: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let text = text.strip_suffix('s').unwrap_or(text);
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "write a number from 0.1 to 60".to_owned())
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
    if args.totals {
        return client.show(&ShowRequest::ConnectionTotals, totals);
    }
    let filter = ConnectionFilter {
        within: args.within,
        source: args.source,
        destination: args.destination,
        port: args.port,
        protocol: args.protocol,
        state: args.state.clone(),
        mark: args.mark,
        version: args.family,
        device: args.device.clone(),
        path: args.path.clone(),
        reason: args.reason.clone(),
        sort: args.sort,
        limit: args.limit.map(|limit| limit as usize),
        interval_ms: args.interval.map(|interval| interval.as_millis() as u64),
    };
    let mut rows = Rows::new(text::width());
    pages::print(client, &ShowRequest::Connections(filter), |page: &ConnectionsPage| {
        rows.text(&page.connections)
    })
}

/// The directions that are not the kernel's, by what the programs do with their packets.
pub(super) const fn treatments(totals: &ConnectionTotals) -> [(&'static str, u64); 4] {
    [
        ("forwarded", totals.directions_forwarded),
        ("dropped", totals.directions_dropped),
        ("untracked", totals.directions_untracked),
        ("unruled", totals.directions_unruled),
    ]
}

/// The numbers of connections and of their directions.
fn totals(totals: &ConnectionTotals) -> String {
    let most = totals
        .tracked_most
        .map_or_else(String::new, |most| format!(", of {} at most", thousands(most)));
    let fast = treatments(totals);
    let kernel = totals.directions_kernel.values().copied();
    let used = fast.iter().map(|(_, count)| *count).chain(kernel).sum::<u64>();
    let mut out = format!("the kernel tracks {} connections{most}\n", thousands(totals.tracked));
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        out,
        "the table has {} directions of connections, and room for {}",
        thousands(used),
        thousands(totals.table_room)
    );
    let mut directions = table(&["directions", "number"]);
    let mut kernel: Vec<_> = totals.directions_kernel.iter().collect();
    kernel.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let kernel = kernel.into_iter().map(|(reason, count)| (format!("kernel: {reason}"), *count));
    for (what, count) in
        fast.map(|(what, count)| (what.to_owned(), count)).into_iter().chain(kernel)
    {
        directions.add_row([what, thousands(count)]);
    }
    section(&mut out, directions);
    let mut since = table(&["since the start", "number"]);
    for (what, count) in [
        ("directions entered", totals.directions_entered),
        ("questions answered", totals.answers),
        ("answers without room", totals.answers_without_room),
    ] {
        since.add_row([what.to_owned(), thousands(count)]);
    }
    section(&mut out, since);
    let mut kernel = table(&["connection tracking", "packets"]);
    for (what, count) in &totals.kernel_statistics {
        kernel.add_row([what.clone(), thousands(*count)]);
    }
    section(&mut out, kernel);
    out
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
