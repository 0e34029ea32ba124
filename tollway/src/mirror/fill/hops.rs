//! Next hops of routes in tables: which number stands for what a route leads to.
//!
//! What a million routes share changes in one place: a next-hop object has a number of its own that is
//! led elsewhere ([`Tables::set_lead`]), several next hops are a group whose members change
//! ([`Tables::set_group`]). Only where one becomes the other do routes have to be put in anew.

use std::collections::{HashMap, HashSet};

use tollway_dataplane::id::{LinkId, NextHopId};
use tollway_dataplane::stages::ecmp::{MOST_MEMBERS, Member};
use tollway_dataplane::tables::{Lead, Tables, TablesError};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use crate::mirror::kernel::{Family, Hop, Hops, Ifindex, Nexthop, NexthopId};
use crate::mirror::rib::{Body, Rib};

/// Which links packets leave by, and what of it is the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// The router's links by device; what leaves by another device is the kernel's.
    pub links: HashMap<Ifindex, Way>,
    /// Routes with several next hops are the kernel's, IPv4.
    pub kernel_groups4: bool,
    /// The same for IPv6.
    pub kernel_groups6: bool,
}

/// A link that packets leave by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its number in the tables.
    pub link: LinkId,
    /// IPv4 packets may; else they are the kernel's.
    pub v4: bool,
    /// The same for IPv6.
    pub v6: bool,
}

/// What a route leads to, as far as routes share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HopKey {
    hops: Hops,
    mtu: u32,
    family: Family,
}

impl HopKey {
    pub(super) fn of(body: &Body) -> Self {
        // IPv6 does not heed a route's MTU when it forwards (`ip6_dst_mtu_maybe_forward`), but does when the
        // packet leaves (`ip6_skb_dst_mtu` in `ip6_fragment`).
        Self { hops: body.route.hops.clone(), mtu: body.route.mtu, family: body.family }
    }
}

/// What tables are to have for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// What the tables have for all.
    Shared(Shared),
    /// A number of its own.
    Lead(Lead),
    /// A group; members with their weights.
    Group(Vec<(Source, u16)>),
}

/// A next hop that the tables have once for all who need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shared {
    Local,
    Drop(DropReason),
    Punt(PuntReason),
    Glean(LinkId),
    Neigh(Lead),
    /// The search goes on in the next table.
    NoRoute,
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Shared(Shared),
    /// What an object leads to.
    Object(NexthopId),
}

const KERNEL: Shared = Shared::Punt(PuntReason::KernelRoute);

/// Says what tables are to have for a key.
pub(super) fn plan(rib: &Rib, ways: &Ways, key: &HopKey) -> Plan {
    let groups = match key.family {
        Family::V4 => ways.kernel_groups4,
        Family::V6 => ways.kernel_groups6,
    };
    match &key.hops {
        Hops::None => Plan::Shared(KERNEL),
        Hops::One(hop) => Plan::Shared(shared(ways, hop, key)),
        Hops::Many(_) if groups => Plan::Shared(KERNEL),
        Hops::Many(hops) => {
            let usable = hops.iter().filter(|hop| rib.is_usable(hop, key.family));
            let members = usable.map(|hop| (Source::Shared(shared(ways, hop, key)), hop.weight));
            group(members.collect())
        }
        Hops::Object(id) => match rib.nexthop(*id) {
            Some(Nexthop::Hop(hop)) => match shared(ways, hop, key) {
                Shared::Neigh(lead) => Plan::Lead(lead),
                // An object that leads to the destinations themselves has no number to lead elsewhere:
                // their host routes hang on the prefix.
                Shared::Punt(reason) => Plan::Lead(Lead::Punt(reason)),
                other => Plan::Shared(other),
            },
            Some(Nexthop::Blackhole) => Plan::Lead(Lead::Drop(DropReason::Blackhole)),
            // Which flows a resilient group's members have, hangs on when they came.
            Some(Nexthop::Group { resilient, .. }) if groups || *resilient => Plan::Shared(KERNEL),
            Some(Nexthop::Group { members, .. }) => {
                let usable = members.iter().filter(|(id, _)| rib.is_member_usable(*id, key.family));
                group(usable.map(|(id, weight)| (Source::Object(*id), *weight)).collect())
            }
            Some(Nexthop::Other) | None => Plan::Lead(Lead::Punt(PuntReason::KernelRoute)),
        },
    }
}

fn group(mut members: Vec<(Source, u16)>) -> Plan {
    // No flow gets there; what is there must lead nowhere else.
    if members.is_empty() {
        members.push((Source::Shared(KERNEL), 1));
    }
    if members.len() > MOST_MEMBERS {
        return Plan::Shared(KERNEL);
    }
    Plan::Group(members)
}

fn shared(ways: &Ways, hop: &Hop, key: &HopKey) -> Shared {
    let way = ways.links.get(&hop.ifindex).filter(|way| match key.family {
        Family::V4 => way.v4,
        Family::V6 => way.v6,
    });
    let Some(way) = way.filter(|_| !hop.encap) else { return KERNEL };
    let mtu = u16::try_from(key.mtu).ok().filter(|mtu| *mtu > 0);
    match hop.via {
        Some(via) => Shared::Neigh(Lead::Neigh {
            link: way.link,
            via,
            mtu,
            is_ipv4: key.family == Family::V4,
        }),
        // Each neighbour's own route has the link's MTU.
        None if key.mtu > 0 => KERNEL,
        None => Shared::Glean(way.link),
    }
}

/// What stands in the tables for a key.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    plan: Plan,
    pub(super) id: NextHopId,
}

