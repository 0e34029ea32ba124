//! The control socket: clients query a running router here, and give it commands.
//!
//! It is a UNIX socket that only its owner can open (mode 0600), and speaks JSON lines: one request
//! per line, one answer per line. Each line names its version; `docs/guide/operating.md` describes
//! every message.
//!
//! One thread listens, and one more serves each client. These threads query the worker through
//! [`tollway_worker::WorkerMailbox`]; the worker answers between two bursts. The client's thread reads
//! long lists (a million routes) itself, from memory that it shares with the worker.

mod client;
mod connections;
mod filter;
mod message;
mod neighs;
mod offload;
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
mod workers;

use std::path::{Path, PathBuf};

pub use client::{Client, ClientError};
pub use connections::{
    Connection, ConnectionCounts, ConnectionEntry, ConnectionFilter, ConnectionOrder,
    ConnectionRates, ConnectionTuple, ConnectionsPage, IcmpQuery, IpVersion, Protocol,
    STATES as CONNECTION_STATES, connection_reasons,
};
pub use message::{
    All, ConnectionTotals, DeviceEngine, Drops, Engines, Filter, FilterChain, FilterCounter,
    FilterRule, FilterSet, Link, Links, Neigh, Neighbours, NextHop, PortState, Ports, Punts, Route,
    RouteLookup, RoutesPage, ShowRequest, StageToll, Tolls, Totals, Traffic, VERSION, Xdp,
};
pub use offload::{
    Offload, OffloadedFrames, OffloadedLink, OffloadedPart, Other, PathCounts, PathTraffic,
    PortPaths, Reasons, RouteCounts, Shares, Tracked, Why,
};
pub use peer::Peer;
pub use request::{Command, HandedOver, NO_FILE, Reloaded, Request, RequestError};
pub use serve::Backends;
pub use server::{REQUEST_LIMIT, Server};
pub use set::{Change, Changed as SetChanged};
pub use socket::{Socket, SocketError};
pub use workers::{Queue, WorkerCounts, WorkerState, Workers};

use tollway_linux::sys;

/// The directory of root's sockets.
const RUN_DIR: &str = "/run/tollway";

/// The default paths of the socket, the preferred one first. For root this is one socket for each
/// network namespace in `/run/tollway`; for other users a socket in `$XDG_RUNTIME_DIR`.
#[must_use]
pub fn default_paths() -> Vec<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let session = session.map(|dir| Path::new(&dir).join("tollway.sock"));
    let root = (sys::effective_user() == 0).then(|| Path::new(RUN_DIR).join(namespace_socket()));
    root.into_iter().chain(session).collect()
}

/// The inode of the network namespace names the socket, because a router belongs to one namespace.
fn namespace_socket() -> String {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
    format!("net-{inode}.sock")
}
