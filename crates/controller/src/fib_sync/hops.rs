//! Next hops of routes in tables: which number in the tables represents a route's target.
//!
//! A target that a million routes share changes in one place. A next-hop object has a number of its own,
//! which is redirected ([`Tables::set_object`]). Several next hops are a group, whose members change
//! ([`Tables::set_group`]). Routes are inserted again only if one of these becomes the other.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tollway_dataplane::epoch::{Epochs, Spare};
use tollway_dataplane::id::{LinkId, NextHopId};
use tollway_dataplane::stages::ecmp::{MOST_MEMBERS, Member};
use tollway_dataplane::tables::{ObjectTarget, Tables, TablesError};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use crate::kernel::{Family, Hop, Hops, Ifindex, Nexthop, NexthopId};
use crate::rib::{Rib, RouteAttrs};

/// The links by which packets leave, and which packets take the kernel path instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressLinks {
    /// The router's links by device; packets for any other device take the kernel path.
    pub links: HashMap<Ifindex, EgressLink>,
    /// IPv4 routes with several next hops take the kernel path.
    pub kernel_groups4: bool,
    /// The same for IPv6.
    pub kernel_groups6: bool,
}

/// A link by which packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressLink {
    /// Its number in the tables.
    pub link: LinkId,
    /// IPv4 packets may leave by it; else they take the kernel path.
    pub v4: bool,
    /// The same for IPv6.
    pub v6: bool,
    /// It is a layer-3 device: there, no neighbour needs a host route of its own.
    pub is_layer3: bool,
}

/// The part of a route's target that routes share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HopKey {
    hops: Hops,
    mtu: u32,
    family: Family,
}

impl HopKey {
    pub(super) fn of(attrs: &RouteAttrs) -> Self {
        // IPv6 ignores a route's MTU when it forwards (`ip6_dst_mtu_maybe_forward`), but applies it when the
        // packet leaves (`ip6_skb_dst_mtu` in `ip6_fragment`).
        Self { hops: attrs.route.hops.clone(), mtu: attrs.route.mtu, family: attrs.family }
    }
}

/// The content that the tables should have for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HopPlan {
    /// A next hop that others share.
    Shared(Shared),
    /// A next-hop object with this target, which has a number of its own.
    Object(ObjectTarget),
    /// A group; members with their weights.
    Group(Vec<(Source, u16)>),
}

/// A next hop that all its users share in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shared {
    Local,
    Drop(DropReason),
    Punt(PuntReason),
    Glean(LinkId),
    /// By a link by which only the kernel sends.
    KernelExit(LinkId),
    Neigh(ObjectTarget),
    /// The search continues in the next table.
    NoRoute,
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Shared(Shared),
    /// The target of a next-hop object.
    Object(NexthopId),
}

const KERNEL: Shared = Shared::Punt(PuntReason::KernelRoute);

/// The plan for a key.
pub(super) fn plan(rib: &Rib, egress_links: &EgressLinks, key: &HopKey) -> HopPlan {
    let groups = match key.family {
        Family::V4 => egress_links.kernel_groups4,
        Family::V6 => egress_links.kernel_groups6,
    };
    match &key.hops {
        Hops::None => HopPlan::Shared(KERNEL),
        Hops::One(hop) => HopPlan::Shared(shared(egress_links, hop, key)),
        Hops::Many(_) if groups => HopPlan::Shared(KERNEL),
        Hops::Many(hops) => {
            let usable = hops.iter().filter(|hop| rib.is_usable(hop, key.family));
            let members =
                usable.map(|hop| (Source::Shared(shared(egress_links, hop, key)), hop.weight));
            group(members.collect())
        }
        Hops::Object(id) => match rib.nexthop(*id) {
            Some(Nexthop::Hop(hop)) => match shared(egress_links, hop, key) {
                Shared::Neigh(target) => HopPlan::Object(target),
                // An object whose destinations are on the link has no number to redirect: their host routes
                // depend on the prefix.
                Shared::Punt(reason) => HopPlan::Object(ObjectTarget::Punt(reason)),
                other => HopPlan::Shared(other),
            },
            Some(Nexthop::Blackhole) => HopPlan::Object(ObjectTarget::Drop(DropReason::Blackhole)),
            // The flows of a resilient group's members depend on when the flows began.
            Some(Nexthop::Group { resilient, .. }) if groups || *resilient => {
                HopPlan::Shared(KERNEL)
            }
            Some(Nexthop::Group { members, .. }) => {
                let usable = members.iter().filter(|(id, _)| rib.is_member_usable(*id, key.family));
                group(usable.map(|(id, weight)| (Source::Object(*id), *weight)).collect())
            }
            Some(Nexthop::Other) | None => {
                HopPlan::Object(ObjectTarget::Punt(PuntReason::KernelRoute))
            }
        },
    }
}

