//! Applies changed routes to active tables.

use std::collections::{HashMap, HashSet};

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::tables::{Tables, TablesError};

use super::hops::{Shared, WantedHop, used};
use super::merge::{Content, content, content_of, family, is, is_within, len};
use super::{ChainUse, FibSync, FibSyncError, To, bare, place, vrf_id};
use crate::kernel::RouteKind;
use crate::lookup_chains::BaseTable;
use crate::rib::{Choice, Dest, Rib, RouteAttrsId, Touched};
use tollway_model::compile::is_never_forwarded;

/// Active tables, which change while workers read them.
pub trait ActiveTables {
    /// Locks the tables and changes them. When this returns, the workers read what has changed.
    fn change<T>(&self, job: impl FnOnce(&mut Tables) -> T) -> T;

    /// Waits until memory that was taken out of the tables can be used again; false if that takes too long. The kernel
    /// forwards meanwhile.
    fn wait_for_memory(&self, epochs: &Epochs) -> bool;
}

/// Makes a change that can be repeated. If there is no room for it, because memory waits for readers, it is made again
/// when these have passed.
fn with_room<T>(
    at: &impl ActiveTables,
    epochs: &Epochs,
    mut change: impl FnMut() -> Result<T, TablesError>,
) -> Result<T, TablesError> {
    match change() {
        Err(error) if error.is_for_room() && at.wait_for_memory(epochs) => change(),
        done => done,
    }
}

/// The number of changes made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncCounts {
    /// Routes inserted or removed directly in the FIBs.
    pub direct: u64,
    /// Routes inserted or removed with the tables locked.
    pub locked: u64,
    /// Next hops added or changed.
    pub hops: u64,
}

/// How many destinations are computed at once, before their routes are inserted.
const BATCH: usize = 8192;
/// Routes changed before others can have the lock.
const ROUTES_PER_LOCK: usize = 32;
/// Next hops changed before others can have the lock: a group has 256 members, which are recomputed.
const HOPS_PER_LOCK: usize = 8;
/// With more next hops than this, the controller looks for unused ones and frees them.
const MANY_HOPS: usize = 1024;

/// The new state of one entry of one FIB.
#[derive(Clone, Copy, Debug)]
struct Op {
    lookup_chain: usize,
    prefix: RoutePrefix,
    next: Option<NextHopId>,
}

impl FibSync {
    /// Applies all changes since the tables were filled or since the last call. When it returns, the
    /// changes are active.
    ///
    /// # Errors
    /// See [`FibSyncError`].
    pub fn sync(
        &mut self,
        rib: &mut Rib,
        at: &impl ActiveTables,
    ) -> Result<SyncCounts, FibSyncError> {
        let Touched::Some { mut dests, hops } = rib.take_touched() else {
            return Err(FibSyncError::All);
        };
        let left_out = &self.lookup_chains.left_out;
        if dests.iter().any(|dest| left_out.contains(&(family(dest.prefix), dest.table))) {
            return Err(FibSyncError::LookupChains);
        }
        let mut counts = SyncCounts::default();
        if hops || std::mem::take(&mut self.egress_links_are_new) {
            let wanted = self.hops.outdated(rib, &self.egress_links);
            let moved = self.make(wanted, at, &mut counts)?;
            if !moved.is_empty() {
                let attrs = |attrs: &_| moved.contains(&super::HopKey::of(attrs));
                dests.extend(rib.dests_where(attrs));
            }
        }
        for dests in dests.chunks(BATCH) {
            let ops = self.ops(rib, dests, at, &mut counts)?;
            self.put(ops, at, &mut counts)?;
        }
        self.free_unused_hops(rib);
        Ok(counts)
    }

    /// Makes next hops; returns the keys whose number has changed.
    fn make(
        &mut self,
        mut wanted: Vec<WantedHop>,
        at: &impl ActiveTables,
        counts: &mut SyncCounts,
    ) -> Result<HashSet<super::HopKey>, FibSyncError> {
        let (mut moved, hops) = (HashSet::new(), &mut self.hops);
        while !wanted.is_empty() {
            let rest = wanted.split_off(wanted.len().min(HOPS_PER_LOCK));
            counts.hops += wanted.len() as u64;
            let mut some = wanted.into();
            let make = || at.change(|tables| hops.make(tables, &mut some, &mut moved));
            with_room(at, &self.epochs, make)?;
            wanted = rest;
        }
        Ok(moved)
    }

    /// Computes the new entries of FIBs.
    fn ops(
        &mut self,
        rib: &Rib,
        dests: &[Dest],
        at: &impl ActiveTables,
        counts: &mut SyncCounts,
    ) -> Result<Vec<Op>, FibSyncError> {
        let mut contents = Vec::with_capacity(dests.len());
        for dest in dests.iter().filter(|dest| !is_never_forwarded(dest.prefix)) {
            let uses = self.uses_of(*dest);
            if uses.is_empty() {
                continue;
            }
            let choice = rib.choice(*dest);
            for of in uses.iter() {
                contents.push((of.lookup_chain, dest.prefix, content_of(rib, of, *dest, choice)));
                self.throws |= of.is_over && is(rib, choice, RouteKind::Throw);
                self.push_dependent_entries(rib, of, *dest, &mut contents);
            }
        }
        let known = self.numbers(rib, &contents, at, counts)?;
        let op = |(lookup_chain, prefix, content): (usize, RoutePrefix, Content)| {
            let next = match content {
                Content::Route(Choice::Is(id)) => Some(*known.get(&id)?),
                content => match self.to(rib, content) {
                    Some(To::Shared(shared)) => Some(self.hops.shared_id(shared)?),
                    Some(To::Key(key)) => Some(self.hops.id(&key)?),
                    None => None,
                },
            };
            Some(Op { lookup_chain, prefix, next })
        };
        let ops: Option<Vec<_>> = contents.into_iter().map(op).collect();
        ops.ok_or(FibSyncError::Tables(TablesError::Unknown))
    }

