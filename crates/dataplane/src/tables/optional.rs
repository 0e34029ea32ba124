//! The tables of optional stages: each exists while something is configured for its stage.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::{Tables, TablesError};
use crate::id::{LinkId, PortId, VrfId};
use crate::stages::bridge::{BridgePort, BridgeSettings, LearningBridges};
use crate::stages::ecmp::Hash;
use crate::stages::rule::{Decision, Policy, PolicyAction, PolicyRule, Rule};
use crate::stages::source_check::{Check, SourceCheck, SourceLookup, Sources};
use crate::verdict::{DropReason, PuntReason};

impl Tables {
    /// Sets the VRF to look up if a VRF has no route to an address: no entry covers it, or the entry
    /// with the longest prefix is [`NextHopId::NO_ROUTE`](crate::id::NextHopId::NO_ROUTE) (a throw
    /// route). That VRF may have a fallback itself.
    ///
    /// # Errors
    /// See [`TablesError`]; [`TablesError::Loop`] if the VRF would fall back to itself.
    pub fn set_fallback(&mut self, vrf: VrfId, next: Option<VrfId>) -> Result<(), TablesError> {
        let of = |id: VrfId| {
            let record = self.routes.vrfs.get(usize::from(id.0)).ok_or(TablesError::Unknown);
            record.map(|record| (id, *record))
        };
        let (own, other) = (of(vrf)?, next.map(of).transpose()?);
        let all = self.routes.fallbacks.get_or_insert_default();
        if !all.set(own, other) {
            return Err(TablesError::Loop);
        }
        if all.is_empty() {
            self.routes.fallbacks = None;
        }
        self.epochs.changes.note();
        Ok(())
    }

    /// Sets the fields that select a group's member for a flow; both default to [`Hash::L4`].
    pub fn set_multipath(&mut self, v4: Hash, v6: Hash) {
        let multipath = &mut self.routes.multipath;
        (multipath.v4, multipath.v6) = (v4, v6);
        self.epochs.changes.note();
    }

    /// Sets the `fib_multipath_hash_seed` of the hash.
    pub fn set_multipath_seed(&mut self, seed: u32) {
        self.routes.multipath.set_seed(seed);
        self.epochs.changes.note();
    }

    /// Sets a link's policy, which replaces its VRF's FIB; no rules remove it.
    ///
    /// The first rule that matches a packet decides. A rule that selects a VRF only decides if that VRF
    /// or one that it falls back to has a route for the packet. If no rule decides, there is no route.
    ///
    /// # Errors
    /// See [`TablesError`]; the link then keeps its policy.
    pub fn set_policy(&mut self, link: LinkId, rules: Vec<PolicyRule>) -> Result<(), TablesError> {
        self.routes.links.get(link).ok_or(TablesError::Unknown)?;
        let policy = match rules.is_empty() {
            true => None,
            false => {
                let compiled = [self.compile(&rules, true)?, self.compile(&rules, false)?];
                Some(Arc::new(Policy::new(compiled)))
            }
        };
        let all = self.routes.policies.get_or_insert_default();
        all.set(link, policy);
        if all.is_empty() {
            self.routes.policies = None;
        }
        self.epochs.changes.note();
        Ok(())
    }

    /// The rules for a family.
    fn compile(&mut self, rules: &[PolicyRule], is_ipv4: bool) -> Result<Vec<Rule>, TablesError> {
        let mut compiled = Vec::new();
        for rule in rules {
            let Some(prefixes) = rule.prefixes(is_ipv4) else { continue };
            compiled.push(Rule::new(rule, prefixes, self.decision(rule.action, is_ipv4)?));
        }
        Ok(compiled)
    }

