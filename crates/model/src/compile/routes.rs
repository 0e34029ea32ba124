//! Fills the FIB. Addresses and routes give candidates; the best one for each prefix is inserted.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::ecmp::Member;
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::{CompileError, at, link_id, vrf_id};
use crate::{Link, LinkIndex, Model, NextHop, Route, RouteTarget};

/// The metric of a connected route, as in the kernel.
pub(super) const fn connected_metric(net: &IpNet) -> u32 {
    match net {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => 256,
    }
}

/// Which route to a prefix wins: the lowest rank. In a tie, the earlier candidate wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Local,
    /// By metric. Connected routes are pushed before configured ones.
    Main(u32),
}

struct Candidate {
    vrf: VrfId,
    prefix: RoutePrefix,
    rank: Rank,
    next: NextHopId,
}

impl Candidate {
    /// Sorts shorter prefixes first, so that an insertion never has to preserve the entries of a
    /// longer prefix.
    fn order(&self) -> (VrfId, u8, RoutePrefix, Rank) {
        let len = match self.prefix {
            RoutePrefix::V4(prefix) | RoutePrefix::V6(prefix) => prefix.len(),
        };
        (self.vrf, len, self.prefix, self.rank)
    }
}

pub(super) struct Compiler<'a> {
    model: &'a Model,
    tables: &'a mut Tables,
    /// Next hops of the named groups, by the group's index.
    groups: Vec<NextHopId>,
    /// Routes with the same set of next hops share a group.
    sets: HashMap<Vec<(NextHopId, u16)>, NextHopId>,
    candidates: Vec<Candidate>,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(model: &'a Model, tables: &'a mut Tables) -> Self {
        let (groups, sets, candidates) = (Vec::new(), HashMap::new(), Vec::new());
        Self { model, tables, groups, sets, candidates }
    }

    pub(super) fn run(mut self) -> Result<(), CompileError> {
        let model = self.model;
        for group in &model.groups {
            let next = self.spread(&group.members);
            self.groups.push(next.map_err(at(|| format!("the group {}", group.name)))?);
        }
        for (index, link) in model.links.iter().enumerate() {
            let done = self.link(LinkIndex(index), link);
            done.map_err(at(|| format!("the link {}", link.name)))?;
        }
        for route in &model.routes {
            self.route(route).map_err(at(|| format!("the route to {}", route.dst)))?;
        }
        self.insert()?;
        self.neighs()
    }

    fn link(&mut self, index: LinkIndex, link: &Link) -> Result<(), TablesError> {
        let vrf = vrf_id(link.vrf)?;
        for net in &link.addresses {
            let local = self.tables.local()?;
            self.push(vrf, RoutePrefix::host(net.addr()), Rank::Local, local);
            if let Some(broadcast) = broadcast(net) {
                self.push(vrf, RoutePrefix::host(broadcast.into()), Rank::Local, local);
            }
            let glean = self.tables.glean(link_id(index)?)?;
            let prefix = RoutePrefix::new(net.addr(), net.prefix_len());
            self.push(vrf, prefix, Rank::Main(connected_metric(net)), glean);
        }
        Ok(())
    }

    fn route(&mut self, route: &Route) -> Result<(), TablesError> {
        let next = match &route.target {
            RouteTarget::NextHops(hops) => self.spread(hops)?,
            RouteTarget::Group(group) => *self.groups.get(group.0).ok_or(TablesError::Unknown)?,
            RouteTarget::Blackhole => self.tables.drop(DropReason::Blackhole)?,
            RouteTarget::Unreachable => self.tables.punt(PuntReason::Unreachable)?,
            RouteTarget::Prohibit => self.tables.punt(PuntReason::Prohibit)?,
        };
        let prefix = RoutePrefix::new(route.dst.addr(), route.dst.prefix_len());
        self.push(vrf_id(route.vrf)?, prefix, Rank::Main(route.metric), next);
        Ok(())
    }

    fn push(&mut self, vrf: VrfId, prefix: RoutePrefix, rank: Rank, next: NextHopId) {
        if !is_never_forwarded(prefix) {
            self.candidates.push(Candidate { vrf, prefix, rank, next });
        }
    }

    /// The next hop for a list: itself if it is the only one, otherwise a group.
    fn spread(&mut self, hops: &[NextHop]) -> Result<NextHopId, TablesError> {
        let mut members = Vec::with_capacity(hops.len());
        for hop in hops {
            let link = link_id(hop.link)?;
            let next = match hop.via {
                Some(via) => self.tables.neigh(link, via)?,
                None => self.tables.glean(link)?,
            };
            members.push((next, hop.weight));
        }
        if let [(only, _)] = members[..] {
            return Ok(only);
        }
        if let Some(group) = self.sets.get(&members) {
            return Ok(*group);
        }
        let list: Vec<_> = members.iter().map(|&(next, weight)| Member { next, weight }).collect();
        let group = self.tables.add_group(&list)?;
        self.sets.insert(members, group);
        Ok(group)
    }

    fn insert(&mut self) -> Result<(), CompileError> {
        let mut candidates = std::mem::take(&mut self.candidates);
        // The sort is stable, so equal candidates stay in the model's order.
        candidates.sort_by_key(Candidate::order);
        candidates.dedup_by_key(|candidate| (candidate.vrf, candidate.prefix));
        for Candidate { vrf, prefix, next, .. } in candidates {
            let what =
                || format!("a route of the VRF {}", self.model.vrfs[usize::from(vrf.0)].name);
            self.tables.insert(vrf, prefix, next).map_err(at(what))?;
        }
        Ok(())
    }

    /// Adds static neighbours. A neighbour in a connected prefix gets a route of its own. The
    /// kernel would find it in the neighbour table, behind the connected route.
    fn neighs(&mut self) -> Result<(), CompileError> {
        for neigh in &self.model.neighs {
            let done = self.neigh(neigh.link, neigh.address, neigh.mac.0);
            done.map_err(at(|| format!("the neighbour {}", neigh.address)))?;
        }
        Ok(())
    }

    fn neigh(&mut self, link: LinkIndex, address: IpAddr, mac: [u8; 6]) -> Result<(), TablesError> {
        let id = link_id(link)?;
        // This reserves the neighbour's number for good.
        self.tables.neigh(id, address)?;
        self.tables.publish_neigh(id, address, mac)?;
        Ok(())
    }
}

/// The broadcast address of a subnet, if it has one (RFC 3021: not for /31).
pub(super) fn broadcast(net: &IpNet) -> Option<Ipv4Addr> {
    match net {
        IpNet::V4(net) if net.prefix_len() <= 30 => Some(net.broadcast()),
        _ => None,
    }
}

/// Says whether a prefix lies within a standing route (see [`Tables::add_vrf`]). The kernel checks
/// these destinations before it looks at routes, and so does the router.
#[must_use]
pub fn is_never_forwarded(prefix: RoutePrefix) -> bool {
    match prefix {
        RoutePrefix::V4(prefix) => {
            let (top, len) = ((prefix.bits() >> 120) as u8, prefix.len());
            (len >= 8 && top == 127)
                || (len >= 4 && top & 0xf0 == 0xe0)
                || (len == 32 && matches!(prefix.bits() >> 96, 0 | 0xffff_ffff))
        }
        RoutePrefix::V6(prefix) => {
            let (top, len) = ((prefix.bits() >> 112) as u16, prefix.len());
            (len == 128 && prefix.bits() <= 1)
                || (len >= 10 && top & 0xffc0 == 0xfe80)
                || (len >= 8 && top & 0xff00 == 0xff00)
        }
    }
}
