//! The connections that the kernel tracks in the router's network namespace, or states that the rules of a file
//! keep, as the control socket reports them.

mod describe;
mod filter;
mod message;
mod pages;
mod protocol;
mod state;
mod states;

pub use filter::ConnectionFilter;
pub use message::{Connection, ConnectionCounts, ConnectionTuple, ConnectionsPage, IcmpQuery};
pub use protocol::Protocol;
pub use state::STATES;

pub(super) use pages::{PagesError, pages, tracked};
pub(super) use states::state_pages;

/// The number of connections that the kernel tracks; none if it tracks none at all.
pub(super) fn tracked_count() -> Option<u64> {
    let count = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").ok()?;
    count.trim().parse().ok()
}
