//! The tables that decide a packet's route, and lookups of single packets in them: policy, FIB, fallback
//! FIBs, group.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Decision, Policies, RouteQuery};
use crate::epoch::Epochs;
use crate::fib::{Fib, Root};
use crate::id::{NextHopId, VrfId};
use crate::links::{Links, VrfRecord};
use crate::memory::Memory;
use crate::next_hops::NextHops;
use crate::stages::ecmp::{self, Groups, Multipath};
use crate::stages::route::Fallbacks;

/// The tables that decide a packet's route.
#[derive(Clone, Debug)]
pub struct RouteTables {
    /// Links by [`LinkId`](crate::id::LinkId).
    pub links: Links,
    /// VRFs by [`VrfId`].
    pub vrfs: Vec<VrfRecord>,
    /// IPv4 FIBs of all VRFs.
    pub fib4: Arc<Fib>,
    /// IPv6 FIBs of all VRFs.
    pub fib6: Arc<Fib>,
    /// Next hops by [`NextHopId`].
    pub next_hops: Arc<NextHops>,
    /// Next-hop groups by [`NextHopId`] without its group bit.
    pub groups: Arc<Groups>,
    /// The FIBs that others fall back to if they have no route, if any.
    pub(crate) fallbacks: Option<Box<Fallbacks>>,
    /// Policies of links, if any.
    pub(crate) policies: Option<Box<Policies>>,
    /// The fields that select a group's member for a flow.
    pub(crate) multipath: Multipath,
    pub(crate) kernel_roots: KernelRoots,
}

/// FIBs that send every address to the kernel path, IPv4 and IPv6; created when needed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelRoots(pub(crate) [Option<Root>; 2]);

impl KernelRoots {
    /// Says whether `root` is the FIB of its family.
    pub(crate) fn has(self, version: u8, root: u32) -> bool {
        self.0[usize::from(version != 4)] == Some(Root(root))
    }
}

impl RouteTables {
    /// Creates empty tables with this memory.
    pub(crate) fn new(epochs: &Arc<Epochs>, memory: &Memory) -> Self {
        Self {
            links: Links::default(),
            vrfs: Vec::new(),
            fib4: Arc::new(Fib::of_version(4, epochs, memory)),
            fib6: Arc::new(Fib::of_version(6, epochs, memory)),
            next_hops: Arc::new(NextHops::with_memory(Arc::clone(epochs), memory)),
            groups: Arc::new(Groups::with_memory(Arc::clone(epochs), memory)),
            fallbacks: None,
            policies: None,
            multipath: Multipath::default(),
            kernel_roots: KernelRoots::default(),
        }
    }

    /// The next hop or group for an address, from a VRF's FIB or else from those that it falls back to.
    pub(crate) fn resolve(&self, vrf: VrfId, address: IpAddr) -> NextHopId {
        let Some(record) = self.vrfs.get(usize::from(vrf.0)) else { return NextHopId::NO_ROUTE };
        match address {
            IpAddr::V4(v4) => self.find_from(4, record.root4.0, u128::from(v4.to_bits()) << 96),
            IpAddr::V6(v6) => self.find_from(6, record.root6.0, v6.to_bits()),
        }
    }

    /// The next hop or group for a packet.
    pub(crate) fn find(&self, query: &RouteQuery) -> NextHopId {
        let policy = self.policies.as_ref().and_then(|policies| policies.of(query.link));
        // Packets that arrive on a kernel-path link take the kernel path, whatever a policy decides.
        let is_kernels = || self.kernel_roots.has(query.version, query.root);
        let Some(policy) = policy.filter(|_| !is_kernels()) else {
            return self.find_from(query.version, query.root, query.dst);
        };
        for rule in policy.rules(query.version) {
            if !rule.matches(query) {
                continue;
            }
            let next = match rule.decision {
                Decision::Root(root) => self.find_from(query.version, root, query.dst),
                Decision::Next(next) => return next,
            };
            if next != NextHopId::NO_ROUTE {
                return next;
            }
        }
        NextHopId::NO_ROUTE
    }

    /// The next hop or group from a FIB, or else from those that it falls back to.
    pub(crate) fn find_from(&self, version: u8, mut root: u32, address: u128) -> NextHopId {
        let fib = if version == 4 { &self.fib4 } else { &self.fib6 };
        loop {
            let next = fib.lookup(Root(root), address);
            let fallback = self.fallbacks.as_ref().and_then(|all| all.next_root(version, root));
            match fallback {
                Some(other) if next == NextHopId::NO_ROUTE => root = other,
                _ => return next,
            }
        }
    }

    /// The member of a next-hop group for a packet; a next hop stays itself.
    pub(crate) fn member(&self, id: NextHopId, packet: &[u8]) -> NextHopId {
        match id.is_group() {
            true => ecmp::member(&self.groups, &self.multipath, id, packet),
            false => id,
        }
    }
}