    /// Adds the other entries of a lookup chain that change with a destination: prefixes that it shadows or
    /// shadowed, and prefixes from which the search continues.
    fn push_dependent_entries(
        &self,
        rib: &Rib,
        of: &ChainUse,
        dest: Dest,
        contents: &mut Vec<(usize, RoutePrefix, Content)>,
    ) {
        let Some(over) = of.item.over else { return };
        if len(dest.prefix) == host_len(dest.prefix) || !(of.is_over || self.throws) {
            return;
        }
        let base = match of.item.base {
            BaseTable::Table(table) => Some(table),
            BaseTable::All(_) => None,
        };
        rib.each_dest(|other| {
            let concerned = Some(other.table) == base || other.table == over;
            if concerned && other != dest && is_within(other.prefix, dest.prefix) {
                let content = content(rib, &of.item, other.prefix);
                if !is_never_forwarded(other.prefix) {
                    contents.push((of.lookup_chain, other.prefix, content));
                }
            }
        });
        if base.is_none() {
            // Until now a route may have shadowed the answer for all packets.
            let all = RoutePrefix::all(place(dest.prefix) == 0);
            contents.push((of.lookup_chain, all, content(rib, &of.item, all)));
        }
    }

    /// The numbers of all next hops needed; makes missing ones.
    fn numbers(
        &mut self,
        rib: &Rib,
        contents: &[(usize, RoutePrefix, Content)],
        at: &impl ActiveTables,
        counts: &mut SyncCounts,
    ) -> Result<HashMap<RouteAttrsId, NextHopId>, FibSyncError> {
        let (mut seen, mut wanted, mut shared) = (HashSet::new(), Vec::new(), HashSet::new());
        for (.., content) in contents {
            if let Content::Route(Choice::Is(id)) = content
                && !seen.insert(*id)
            {
                continue;
            }
            match self.to(rib, *content) {
                Some(To::Key(key)) if self.hops.id(&key).is_none() => {
                    self.hops.want(rib, &self.egress_links, key, &mut wanted);
                }
                Some(To::Shared(of)) if self.hops.shared_id(of).is_none() => {
                    shared.insert(of);
                }
                _ => {}
            }
        }
        self.make_shared(shared, at)?;
        self.make(wanted, at, counts)?;
        let mut known = HashMap::with_capacity(seen.len());
        for id in seen {
            let next = match self.to(rib, Content::Route(Choice::Is(id))) {
                Some(To::Key(key)) => self.hops.id(&key),
                Some(To::Shared(shared)) => self.hops.shared_id(shared),
                None => None,
            };
            known.insert(id, next.ok_or(FibSyncError::Tables(TablesError::Unknown))?);
        }
        Ok(known)
    }

    fn make_shared(
        &mut self,
        shared: HashSet<Shared>,
        at: &impl ActiveTables,
    ) -> Result<(), FibSyncError> {
        if shared.is_empty() {
            return Ok(());
        }
        let hops = &mut self.hops;
        let mut make = |tables: &mut Tables| {
            shared.iter().try_for_each(|of| hops.make_shared(tables, *of).map(|_| ()))
        };
        Ok(with_room(at, &self.epochs, || at.change(&mut make))?)
    }

    fn put(
        &mut self,
        ops: Vec<Op>,
        at: &impl ActiveTables,
        counts: &mut SyncCounts,
    ) -> Result<(), FibSyncError> {
        let mut locked = Vec::new();
        for op in ops {
            let prefix = bare(op.prefix);
            let glean = op.next.is_some_and(|next| self.hops.is_glean(next));
            let connected = self.connected(op.lookup_chain, op.prefix);
            if glean {
                connected.add(prefix);
            }
            if connected.meets(prefix) {
                counts.locked += 1;
                locked.push(op);
                continue;
            }
            counts.direct += 1;
            let (fib, record) = (&self.fibs[place(op.prefix)], &self.roots[op.lookup_chain]);
            let root = if place(op.prefix) == 0 { record.root4 } else { record.root6 };
            let change = || match op.next {
                Some(next) => fib.insert(root, prefix, next).map_err(TablesError::from),
                None => fib.remove(root, prefix).map(|_| ()).map_err(TablesError::from),
            };
            with_room(at, &self.epochs, change)?;
        }
        for ops in locked.chunks(ROUTES_PER_LOCK) {
            let change = || at.change(|tables| ops.iter().try_for_each(|op| apply(tables, op)));
            with_room(at, &self.epochs, change)?;
        }
        Ok(())
    }

    /// Frees next hops that no route uses any more, once there are many.
    fn free_unused_hops(&mut self, rib: &Rib) {
        if self.hops.len() > MANY_HOPS.max(2 * self.hops.kept()) {
            self.hops.keep(&used(rib));
        }
    }
}

fn apply(tables: &mut Tables, op: &Op) -> Result<(), TablesError> {
    let vrf: VrfId = vrf_id(op.lookup_chain)?;
    match op.next {
        Some(next) => tables.insert(vrf, op.prefix, next),
        None => tables.remove(vrf, op.prefix).map(|_| ()),
    }
}

const fn host_len(prefix: RoutePrefix) -> u8 {
    match prefix {
        RoutePrefix::V4(_) => 32,
        RoutePrefix::V6(_) => 128,
    }
}
