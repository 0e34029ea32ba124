//! One host succeeds another whose tables were replaced: it takes over known neighbours and held
//! packets.
//!
//! A neighbour stays known if the new host can still have it: its link still exists, and its
//! address is a gateway or lies in a connected prefix of the link. The first packet for it enters
//! it in the new tables. The new host drops packets that wait for a neighbour no longer wanted, as
//! the kernel drops the queue of a neighbour that it destroys. It sends packets that wait for a
//! neighbour that is now static.

use super::neigh::{Entry, Key};
use super::send::{discard, release_all};
use super::{Context, Host, Packet};
use crate::id::LinkId;
use crate::verdict::DropReason;

impl Host {
    /// Takes over from another host; `links` maps each of its links to the new link. The context
    /// has the new tables.
    pub(crate) fn succeed(
        &mut self,
        context: &mut Context<'_>,
        old: &mut Self,
        links: &[Option<LinkId>],
    ) {
        self.limiter = std::mem::take(&mut old.limiter);
        self.counters = std::mem::take(&mut old.counters);
        self.ident = old.ident;
        let now = |link: LinkId| links.get(usize::from(link.0)).copied().flatten();
        for ((link, address), entry) in old.neighs.take_entries() {
            match now(link) {
                Some(link) => self.take_over(context, (link, address), entry, now),
                None => abandon(context, entry),
            }
        }
    }

    fn take_over(
        &mut self,
        context: &mut Context<'_>,
        key: Key,
        mut entry: Entry,
        now: impl Fn(LinkId) -> Option<LinkId>,
    ) {
        // Errors about a packet leave by its ingress link.
        for (packet, kind) in entry.take_queue() {
            match now(packet.link) {
                Some(link) => entry.put_back(Packet { link, ..packet }, kind),
                None => discard(context, packet, kind, DropReason::NeighFailed),
            }
        }
        if self.neighs.is_static(key) {
            release_all(context, key, entry.take_queue());
        } else if self.can_have(context, key) {
            self.neighs.put(key, entry);
        } else {
            abandon(context, entry);
        }
    }

    /// Whether a station with that address can be a neighbour in the new tables.
    fn can_have(&self, context: &Context<'_>, (link, address): Key) -> bool {
        let tables = &*context.tables;
        !self.addresses.is_local(tables, link, address)
            && !self.addresses.is_group(tables, link, address)
            && (self.addresses.is_connected(link, address)
                || tables.find_neigh(link, address).is_some())
    }
}

fn abandon(context: &mut Context<'_>, mut entry: Entry) {
    for (packet, kind) in entry.take_queue() {
        discard(context, packet, kind, DropReason::NeighFailed);
    }
}
