//! Lookups of single packets, as the stages do them for bursts: policy, FIB, and where it falls back to.

use std::net::IpAddr;

use super::Tables;
use crate::id::{LinkId, NextHopId, VrfId};
use crate::stages::route::Root;
use crate::stages::rule::Decision;

/// What a route is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// 4 or 6.
    pub(crate) version: u8,
    /// Whose policy decides, where it has one.
    pub(crate) link: LinkId,
    /// The FIB that is asked otherwise.
    pub(crate) root: u32,
    /// Source, bits at the upper end.
    pub(crate) src: u128,
    /// Destination, bits at the upper end.
    pub(crate) dst: u128,
    /// The packet's mark.
    pub(crate) mark: u32,
}

impl Tables {
    /// The next hop or group for an address, by a VRF's FIB and then by those that it falls back to.
    #[must_use]
    pub fn resolve(&self, vrf: VrfId, address: IpAddr) -> NextHopId {
        let Some(record) = self.vrfs.get(usize::from(vrf.0)) else { return NextHopId::NO_ROUTE };
        match address {
            IpAddr::V4(v4) => self.find_from(4, record.root4.0, u128::from(v4.to_bits()) << 96),
            IpAddr::V6(v6) => self.find_from(6, record.root6.0, v6.to_bits()),
        }
    }

    /// The next hop or group that a packet gets.
    pub(crate) fn find(&self, question: &Question) -> NextHopId {
        let policy = self.policies.as_ref().and_then(|policies| policies.of(question.link));
        // What arrives on a link of the kernel's is its own, whatever a policy says.
        let is_kernels = || self.kernel_roots.has(question.version, question.root);
        let Some(policy) = policy.filter(|_| !is_kernels()) else {
            return self.find_from(question.version, question.root, question.dst);
        };
        for rule in policy.rules(question.version) {
            if !rule.matches(question) {
                continue;
            }
            let next = match rule.decision {
                Decision::Root(root) => self.find_from(question.version, root, question.dst),
                Decision::Next(next) => return next,
            };
            if next != NextHopId::NO_ROUTE {
                return next;
            }
        }
        NextHopId::NO_ROUTE
    }

    /// The next hop or group that a FIB has, or one of those that it falls back to.
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