/// What stands in the tables for each key.
#[derive(Debug, Default)]
pub(super) struct HopTable {
    entries: HashMap<HopKey, Entry>,
    shared: HashMap<Shared, NextHopId>,
    gleans: HashSet<NextHopId>,
    /// How many keys were left when unused ones went.
    kept: usize,
    /// Numbers that no route has any more.
    spare_leads: Vec<NextHopId>,
    spare_groups: Vec<NextHopId>,
}

/// Something for whoever has the tables to do: a key and what it is to be now.
pub(super) type Wanted = (HopKey, Plan);

impl HopTable {
    pub(super) fn id(&self, key: &HopKey) -> Option<NextHopId> {
        self.entries.get(key).map(|entry| entry.id)
    }

    pub(super) fn shared_id(&self, shared: Shared) -> Option<NextHopId> {
        self.shared.get(&shared).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many keys were left when unused ones went.
    pub(super) const fn kept(&self) -> usize {
        self.kept
    }

    /// Says if destinations of a next hop are on a link themselves.
    pub(super) fn is_glean(&self, id: NextHopId) -> bool {
        self.gleans.contains(&id)
    }

    /// Keys whose plan is another now than what stands in the tables.
    pub(super) fn outdated(&self, rib: &Rib, ways: &Ways) -> Vec<Wanted> {
        let plans = self.entries.iter().map(|(key, entry)| (key, entry, plan(rib, ways, key)));
        let mut wanted = Vec::new();
        for (key, ..) in plans.filter(|(_, entry, plan)| entry.plan != *plan) {
            self.want(rib, ways, key.clone(), &mut wanted);
        }
        wanted
    }

    /// Wants a key and, before it, the objects of its group that are not as they should be.
    pub(super) fn want(&self, rib: &Rib, ways: &Ways, key: HopKey, wanted: &mut Vec<Wanted>) {
        let own = plan(rib, ways, &key);
        if let Plan::Group(members) = &own {
            for (source, _) in members {
                let Source::Object(id) = source else { continue };
                let member = HopKey { hops: Hops::Object(*id), ..key.clone() };
                let plan = plan(rib, ways, &member);
                if self.entries.get(&member).is_none_or(|entry| entry.plan != plan) {
                    wanted.push((member, plan));
                }
            }
        }
        wanted.push((key, own));
    }

    /// Makes what is wanted; gives the keys that have another number than before.
    pub(super) fn make(
        &mut self,
        tables: &mut Tables,
        wanted: Vec<Wanted>,
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

    /// Gives groups the number that an object of theirs has now.
    fn renew_groups(&mut self, tables: &mut Tables, moved: &HopKey) -> Result<(), TablesError> {
        let Hops::Object(object) = moved.hops else { return Ok(()) };
        let has = |key: &HopKey, entry: &Entry| match &entry.plan {
            Plan::Group(members) => {
                (key.mtu, key.family) == (moved.mtu, moved.family)
                    && members.iter().any(|(source, _)| *source == Source::Object(object))
            }
            _ => false,
        };
        let groups = self.entries.iter().filter(|(key, entry)| has(key, entry));
        let groups: Vec<_> = groups.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        for (key, entry) in groups {
            if let Plan::Group(members) = &entry.plan {
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
        plan: Plan,
    ) -> Result<NextHopId, TablesError> {
        let before = self.entries.get(key).cloned();
        let id = match (&plan, before) {
            (Plan::Shared(shared), _) => self.make_shared(tables, *shared)?,
            (Plan::Lead(lead), Some(Entry { plan: Plan::Lead(_), id })) => {
                tables.set_lead(id, *lead)?;
                id
            }
            (Plan::Lead(lead), _) => match self.spare_leads.pop() {
                Some(id) => {
                    tables.set_lead(id, *lead)?;
                    id
                }
                None => tables.add_lead(*lead)?,
            },
            (Plan::Group(members), before) => {
                let members = self.members(tables, key, members)?;
                let own = before.filter(|before| matches!(before.plan, Plan::Group(_)));
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
            // In their order, even if one comes twice: so the kernel goes through them.
            made.push(Member { next, weight: *weight });
        }
        Ok(made)
    }

    /// The number of an object that is in a group; it was wanted before the group.
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
            Shared::NoRoute => NextHopId::NO_ROUTE,
            Shared::Neigh(Lead::Neigh { link, via, mtu, is_ipv4 }) => match (via, mtu) {
                (std::net::IpAddr::V6(via), mtu) if is_ipv4 => tables.neigh4_by6(link, via, mtu)?,
                (via, Some(mtu)) => tables.neigh_mtu(link, via, mtu)?,
                (via, None) => tables.neigh(link, via)?,
            },
            Shared::Neigh(Lead::Drop(reason)) => tables.drop(reason)?,
            Shared::Neigh(Lead::Punt(reason)) => tables.punt(reason)?,
        };
        self.shared.insert(shared, id);
        Ok(id)
    }

    /// Forgets keys that are not used; their numbers serve others, from the next change on that is
    /// made between two bursts.
    pub(super) fn keep(&mut self, used: &HashSet<HopKey>) {
        let (leads, groups) = (&mut self.spare_leads, &mut self.spare_groups);
        self.entries.retain(|key, entry| {
            let kept = used.contains(key);
            match (kept, &entry.plan) {
                (false, Plan::Lead(_)) => leads.push(entry.id),
                (false, Plan::Group(_)) => groups.push(entry.id),
                _ => {}
            }
            kept
        });
        self.kept = self.entries.len();
    }
}

/// The keys of all bodies, and of the objects in their groups.
pub(super) fn used(rib: &Rib) -> HashSet<HopKey> {
    let mut used = HashSet::new();
    rib.each_body(|body| {
        let key = HopKey::of(body);
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