fn group(mut members: Vec<(Source, u16)>) -> HopPlan {
    // No flow reaches this entry. It must not lead anywhere else.
    if members.is_empty() {
        members.push((Source::Shared(KERNEL), 1));
    }
    if members.len() > MOST_MEMBERS {
        return HopPlan::Shared(KERNEL);
    }
    HopPlan::Group(members)
}

fn shared(egress_links: &EgressLinks, hop: &Hop, key: &HopKey) -> Shared {
    let egress_link = egress_links.links.get(&hop.ifindex).filter(|_| !hop.encap);
    let Some(egress_link) = egress_link else { return KERNEL };
    let may_send = match key.family {
        Family::V4 => egress_link.v4,
        Family::V6 => egress_link.v6,
    };
    if !may_send {
        return Shared::KernelExit(egress_link.link);
    }
    let mtu = u16::try_from(key.mtu).ok().filter(|mtu| *mtu > 0);
    let is_ipv4 = key.family == Family::V4;
    let of_any = (egress_link.is_layer3 && mtu.is_none()).then(|| unspecified(key.family));
    match hop.via.or(of_any) {
        Some(via) => {
            Shared::Neigh(ObjectTarget::Neigh { link: egress_link.link, via, mtu, is_ipv4 })
        }
        // The host routes of neighbours have the link's MTU.
        None if key.mtu > 0 => KERNEL,
        None => Shared::Glean(egress_link.link),
    }
}

/// In the place of a neighbour's address, any neighbour of a layer-3 device.
const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// The next hop of a key in the tables.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    plan: HopPlan,
    pub(super) id: NextHopId,
}

/// The next hops in the tables, by key.
#[derive(Debug)]
pub(super) struct HopTable {
    entries: HashMap<HopKey, Entry>,
    shared: HashMap<Shared, NextHopId>,
    gleans: HashSet<NextHopId>,
    /// How many keys remained after the last removal of unused ones.
    kept: usize,
    /// Numbers that no route uses any more. A worker may still have one from a route in the middle of a burst.
    spare_objects: Spare<NextHopId>,
    spare_groups: Spare<NextHopId>,
}

/// A change of the tables: a key and its new plan.
pub(super) type WantedHop = (HopKey, HopPlan);

impl HopTable {
    /// Creates an empty table for the readers of `epochs`.
    pub(super) fn new(epochs: &Arc<Epochs>) -> Self {
        Self {
            entries: HashMap::new(),
            shared: HashMap::new(),
            gleans: HashSet::new(),
            kept: 0,
            spare_objects: Spare::new(epochs),
            spare_groups: Spare::new(epochs),
        }
    }

    pub(super) fn id(&self, key: &HopKey) -> Option<NextHopId> {
        self.entries.get(key).map(|entry| entry.id)
    }

