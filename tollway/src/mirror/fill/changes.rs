//! Changes into tables that are in force.

use std::collections::{HashMap, HashSet};

use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::tables::{RoutePrefix, Tables, TablesError};

use super::hops::{HopTable, Shared, Wanted, used};
use super::merge::{Content, content, content_of, family, is, is_within, len};
use super::{Fill, FillError, To, Use, bare, place, vrf_id};
use crate::compile::is_never_forwarded;
use crate::mirror::kernel::RouteKind;
use crate::mirror::rib::{BodyId, Choice, Dest, Rib, Touched};
use crate::mirror::views::Base;

/// Tables in force, where somebody can work at them between two bursts of whoever reads them.
pub trait InForce {
    /// Does a job and waits for it; none if nobody works by the tables any more.
    fn between_bursts<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Tables) -> T + Send + 'static,
    ) -> Option<T>;
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Routes put in or taken out, straight in the FIBs.
    pub direct: u64,
    /// The same between two bursts.
    pub between: u64,
    /// Next hops made or changed.
    pub hops: u64,
}

/// Destinations that are worked out before their routes are put in.
const BATCH: usize = 8192;
/// Routes that are changed between two bursts.
const ROUTES_PER_JOB: usize = 32;
/// Next hops that are: each is another store, and a group 256, worked out anew.
const HOPS_PER_JOB: usize = 8;
/// More next hops than this are looked through for such that no route has any more.
const MANY_HOPS: usize = 1024;

/// One entry of one FIB: what is to be there.
#[derive(Clone, Copy, Debug)]
struct Op {
    view: usize,
    prefix: RoutePrefix,
    next: Option<NextHopId>,
}

impl Fill {
    /// Puts in what has changed since the tables were filled or this was called last. When it returns,
    /// it is in force.
    ///
    /// # Errors
    /// See [`FillError`].
    pub fn follow(&mut self, rib: &mut Rib, at: &impl InForce) -> Result<Followed, FillError> {
        let Touched::Some { mut dests, hops } = rib.take_touched() else {
            return Err(FillError::All);
        };
        let left_out = &self.views.left_out;
        if dests.iter().any(|dest| left_out.contains(&(family(dest.prefix), dest.table))) {
            return Err(FillError::Views);
        }
        let mut followed = Followed::default();
        if hops || std::mem::take(&mut self.ways_are_new) {
            let wanted = self.hops.outdated(rib, &self.ways);
            let moved = self.make(wanted, at, &mut followed)?;
            if !moved.is_empty() {
                let body = |body: &_| moved.contains(&super::HopKey::of(body));
                dests.extend(rib.dests_where(body));
            }
        }
        for dests in dests.chunks(BATCH) {
            let ops = self.ops(rib, dests, at, &mut followed)?;
            self.put(ops, at, &mut followed)?;
        }
        self.tidy(rib);
        Ok(followed)
    }

    /// Makes next hops; gives the keys that have another number than before.
    fn make(
        &mut self,
        mut wanted: Vec<Wanted>,
        at: &impl InForce,
        followed: &mut Followed,
    ) -> Result<HashSet<super::HopKey>, FillError> {
        let mut moved = HashSet::new();
        while !wanted.is_empty() {
            let rest = wanted.split_off(wanted.len().min(HOPS_PER_JOB));
            followed.hops += wanted.len() as u64;
            moved.extend(self.with_hops(at, move |hops, tables| hops.make(tables, wanted))?);
            wanted = rest;
        }
        Ok(moved)
    }

