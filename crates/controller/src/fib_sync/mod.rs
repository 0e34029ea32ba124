//! Keeps the tables' routes equal to the RIB's: fills the tables once, then applies changes in
//! place.
//!
//! [`FibSync::build`] fills tables that have no readers yet. [`FibSync::sync`] then applies what
//! [`Rib::take_touched`] reports as changed, while packets flow. Most changes go straight into the FIBs,
//! which readers share, so a hundred thousand routes cost the worker nothing. Only two kinds of changes need the
//! lock of the tables ([`ActiveTables`]): those about neighbours, whose host routes depend on the routes around
//! them, and new next hops. A given prefix always changes in the same way, so its changes cannot overtake each
//! other.
//!
//! A next hop that many routes share changes in one place (`hops.rs`).

mod changes;
mod connected;
mod hops;
mod merge;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::fib::Fib;
use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::links::VrfRecord;
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::kernel::{Family, RouteKind, TableId};
use super::lookup_chains::{BaseTable, ChainFib, DEFAULT, LookupChains, RouteAction};
use super::rib::{Choice, Dest, Rib, RouteAttrsId};
pub use changes::{ActiveTables, SyncCounts};
use connected::ConnectedPrefixes;
pub use hops::{EgressLink, EgressLinks};
use hops::{HopKey, HopTable, Shared};
use merge::Content;
use tollway_model::compile::is_never_forwarded;

/// Why tables cannot be kept in step. They have to be rebuilt, and until then the kernel forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FibSyncError {
    /// So much has changed that the RIB did not record the individual changes.
    #[error("too many routes changed to apply each; the tables are rebuilt")]
    All,
    /// A table that was empty, and so is in no lookup chain, has a route now.
    #[error("a routing table that was empty has routes; lookup chains and tables are rebuilt")]
    LookupChains,
    /// The tables could not take a route.
    #[error("the tables cannot take a route ({0:?}); they are rebuilt")]
    Tables(TablesError),
}

impl FibSyncError {
    /// Whether the tables have no room for a route: with more memory, they may take it.
    #[must_use]
    pub const fn is_for_room(self) -> bool {
        matches!(self, Self::Tables(error) if error.is_for_room())
    }
}

impl From<TablesError> for FibSyncError {
    fn from(error: TablesError) -> Self {
        Self::Tables(error)
    }
}

/// The routes in the tables, and the means to change them.
pub struct FibSync {
    lookup_chains: LookupChains,
    egress_links: EgressLinks,
    egress_links_are_new: bool,
    /// The lookup chains that use a table, by table and family.
    uses: ChainUses,
    fibs: [Arc<Fib>; 2],
    epochs: Arc<Epochs>,
    roots: Vec<VrfRecord>,
    hops: HopTable,
    /// Connected prefixes of each lookup chain, IPv4 and IPv6.
    connected: Vec<[ConnectedPrefixes; 2]>,
    /// The local table has had a route that continues the search in the next table.
    throws: bool,
    /// A packet that the main table drops may still find a route (`fib_lookup` in `include/net/ip_fib.h`
    /// goes on to the default table, if there ever was one).
    drops_are_kernels: bool,
}

/// The lookup chains that use a table, by table and family.
type ChainUses = HashMap<(Family, TableId), Arc<[ChainUse]>>;

/// A lookup chain that uses a table.
#[derive(Clone, Copy, Debug)]
struct ChainUse {
    lookup_chain: usize,
    item: ChainFib,
    /// Whether the table shadows the other.
    is_over: bool,
}

/// The next hop of a prefix.
#[derive(Clone, Debug)]
enum To {
    Shared(Shared),
    Key(HopKey),
}

/// An IPv4 route for new tables: VRF, address, length, next hop; in the order of insertion.
type New4 = (u16, u32, u8, NextHopId);
/// The same for IPv6.
type New6 = (u16, u128, u8, NextHopId);

/// The routes of new tables, before they are sorted.
#[derive(Default)]
struct Collected {
    v4: Vec<New4>,
    v6: Vec<New6>,
    /// The next hops made so far.
    known: HashMap<RouteAttrsId, NextHopId>,
}

impl FibSync {
    /// Fills tables that have no routes yet. Their first VRFs are the lookup chains, in order.
    ///
    /// # Errors
    /// The tables are full, or have other VRFs or links.
    pub fn build(
        rib: &mut Rib,
        lookup_chains: LookupChains,
        egress_links: EgressLinks,
        tables: &mut Tables,
    ) -> Result<Self, TablesError> {
        rib.take_touched();
        let roots = tables
            .routes
            .vrfs
            .get(..lookup_chains.lookup_chains.len())
            .ok_or(TablesError::Unknown)?
            .to_vec();
        let mut fib_sync = Self {
            uses: uses(&lookup_chains),
            fibs: [Arc::clone(&tables.routes.fib4), Arc::clone(&tables.routes.fib6)],
            epochs: Arc::clone(&tables.epochs),
            connected: roots.iter().map(|_| Default::default()).collect(),
            roots,
            hops: HopTable::new(&tables.epochs),
            throws: false,
            drops_are_kernels: rib.has_had(DEFAULT),
            lookup_chains,
            egress_links,
            egress_links_are_new: false,
        };
        fib_sync.chain(tables)?;
        fib_sync.routes(rib, tables)?;
        Ok(fib_sync)
    }

