//! Listing neighbours: copied from the worker's tables, then formatted.

use std::net::IpAddr;
use std::sync::Arc;

use tollway_dataplane::id::{LinkId, NextHopId};
use tollway_dataplane::next_hops::{HEADER_ROOM, NextHop, NextHops};
use tollway_dataplane::router::Control;
use tollway_dataplane::worker::Worker;

use super::message::Neigh;
use tollway_model::names::Names;
use tollway_net::Mac;

/// The copied neighbours: each with its next hop, and its state if the host resolves it.
pub(super) struct NeighCopy {
    neighs: Vec<(LinkId, IpAddr, NextHopId, Option<&'static str>)>,
    next_hops: Arc<NextHops>,
}

/// Copies the neighbours. Call this on the worker's thread.
pub(super) fn copy(worker: &Worker) -> NeighCopy {
    let Control { tables, host, .. } = &*worker.lock();
    let state = |link, address| host.neigh_state(link, address);
    let neighs = tables.neighs();
    // A layer-3 device has next hops, but no neighbours.
    let neighs = neighs.filter(|(link, ..)| !tables.routes.links[*link].is_layer3());
    let neighs = neighs.map(|(link, address, next)| (link, address, next, state(link, address)));
    NeighCopy { neighs: neighs.collect(), next_hops: Arc::clone(&tables.routes.next_hops) }
}

impl NeighCopy {
    /// The neighbours, sorted by link and address.
    pub(super) fn list(mut self, names: &Names) -> Vec<Neigh> {
        self.neighs.sort_unstable_by_key(|(link, address, ..)| (*link, *address));
        let neigh = |(link, address, next, state): (_, _, _, Option<&str>)| {
            let next: NextHop = self.next_hops.get(next);
            let mac = mac_of(&next);
            let state = state.unwrap_or(if mac.is_some() { "known" } else { "wanted" });
            Neigh { dev: link_name(names, link), address, mac, state: state.to_owned() }
        };
        self.neighs.iter().copied().map(neigh).collect()
    }
}

/// The destination Ethernet address in a next hop's header.
pub(super) fn mac_of(next: &NextHop) -> Option<String> {
    let start = HEADER_ROOM.checked_sub(usize::from(next.header_len))?;
    let mac = next.header.get(start..)?.first_chunk::<6>()?;
    next.action.has_neighbour().then(|| Mac(*mac).to_string())
}

/// An Ethernet address as text; empty for a layer-3 device.
pub(super) fn mac_text(mac: Mac) -> String {
    mac.if_any().map(|mac| mac.to_string()).unwrap_or_default()
}

/// The name of a link.
pub(super) fn link_name(names: &Names, link: LinkId) -> String {
    let known = names.links.get(usize::from(link.0));
    known.map_or_else(|| format!("link {}", link.0), |link| link.name.clone())
}
