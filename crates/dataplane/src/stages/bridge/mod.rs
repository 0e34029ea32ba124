//! Bridge: forwards frames between the ports of a bridge, by a forwarding database that says behind which port a MAC
//! address is.
//!
//! Kernel equivalent: `br_fdb_find_rcu`, `br_fdb_update` and `fdb_delete` (`net/bridge/br_fdb.c`). IEEE 802.1Q-2018, 8.8,
//! with independent learning (8.8.8): each VLAN of a bridge has addresses of its own, as a [`Domain`].
//!
//! **Behind a kernel,** the kernel learns and ages addresses. [`Fdb`] has a copy of its entries, which BPF programs read.
//! A copy that lacks an entry costs speed only, because frames to or from unknown addresses take the kernel path.
//!
//! **Without one,** the stage learns ([`LearningBridges`]), as `br_handle_frame_finish` (`net/bridge/br_input.c`) and
//! `br_flood` (`br_forward.c`): frames to unknown and group addresses are copied to all ports. Tagged frames are frames
//! as all others (a kernel's bridge with `vlan_filtering 0`). BPDUs are dropped, and loops are the user's.
//!
//! Limits: group addresses are no entries; 65,535 domains; of a table of 65,536 buckets (262,144 entries), 4 in 10,000
//! entries find no room when half of it is taken, and one in a million when a quarter is.
//!
//! [`Domain`]: crate::id::Domain

mod counts;
mod fdb;
mod learn;
mod port;
mod slow;
mod stage;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

pub use counts::LearningCounts;
pub use fdb::{
    Fdb, FdbEntry, FdbFull, FdbHit, FdbHome, FdbKey, FdbKind, FdbView, FdbWriter, SMALL_BUCKETS,
    fdb_lines,
};
pub use port::{BridgePort, BridgedIp, SourceRule, Tagged};
pub(crate) use stage::run;
pub use table::{BridgePortSettings, BridgeSettings, LearningBridges};
