//! Why the kernel alone can forward a connection's packets.

use libc::{IPPROTO_TCP, IPPROTO_UDP};

use crate::connection::Connection;
use crate::tcp::TcpState;

/// Why a connection stays on the kernel path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// It is a rule's pattern.
    #[error("it is a template of a rule, and not a connection")]
    Template,
    /// It is being removed.
    #[error("the kernel is removing it")]
    Dying,
    /// It is not in the table.
    #[error("the kernel has not confirmed it")]
    NotConfirmed,
    /// It shares its original tuple with another entry.
    #[error("another connection has the same original tuple")]
    NatClash,
    /// The protocol, with its number.
    #[error("its protocol ({0}) is neither TCP nor UDP")]
    Protocol(u8),
    /// A flowtable has it.
    #[error("a flowtable of the kernel forwards it")]
    Offload,
    /// A helper reads its data.
    #[error("a helper reads its packets")]
    Helper,
    /// Sequence numbers are shifted.
    #[error("the kernel adjusts its sequence numbers")]
    SeqAdjust,
    /// The kernel has answered the handshake.
    #[error("synproxy answered its handshake")]
    Synproxy,
    /// Packets do not prolong it.
    #[error("it has a fixed timeout")]
    FixedTimeout,
    /// TCP is not established.
    #[error("its TCP state is {0}, not ESTABLISHED")]
    TcpState(TcpState),
    /// A full table may evict it.
    #[error("it is not assured: the kernel has seen too few packets")]
    NotAssured,
}

impl Reason {
    /// The reason as a keyword for programs, which stays the same.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Dying => "dying",
            Self::NotConfirmed => "not_confirmed",
            Self::NatClash => "nat_clash",
            Self::Protocol(_) => "protocol",
            Self::Offload => "offload",
            Self::Helper => "helper",
            Self::SeqAdjust => "seq_adjust",
            Self::Synproxy => "synproxy",
            Self::FixedTimeout => "fixed_timeout",
            Self::TcpState(_) => "tcp_state",
            Self::NotAssured => "not_assured",
        }
    }
}

impl Connection {
    /// Decides whether the fast path may have the connection's packets. If several reasons exclude that, the
    /// result is the one that lasts longest.
    ///
    /// ctnetlink does not report whether a rule has given the connection timeouts of its own (`ct timeout`).
    ///
    /// # Errors
    /// Why it stays on the kernel path.
    pub fn offload(&self) -> Result<(), Reason> {
        self.entry_reason().or_else(|| self.traffic_reason()).map_or(Ok(()), Err)
    }

    /// Whether a flowtable of the kernel forwards its packets.
    #[must_use]
    pub const fn is_offloaded(&self) -> bool {
        self.status.is_offloaded() || self.status.is_hardware_offloaded()
    }

    /// What the entry itself excludes.
    fn entry_reason(&self) -> Option<Reason> {
        let status = self.status;
        [
            (status.is_template(), Reason::Template),
            (status.is_dying(), Reason::Dying),
            (!status.is_confirmed(), Reason::NotConfirmed),
            (status.is_nat_clash(), Reason::NatClash),
            (!self.is_tcp() && !self.is_udp(), Reason::Protocol(self.original.protocol)),
            (self.is_offloaded(), Reason::Offload),
        ]
        .into_iter()
        .find_map(|(applies, reason)| applies.then_some(reason))
    }

    /// What its traffic so far, or its treatment by the kernel, excludes.
    fn traffic_reason(&self) -> Option<Reason> {
        let status = self.status;
        let state = self.tcp.map_or(TcpState::None, |tcp| tcp.state);
        [
            (self.helper.is_some() || status.has_helper(), Reason::Helper),
            (self.has_seq_adjust || status.has_seq_adjust(), Reason::SeqAdjust),
            (self.has_synproxy, Reason::Synproxy),
            (status.has_fixed_timeout(), Reason::FixedTimeout),
            (self.is_tcp() && state != TcpState::Established, Reason::TcpState(state)),
            (!status.is_assured(), Reason::NotAssured),
        ]
        .into_iter()
        .find_map(|(applies, reason)| applies.then_some(reason))
    }

    fn is_tcp(&self) -> bool {
        i32::from(self.original.protocol) == IPPROTO_TCP
    }

    fn is_udp(&self) -> bool {
        i32::from(self.original.protocol) == IPPROTO_UDP
    }
}
