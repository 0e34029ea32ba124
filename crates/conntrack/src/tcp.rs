//! What the kernel knows of a TCP connection.

use std::fmt;

/// The state of a TCP connection (`enum tcp_conntrack`), by the packets that the kernel has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// No packet has set a state.
    None,
    /// A SYN was seen.
    SynSent,
    /// A SYN was answered.
    SynRecv,
    /// The handshake is complete.
    Established,
    /// One side has sent its FIN.
    FinWait,
    /// That FIN was acknowledged.
    CloseWait,
    /// Both sides have sent their FIN.
    LastAck,
    /// The last FIN was acknowledged.
    TimeWait,
    /// An RST has ended the connection.
    Close,
    /// Both sides have sent a SYN.
    SynSent2,
    /// A state that Tollway does not know.
    Other(u8),
}

/// What one side of a TCP connection has done (`IP_CT_TCP_FLAG_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags(pub u8);

/// What the kernel knows of a TCP connection (`CTA_PROTOINFO_TCP`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// The state.
    pub state: TcpState,
    /// The window scale of the original direction.
    pub original_wscale: Option<u8>,
    /// The window scale of the reply direction.
    pub reply_wscale: Option<u8>,
    /// The flags of the original direction.
    pub original_flags: Option<TcpFlags>,
    /// The flags of the reply direction.
    pub reply_flags: Option<TcpFlags>,
}

impl TcpInfo {
    /// Whether both sides have all of these flags.
    #[must_use]
    pub fn both_have(&self, flags: TcpFlags) -> bool {
        let has_all = |side: Option<TcpFlags>| side.is_some_and(|side| side.0 & flags.0 == flags.0);
        has_all(self.original_flags) && has_all(self.reply_flags)
    }

    /// Whether a side has any of these flags.
    #[must_use]
    pub fn any_has(&self, flags: TcpFlags) -> bool {
        [self.original_flags, self.reply_flags].iter().flatten().any(|side| side.0 & flags.0 != 0)
    }
}

impl TcpState {
    /// All states that Tollway knows, each at the kernel's number.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::SynSent,
        Self::SynRecv,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
        Self::SynSent2,
    ];

    /// The state with a number of the kernel.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Other(number))
    }

    /// The kernel's name, as in `/proc/net/nf_conntrack`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::SynSent => "SYN_SENT",
            Self::SynRecv => "SYN_RECV",
            Self::Established => "ESTABLISHED",
            Self::FinWait => "FIN_WAIT",
            Self::CloseWait => "CLOSE_WAIT",
            Self::LastAck => "LAST_ACK",
            Self::TimeWait => "TIME_WAIT",
            Self::Close => "CLOSE",
            Self::SynSent2 => "SYN_SENT2",
            Self::Other(_) => "UNKNOWN",
        }
    }
}

impl fmt::Display for TcpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TcpFlags {
    /// The kernel lets packets of this side pass that are out of the window.
    pub const LIBERAL: Self = Self(0x08);
    /// This side has sent data that is not acknowledged, and the kernel knows the highest acknowledgment of it: what the
    /// kernel has to forget where it does not see all packets.
    pub const OF_PACKETS: Self = Self(0x10 | 0x20);

    /// Whether this side offered window scaling.
    #[must_use]
    pub const fn has_window_scale(self) -> bool {
        self.0 & 0x01 != 0
    }

    /// Whether this side permitted selective acknowledgments.
    #[must_use]
    pub const fn has_sack(self) -> bool {
        self.0 & 0x02 != 0
    }

    /// Whether this side sent the first FIN.
    #[must_use]
    pub const fn is_close_init(self) -> bool {
        self.0 & 0x04 != 0
    }

    /// Whether the kernel lets packets of this side pass that are out of the window.
    #[must_use]
    pub const fn is_liberal(self) -> bool {
        self.0 & 0x08 != 0
    }

    /// Whether this side has sent data that is not acknowledged.
    #[must_use]
    pub const fn has_unacknowledged(self) -> bool {
        self.0 & 0x10 != 0
    }

    /// Whether the kernel knows the highest acknowledgment of this side, by which it judges an RST.
    #[must_use]
    pub const fn has_max_ack(self) -> bool {
        self.0 & 0x20 != 0
    }
}
