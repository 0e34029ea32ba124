//! Actions and verdicts that the fast path cannot execute, so their packets take the kernel path.
//! [`super::program`] compiles them to punts, and [`super::offload`] reports them; both use this module.

use super::ir::{Action, Family, Hook, Ruleset, Verdict};

/// The hooks that the path evaluates at each of its points: one program of rules for each point.
pub(super) const POINTS: [&[Hook]; 3] =
    [&[Hook::Ingress], &[Hook::Prerouting], &[Hook::Forward, Hook::Postrouting, Hook::Egress]];

/// The point on the path at which rules are evaluated, which limits their actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    /// Hook ingress.
    is_ingress: bool,
    /// Several hooks are evaluated in a row, and the egress link is known from the first on.
    is_evaluated_again: bool,
}

impl At {
    /// The point of hooks that share one program.
    pub(super) fn of(rules: &Ruleset, hooks: &[Hook]) -> Self {
        let has_chains = |hook: &&Hook| {
            let mut chains = rules.base_chains(**hook).into_iter();
            chains.any(|(id, _)| rules.chains[id.0].family != Family::Bridge)
        };
        Self {
            is_ingress: hooks.contains(&Hook::Ingress),
            is_evaluated_again: hooks.iter().filter(has_chains).count() > 1,
        }
    }

    /// For rules that are evaluated at both points.
    pub(super) const fn or(self, other: Self) -> Self {
        Self {
            is_ingress: self.is_ingress || other.is_ingress,
            is_evaluated_again: self.is_evaluated_again || other.is_evaluated_again,
        }
    }

    /// Why an action cannot be done exactly, if so.
    pub(super) const fn action(self, action: &Action) -> Option<&'static str> {
        match action {
            Action::Forward { .. } | Action::Fib(_) if self.is_ingress => {
                Some("at hook ingress there is no header that is known to be sound")
            }
            Action::Forward { .. } if self.is_evaluated_again => {
                Some("rules of another hook behind it would have to know the link that it leaves")
            }
            _ => None,
        }
    }

    /// Why a verdict cannot be done exactly, if so.
    pub(super) fn verdict(self, verdict: &Verdict) -> Option<&str> {
        match verdict {
            Verdict::Unsupported(why) => Some(why),
            // `nf_reject_netdev`.
            Verdict::Reject(_) if self.is_ingress => {
                Some("hook ingress answers the sender by the device, not by a route")
            }
            _ => None,
        }
    }
}
