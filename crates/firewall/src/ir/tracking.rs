//! A ruleset behind which no kernel tracks connections, so that the router does.

use super::connections::{TRANSLATES_DESTINATION, TRANSLATES_SOURCE};
use super::{
    Action, Base, Chain, ChainId, Counter, CounterId, Datum, Elements, Family, Hook, NatVerdict,
    Ruleset, Step, TRACKING_PRIORITY, Verdict,
};

/// That connections are tracked, and what counts packets without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracking {
    /// Counts packets that are invalid.
    pub invalid: CounterId,
    /// Counts packets that are dropped, since there is no room for their connection.
    pub full: CounterId,
    /// That connections are translated, if there are chains of type nat.
    pub translation: Option<Translation>,
}

/// The translation of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Counts packets that are dropped, since no port is free for the translation of their connection.
    pub clash: CounterId,
    /// Whether chains of type nat see IPv4, and IPv6.
    pub versions: [bool; 2],
}

const AT_TRACKING: &str =
    "nobody knows whether a chain of priority -200 comes before connection tracking or behind it";
const AT_DESTINATION: &str = "nobody knows whether a chain of priority -100 comes before the translation of destinations or behind it; \
     give it another priority";
const BEHIND_SOURCE: &str = "it comes behind the translation of sources, which is the last that Tollway does with a packet; give \
     its chain a priority below 100 at hook postrouting";
const ELSEWHERE: &str = "it translates addresses outside of a chain of type nat at hook prerouting (destinations) or \
     postrouting (sources)";

impl Ruleset {
    /// Lets the router track connections, if forwarded packets may come to rules about them, or to chains of type nat.
    ///
    /// Rules about connections in chains of connection tracking's own priority are refused. With chains of type nat, so
    /// are rules of other chains at the priority of the translation of destinations, and behind that of sources.
    #[must_use]
    pub fn with_tracking(mut self) -> Self {
        let on_path = self.reached_from(is_on_path);
        let is_of_connection = |chain: &Chain| {
            chain.rules.iter().flat_map(|rule| &rule.steps).any(Step::is_of_connection)
        };
        let mut chains = self.chains.iter().zip(&on_path);
        let tests = chains.any(|(chain, is_on_path)| *is_on_path && is_of_connection(chain));
        let versions = self.translated_versions();
        let translates = versions != [false; 2];
        if !tests && !translates {
            self.refuse_elsewhere();
            return self;
        }
        let beside = self.reached_from(|chain| priority(chain) == Some(TRACKING_PRIORITY));
        let misplaced = self.misplaced(versions);
        for (number, chain) in self.chains.iter_mut().enumerate() {
            for rule in &mut chain.rules {
                let concerns =
                    |step: &Step| step.is_of_connection() || *step == Step::Do(Action::NoTrack);
                let why = match rule.steps.iter().any(concerns) && beside[number] {
                    true => Some(AT_TRACKING),
                    false => misplaced[number],
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
        let translation = translates.then(|| Translation {
            clash: named("packets without a free port for the translation of their connection"),
            versions,
        });
        self.tracking = Some(Tracking { invalid, full, translation });
        self.refuse_elsewhere();
        self
    }

    /// Whether the router itself translates addresses of IPv4, and of IPv6.
    #[must_use]
    pub fn translates(&self) -> [bool; 2] {
        let translation = self.tracking.and_then(|tracking| tracking.translation);
        let [v4, v6] = translation.map_or([false; 2], |translation| translation.versions);
        [v4 || !self.aliases.is_empty(), v6]
    }

    /// Of which versions of IP chains of type nat translate forwarded packets.
    fn translated_versions(&self) -> [bool; 2] {
        let sees = |is_of: fn(Family) -> bool| {
            let mut chains = self.chains.iter();
            chains.any(|chain| chain.is_nat_on_path() && is_of(chain.family))
        };
        [sees(Family::has_ip4), sees(Family::has_ip6)]
    }

    /// For each chain, why its rules do not go with the translation of addresses.
    fn misplaced(&self, [four, six]: [bool; 2]) -> Vec<Option<&'static str>> {
        let meets = |chain: &Chain| {
            let is_ip = chain.family != Family::Bridge && !chain.is_nat();
            is_ip && (four && chain.family.has_ip4() || six && chain.family.has_ip6())
        };
        let base = |chain: &Chain, is: fn(&Base) -> bool| {
            meets(chain) && chain.base.as_ref().is_some_and(is)
        };
        let at = self.reached_from(|chain| {
            base(chain, |base| {
                base.hook == Hook::Prerouting && base.priority == TRANSLATES_DESTINATION
            })
        });
        let behind = self.reached_from(|chain| {
            base(chain, |base| match base.hook {
                Hook::Postrouting => base.priority >= TRANSLATES_SOURCE,
                hook => hook == Hook::Egress,
            })
        });
        let why = |(at, behind): (bool, bool)| match (at, behind) {
            (_, true) => Some(BEHIND_SOURCE),
            (true, false) => Some(AT_DESTINATION),
            (false, false) => None,
        };
        at.into_iter().zip(behind).map(why).collect()
    }

    /// Refuses rules that translate addresses where nothing is translated so.
    fn refuse_elsewhere(&mut self) {
        let reached = |hook: Hook| {
            self.reached_from(|chain| {
                chain.is_nat() && chain.base.as_ref().is_some_and(|base| base.hook == hook)
            })
        };
        let (pre, post) = (reached(Hook::Prerouting), reached(Hook::Postrouting));
        let other = self.reached_from(|chain| is_on_path(chain) && !chain.is_nat());
        for number in 0..self.chains.len() {
            let goes = |NatVerdict { range, .. }: &NatVerdict| {
                let wrong = if range.target.is_source() { &pre } else { &post };
                !other[number] && !wrong[number]
            };
            let refused: Vec<_> = self.chains[number]
                .rules
                .iter()
                .enumerate()
                .filter(|(_, rule)| {
                    let mut verdicts = rule.steps.iter().flat_map(|step| self.nat_verdicts(step));
                    verdicts.any(|verdict| !goes(verdict))
                })
                .map(|(at, _)| at)
                .collect();
            for at in refused {
                let why = ELSEWHERE.to_owned();
                self.chains[number].rules[at].steps = vec![Step::Unsupported(why)];
            }
        }
    }

    fn nat_verdicts<'a>(&'a self, step: &'a Step) -> Vec<&'a NatVerdict> {
        let of = |verdict: &'a Verdict| match verdict {
            Verdict::Nat(nat) => Some(nat),
            _ => None,
        };
        match step {
            Step::Verdict(verdict) => of(verdict).into_iter().collect(),
            Step::VerdictMap { map, .. } => match &self.sets[map.0].elements {
                Elements::Tuples(elements) => {
                    let data = elements.iter().filter_map(|element| match &element.datum {
                        Some(Datum::Verdict(verdict)) => of(verdict),
                        _ => None,
                    });
                    data.collect()
                }
                Elements::Ranges(_) => Vec::new(),
            },
            _ => Vec::new(),
        }
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

impl Chain {
    /// Says whether only forwarded packets that begin a connection meet it.
    fn is_nat_on_path(&self) -> bool {
        let hook = self.base.as_ref().map(|base| base.hook);
        let is_on_path = matches!(hook, Some(Hook::Prerouting | Hook::Postrouting));
        self.is_nat() && is_on_path && self.family != Family::Bridge
    }
}

fn is_on_path(chain: &Chain) -> bool {
    let hook = chain.base.as_ref().map(|base| base.hook);
    chain.family != Family::Bridge && !matches!(hook, None | Some(Hook::Input | Hook::Output))
}
