//! Why the kernel forwards the packets of a connection's direction, as an entry of the programs' table has it.

use std::fmt;

use tollway_conntrack::Reason;

/// The reason of an entry. Those of the connection itself come first, with the names that [`Reason`] gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelReason {
    /// [`Reason::Template`].
    Template,
    /// [`Reason::Dying`].
    Dying,
    /// [`Reason::NotConfirmed`].
    NotConfirmed,
    /// [`Reason::NatClash`].
    NatClash,
    /// [`Reason::Protocol`].
    Protocol,
    /// [`Reason::Offload`].
    Offload,
    /// [`Reason::Helper`].
    Helper,
    /// [`Reason::SeqAdjust`].
    SeqAdjust,
    /// [`Reason::Synproxy`].
    Synproxy,
    /// [`Reason::FixedTimeout`].
    FixedTimeout,
    /// [`Reason::TcpState`].
    TcpState,
    /// [`Reason::NotAssured`].
    NotAssured,
    /// There is none, or it is in a zone.
    NoConnection,
    /// Packets with this tuple are no direction of the connection.
    OtherTuple,
    /// Its addresses are translated, and no rule does so any more.
    NotTranslated,
    /// Packets are for the router itself.
    Local,
    /// Packets leave by the link that they arrive on.
    SameLink,
    /// The rules decide by more than the connection, or do more with its packets than to accept or drop them.
    Rules,
    /// Nobody can follow the windows of TCP.
    NoTrack,
}

impl KernelReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 19] = [
        Self::Template,
        Self::Dying,
        Self::NotConfirmed,
        Self::NatClash,
        Self::Protocol,
        Self::Offload,
        Self::Helper,
        Self::SeqAdjust,
        Self::Synproxy,
        Self::FixedTimeout,
        Self::TcpState,
        Self::NotAssured,
        Self::NoConnection,
        Self::OtherTuple,
        Self::NotTranslated,
        Self::Local,
        Self::SameLink,
        Self::Rules,
        Self::NoTrack,
    ];

    /// The number in the table.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The reason with a number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The reason as a keyword for programs, which stays the same.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Dying => "dying",
            Self::NotConfirmed => "not_confirmed",
            Self::NatClash => "nat_clash",
            Self::Protocol => "protocol",
            Self::Offload => "offload",
            Self::Helper => "helper",
            Self::SeqAdjust => "seq_adjust",
            Self::Synproxy => "synproxy",
            Self::FixedTimeout => "fixed_timeout",
            Self::TcpState => "tcp_state",
            Self::NotAssured => "not_assured",
            Self::NoConnection => "no_connection",
            Self::OtherTuple => "other_tuple",
            Self::NotTranslated => "not_translated",
            Self::Local => "local",
            Self::SameLink => "same_link",
            Self::Rules => "rules",
            Self::NoTrack => "no_track",
        }
    }
}

/// A clause without a full stop.
impl fmt::Display for KernelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Template => "it was a template of a rule",
            Self::Dying => "the kernel was removing it",
            Self::NotConfirmed => "the kernel had not confirmed it",
            Self::NatClash => "another connection had the same original tuple",
            Self::Protocol => "its protocol is neither TCP nor UDP",
            Self::Offload => "a flowtable of the kernel forwarded it",
            Self::Helper => "a helper reads its packets",
            Self::SeqAdjust => "the kernel adjusts its sequence numbers",
            Self::Synproxy => "synproxy answered its handshake",
            Self::FixedTimeout => "it has a fixed timeout",
            Self::TcpState => "its TCP state was not ESTABLISHED when a packet came last",
            Self::NotAssured => "it was not assured when a packet came last",
            Self::NoConnection => "the kernel had no such connection when a packet came last, or has it in a zone",
            Self::OtherTuple => "its packets arrive with other addresses than the kernel's entry has",
            Self::NotTranslated => "its addresses are translated, and no rule does so any more",
            Self::Local => "its packets are for the router itself, or no route leads to their destination",
            Self::SameLink => "its packets leave by the link that they arrive on",
            Self::Rules => {
                "rules decide by more than what its packets have in common, or mark, log or limit them"
            }
            Self::NoTrack => "there is no room to follow its windows, or it is ending",
        })
    }
}

impl From<Reason> for KernelReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Template => Self::Template,
            Reason::Dying => Self::Dying,
            Reason::NotConfirmed => Self::NotConfirmed,
            Reason::NatClash => Self::NatClash,
            Reason::Protocol(_) => Self::Protocol,
            Reason::Offload => Self::Offload,
            Reason::Helper => Self::Helper,
            Reason::SeqAdjust => Self::SeqAdjust,
            Reason::Synproxy => Self::Synproxy,
            Reason::FixedTimeout => Self::FixedTimeout,
            Reason::TcpState(_) => Self::TcpState,
            Reason::NotAssured => Self::NotAssured,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tollway_conntrack::TcpState;

    use super::*;

    #[test]
    fn a_number_finds_its_reason_and_a_name_is_of_one_alone() {
        for reason in KernelReason::ALL {
            assert_eq!(KernelReason::of(reason.number()), Some(reason));
        }
        assert_eq!(KernelReason::of(KernelReason::ALL.len() as u8), None);
        let names: BTreeSet<_> = KernelReason::ALL.map(KernelReason::name).into();
        assert_eq!(names.len(), KernelReason::ALL.len());
    }

    #[test]
    fn a_reason_of_the_connection_keeps_its_name() {
        for reason in [
            Reason::Template,
            Reason::Dying,
            Reason::NotConfirmed,
            Reason::NatClash,
            Reason::Protocol(1),
            Reason::Offload,
            Reason::Helper,
            Reason::SeqAdjust,
            Reason::Synproxy,
            Reason::FixedTimeout,
            Reason::TcpState(TcpState::SynSent),
            Reason::NotAssured,
        ] {
            assert_eq!(KernelReason::from(reason).name(), reason.name());
        }
    }
}
