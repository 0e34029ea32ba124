//! The seam between the path and an express lane: someone who is told what the path decided.
//!
//! The lane itself (a map of flows below the path that repeats decisions) belongs to the program;
//! here is only how it learns of them. A router without one pays a test a burst.

use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::tables::Tables;

/// Whoever is told of forwarded packets.
pub trait Express: Send {
    /// Takes note of a burst that the path has gone through, before its frames leave.
    ///
    /// `lanes` are the packets that are forwarded. Their frames have their new Ethernet header, TTL
    /// and checksum; addresses and ports are as received, and so are [`Burst::link`] and
    /// [`Burst::l3`], which tell how long the header was on arrival. [`Burst::next`] has the records.
    fn forwarded(&mut self, burst: &Burst, umem: &Umem, tables: &Tables, lanes: Lanes);

    /// What it counts beside the router, by name: entries, hits. Asked now and then.
    fn report(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Does what is due; called as often as [`crate::router::Router::tick`].
    fn tick(&mut self, tables: &Tables, now_ns: u64) {
        let _ = (tables, now_ns);
    }
}
