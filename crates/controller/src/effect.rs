//! Applies events to the known state of the kernel.

use super::event::{Event, Presence};
use super::kernel::{Address, BridgePort, Ifindex, Kernel, Netdev, Rule};

/// The effect of an event on the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// No effect: the change was already known.
    Nothing,
    /// Routes, or next hops that routes use.
    Routes,
    /// Devices, ports of bridges, addresses or rules, which the plan depends on.
    Topology,
}

impl Kernel {
    /// Applies an event, except for routes, which have their own store.
    pub fn apply(&mut self, event: &Event) -> Effect {
        let (changed, effect) = match event {
            Event::Whole(whole) => (self.replace(whole), Effect::Topology),
            Event::Link(index, netdev) => (self.link(*index, netdev.as_deref()), Effect::Topology),
            Event::BridgePort(index, port) => (self.bridge_port(*index, *port), Effect::Topology),
            Event::Address(address, presence) => {
                (self.address(address, *presence), Effect::Topology)
            }
            Event::Rule(rule, Presence::Here) => {
                self.insert_rule(rule.clone());
                (true, Effect::Topology)
            }
            Event::Rule(rule, Presence::Gone) => (self.remove_rule(rule), Effect::Topology),
            Event::Nexthop(id, Some(nexthop)) => {
                let before = self.nexthops.insert(*id, nexthop.clone());
                (before.as_ref() != Some(nexthop), Effect::Routes)
            }
            Event::Nexthop(id, None) => (self.nexthops.remove(id).is_some(), Effect::Routes),
            Event::Route(..) | Event::Listed { .. } => (true, Effect::Routes),
            Event::Listing { .. }
            | Event::Complete
            | Event::Lost
            | Event::Sysctl(..)
            | Event::Tc(_) => (false, Effect::Nothing),
        };
        if changed { effect } else { Effect::Nothing }
    }

    fn replace(&mut self, whole: &Self) -> bool {
        let changed = *self != *whole;
        if changed {
            self.clone_from(whole);
        }
        changed
    }

    fn link(&mut self, index: Ifindex, netdev: Option<&Netdev>) -> bool {
        match netdev {
            Some(netdev) if self.netdevs.get(&index) == Some(netdev) => false,
            Some(netdev) => {
                self.netdevs.insert(index, netdev.clone());
                true
            }
            None => self.netdevs.remove(&index).is_some(),
        }
    }

    fn bridge_port(&mut self, index: Ifindex, port: Option<BridgePort>) -> bool {
        let before = match port {
            Some(port) => self.bridge_ports.insert(index, port),
            None => self.bridge_ports.remove(&index),
        };
        before != port
    }

    fn address(&mut self, address: &Address, presence: Presence) -> bool {
        let here = presence == Presence::Here;
        let least = Address { broadcast: None, flags: 0, ..*address };
        let same = self.addresses.range(least..).next().copied();
        let same = same.filter(|old| least == Address { broadcast: None, flags: 0, ..*old });
        if here && same == Some(*address) {
            return false;
        }
        if let Some(old) = same {
            self.addresses.remove(&old);
        }
        if here {
            self.addresses.insert(*address);
        }
        here || same.is_some()
    }

    /// Inserts a rule behind those of its priority, as `fib_newrule` does.
    pub(super) fn insert_rule(&mut self, rule: Rule) {
        let place = |rule: &Rule| (rule.family, rule.priority);
        let at = self.rules.partition_point(|other| place(other) <= place(&rule));
        self.rules.insert(at, rule);
    }

    fn remove_rule(&mut self, rule: &Rule) -> bool {
        let at = self.rules.iter().position(|other| other == rule);
        at.map(|at| self.rules.remove(at)).is_some()
    }
}
