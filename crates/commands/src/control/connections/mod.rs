//! The connections that the kernel tracks in the router's network namespace, or states that the rules of a file
//! keep, as the control socket reports them.

mod describe;
mod filter;
mod message;
mod pager;
mod pages;
mod protocol;
mod ranked;
mod source;
mod state;
mod states;
mod statistics;

pub use describe::connection_reasons;
pub use filter::{ConnectionFilter, ConnectionOrder, IpVersion};
pub use message::{
    Connection, ConnectionCounts, ConnectionEntry, ConnectionRates, ConnectionTuple,
    ConnectionsPage, IcmpQuery,
};
pub use protocol::Protocol;
pub use state::STATES;

#[cfg(test)]
pub(super) use describe::{Programs, Sum, describe, fast};
pub(super) use pager::PagesError;
pub(super) use pages::pages;
pub(super) use source::KernelConnections;
#[cfg(test)]
pub(super) use source::{Source, Take};
pub(super) use states::{StateSource, has_connections};
pub(super) use statistics::{most_tracked, statistics, tracked_count};
