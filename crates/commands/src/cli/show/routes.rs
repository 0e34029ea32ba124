//! `tollway show routes`.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use super::ShowClient;
use super::pages::{self, Paged};
use crate::cli::CliError;
use crate::control::{NextHop, Route, RouteLookup, RoutesPage, ShowRequest};

/// Arguments of `tollway show routes`.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  tollway show routes 10.0.0.0/8 --vrf red     the routes within a prefix
  tollway show routes get 10.1.2.3             the route that an address takes"
)]
pub(super) struct Args {
    #[command(subcommand)]
    get: Option<Get>,
    /// Show routes within a prefix, or the route to an address
    #[arg(value_name = "PREFIX|ADDRESS", value_parser = filter)]
    filter: Option<Filter>,
    /// Show one VRF [default: all; for an address: main]
    #[arg(long, value_name = "NAME")]
    vrf: Option<String>,
    /// Show own addresses and what is never forwarded too
    #[arg(long)]
    all: bool,
}

#[derive(clap::Subcommand)]
enum Get {
    /// Show the route to an address, and its next hop
    Get {
        /// Look up this address
        address: IpAddr,
        /// Look it up in this VRF
        #[arg(long, value_name = "NAME", default_value = "main")]
        vrf: String,
    },
}

#[derive(Clone, Copy, Debug)]
enum Filter {
    Within(IpNet),
    Takes(IpAddr),
}

fn filter(text: &str) -> Result<Filter, String> {
    let address = text.parse().map(Filter::Takes).ok();
    let within = || text.parse::<IpNet>().ok().map(|net| Filter::Within(net.trunc()));
    address.or_else(within).ok_or_else(|| "write it as 10.0.0.0/8 or as 10.0.0.1".to_owned())
}

pub(super) fn run(client: &mut ShowClient<'_>, args: &Args) -> Result<(), CliError> {
    let (within, address, vrf) = match (&args.get, args.filter) {
        (Some(Get::Get { address, vrf }), _) => (None, Some(*address), Some(vrf)),
        (None, Some(Filter::Takes(address))) => (None, Some(address), args.vrf.as_ref()),
        (None, Some(Filter::Within(net))) => (Some(net), None, args.vrf.as_ref()),
        (None, None) => (None, None, args.vrf.as_ref()),
    };
    let vrf = vrf.cloned();
    if let Some(address) = address {
        return client.show(&ShowRequest::Route { address, vrf }, found);
    }
    let show = ShowRequest::Routes { vrf, within, all: args.all };
    let mut sections = Sections::default();
    pages::print(client, &show, |page| sections.text(page))
}

/// Formats the answer about the route to an address.
fn found(answer: &RouteLookup) -> String {
    let RouteLookup { vrf, address, route } = answer;
    let Some(route) = route else { return format!("{address} has no route in the VRF {vrf}\n") };
    let mut out = format!("{address} takes {} in the VRF {vrf}\n\n", route.prefix);
    let mut section = Section::default();
    section.add(&mut out, std::slice::from_ref(route));
    out
}

impl Paged for RoutesPage {
    const MEMBER: &str = "routes";
    const NONE: &str = "there is no such route";

    fn more(&self) -> bool {
        self.more
    }

    fn rows(&self) -> impl Iterator<Item = impl Serialize> {
        self.routes.iter().map(|route| RouteOf { vrf: self.vrf.as_deref(), route })
    }
}

/// A route with its VRF.
#[derive(Serialize)]
struct RouteOf<'a> {
    vrf: Option<&'a str>,
    #[serde(flatten)]
    route: &'a Route,
}

/// Groups the pages of a VRF and family under one heading.
#[derive(Default)]
struct Sections {
    current: Option<(Option<String>, bool)>,
    section: Section,
}

impl Sections {
    fn text(&mut self, page: &RoutesPage) -> String {
        let mut out = String::new();
        let Some(route) = page.routes.first() else { return out };
        let key = (page.vrf.clone(), route.prefix.addr().is_ipv4());
        if self.current.as_ref() != Some(&key) {
            let family = if key.1 { "IPv4" } else { "IPv6" };
            let before = if self.current.is_some() { "\n" } else { "" };
            let vrf = page.vrf.as_deref().unwrap_or_default();
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "{before}{family} routes of the VRF {vrf}");
            self.section = Section::default();
            self.current = Some(key);
        }
        self.section.add(&mut out, &page.routes);
        out
    }
}

/// Columns with the widths of the first page: later pages cannot change what is already printed.
#[derive(Default)]
struct Section {
    widths: Option<[usize; 5]>,
}

const HEADER: [&str; 5] = ["prefix", "kind", "via", "dev", "MAC"];

impl Section {
    fn add(&mut self, out: &mut String, routes: &[Route]) {
        let rows: Vec<_> = routes.iter().flat_map(rows).collect();
        let header = HEADER.map(str::to_owned);
        let has_header = self.widths.is_some();
        let widths = *self.widths.get_or_insert_with(|| {
            let width = |column: usize| {
                let all = rows.iter().chain([&header]);
                all.map(|row| row[column].chars().count()).max().unwrap_or(0)
            };
            std::array::from_fn(width)
        });
        for row in (!has_header).then_some(&header).into_iter().chain(&rows) {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
            let line: String = cells.collect();
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}

/// One row for each next hop; only the first has the route's own cells.
fn rows(route: &Route) -> Vec<[String; 5]> {
    let none = NextHop { via: None, dev: "-".to_owned(), mac: None, share: None };
    let hops = if route.nexthops.is_empty() { &[none][..] } else { &route.nexthops };
    let row = |(index, hop): (usize, &NextHop)| {
        let first = |text: String| if index == 0 { text } else { String::new() };
        let share = hop.share.map_or_else(String::new, |share| format!(" {share}/256"));
        [
            first(route.prefix.to_string()),
            first(route.kind.clone()),
            hop.via.map_or("-".to_owned(), |via| via.to_string()),
            format!("{}{share}", hop.dev),
            hop.mac.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    hops.iter().enumerate().map(row).collect()
}
