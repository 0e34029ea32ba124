//! A ruleset behind which no kernel tracks connections, so that the router does.

use super::{
    Action, Chain, ChainId, Counter, CounterId, Family, Hook, Ruleset, Step, TRACKING_PRIORITY,
};

/// That connections are tracked, and what counts packets without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracking {
    /// Counts packets that are invalid.
    pub invalid: CounterId,
    /// Counts packets that are dropped, since there is no room for their connection.
    pub full: CounterId,
}

const AT_TRACKING: &str =
    "nobody knows whether a chain of priority -200 comes before connection tracking or behind it";
const TRANSLATES: &str =
    "chains of type nat are for address translation, which Tollway leaves to a kernel";

impl Ruleset {
    /// Lets the router track connections, if forwarded packets may come to rules about them.
    ///
    /// Rules of chains of type nat are not for all packets, but for those that begin a connection: there they are
    /// refused. So are rules about connections in chains of connection tracking's own priority.
    #[must_use]
    pub fn with_tracking(mut self) -> Self {
        let on_path = self.reached_from(is_on_path);
        let is_of_connection = |chain: &Chain| {
            chain.rules.iter().flat_map(|rule| &rule.steps).any(Step::is_of_connection)
        };
        let mut chains = self.chains.iter().zip(&on_path);
        if !chains.any(|(chain, is_on_path)| *is_on_path && is_of_connection(chain)) {
            return self;
        }
        let beside = self.reached_from(|chain| priority(chain) == Some(TRACKING_PRIORITY));
        let of_nat = self.reached_from(Chain::is_nat);
        for (number, chain) in self.chains.iter_mut().enumerate() {
            for rule in &mut chain.rules {
                let concerns =
                    |step: &Step| step.is_of_connection() || *step == Step::Do(Action::NoTrack);
                let why = match rule.steps.iter().any(concerns) && beside[number] {
                    true => Some(AT_TRACKING),
                    false if of_nat[number] => Some(TRANSLATES),
                    false => None,
                };
                if let Some(why) = why {
                    rule.steps = vec![Step::Unsupported(why.to_owned())];
                }
            }
        }
        let mut named = |name: &str| {
            self.add_counter(Counter { name: Some(name.to_owned()), packets: 0, bytes: 0 })
        };
        let invalid = named("packets of no connection (invalid)");
        let full = named("packets without room for their connection");
        self.tracking = Some(Tracking { invalid, full });
        self
    }

    /// Whether packets of a version of IP come to rules before their connections are looked up.
    pub(crate) fn has_early_chains(&self, version: u8) -> bool {
        self.chains.iter().any(|chain| {
            let sees = match version {
                4 => chain.family.has_ip4(),
                _ => chain.family.has_ip6(),
            };
            let is_early = priority(chain).is_some_and(|priority| priority < TRACKING_PRIORITY);
            sees && is_early && chain.family != Family::Bridge
        })
    }

    /// For each chain, whether packets may come to it from one of these base chains.
    pub(super) fn reached_from(&self, is_one: impl Fn(&Chain) -> bool) -> Vec<bool> {
        let mut reached = vec![false; self.chains.len()];
        let bases = self.chains.iter().enumerate();
        let bases = bases.filter(|(_, chain)| chain.base.is_some() && is_one(chain));
        let mut open: Vec<_> = bases.map(|(number, _)| ChainId(number)).collect();
        while let Some(id) = open.pop() {
            let (Some(chain), Some(is_reached)) = (self.chains.get(id.0), reached.get_mut(id.0))
            else {
                continue;
            };
            if !std::mem::replace(is_reached, true) {
                open.extend(self.exits(chain).into_iter().map(|(next, _)| next));
            }
        }
        reached
    }
}

/// The priority of a chain of hook prerouting.
fn priority(chain: &Chain) -> Option<i32> {
    let base = chain.base.as_ref()?;
    (base.hook == Hook::Prerouting).then_some(base.priority)
}

fn is_on_path(chain: &Chain) -> bool {
    let hook = chain.base.as_ref().map(|base| base.hook);
    chain.family != Family::Bridge && !matches!(hook, None | Some(Hook::Input | Hook::Output))
}
