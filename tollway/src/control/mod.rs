//! The control socket: what a running router says of itself to those who ask.
//!
//! A UNIX socket, for its owner alone (mode 0600), that speaks JSON lines: one request a line, one
//! answer a line, each with the version that it is of (`docs/guide/operating.md` has every message).
//! A thread listens, one more serves each client; they ask the worker by [`crate::worker::Post`],
//! which answers between two bursts. What takes long (a million routes) is read beside the worker,
//! from what readers share.

mod client;
mod coverage;
mod filter;
mod message;
mod neighs;
mod peer;
mod request;
mod routes;
mod serve;
mod server;
mod set;
mod snapshot;
mod socket;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub use client::{Client, ClientError};
pub use coverage::{
    Coverage, CoveredLink, CoveredPart, Other, PortRoads, RoadCounts, RoadTraffic, RouteCounts,
    Shares, Why, Whys,
};
pub use message::{
    All, Ask, Drops, Express, Filter, FilterChain, FilterCounter, FilterRule, FilterSet, Found,
    Link, Links, Neigh, Neighbours, NextHop, PortState, Ports, Punts, Route, RoutesPage, StageToll,
    Tolls, Totals, Traffic, VERSION,
};
pub use peer::Peer;
pub use request::{Command, HandedOver, NO_FILE, Reloaded, Request};
pub use serve::Powers;
pub use server::{REQUEST_LIMIT, Server};
pub use set::{Change, Changed as SetChanged};
pub use socket::{Socket, SocketError};

use crate::filter::ir::Ruleset;
use crate::model::{self, Model};
use crate::ports::sys;
use crate::sync::lock;

/// What things are called, which the tables do not know. Positions are those of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The ports.
    pub ports: Vec<model::Port>,
    /// The links.
    pub links: Vec<model::Link>,
    /// The VRFs.
    pub vrfs: Vec<model::Vrf>,
    /// The firewall's rules, if there are any.
    pub filter: Option<Arc<Ruleset>>,
}

impl From<&Model> for Names {
    fn from(model: &Model) -> Self {
        let Model { ports, links, vrfs, filter, .. } = model;
        Self {
            ports: ports.clone(),
            links: links.clone(),
            vrfs: vrfs.clone(),
            filter: filter.clone(),
        }
    }
}

/// Where the names are found. Whoever gives the router other tables puts their names here in the
/// same job, so that nobody sees the one without the other.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Arc<Names>>>);

impl Board {
    /// A board with these names.
    #[must_use]
    pub fn new(names: Names) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(names))))
    }

    /// The names as they are now.
    #[must_use]
    pub fn names(&self) -> Arc<Names> {
        Arc::clone(&lock(&self.0))
    }

    /// Puts other names up.
    pub fn set(&self, names: Names) {
        *lock(&self.0) = Arc::new(names);
    }
}

/// Where root's sockets are.
const RUN_DIR: &str = "/run/tollway";

/// Where the socket is if nobody says otherwise, the best place first: for root in `/run/tollway`,
/// one for each network namespace; for others in the directory of their session.
#[must_use]
pub fn default_paths() -> Vec<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let session = session.map(|dir| Path::new(&dir).join("tollway.sock"));
    let root = (sys::effective_user() == 0).then(|| Path::new(RUN_DIR).join(namespace_socket()));
    root.into_iter().chain(session).collect()
}

/// Named after the network namespace, which a router lives in and with.
fn namespace_socket() -> String {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
    format!("net-{inode}.sock")
}
