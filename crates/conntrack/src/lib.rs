//! The connections that the kernel tracks (nf_conntrack), read by ctnetlink
//! (`net/netfilter/nf_conntrack_netlink.c`, `linux/netfilter/nfnetlink_conntrack.h`).
//!
//! [`Conntrack`] queries one connection or streams all of them. A [`Connection`] says by
//! [`Connection::offload`] whether the fast path may have its packets, and otherwise why not.

mod connection;
mod message;
mod offload;
mod socket;
mod status;
mod tcp;
#[cfg(test)]
mod tests;
mod tuple;

pub use connection::{Connection, Counter, Counters, Labels};
pub use message::{Change, Malformed, get, push_tuple, read};
pub use offload::Reason;
pub use socket::{Conntrack, Family};
pub use status::Status;
pub use tcp::{TcpFlags, TcpInfo, TcpState};
pub use tuple::{Tuple, TupleL4};