    fn decision(&mut self, action: PolicyAction, is_ipv4: bool) -> Result<Decision, TablesError> {
        Ok(Decision::Next(match action {
            PolicyAction::View(vrf) => {
                let vrf = self.routes.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown)?;
                return Ok(Decision::Root(if is_ipv4 { vrf.root4.0 } else { vrf.root6.0 }));
            }
            PolicyAction::Blackhole => self.drop(DropReason::Blackhole)?,
            PolicyAction::Unreachable => self.punt(PuntReason::Unreachable)?,
            PolicyAction::Prohibit => self.punt(PuntReason::Prohibit)?,
            PolicyAction::Punt => self.punt(PuntReason::KernelRule)?,
        }))
    }

    /// Sets the families whose packets take the kernel path if they arrive on a link and would exit
    /// through it again ([`PuntReason::Redirect`]). The kernel forwards them and sends redirects.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_redirects(&mut self, link: LinkId, v4: bool, v6: bool) -> Result<(), TablesError> {
        self.routes.links.get(link).ok_or(TablesError::Unknown)?;
        let all = self.redirects.get_or_insert_default();
        all.set(link, v4, v6);
        if all.is_empty() {
            self.redirects = None;
        }
        self.epochs.changes.note();
        Ok(())
    }

    /// Sets how a port of a bridge forwards frames; none if it does not.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_bridge_port(
        &mut self,
        port: PortId,
        forwards: Option<BridgePort>,
    ) -> Result<(), TablesError> {
        if port.bridge().is_none() {
            self.ports.get(usize::from(port.0)).ok_or(TablesError::Unknown)?;
        }
        match forwards {
            Some(forwards) => self.bridge_ports.insert(port, forwards),
            None => self.bridge_ports.remove(&port),
        };
        self.epochs.changes.note();
        Ok(())
    }

    /// Sets the bridges that learn by themselves, each port in one at most. They have learned nothing.
    ///
    /// # Errors
    /// [`TablesError::Full`]; the tables then keep their bridges.
    pub fn set_bridges(&mut self, settings: &[BridgeSettings]) -> Result<(), TablesError> {
        let mtus: Vec<u16> = self.ports.iter().map(|port| self.link(port.link).mtu).collect();
        let bridges = match settings.is_empty() {
            true => None,
            false => {
                let bridges = LearningBridges::new(&self.fdb, settings, &mtus);
                Some(Arc::new(bridges.ok_or(TablesError::Full)?))
            }
        };
        self.bridges = bridges;
        self.epochs.changes.note();
        Ok(())
    }

    /// Sets a link's check of the sources of IPv4 packets.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_source(&mut self, link: LinkId, check: SourceCheck) -> Result<(), TablesError> {
        self.change_check(link, |known| known.source = check)
    }

    /// Sets how a link looks up the routes to sources.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_source_lookup(
        &mut self,
        link: LinkId,
        lookup: SourceLookup,
    ) -> Result<(), TablesError> {
        self.change_check(link, |known| known.lookup = lookup)
    }

    fn change_check(
        &mut self,
        link: LinkId,
        change: impl FnOnce(&mut Check),
    ) -> Result<(), TablesError> {
        self.routes.links.get(link).ok_or(TablesError::Unknown)?;
        self.change_sources(|all| all.change(link, change));
        Ok(())
    }

    /// Replaces the router's own IPv4 addresses, over all VRFs.
    pub fn set_own_addresses(&mut self, v4: &[Ipv4Addr]) {
        self.change_sources(|all| all.set_own(v4));
    }

    /// Replaces the IPv4 broadcast addresses. The kernel decides about these if the route to a source
    /// is not looked up.
    pub fn set_broadcast_addresses(&mut self, v4: &[Ipv4Addr]) {
        self.change_sources(|all| all.set_broadcast(v4));
    }

    fn change_sources(&mut self, change: impl FnOnce(&mut Sources)) {
        let all = self.sources.get_or_insert_with(|| Box::new(Sources::new()));
        change(all);
        if all.is_idle() {
            self.sources = None;
        }
        self.epochs.changes.note();
    }
}
