//! When Tollway forwards, and when it lets the kernel forward everything: the bypass.
//!
//! The mode changes by [`ModeEvent`]s alone. Two rules hold:
//!
//! 1. An event after which the active tables may differ from the kernel's configuration begins a bypass at
//!    once.
//! 2. Only the end of a turn ends a bypass. By then the controller has installed everything that it had
//!    received before.
//!
//! ```text
//! Starting   --TurnEnded, nothing more to read--> Forwarding, or Bypassed if there is a reason
//! Forwarding --any reason begins----------------> Bypassed
//! Bypassed   --TurnEnded, all reasons ended-----> Forwarding
//! ```
//!
//! `docs/guide/operating.md` lists which events begin and end each [`Reason`]. The model test walks all
//! reachable states.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

/// Who forwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Mode {
    /// The kernel: the controller has not yet installed all notifications since its start.
    Starting(BTreeSet<Reason>),
    /// Tollway.
    Forwarding,
    /// The kernel, until a turn ends without a reason.
    Bypassed(BTreeSet<Reason>),
}

/// Why the kernel forwards everything; the first one is reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Reason {
    /// Something could not be installed.
    Broken(String),
    /// Messages were lost.
    MessagesLost,
    /// The active rules are older than the kernel's.
    RulesChanged,
    /// More notifications arrive than can be installed at once.
    Late,
    /// More notifications of rules arrive than can be read at once, or sets of ipset were not listed in time.
    RulesLate,
    /// Something has changed, and a query about its consequences has failed.
    QueryFailed,
    /// Something has changed that this turn installs.
    Changing,
}

/// The last reading of the kernel's rules, compared with the active rules and with the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RulesProgress {
    /// It is active.
    Active,
    /// It is active, and the kernel has other rules.
    Changed,
    /// It is not yet active. The active rules treat packets on the fast path as it does if `is_harmless`.
    Read { is_harmless: bool },
    /// It is not yet active, and the kernel has other rules.
    ChangedSinceRead,
}

/// An event that may change the mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModeEvent {
    /// Notifications were lost.
    MessagesLost,
    /// Everything has been listed since.
    ListComplete,
    /// The oldest notification that is not active yet is too old.
    BacklogLate,
    /// All notifications have been read.
    BacklogRead,
    /// The kernel has other rules than the last reading.
    RulesChanged,
    /// The kernel's rules were read, and differ from the last reading.
    RulesRead,
    /// The kernel's rules were read, and equal the last reading.
    RulesConfirmed,
    /// The kernel's rules cannot be read. The tables will send the packets that they concern to the kernel
    /// path.
    RulesUnreadable,
    /// The rules cannot be installed. The tables will send the packets that they concern to the kernel path.
    RulesRefused,
    /// More notifications of rules arrive than can be read at once, or sets of ipset were not listed in time.
    RulesBehind,
    /// All notifications of rules have been read, and sets of ipset were listed.
    RulesCaughtUp,
    /// Something has changed whose consequences this turn queries, or tables are about to be replaced.
    Changing,
    /// The kernel has answered all queries.
    Queried,
    /// The kernel has not answered a query.
    QueryFailed,
    /// An installation failed, and why.
    InstallFailed(String),
    /// Everything known is active.
    Installed,
    /// A turn has ended; whether there is more to read.
    TurnEnded { more: bool },
}

/// Follows the mode through the events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModeTracker {
    mode: Mode,
    rules: RulesProgress,
}

impl ModeTracker {
    pub(super) const fn new() -> Self {
        Self { mode: Mode::Starting(BTreeSet::new()), rules: RulesProgress::Active }
    }

    /// Says whether Tollway forwards.
    pub(super) const fn is_forwarding(&self) -> bool {
        matches!(self.mode, Mode::Forwarding)
    }

    pub(super) const fn is_starting(&self) -> bool {
        matches!(self.mode, Mode::Starting(_))
    }

    /// Says whether the controller has installed everything that the kernel has notified of, or will install
    /// it as soon as it can.
    pub(super) fn is_current(&self) -> bool {
        let is_old =
            |reason: &Reason| matches!(reason, Reason::MessagesLost | Reason::RulesChanged);
        !self.is_starting() && !self.reasons().any(is_old)
    }

    /// Says whether something could not be installed.
    pub(super) fn is_broken(&self) -> bool {
        self.reasons().any(|reason| matches!(reason, Reason::Broken(_)))
    }

    /// Says whether the last reading of the rules is not active yet.
    pub(super) const fn has_new_rules(&self) -> bool {
        matches!(self.rules, RulesProgress::Read { .. } | RulesProgress::ChangedSinceRead)
    }

    /// Why the kernel forwards, if it does.
    pub(super) fn why(&self) -> Option<&str> {
        match &self.mode {
            Mode::Forwarding => None,
            Mode::Starting(reasons) => Some(reasons.first().map_or(STARTING, Reason::text)),
            Mode::Bypassed(reasons) => Some(reasons.first().map_or(CHANGING, Reason::text)),
        }
    }

