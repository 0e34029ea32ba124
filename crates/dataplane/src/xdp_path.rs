//! The interface between the path and the XDP path: the router notifies it of what the path decided.
//!
//! The XDP path itself, a map of flows with the path's decisions, belongs to the program (crate
//! `tollway`). This module only defines how the router reports those decisions. A router without an
//! XDP path pays one test per burst.

use crate::burst::{Burst, Lanes};
use crate::changes::Changes;
use crate::counters::Counters;
use crate::frame::Umem;
use crate::id::PortId;
use crate::stages::filter::Count;
use crate::tables::ForwardingState;

/// A receiver of the path's decisions.
pub trait XdpPath: Send {
    /// Receives, before each turn, the changes of the tables; also called in turns without packets.
    /// `now_ns` is the time since any fixed moment.
    ///
    /// The lookups behind every later [`XdpPath::forwarded`], up to the next call, run after this call.
    /// If [`Changes::version`] differs from the last call's, every decision reported so far is void,
    /// except for destinations that [`Changes::routes_between`] does not list. If the tables look up
    /// the route to a packet's source ([`ForwardingState::checks_source_route`]), the source must not be listed
    /// either.
    fn begin(&mut self, changes: &Changes, now_ns: u64);

    /// Receives a burst that the path has processed, before its frames are sent.
    ///
    /// `lanes` are the forwarded packets; do not keep decisions on those that are also
    /// [`Burst::bound`]. The frames have their new Ethernet header, TTL and checksum. Addresses and
    /// ports are as received, and so are [`Burst::link`] and [`Burst::l3`], which give the length of
    /// the header on arrival. [`Burst::next`] has the records.
    fn forwarded(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes);

    /// Receives the event that a port had no packet when its turn came.
    fn idle(&mut self, port: PortId) {
        let _ = port;
    }

    /// Receives the packets of a burst that exited the path, each with its [`Burst::verdict`]. The
    /// kernel behind their port may forward such packets without the path. They are as they were
    /// received.
    fn punted(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        let _ = (burst, umem, tables, lanes);
    }

    /// Receives the packets of a burst that exited the path, each with its [`Burst::verdict`], as they
    /// were received or as rules have translated them. The XDP path may drop later packets of the flows of those
    /// that are dropped.
    ///
    /// [`Burst::routed`] says which of them the rules dropped after the route lookup: those at hook
    /// forward.
    fn dropped(&mut self, burst: &Burst, umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        let _ = (burst, umem, tables, lanes);
    }

    /// Adds the packets that the XDP path forwarded or dropped to a worker's counters.
    fn add_to(&mut self, counters: &mut Counters) {
        let _ = counters;
    }

    /// Adds the packets that were forwarded or dropped without the path since the last call to the counters of the
    /// firewall rules, by counter number. If `end` is true, other rules follow, and the numbers lose
    /// their meaning.
    fn add_to_rules(&mut self, counts: &mut [Count], end: bool) {
        let _ = (counts, end);
    }

    /// Its own counters by name, such as entries and hits. Called now and then.
    fn report(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
