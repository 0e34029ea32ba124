//! A ruleset as the packets of a known connection meet it, behind its first packet.

use tollway_dataplane::stages::filter::TranslationOrder;

use super::{
    Action, Chain, ChainKind, Family, Field, Hook, Ruleset, Step, TRACKING_PRIORITY, Target,
};

/// The priorities at which the kernel translates destinations and sources (`NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC`).
pub(super) const TRANSLATES_DESTINATION: i32 = -100;
pub(super) const TRANSLATES_SOURCE: i32 = 100;

const TOO_EARLY: &str = "the packet comes here before connection tracking sees it";
const NOT_EARLY: &str = "notrack acts on packets that connection tracking has not seen, and other packets may come here";

impl Ruleset {
    /// The rules for the packets of known connections behind the first packet of each, and for packets that rules keep out of
    /// connection tracking: only that first packet meets chains of type nat. Packets that come to a rule which tests connections
    /// before tracking has seen them, or to `notrack` behind that, take the kernel path.
    ///
    /// For [`compile_for_flows`](crate::program::compile_for_flows); see [`Ruleset::with_tracking`] for rules behind which
    /// no kernel tracks.
    #[must_use]
    pub fn for_connections(mut self) -> Self {
        for chain in self.chains.iter_mut().filter(|chain| chain.is_nat()) {
            chain.base = None;
            chain.rules.clear();
        }
        let is_early = self.reached_from(Chain::is_early);
        let is_late = self.reached_from(Chain::is_late);
        // A bridge may have tracked what comes up from its ports (`net/bridge/netfilter/nf_conntrack_bridge.c`).
        let has_bridges = self.chains.iter().any(|chain| chain.family == Family::Bridge);
        for (number, chain) in self.chains.iter_mut().enumerate() {
            let (is_early, is_late) = (is_early[number], is_late[number]);
            for rule in &mut chain.rules {
                let refused = |step: &Step| match step {
                    Step::Do(Action::NoTrack) => (is_late || has_bridges).then_some(NOT_EARLY),
                    step if is_early && step.is_of_connection() => Some(TOO_EARLY),
                    _ => None,
                };
                let found = rule.steps.iter().enumerate();
                let found = found.filter_map(|(at, step)| Some((at, refused(step)?))).next();
                if let Some((at, why)) = found {
                    rule.steps.truncate(at);
                    rule.steps.push(Step::Unsupported(why.to_owned()));
                }
            }
        }
        self
    }

    /// Where rules of chains that translate nothing stand beside the translation of addresses.
    pub(crate) fn translation_order(&self) -> TranslationOrder {
        let has = |hook, is: fn(i32) -> bool| {
            let mut chains = self.base_chains(hook).into_iter();
            chains.any(|(_, base)| base.kind != ChainKind::Nat && is(base.priority))
        };
        TranslationOrder {
            // Of chains of the same priority, it is not known which come later.
            some_before_destination: has(Hook::Prerouting, |at| at <= TRANSLATES_DESTINATION),
            some_behind_destination: has(Hook::Prerouting, |at| at >= TRANSLATES_DESTINATION),
            some_behind_source: has(Hook::Postrouting, |at| at >= TRANSLATES_SOURCE)
                || has(Hook::Egress, |_| true),
        }
    }

    /// Says whether [`Ruleset::for_connections`] changes anything.
    pub(crate) fn differs_for_connections(&self) -> bool {
        let steps = self.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
        self.chains.iter().any(Chain::is_nat)
            || steps.into_iter().any(|step| *step == Step::Do(Action::NoTrack))
    }
}

impl Chain {
    /// Says whether only the first packet of each connection meets it.
    #[must_use]
    pub fn is_nat(&self) -> bool {
        self.base.as_ref().is_some_and(|base| base.kind == ChainKind::Nat)
    }

    /// Says whether its packets may come to it before connection tracking sees them.
    fn is_early(&self) -> bool {
        self.base.as_ref().is_some_and(|base| match base.hook {
            Hook::Ingress => true,
            Hook::Prerouting => base.priority <= TRACKING_PRIORITY,
            _ => false,
        })
    }

    /// Says whether forwarded packets may come to it when connection tracking has seen them. At its priority, nobody knows.
    fn is_late(&self) -> bool {
        self.base.as_ref().is_some_and(|base| match base.hook {
            Hook::Ingress | Hook::Input | Hook::Output => false,
            Hook::Prerouting => base.priority >= TRACKING_PRIORITY,
            Hook::Forward | Hook::Postrouting | Hook::Egress => true,
        })
    }
}

impl Step {
    /// Says whether it tests or sets something of the packet's connection.
    #[must_use]
    pub fn is_of_connection(&self) -> bool {
        let tests = self.keys().iter().any(|key| matches!(key.field, Field::Connection(_)));
        let sets = matches!(
            self,
            Self::Do(Action::UpdateMark(_)) | Self::Map { target: Target::ConnectionMark, .. }
        );
        tests || sets
    }
}