    fn with_hops<T: Send + 'static>(
        &mut self,
        at: &impl InForce,
        job: impl FnOnce(&mut HopTable, &mut Tables) -> Result<T, TablesError> + Send + 'static,
    ) -> Result<T, FillError> {
        let mut hops = std::mem::take(&mut self.hops);
        let done = at.between_bursts(move |tables| {
            let done = job(&mut hops, tables);
            (hops, done)
        });
        let (hops, done) = done.ok_or(FillError::Gone)?;
        self.hops = hops;
        Ok(done?)
    }

    /// Works out what FIBs are to have.
    fn ops(
        &mut self,
        rib: &Rib,
        dests: &[Dest],
        at: &impl InForce,
        followed: &mut Followed,
    ) -> Result<Vec<Op>, FillError> {
        let mut contents = Vec::with_capacity(dests.len());
        for dest in dests.iter().filter(|dest| !is_never_forwarded(dest.prefix)) {
            let uses = self.uses_of(*dest);
            if uses.is_empty() {
                continue;
            }
            let choice = rib.choice(*dest);
            for of in uses.iter() {
                contents.push((of.view, dest.prefix, content_of(rib, of, *dest, choice)));
                self.throws |= of.is_over && is(rib, choice, RouteKind::Throw);
                self.about(rib, of, *dest, &mut contents);
            }
        }
        let known = self.numbers(rib, &contents, at, followed)?;
        let op = |(view, prefix, content): (usize, RoutePrefix, Content)| {
            let next = match content {
                Content::Route(Choice::Is(id)) => Some(*known.get(&id)?),
                content => match self.to(rib, content) {
                    Some(To::Shared(shared)) => Some(self.hops.shared_id(shared)?),
                    Some(To::Key(key)) => Some(self.hops.id(&key)?),
                    None => None,
                },
            };
            Some(Op { view, prefix, next })
        };
        let ops: Option<Vec<_>> = contents.into_iter().map(op).collect();
        ops.ok_or(FillError::Tables(TablesError::Unknown))
    }

    /// What else of a view changes with a destination: what it has or had in its shadow, and what looks
    /// on from it.
    fn about(
        &self,
        rib: &Rib,
        of: &Use,
        dest: Dest,
        contents: &mut Vec<(usize, RoutePrefix, Content)>,
    ) {
        let Some(over) = of.item.over else { return };
        if len(dest.prefix) == host_len(dest.prefix) || !(of.is_over || self.throws) {
            return;
        }
        let base = match of.item.base {
            Base::Table(table) => Some(table),
            Base::All(_) => None,
        };
        rib.each_dest(|other| {
            let concerned = Some(other.table) == base || other.table == over;
            if concerned && other != dest && is_within(other.prefix, dest.prefix) {
                let content = content(rib, &of.item, other.prefix);
                if !is_never_forwarded(other.prefix) {
                    contents.push((of.view, other.prefix, content));
                }
            }
        });
        if base.is_none() {
            // The answer for all may be one that was covered.
            let all = RoutePrefix::all(place(dest.prefix) == 0);
            contents.push((of.view, all, content(rib, &of.item, all)));
        }
    }

    /// The numbers of all next hops that are needed; makes those that are not there yet.
    fn numbers(
        &mut self,
        rib: &Rib,
        contents: &[(usize, RoutePrefix, Content)],
        at: &impl InForce,
        followed: &mut Followed,
    ) -> Result<HashMap<BodyId, NextHopId>, FillError> {
        let (mut seen, mut wanted, mut shared) = (HashSet::new(), Vec::new(), HashSet::new());
        for (.., content) in contents {
            if let Content::Route(Choice::Is(id)) = content
                && !seen.insert(*id)
            {
                continue;
            }
            match self.to(rib, *content) {
                Some(To::Key(key)) if self.hops.id(&key).is_none() => {
                    self.hops.want(rib, &self.ways, key, &mut wanted);
                }
                Some(To::Shared(of)) if self.hops.shared_id(of).is_none() => {
                    shared.insert(of);
                }
                _ => {}
            }
        }
        self.make_shared(shared, at)?;
        self.make(wanted, at, followed)?;
        let mut known = HashMap::with_capacity(seen.len());
        for id in seen {
            let next = match self.to(rib, Content::Route(Choice::Is(id))) {
                Some(To::Key(key)) => self.hops.id(&key),
                Some(To::Shared(shared)) => self.hops.shared_id(shared),
                None => None,
            };
            known.insert(id, next.ok_or(FillError::Tables(TablesError::Unknown))?);
        }
        Ok(known)
    }

    fn make_shared(&mut self, shared: HashSet<Shared>, at: &impl InForce) -> Result<(), FillError> {
        if shared.is_empty() {
            return Ok(());
        }
        self.with_hops(at, move |hops, tables| {
            shared.into_iter().try_for_each(|of| hops.make_shared(tables, of).map(|_| ()))
        })
    }

    fn put(
        &mut self,
        ops: Vec<Op>,
        at: &impl InForce,
        followed: &mut Followed,
    ) -> Result<(), FillError> {
        let mut between = Vec::new();
        for op in ops {
            let prefix = bare(op.prefix);
            let glean = op.next.is_some_and(|next| self.hops.is_glean(next));
            let space = self.space(op.view, op.prefix);
            if glean {
                space.add(prefix);
            }
            if space.meets(prefix) {
                followed.between += 1;
                between.push(op);
                continue;
            }
            followed.direct += 1;
            let (fib, record) = (&self.fibs[place(op.prefix)], &self.roots[op.view]);
            let root = if place(op.prefix) == 0 { record.root4 } else { record.root6 };
            match op.next {
                Some(next) => fib.insert(root, prefix, next),
                None => fib.remove(root, prefix).map(|_| ()),
            }
            .map_err(TablesError::from)?;
        }
        for ops in between.chunks(ROUTES_PER_JOB) {
            let ops = ops.to_vec();
            let done =
                at.between_bursts(move |tables| ops.iter().try_for_each(|op| apply(tables, op)));
            done.ok_or(FillError::Gone)??;
        }
        Ok(())
    }

    /// Frees next hops that no route has any more, when there are many.
    fn tidy(&mut self, rib: &Rib) {
        if self.hops.len() > MANY_HOPS.max(2 * self.hops.kept()) {
            self.hops.keep(&used(rib));
        }
    }
}

fn apply(tables: &mut Tables, op: &Op) -> Result<(), TablesError> {
    let vrf: VrfId = vrf_id(op.view)?;
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
