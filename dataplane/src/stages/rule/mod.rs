//! Rule: policy rules say in which VRF a packet's route is looked up, or what becomes of it without one.
//!
//! Kernel equivalent: `fib_rules_lookup` (`net/core/fib_rules.c`) with `fib4_rule_match` and
//! `fib4_rule_action` (`net/ipv4/fib_rules.c`), `fib6_rule_match` and `__fib6_rule_action`
//! (`net/ipv6/fib6_rules.c`): rule by rule, the first that matches decides, unless it names a table that
//! has no route, or a throw route, for the packet (`-EAGAIN`). That a rule matches on the input device is
//! decided before: each link has the policy of its own rules.
//!
//! Not called while no link has a policy; one packet after the other for links that have one.
//!
//! Limits: rules on source, destination and mark. Whoever has others (ports, protocol, DSCP, user) gives the
//! packets that they may match to the kernel ([`PolicyAction::Punt`]). Packets that rules of the firewall
//! send another way do not come by these.

mod stage;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use stage::{question, run};
pub(crate) use table::{Decision, Policies};
pub use table::{PolicyAction, PolicyRule};
