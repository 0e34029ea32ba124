//! Connections that the programs forward: tables that user space writes and the programs read, byte for byte as in
//! `bpf/connections.h`, one for each family, and the ring in which they ask for entries.
//!
//! Each direction of a connection has an entry of its own, by the link and the tuple of its packets as they arrive. It
//! says how the packets leave, and what the rules do with all of them. Whether the kernel still has the connection, the
//! programs ask the kernel themselves (`bpf/conntrack.h`).
//!
//! One thread writes ([`ConnectionTable`]). It changes a slot as a flow's ([`flows`](crate::flows)), and the programs
//! count in it, and end it.

mod blocks;
mod entry;
mod key;
mod query;
mod sizes;
mod slots;
mod sweep;
mod table;
mod tracks;
mod translation;

pub use entry::{Connection, Treatment};
pub use key::ConnectionKey;
pub use query::{Queries, Query};
pub(crate) use sizes::Sizes;
pub use sweep::Part;
pub use table::{ConnectionTable, Connections, ConnectionsByTuple, Entry, Tally};
pub use tracks::{Track, TrackState};
pub use translation::Translation;
