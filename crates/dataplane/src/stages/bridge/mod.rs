//! Bridge: the forwarding database, which says behind which port of a bridge a MAC address is.
//!
//! Kernel equivalent: `br_fdb_find_rcu`, `br_fdb_update` and `fdb_delete` (`net/bridge/br_fdb.c`). IEEE 802.1Q-2018, 8.8,
//! with independent learning (8.8.8): each VLAN of a bridge has addresses of its own, as a [`Domain`].
//!
//! The kernel learns and ages addresses. [`Fdb`] has a copy of its entries, which workers and BPF programs read. A copy
//! that lacks an entry costs speed only, because frames to or from unknown addresses take the kernel path.
//!
//! Limits: group addresses are no entries; 65,535 domains; of a table of 65,536 buckets (262,144 entries), 4 in 10,000
//! entries find no room when half of it is taken, and one in a million when a quarter is.
//!
//! [`Domain`]: crate::id::Domain

mod fdb;
mod port;

pub use fdb::{
    Fdb, FdbEntry, FdbFull, FdbHit, FdbHome, FdbKey, FdbKind, FdbView, FdbWriter, SMALL_BUCKETS,
    fdb_lines,
};
pub use port::{BridgePort, BridgedIp, SourceRule, Tagged};
