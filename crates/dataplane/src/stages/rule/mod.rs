//! Rule: policy rules select the VRF in which a packet's route is looked up, or decide without a route.
//!
//! Kernel equivalent: `fib_rules_lookup` (`net/core/fib_rules.c`) with `fib4_rule_match` and
//! `fib4_rule_action` (`net/ipv4/fib_rules.c`), `fib6_rule_match` and `__fib6_rule_action`
//! (`net/ipv6/fib6_rules.c`). The first matching rule decides, unless it selects a table that has no
//! route, or a throw route, for the packet (`-EAGAIN`). Matches on the input device are resolved ahead:
//! each link has a policy of its own rules.
//!
//! The path skips this stage while no link has a policy. It compares a rule with all IPv4 packets of a link at
//! once, and handles IPv6 packets, and a few of a link, one after the other.
//!
//! Limits: rules on source, destination and mark. Packets that may match other rules (ports, protocol,
//! DSCP, user) take the kernel path ([`PolicyAction::Punt`]). Packets that firewall rules reroute skip
//! the policy rules.

mod query;
mod routes;
mod stage;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use query::{RouteQuery, query};
pub use routes::RouteTables;
pub(crate) use stage::run;
pub(crate) use table::{Decision, Policies, Policy, Rule};
pub use table::{PolicyAction, PolicyRule};