    pub(super) fn shared_id(&self, shared: Shared) -> Option<NextHopId> {
        self.shared.get(&shared).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many keys remained after the last removal of unused ones.
    pub(super) const fn kept(&self) -> usize {
        self.kept
    }

    /// Says whether destinations of a next hop are on a link themselves.
    pub(super) fn is_glean(&self, id: NextHopId) -> bool {
        self.gleans.contains(&id)
    }

    /// Keys whose plan differs from what the tables have, with the new plans.
    pub(super) fn outdated(&self, rib: &Rib, egress_links: &EgressLinks) -> Vec<WantedHop> {
        let plans =
            self.entries.iter().map(|(key, entry)| (key, entry, plan(rib, egress_links, key)));
        let mut wanted = Vec::new();
        for (key, ..) in plans.filter(|(_, entry, plan)| entry.plan != *plan) {
            self.want(rib, egress_links, key.clone(), &mut wanted);
        }
        wanted
    }

    /// Adds a key to `wanted` and, before it, the objects of its group that are outdated.
    pub(super) fn want(
        &self,
        rib: &Rib,
        egress_links: &EgressLinks,
        key: HopKey,
        wanted: &mut Vec<WantedHop>,
    ) {
        let own = plan(rib, egress_links, &key);
        if let HopPlan::Group(members) = &own {
            for (source, _) in members {
                let Source::Object(id) = source else { continue };
                let member = HopKey { hops: Hops::Object(*id), ..key.clone() };
                let plan = plan(rib, egress_links, &member);
                if self.entries.get(&member).is_none_or(|entry| entry.plan != plan) {
                    wanted.push((member, plan));
                }
            }
        }
        wanted.push((key, own));
    }

    /// Makes the wanted next hops; returns the keys whose number has changed.
    pub(super) fn make(
        &mut self,
        tables: &mut Tables,
        wanted: Vec<WantedHop>,
    ) -> Result<HashSet<HopKey>, TablesError> {
        let mut moved = HashSet::new();
        for (key, plan) in wanted {
            let before = self.id(&key);
            let id = self.make_one(tables, &key, plan)?;
            if before.is_some_and(|before| before != id) {
                self.renew_groups(tables, &key)?;
                moved.insert(key);
            }
        }
        Ok(moved)
    }

    /// Sets the new number of an object in the groups that have it.
    fn renew_groups(&mut self, tables: &mut Tables, moved: &HopKey) -> Result<(), TablesError> {
        let Hops::Object(object) = moved.hops else { return Ok(()) };
        let has = |key: &HopKey, entry: &Entry| match &entry.plan {
            HopPlan::Group(members) => {
                (key.mtu, key.family) == (moved.mtu, moved.family)
                    && members.iter().any(|(source, _)| *source == Source::Object(object))
            }
            _ => false,
        };
        let groups = self.entries.iter().filter(|(key, entry)| has(key, entry));
        let groups: Vec<_> = groups.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        for (key, entry) in groups {
            if let HopPlan::Group(members) = &entry.plan {
                let members = self.members(tables, &key, members)?;
                tables.set_group(entry.id, &members)?;
            }
        }
        Ok(())
    }

    fn make_one(
        &mut self,
        tables: &mut Tables,
        key: &HopKey,
        plan: HopPlan,
    ) -> Result<NextHopId, TablesError> {
        let before = self.entries.get(key).cloned();
        let id = match (&plan, before) {
            (HopPlan::Shared(shared), _) => self.make_shared(tables, *shared)?,
            (HopPlan::Object(target), Some(Entry { plan: HopPlan::Object(_), id })) => {
                tables.set_object(id, *target)?;
                id
            }
            (HopPlan::Object(target), _) => match self.spare_objects.pop() {
                Some(id) => {
                    tables.set_object(id, *target)?;
                    id
                }
                None => tables.add_object(*target)?,
            },
            (HopPlan::Group(members), before) => {
                let members = self.members(tables, key, members)?;
                let own = before.filter(|before| matches!(before.plan, HopPlan::Group(_)));
                match own.map(|own| own.id).or_else(|| self.spare_groups.pop()) {
                    Some(id) => {
                        tables.set_group(id, &members)?;
                        id
                    }
                    None => tables.add_group(&members)?,
                }
            }
        };
        self.entries.insert(key.clone(), Entry { plan, id });
        Ok(id)
    }

    fn members(
        &mut self,
        tables: &mut Tables,
        key: &HopKey,
        members: &[(Source, u16)],
    ) -> Result<Vec<Member>, TablesError> {
        let mut made: Vec<Member> = Vec::with_capacity(members.len());
        for (source, weight) in members {
            let next = match source {
                Source::Shared(shared) => self.make_shared(tables, *shared)?,
                Source::Object(id) => self.member_id(tables, key, *id)?,
            };
            // In the group's order, with duplicates, as the kernel goes through them.
            made.push(Member { next, weight: *weight });
        }
        Ok(made)
    }

    /// The number of an object in a group; the caller has made it before the group.
    fn member_id(
        &mut self,
        tables: &mut Tables,
        key: &HopKey,
        id: NexthopId,
    ) -> Result<NextHopId, TablesError> {
        let own = HopKey { hops: Hops::Object(id), ..key.clone() };
        match self.id(&own) {
            Some(id) => Ok(id),
            None => self.make_shared(tables, KERNEL),
        }
    }

    pub(super) fn make_shared(
        &mut self,
        tables: &mut Tables,
        shared: Shared,
    ) -> Result<NextHopId, TablesError> {
        if let Some(id) = self.shared_id(shared) {
            return Ok(id);
        }
        let id = match shared {
            Shared::Local => tables.local()?,
            Shared::Drop(reason) => tables.drop(reason)?,
            Shared::Punt(reason) => tables.punt(reason)?,
            Shared::Glean(link) => {
                let id = tables.glean(link)?;
                self.gleans.insert(id);
                id
            }
            Shared::KernelExit(link) => tables.kernel_exit(link)?,
            Shared::NoRoute => NextHopId::NO_ROUTE,
            Shared::Neigh(ObjectTarget::Neigh { link, via, mtu, is_ipv4 }) => match (via, mtu) {
                (IpAddr::V6(via), mtu) if is_ipv4 => tables.neigh4_by6(link, via, mtu)?,
                (via, Some(mtu)) => tables.neigh_mtu(link, via, mtu)?,
                (via, None) => tables.neigh(link, via)?,
            },
            Shared::Neigh(ObjectTarget::Drop(reason)) => tables.drop(reason)?,
            Shared::Neigh(ObjectTarget::Punt(reason)) => tables.punt(reason)?,
        };
        self.shared.insert(shared, id);
        Ok(id)
    }

    /// Forgets unused keys. Others get their numbers when every worker has passed a burst boundary.
    pub(super) fn keep(&mut self, used: &HashSet<HopKey>) {
        let (objects, groups) = (&mut self.spare_objects, &mut self.spare_groups);
        self.entries.retain(|key, entry| {
            let kept = used.contains(key);
            match (kept, &entry.plan) {
                (false, HopPlan::Object(_)) => objects.push(entry.id),
                (false, HopPlan::Group(_)) => groups.push(entry.id),
                _ => {}
            }
            kept
        });
        self.kept = self.entries.len();
    }
}

/// The keys of all routes' attributes, and of the objects in their groups.
pub(super) fn used(rib: &Rib) -> HashSet<HopKey> {
    let mut used = HashSet::new();
    rib.each_attrs(|attrs| {
        let key = HopKey::of(attrs);
        if let Hops::Object(id) = key.hops
            && let Some(Nexthop::Group { members, .. }) = rib.nexthop(id)
        {
            for (member, _) in members {
                used.insert(HopKey { hops: Hops::Object(*member), ..key.clone() });
            }
        }
        used.insert(key);
    });
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(object: NexthopId) -> HopKey {
        HopKey { hops: Hops::Object(object), mtu: 0, family: Family::V4 }
    }

    /// A worker in the middle of a burst may have found the number in a route that has gone since.
    #[test]
    fn a_number_gets_another_target_when_every_worker_has_passed() {
        let mut tables = Tables::new();
        let mut hops = HopTable::new(&tables.epochs);
        let worker = tables.epochs.join();
        let plans = [
            HopPlan::Object(ObjectTarget::Drop(DropReason::Blackhole)),
            HopPlan::Group(vec![(Source::Shared(KERNEL), 1)]),
        ];
        for plan in plans {
            let mut make = |hops: &mut HopTable, object| {
                hops.make(&mut tables, vec![(key(object), plan.clone())]).unwrap();
                hops.id(&key(object)).unwrap()
            };
            let first = make(&mut hops, 1);
            hops.keep(&HashSet::new());
            assert_ne!(make(&mut hops, 2), first);
            worker.pass();
            assert_eq!(make(&mut hops, 3), first);
        }
    }
}
