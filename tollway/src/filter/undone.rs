//! What the fast road leaves to the kernel. [`super::flatten`] makes it a punt and [`super::coverage`] tells
//! of it, both by what is said here.

use super::ir::{Action, Family, Hook, Ruleset, Verdict};

/// The hooks of each point of the road: one line of rules for each.
pub(super) const LINES: [&[Hook]; 3] =
    [&[Hook::Ingress], &[Hook::Prerouting], &[Hook::Forward, Hook::Postrouting, Hook::Egress]];

/// Where rules are asked, as far as it matters for what they can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    /// At hook ingress.
    is_ingress: bool,
    /// Hooks are asked one after the other for the link that was known at the first.
    is_asked_again: bool,
}

impl At {
    /// For hooks that follow each other in one line.
    pub(super) fn of(rules: &Ruleset, hooks: &[Hook]) -> Self {
        let is_asked = |hook: &&Hook| {
            let mut chains = rules.base_chains(**hook).into_iter();
            chains.any(|(id, _)| rules.chains[id.0].family != Family::Bridge)
        };
        Self {
            is_ingress: hooks.contains(&Hook::Ingress),
            is_asked_again: hooks.iter().filter(is_asked).count() > 1,
        }
    }

    /// For rules that are asked at both.
    pub(super) const fn or(self, other: Self) -> Self {
        Self {
            is_ingress: self.is_ingress || other.is_ingress,
            is_asked_again: self.is_asked_again || other.is_asked_again,
        }
    }

    /// Why an action can not be done exactly, if so.
    pub(super) const fn action(self, action: &Action) -> Option<&'static str> {
        match action {
            Action::Forward { .. } | Action::Fib(_) if self.is_ingress => {
                Some("at hook ingress there is no header that is known to be sound")
            }
            Action::Forward { .. } if self.is_asked_again => {
                Some("rules of another hook behind it would be asked for the link that it leaves")
            }
            _ => None,
        }
    }

    /// Why a verdict can not be done exactly, if so.
    pub(super) fn verdict(self, verdict: &Verdict) -> Option<&str> {
        match verdict {
            Verdict::Unsupported(why) => Some(why),
            // `nf_reject_netdev`.
            Verdict::Reject(_) if self.is_ingress => {
                Some("hook ingress tells the sender by the device, not by a route")
            }
            _ => None,
        }
    }
}
