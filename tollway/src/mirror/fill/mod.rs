//! Views and routes into tables: all of them at first, then what changes, in place.
//!
//! [`Fill::fresh`] fills tables that nobody looks into yet. [`Fill::follow`] then puts in what
//! [`Rib::take_touched`] says may have changed, while packets flow: most of it straight into the FIBs,
//! which readers share, so that a hundred thousand routes cost the worker nothing. Only what has to do
//! with neighbours, whose host routes follow the routes about them, and next hops that are not there yet
//! are done between two bursts ([`InForce`]). A prefix is always changed in the same way, so that its
//! changes can not overtake each other.
//!
//! Next hops that many routes share change in one place (`hops.rs`).

mod changes;
mod hops;
mod merge;
mod space;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::stages::route::{Fib, Prefix};
use tollway_dataplane::tables::{RoutePrefix, Tables, TablesError, VrfRecord};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::kernel::{Family, RouteKind, TableId};
use super::rib::{BodyId, Choice, Dest, Rib};
use super::views::{Base, DEFAULT, Fate, Item, Views};
use crate::compile::is_never_forwarded;
pub use changes::{Followed, InForce};
use hops::{HopKey, HopTable, Shared};
pub use hops::{Way, Ways};
use merge::Content;
use space::Space;

/// Why tables can not follow; they are to be filled anew, and until then the kernel is to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// So much has changed that nobody noted what.
    #[error("the routes are others altogether; fill new tables")]
    All,
    /// A table that no view has, since it was empty, has a route now.
    #[error("a table that was empty has routes; make views and tables anew")]
    Views,
    /// The tables could not take something.
    #[error("the tables could not take a route ({0:?}); fill new ones")]
    Tables(TablesError),
    /// Nobody works by the tables any more.
    #[error("the worker does not answer")]
    Gone,
}

impl From<TablesError> for FillError {
    fn from(error: TablesError) -> Self {
        Self::Tables(error)
    }
}

/// What has been put into tables, and how to change it.
pub struct Fill {
    views: Views,
    ways: Ways,
    ways_are_new: bool,
    /// In which views a table is, by family.
    uses: Uses,
    fibs: [Arc<Fib>; 2],
    epochs: Arc<Epochs>,
    roots: Vec<VrfRecord>,
    hops: HopTable,
    /// Connected prefixes of each view, IPv4 and IPv6.
    spaces: Vec<[Space; 2]>,
    /// The local table has had a route that looks on in the next.
    throws: bool,
    /// A packet that the main table drops may yet find a way (`fib_lookup` in `include/net/ip_fib.h`
    /// looks on in the default table, if there ever was one).
    drops_are_kernels: bool,
}

/// In which views a table is, by family.
type Uses = HashMap<(Family, TableId), Arc<[Use]>>;

/// A view that a table is in.
#[derive(Clone, Copy, Debug)]
struct Use {
    view: usize,
    item: Item,
    /// It shadows the other.
    is_over: bool,
}

/// Where packets of a prefix go.
#[derive(Clone, Debug)]
enum To {
    Shared(Shared),
    Key(HopKey),
}

/// An IPv4 route on its way into new tables; sorts as it is to go in.
type New4 = (u16, u32, u8, NextHopId);
/// The same of IPv6.
type New6 = (u16, u128, u8, NextHopId);

impl Fill {
    /// Fills tables whose first VRFs are the views, in their order, and have no routes yet.
    ///
    /// # Errors
    /// The tables are full, or have other VRFs or links.
    pub fn fresh(
        rib: &mut Rib,
        views: Views,
        ways: Ways,
        tables: &mut Tables,
    ) -> Result<Self, TablesError> {
        rib.take_touched();
        let roots = tables.vrfs.get(..views.views.len()).ok_or(TablesError::Unknown)?.to_vec();
        let mut fill = Self {
            uses: uses(&views),
            fibs: [Arc::clone(&tables.fib4), Arc::clone(&tables.fib6)],
            epochs: Arc::clone(&tables.epochs),
            spaces: roots.iter().map(|_| Default::default()).collect(),
            roots,
            hops: HopTable::default(),
            throws: false,
            drops_are_kernels: rib.has_had(DEFAULT),
            views,
            ways,
            ways_are_new: false,
        };
        fill.chain(tables)?;
        fill.routes(rib, tables)?;
        Ok(fill)
    }

    /// What tables were filled by.
    #[must_use]
    pub const fn views(&self) -> &Views {
        &self.views
    }

    /// Where the changes of the tables are counted.
    #[must_use]
    pub const fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// Says that packets leave by other links than before; [`Fill::follow`] then has them do so.
    pub fn set_ways(&mut self, ways: Ways) {
        self.ways_are_new |= ways != self.ways;
        self.ways = ways;
    }

    /// Fallbacks of views.
    fn chain(&self, tables: &mut Tables) -> Result<(), TablesError> {
        for (index, view) in self.views.views.iter().enumerate() {
            let next = view.next.map(vrf_id).transpose()?;
            if next.is_some() {
                tables.set_fallback(vrf_id(index)?, next)?;
            }
        }
        Ok(())
    }