    /// Changes the mode.
    pub(super) fn on(&mut self, event: ModeEvent) {
        match event {
            ModeEvent::MessagesLost => self.begin(Reason::MessagesLost),
            ModeEvent::ListComplete => self.end(&Reason::MessagesLost),
            ModeEvent::BacklogLate => self.begin(Reason::Late),
            ModeEvent::BacklogRead => self.end(&Reason::Late),
            ModeEvent::RulesBehind => self.begin(Reason::RulesLate),
            ModeEvent::RulesCaughtUp => self.end(&Reason::RulesLate),
            ModeEvent::QueryFailed => self.begin(Reason::QueryFailed),
            ModeEvent::Queried => self.end(&Reason::QueryFailed),
            ModeEvent::Changing => self.begin(Reason::Changing),
            ModeEvent::InstallFailed(why) => {
                self.end_broken();
                self.begin(Reason::Broken(why));
            }
            ModeEvent::Installed => {
                self.end_broken();
                self.set_rules(self.rules.installed());
            }
            ModeEvent::RulesChanged => self.set_rules(self.rules.changed()),
            ModeEvent::RulesRead => self.set_rules(self.rules.read()),
            ModeEvent::RulesConfirmed => self.set_rules(self.rules.confirmed()),
            ModeEvent::RulesUnreadable => {
                self.set_rules(RulesProgress::Read { is_harmless: false });
            }
            ModeEvent::RulesRefused => self.set_rules(self.rules.refused()),
            ModeEvent::TurnEnded { more } => self.end_turn(more),
        }
    }

    fn set_rules(&mut self, rules: RulesProgress) {
        self.rules = rules;
        match rules {
            RulesProgress::Active | RulesProgress::Read { is_harmless: true } => {
                self.end(&Reason::RulesChanged);
            }
            _ => self.begin(Reason::RulesChanged),
        }
    }

    fn begin(&mut self, reason: Reason) {
        match &mut self.mode {
            Mode::Starting(reasons) | Mode::Bypassed(reasons) => {
                reasons.insert(reason);
            }
            Mode::Forwarding => self.mode = Mode::Bypassed(BTreeSet::from([reason])),
        }
    }

    fn end(&mut self, reason: &Reason) {
        if let Mode::Starting(reasons) | Mode::Bypassed(reasons) = &mut self.mode {
            reasons.remove(reason);
        }
    }

    fn end_broken(&mut self) {
        if let Mode::Starting(reasons) | Mode::Bypassed(reasons) = &mut self.mode {
            reasons.retain(|reason| !matches!(reason, Reason::Broken(_)));
        }
    }

    fn end_turn(&mut self, more: bool) {
        self.end(&Reason::Changing);
        self.mode = match std::mem::replace(&mut self.mode, Mode::Forwarding) {
            Mode::Starting(reasons) if more => Mode::Starting(reasons),
            Mode::Starting(reasons) | Mode::Bypassed(reasons) if !reasons.is_empty() => {
                Mode::Bypassed(reasons)
            }
            _ => Mode::Forwarding,
        };
    }

    fn reasons(&self) -> impl Iterator<Item = &Reason> {
        let reasons = match &self.mode {
            Mode::Starting(reasons) | Mode::Bypassed(reasons) => Some(reasons),
            Mode::Forwarding => None,
        };
        reasons.into_iter().flatten()
    }
}

const STARTING: &str = "the router is starting";
const CHANGING: &str = "changes are being installed";

impl Reason {
    fn text(&self) -> &str {
        match self {
            Self::Broken(why) => why,
            Self::MessagesLost => {
                "messages of the kernel were lost, and everything is listed again"
            }
            Self::RulesChanged => "rules of nftables have changed and are being read",
            Self::Late => "more changes come than can be installed at once",
            Self::RulesLate => "changes of the firewall's rules or sets are being read",
            Self::QueryFailed => "the kernel does not answer queries about changes",
            Self::Changing => CHANGING,
        }
    }
}

impl RulesProgress {
    const fn changed(self) -> Self {
        match self {
            Self::Active | Self::Changed => Self::Changed,
            Self::Read { .. } | Self::ChangedSinceRead => Self::ChangedSinceRead,
        }
    }

    /// The follower reports rules without a change before only if the fast path treats all packets as before.
    const fn read(self) -> Self {
        match self {
            Self::Active => Self::Read { is_harmless: true },
            Self::Read { is_harmless } => Self::Read { is_harmless },
            Self::Changed | Self::ChangedSinceRead => Self::Read { is_harmless: false },
        }
    }

    const fn confirmed(self) -> Self {
        match self {
            Self::Active | Self::Changed => Self::Active,
            Self::Read { is_harmless } => Self::Read { is_harmless },
            Self::ChangedSinceRead => Self::Read { is_harmless: false },
        }
    }

    const fn refused(self) -> Self {
        match self {
            Self::Active | Self::Read { .. } => Self::Read { is_harmless: false },
            Self::Changed | Self::ChangedSinceRead => Self::ChangedSinceRead,
        }
    }

    const fn installed(self) -> Self {
        match self {
            Self::Active | Self::Read { .. } => Self::Active,
            Self::Changed | Self::ChangedSinceRead => Self::Changed,
        }
    }
}
