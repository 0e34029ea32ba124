//! The seam between the path and an express lane: someone who is told what the path decided.
//!
//! The lane itself (a map of flows below the path that repeats decisions) belongs to the program;
//! here is only how it learns of them. A router without one pays a test a burst.

use crate::burst::{Burst, Lanes};
use crate::changes::Changes;
use crate::counters::Counters;
use crate::frame::Umem;
use crate::id::PortId;
use crate::stages::filter::Count;
use crate::tables::Tables;

/// Whoever is told of forwarded packets.
pub trait Express: Send {
    /// Learns, before each turn, how the tables have changed; called in turns without a packet, too.
    /// `now_ns` is the time since any fixed moment.
    ///
    /// All that [`Express::forwarded`] tells until the next call is looked up after this one. With another
    /// [`Changes::version`] than the last, all that was told up to now is void, but for destinations that
    /// [`Changes::routes_between`] says nothing about; and where the tables ask for the route to a packet's
    /// source ([`Tables::asks_for_source`]), that holds for its source as well.
    fn begin(&mut self, changes: &Changes, now_ns: u64);

    /// Takes note of a burst that the path has gone through, before its frames leave.
    ///
    /// `lanes` are the packets that are forwarded; of those that are [`Burst::bound`] as well,
    /// nothing may be kept. Their frames have their new Ethernet header, TTL and checksum; addresses
    /// and ports are as received, and so are [`Burst::link`] and [`Burst::l3`], which tell how long
    /// the header was on arrival. [`Burst::next`] has the records.
    fn forwarded(&mut self, burst: &Burst, umem: &Umem, tables: &Tables, lanes: Lanes);

    /// Takes note that nothing had come by a port when its turn came.
    fn idle(&mut self, port: PortId) {
        let _ = port;
    }

    /// Takes note of packets of a burst that left the road, each with its [`Burst::verdict`], behind whose
    /// port is a kernel that may have them without being asked. They are as they were received.
    fn punted(&mut self, burst: &Burst, umem: &Umem, tables: &Tables, lanes: Lanes) {
        let _ = (burst, umem, tables, lanes);
    }

    /// Adds the packets that were forwarded without the path to a worker's counts.
    fn add_to(&mut self, counters: &mut Counters) {
        let _ = counters;
    }

    /// Adds to the counts of the firewall's rules, by their numbers, the packets that were forwarded
    /// without the path since this was last called. With `end` other rules follow, and these numbers mean
    /// nothing any more.
    fn add_to_rules(&mut self, counts: &mut [Count], end: bool) {
        let _ = (counts, end);
    }

    /// What it counts beside the router, by name: entries, hits. Asked now and then.
    fn report(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