    /// The lookup chains that the tables have.
    #[must_use]
    pub const fn lookup_chains(&self) -> &LookupChains {
        &self.lookup_chains
    }

    /// The counter of the tables' changes.
    #[must_use]
    pub const fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// Sets the egress links; the next [`FibSync::sync`] applies them.
    pub fn set_egress_links(&mut self, egress_links: EgressLinks) {
        self.egress_links_are_new |= egress_links != self.egress_links;
        self.egress_links = egress_links;
    }

    /// Sets the fallbacks of lookup chains.
    fn chain(&self, tables: &mut Tables) -> Result<(), TablesError> {
        for (index, lookup_chain) in self.lookup_chains.lookup_chains.iter().enumerate() {
            let next = lookup_chain.next.map(vrf_id).transpose()?;
            if next.is_some() {
                tables.set_fallback(vrf_id(index)?, next)?;
            }
        }
        Ok(())
    }

    fn routes(&mut self, rib: &Rib, tables: &mut Tables) -> Result<(), TablesError> {
        let (mut collected, mut failed) = (Collected::default(), None);
        rib.each(|dest, choice| {
            if let Err(error) = self.collect(rib, tables, dest, choice, &mut collected) {
                failed.get_or_insert(error);
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        self.collect_actions(rib, tables, &mut collected)?;
        let Collected { mut v4, mut v6, known: _ } = collected;
        // By address, shorter prefixes first: neighbours in the trie come one after the other.
        v4.sort_unstable();
        v4.dedup();
        v6.sort_unstable();
        v6.dedup();
        for (vrf, address, len, next) in v4 {
            self.insert(tables, vrf, RoutePrefix::V4(Prefix::v4(address, len)), next)?;
        }
        for (vrf, address, len, next) in v6 {
            self.insert(tables, vrf, RoutePrefix::V6(Prefix::v6(address, len)), next)?;
        }
        Ok(())
    }

    fn insert(
        &mut self,
        tables: &mut Tables,
        vrf: u16,
        prefix: RoutePrefix,
        next: NextHopId,
    ) -> Result<(), TablesError> {
        if self.hops.is_glean(next) {
            self.connected(usize::from(vrf), prefix).add(bare(prefix));
        }
        tables.insert(VrfId(vrf), prefix, next)
    }

    fn collect(
        &mut self,
        rib: &Rib,
        tables: &mut Tables,
        dest: Dest,
        choice: Choice,
        collected: &mut Collected,
    ) -> Result<(), TablesError> {
        if is_never_forwarded(dest.prefix) {
            return Ok(());
        }
        for of in self.uses_of(dest).iter() {
            let content = merge::content_of(rib, of, dest, choice);
            self.throws |= of.is_over && merge::is(rib, choice, RouteKind::Throw);
            let next = match content {
                Content::Route(Choice::Is(id)) => match collected.known.get(&id) {
                    Some(next) => *next,
                    None => {
                        let next = self.next_hop(rib, tables, content)?;
                        collected.known.insert(id, next);
                        next
                    }
                },
                Content::Nothing => continue,
                content => self.next_hop(rib, tables, content)?,
            };
            let lookup_chain = vrf_id(of.lookup_chain)?.0;
            match dest.prefix {
                RoutePrefix::V4(prefix) => {
                    let address = (prefix.bits() >> 96) as u32;
                    collected.v4.push((lookup_chain, address, prefix.len(), next));
                }
                RoutePrefix::V6(prefix) => {
                    collected.v6.push((lookup_chain, prefix.bits(), prefix.len(), next));
                }
            }
        }
        Ok(())
    }

    /// The lookup chains that have a destination's table.
    fn uses_of(&self, dest: Dest) -> Arc<[ChainUse]> {
        let uses = self.uses.get(&(merge::family(dest.prefix), dest.table));
        uses.cloned().unwrap_or_default()
    }

    /// Collects the answers that lookup chains have for all packets.
    fn collect_actions(
        &mut self,
        rib: &Rib,
        tables: &mut Tables,
        collected: &mut Collected,
    ) -> Result<(), TablesError> {
        for index in 0..self.lookup_chains.lookup_chains.len() {
            let (vrf, lookup_chain) = (vrf_id(index)?.0, self.lookup_chains.lookup_chains[index]);
            for (item, is_ipv4) in [(lookup_chain.v4, true), (lookup_chain.v6, false)] {
                let Some(item) = item.filter(|item| matches!(item.base, BaseTable::All(_))) else {
                    continue;
                };
                let content = merge::content(rib, &item, RoutePrefix::all(is_ipv4));
                let next = self.next_hop(rib, tables, content)?;
                if is_ipv4 {
                    collected.v4.push((vrf, 0, 0, next));
                } else {
                    collected.v6.push((vrf, 0, 0, next));
                }
            }
        }
        Ok(())
    }

    fn next_hop(
        &mut self,
        rib: &Rib,
        tables: &mut Tables,
        content: Content,
    ) -> Result<NextHopId, TablesError> {
        match self.to(rib, content) {
            Some(To::Shared(shared)) => self.hops.make_shared(tables, shared),
            Some(To::Key(key)) => {
                if let Some(id) = self.hops.id(&key) {
                    return Ok(id);
                }
                let mut wanted = Vec::new();
                self.hops.want(rib, &self.egress_links, key.clone(), &mut wanted);
                self.hops.make(tables, &mut wanted.into(), &mut HashSet::new())?;
                self.hops.id(&key).ok_or(TablesError::Unknown)
            }
            None => Ok(NextHopId::NO_ROUTE),
        }
    }

    /// The next hop for a content; none if there is no entry.
    fn to(&self, rib: &Rib, content: Content) -> Option<To> {
        let kernel = To::Shared(Shared::Punt(PuntReason::KernelRoute));
        Some(match content {
            Content::Nothing => return None,
            Content::NoRoute => To::Shared(Shared::NoRoute),
            Content::All(action) => To::Shared(of_action(action)),
            Content::Kernel | Content::Route(Choice::Kernel | Choice::Nothing) => kernel,
            Content::Route(Choice::Is(id)) => {
                let attrs = rib.attrs(id);
                match attrs.route.kind {
                    RouteKind::Unicast => To::Key(HopKey::of(attrs)),
                    RouteKind::Local
                    | RouteKind::Broadcast
                    | RouteKind::Anycast
                    | RouteKind::Multicast => To::Shared(Shared::Local),
                    RouteKind::Blackhole if self.drops_are_kernels => kernel,
                    RouteKind::Blackhole => To::Shared(Shared::Drop(DropReason::Blackhole)),
                    RouteKind::Unreachable => To::Shared(Shared::Punt(PuntReason::Unreachable)),
                    RouteKind::Prohibit => To::Shared(Shared::Punt(PuntReason::Prohibit)),
                    RouteKind::Throw => To::Shared(Shared::NoRoute),
                    RouteKind::Other(_) => kernel,
                }
            }
        })
    }

    fn connected(&mut self, lookup_chain: usize, prefix: RoutePrefix) -> &mut ConnectedPrefixes {
        &mut self.connected[lookup_chain][place(prefix)]
    }
}

fn uses(lookup_chains: &LookupChains) -> ChainUses {
    let mut uses: HashMap<_, Vec<ChainUse>> = HashMap::new();
    for (index, lookup_chain) in lookup_chains.lookup_chains.iter().enumerate() {
        for (family, item) in [(Family::V4, lookup_chain.v4), (Family::V6, lookup_chain.v6)] {
            let Some(item) = item else { continue };
            if let BaseTable::Table(table) = item.base {
                let of = ChainUse { lookup_chain: index, item, is_over: false };
                uses.entry((family, table)).or_default().push(of);
            }
            if let Some(table) = item.over {
                let of = ChainUse { lookup_chain: index, item, is_over: true };
                uses.entry((family, table)).or_default().push(of);
            }
        }
    }
    uses.into_iter().map(|(table, uses)| (table, uses.into())).collect()
}

const fn of_action(action: RouteAction) -> Shared {
    match action {
        RouteAction::Blackhole => Shared::Drop(DropReason::Blackhole),
        RouteAction::Unreachable => Shared::Punt(PuntReason::Unreachable),
        RouteAction::Prohibit => Shared::Punt(PuntReason::Prohibit),
        RouteAction::Kernel => Shared::Punt(PuntReason::KernelRule),
    }
}

fn vrf_id(lookup_chain: usize) -> Result<VrfId, TablesError> {
    u16::try_from(lookup_chain).map(VrfId).map_err(|_| TablesError::Full)
}

const fn bare(prefix: RoutePrefix) -> Prefix {
    match prefix {
        RoutePrefix::V4(prefix) | RoutePrefix::V6(prefix) => prefix,
    }
}

const fn place(prefix: RoutePrefix) -> usize {
    match prefix {
        RoutePrefix::V4(_) => 0,
        RoutePrefix::V6(_) => 1,
    }
}
