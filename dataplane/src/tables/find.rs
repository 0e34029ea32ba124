//! Lookups of single packets, like those of the stages for bursts: policy, FIB, and fallback FIBs.

use std::net::IpAddr;

use super::Tables;
use crate::fib::Root;
use crate::id::{LinkId, NextHopId, VrfId};
use crate::stages::rule::Decision;

/// The query for a packet's route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteQuery {
    /// 4 or 6.
    pub(crate) version: u8,
    /// The link whose policy decides, if it has one.
    pub(crate) link: LinkId,
    /// The FIB to look up if there is no policy.
    pub(crate) root: u32,
    /// Source, left-aligned.
    pub(crate) src: u128,
    /// Destination, left-aligned.
    pub(crate) dst: u128,
    /// The packet's mark.
    pub(crate) mark: u32,
}

impl Tables {
    /// The next hop or group for an address, from a VRF's FIB or else from those that it falls back to.
    #[must_use]
    pub fn resolve(&self, vrf: VrfId, address: IpAddr) -> NextHopId {
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
            let fallback = self.fallbacks.as_ref().and_then(|all| all.after(version, root));
            match fallback {
                Some(other) if next == NextHopId::NO_ROUTE => root = other,
                _ => return next,
            }
        }
    }
}
