//! Walks all reachable states of the mode beside a model of what is true.

use std::collections::{HashMap, HashSet, VecDeque};

use super::*;

/// What is true of the kernel, the controller's knowledge and the active tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Truth {
    /// Notifications were lost, and not everything has been listed since.
    lacks_messages: bool,
    /// Old notifications are unread.
    is_late: bool,
    /// The follower of the rules has old notifications unread.
    rules_are_late: bool,
    /// The last reading of the rules is not the kernel's.
    reading_is_old: bool,
    /// The active rules treat some packet on the fast path differently than the kernel's.
    active_rules_are_wrong: bool,
    /// The active rules are not the last reading.
    reading_is_new: bool,
    /// Something has changed whose consequences are unknown.
    is_unqueried: bool,
    /// The consequences of a change are known, and not active.
    is_uninstalled: bool,
    /// The active tables are known to be incomplete.
    is_broken: bool,
}

impl Truth {
    const fn is_known_to_be_wrong(self) -> bool {
        self.lacks_messages
            || self.is_late
            || self.rules_are_late
            || self.active_rules_are_wrong
            || self.is_unqueried
            || self.is_uninstalled
            || self.is_broken
    }
}

type State = (ModeTracker, Truth);

/// One step of the kernel, of the follower of the rules or of the controller.
#[derive(Clone, Copy, Debug)]
enum Step {
    Lose,
    List,
    FallBehind,
    ReadAll,
    RulesFallBehind,
    RulesReadAll,
    /// Rules of the fast path change.
    ChangeRules,
    /// Other rules change, which the follower reads without reporting a change first.
    ChangeOtherRules,
    ReadRules,
    /// The kernel has the rules of the last reading, perhaps again.
    ConfirmRules,
    FailToReadRules,
    /// A sysctl or a policy changes.
    ChangeOther,
    /// The rest of a turn: whether the query succeeds, how the installation ends, whether there is more.
    FinishTurn {
        answers: bool,
        install: Install,
        more: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Install {
    Nothing,
    Done,
    Failed,
    /// The rules are refused, and then the rest is installed or not.
    Refused {
        then: bool,
    },
}

fn steps() -> Vec<Step> {
    use Step::*;
    let mut steps = vec![
        Lose,
        List,
        FallBehind,
        ReadAll,
        RulesFallBehind,
        RulesReadAll,
        ChangeRules,
        ChangeOtherRules,
        ReadRules,
        ConfirmRules,
        FailToReadRules,
        ChangeOther,
    ];
    let installs = [
        Install::Nothing,
        Install::Done,
        Install::Failed,
        Install::Refused { then: true },
        Install::Refused { then: false },
    ];
    for install in installs {
        for (answers, more) in [(true, true), (true, false), (false, true), (false, false)] {
            steps.push(FinishTurn { answers, install, more });
        }
    }
    steps
}

/// A state that takes events one by one and checks the mode after each.
struct Walk {
    tracker: ModeTracker,
    truth: Truth,
}

impl Walk {
    fn event(&mut self, event: ModeEvent, effect: impl FnOnce(&mut Truth)) {
        effect(&mut self.truth);
        self.tracker.on(event.clone());
        assert!(
            !(self.tracker.is_forwarding() && self.truth.is_known_to_be_wrong()),
            "after {event:?}: {:?} with {:?}",
            self.tracker,
            self.truth
        );
    }

    /// Takes a step; `None` if it is impossible in this state.
    fn step(mut self, step: Step) -> Option<State> {
        match step {
            Step::Lose => self.event(ModeEvent::MessagesLost, |truth| truth.lacks_messages = true),
            Step::List => self.event(ModeEvent::ListComplete, |truth| {
                truth.is_uninstalled |= std::mem::take(&mut truth.lacks_messages);
            }),
            Step::FallBehind => self.event(ModeEvent::BacklogLate, |truth| truth.is_late = true),
            Step::ReadAll => self.event(ModeEvent::BacklogRead, |truth| {
                truth.is_uninstalled |= std::mem::take(&mut truth.is_late);
            }),
            Step::RulesFallBehind => {
                self.event(ModeEvent::RulesBehind, |truth| truth.rules_are_late = true);
            }
            Step::RulesReadAll => self.event(ModeEvent::RulesCaughtUp, |truth| {
                // For example elements of sets.
                truth.is_uninstalled |= std::mem::take(&mut truth.rules_are_late);
            }),
            Step::ChangeRules => self.event(ModeEvent::RulesChanged, |truth| {
                (truth.reading_is_old, truth.active_rules_are_wrong) = (true, true);
            }),
            Step::ChangeOtherRules if self.truth.reading_is_old => return None,
            Step::ChangeOtherRules => {
                self.event(ModeEvent::RulesRead, |truth| truth.reading_is_new = true);
            }
            Step::ReadRules if !self.truth.reading_is_old => return None,
            Step::ReadRules => self.event(ModeEvent::RulesRead, |truth| {
                (truth.reading_is_old, truth.reading_is_new) = (false, true);
            }),
            Step::ConfirmRules => self.event(ModeEvent::RulesConfirmed, |truth| {
                truth.reading_is_old = false;
                truth.active_rules_are_wrong &= truth.reading_is_new;
            }),
            Step::FailToReadRules => self.event(ModeEvent::RulesUnreadable, |truth| {
                // The new tables send all that rules concern to the kernel path.
                (truth.reading_is_old, truth.reading_is_new) = (false, true);
                truth.active_rules_are_wrong = true;
            }),
            Step::ChangeOther => self.event(ModeEvent::Changing, |truth| truth.is_unqueried = true),
            Step::FinishTurn { answers, install, more } => self.finish(answers, install, more)?,
        }
        Some((self.tracker, self.truth))
    }

    fn finish(&mut self, answers: bool, install: Install, more: bool) -> Option<()> {
        if !answers && !self.truth.is_unqueried {
            return None;
        }
        match answers {
            true => self.event(ModeEvent::Queried, |truth| {
                truth.is_uninstalled |= std::mem::take(&mut truth.is_unqueried);
            }),
            false => self.event(ModeEvent::QueryFailed, |_| {}),
        }
        let truth = self.truth;
        let is_due = truth.is_uninstalled || truth.is_broken || truth.reading_is_new;
        match install {
            // After a failure, the next attempt comes later.
            Install::Nothing if is_due && !truth.is_broken => return None,
            Install::Nothing => {}
            Install::Done => self.installed(),
            Install::Failed => self.failed(),
            Install::Refused { then } => {
                self.event(ModeEvent::RulesRefused, |truth| {
                    (truth.reading_is_new, truth.active_rules_are_wrong) = (true, true);
                });
                if then { self.installed() } else { self.failed() }
            }
        }
        if self.truth.is_late && !more {
            return None;
        }
        self.event(ModeEvent::TurnEnded { more }, |_| {});
        Some(())
    }

    fn installed(&mut self) {
        self.event(ModeEvent::Changing, |_| {});
        self.event(ModeEvent::Installed, |truth| {
            (truth.is_uninstalled, truth.is_broken) = (false, false);
            truth.reading_is_new = false;
            truth.active_rules_are_wrong = truth.reading_is_old;
        });
    }

    fn failed(&mut self) {
        self.event(ModeEvent::InstallFailed("it is broken".to_owned()), |truth| {
            (truth.is_broken, truth.is_uninstalled) = (true, true);
        });
    }
}

/// All reachable states, each with those that one step leads to.
fn reachable() -> HashMap<State, Vec<State>> {
    let truth = Truth { is_uninstalled: true, ..Truth::default() };
    // The first rules may look up sets of ipset, which are to be listed again.
    let mut late = ModeTracker::new();
    late.on(ModeEvent::RulesBehind);
    let starts = [(ModeTracker::new(), truth), (late, Truth { rules_are_late: true, ..truth })];
    let (mut open, mut found) = (VecDeque::from(starts), HashMap::new());
    let steps = steps();
    while let Some(state) = open.pop_front() {
        if found.contains_key(&state) {
            continue;
        }
        let (tracker, truth) = &state;
        let walk = |step| Walk { tracker: tracker.clone(), truth: *truth }.step(step);
        let next: Vec<_> = steps.iter().filter_map(|step| walk(*step)).collect();
        open.extend(next.iter().cloned());
        found.insert(state, next);
    }
    found
}

#[test]
fn tollway_never_forwards_by_tables_that_are_known_to_be_wrong() {
    let states = reachable();
    assert!(states.len() > 200, "{}", states.len());
    assert!(states.keys().any(|(tracker, _)| tracker.is_forwarding()));
    for (tracker, truth) in states.keys() {
        let is_starting = tracker.why() == Some(STARTING);
        assert!(!tracker.is_forwarding() || !is_starting && tracker.why().is_none());
        assert!(!truth.active_rules_are_wrong || !tracker.is_current());
        assert!(!truth.lacks_messages || !tracker.is_current());
    }
}

/// No bypass is for ever: from each state, some steps lead to forwarding.
#[test]
fn every_bypass_can_end() {
    let states = reachable();
    let mut ends: HashSet<&State> =
        states.keys().filter(|(tracker, _)| tracker.is_forwarding()).collect();
    loop {
        let more: Vec<_> = states
            .iter()
            .filter(|(state, next)| {
                !ends.contains(state) && next.iter().any(|one| ends.contains(one))
            })
            .map(|(state, _)| state)
            .collect();
        if more.is_empty() {
            break;
        }
        ends.extend(more);
    }
    assert_eq!(ends.len(), states.len());
}

#[test]
fn a_bypass_ends_at_the_end_of_a_turn_and_not_before() {
    let mut tracker = ModeTracker::new();
    tracker.on(ModeEvent::TurnEnded { more: true });
    assert!(tracker.is_starting() && tracker.why() == Some(STARTING));
    tracker.on(ModeEvent::TurnEnded { more: false });
    assert!(tracker.is_forwarding());
    tracker.on(ModeEvent::RulesChanged);
    tracker.on(ModeEvent::RulesRead);
    assert!(!tracker.is_current() && tracker.has_new_rules());
    tracker.on(ModeEvent::Installed);
    assert!(!tracker.is_forwarding() && tracker.is_current(), "not within the turn");
    assert_eq!(tracker.why(), Some(CHANGING));
    tracker.on(ModeEvent::TurnEnded { more: true });
    assert!(tracker.is_forwarding());
    tracker.on(ModeEvent::InstallFailed("no room".to_owned()));
    tracker.on(ModeEvent::MessagesLost);
    tracker.on(ModeEvent::TurnEnded { more: false });
    assert_eq!(tracker.why(), Some("no room"));
    assert!(tracker.is_broken() && !tracker.is_current());
}

#[test]
fn the_guide_lists_every_reason() {
    let guide = include_str!("../../../../../docs/guide/operating.md");
    let reasons = [
        Reason::MessagesLost,
        Reason::RulesChanged,
        Reason::Late,
        Reason::RulesLate,
        Reason::QueryFailed,
    ];
    let texts = reasons.iter().map(Reason::text).chain([STARTING]);
    texts.for_each(|text| assert!(guide.contains(text), "{text}"));
}