    fn routes(&mut self, rib: &Rib, tables: &mut Tables) -> Result<(), TablesError> {
        let (mut v4, mut v6): (Vec<New4>, Vec<New6>) = (Vec::new(), Vec::new());
        let (mut known, mut failed) = (HashMap::new(), None);
        rib.each(|dest, choice| {
            if let Err(error) =
                self.collect(rib, tables, dest, choice, &mut known, &mut v4, &mut v6)
            {
                failed.get_or_insert(error);
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        self.collect_fates(rib, tables, &mut v4, &mut v6)?;
        // By address, shorter prefixes first: neighbours in the trie follow each other.
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
            self.space(usize::from(vrf), prefix).add(bare(prefix));
        }
        tables.insert(VrfId(vrf), prefix, next)
    }

    #[expect(clippy::too_many_arguments, reason = "what is collected is of two families")]
    fn collect(
        &mut self,
        rib: &Rib,
        tables: &mut Tables,
        dest: Dest,
        choice: Choice,
        known: &mut HashMap<BodyId, NextHopId>,
        v4: &mut Vec<New4>,
        v6: &mut Vec<New6>,
    ) -> Result<(), TablesError> {
        if is_never_forwarded(dest.prefix) {
            return Ok(());
        }
        for of in self.uses_of(dest).iter() {
            let content = merge::content_of(rib, of, dest, choice);
            self.throws |= of.is_over && merge::is(rib, choice, RouteKind::Throw);
            let next = match content {
                Content::Route(Choice::Is(id)) => match known.get(&id) {
                    Some(next) => *next,
                    None => {
                        let next = self.next_hop(rib, tables, content)?;
                        known.insert(id, next);
                        next
                    }
                },
                Content::Nothing => continue,
                content => self.next_hop(rib, tables, content)?,
            };
            let view = vrf_id(of.view)?.0;
            match dest.prefix {
                RoutePrefix::V4(prefix) => {
                    v4.push((view, (prefix.bits() >> 96) as u32, prefix.len(), next));
                }
                RoutePrefix::V6(prefix) => v6.push((view, prefix.bits(), prefix.len(), next)),
            }
        }
        Ok(())
    }

    /// The views that a destination's table is in.
    fn uses_of(&self, dest: Dest) -> Arc<[Use]> {
        let uses = self.uses.get(&(merge::family(dest.prefix), dest.table));
        uses.cloned().unwrap_or_default()
    }

    /// What views have for all packets.
    fn collect_fates(
        &mut self,
        rib: &Rib,
        tables: &mut Tables,
        v4: &mut Vec<New4>,
        v6: &mut Vec<New6>,
    ) -> Result<(), TablesError> {
        for index in 0..self.views.views.len() {
            let (vrf, view) = (vrf_id(index)?.0, self.views.views[index]);
            for (item, is_ipv4) in [(view.v4, true), (view.v6, false)] {
                let Some(item) = item.filter(|item| matches!(item.base, Base::All(_))) else {
                    continue;
                };
                let content = merge::content(rib, &item, RoutePrefix::all(is_ipv4));
                let next = self.next_hop(rib, tables, content)?;
                if is_ipv4 {
                    v4.push((vrf, 0, 0, next));
                } else {
                    v6.push((vrf, 0, 0, next));
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
                self.hops.want(rib, &self.ways, key.clone(), &mut wanted);
                self.hops.make(tables, wanted)?;
                self.hops.id(&key).ok_or(TablesError::Unknown)
            }
            None => Ok(NextHopId::NO_ROUTE),
        }
    }

    /// Where packets go that find this; none where they find nothing.
    fn to(&self, rib: &Rib, content: Content) -> Option<To> {
        let kernel = To::Shared(Shared::Punt(PuntReason::KernelRoute));
        Some(match content {
            Content::Nothing => return None,
            Content::NoRoute => To::Shared(Shared::NoRoute),
            Content::All(fate) => To::Shared(of_fate(fate)),
            Content::Kernel | Content::Route(Choice::Kernel | Choice::Nothing) => kernel,
            Content::Route(Choice::Is(id)) => {
                let body = rib.body(id);
                match body.route.kind {
                    RouteKind::Unicast => To::Key(HopKey::of(body)),
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

    fn space(&mut self, view: usize, prefix: RoutePrefix) -> &mut Space {
        &mut self.spaces[view][place(prefix)]
    }
}

fn uses(views: &Views) -> Uses {
    let mut uses: HashMap<_, Vec<Use>> = HashMap::new();
    for (index, view) in views.views.iter().enumerate() {
        for (family, item) in [(Family::V4, view.v4), (Family::V6, view.v6)] {
            let Some(item) = item else { continue };
            if let Base::Table(table) = item.base {
                let of = Use { view: index, item, is_over: false };
                uses.entry((family, table)).or_default().push(of);
            }
            if let Some(table) = item.over {
                let of = Use { view: index, item, is_over: true };
                uses.entry((family, table)).or_default().push(of);
            }
        }
    }
    uses.into_iter().map(|(table, uses)| (table, uses.into())).collect()
}

const fn of_fate(fate: Fate) -> Shared {
    match fate {
        Fate::Blackhole => Shared::Drop(DropReason::Blackhole),
        Fate::Unreachable => Shared::Punt(PuntReason::Unreachable),
        Fate::Prohibit => Shared::Punt(PuntReason::Prohibit),
        Fate::Kernel => Shared::Punt(PuntReason::KernelRule),
    }
}

fn vrf_id(view: usize) -> Result<VrfId, TablesError> {
    u16::try_from(view).map(VrfId).map_err(|_| TablesError::Full)
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
