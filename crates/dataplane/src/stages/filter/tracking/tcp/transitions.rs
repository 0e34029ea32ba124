//! The states of a connection of TCP, and what leads from one to another (`tcp_conntracks`).

use super::super::super::flows::Side;
use super::super::S;
use super::Segment;
use crate::wire::tcp_flags::{ACK, FIN, RST, SYN};

/// The state of a connection of TCP (`enum tcp_conntrack`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TcpState {
    /// Before the first packet.
    #[default]
    None,
    /// A SYN was seen.
    SynSent,
    /// It was answered.
    SynRecv,
    /// The answer was acknowledged.
    Established,
    /// One side has sent its FIN.
    FinWait,
    /// It was acknowledged.
    CloseWait,
    /// Both sides have sent their FIN.
    LastAck,
    /// The last one was acknowledged.
    TimeWait,
    /// It was reset.
    Close,
    /// Both sides have sent a SYN.
    SynSent2,
}

/// What a packet is to a connection (`enum tcp_bit_set`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Event {
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
    #[default]
    None,
}

/// Where a packet leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    To(TcpState),
    /// It may be right or not; one of both sides will say it.
    Ignore,
    Invalid,
}

use TcpState::{
    Close, CloseWait, Established, FinWait, LastAck, None as Nothing, SynRecv, SynSent, SynSent2,
    TimeWait,
};
use Then::{Ignore as IG, Invalid as IV};

const SS: Then = Then::To(SynSent);
const SR: Then = Then::To(SynRecv);
const ES: Then = Then::To(Established);
const FW: Then = Then::To(FinWait);
const CW: Then = Then::To(CloseWait);
const LA: Then = Then::To(LastAck);
const TW: Then = Then::To(TimeWait);
const CL: Then = Then::To(Close);
const S2: Then = Then::To(SynSent2);

/// By direction, event and state: None, SynSent, SynRecv, Established, FinWait, CloseWait, LastAck, TimeWait, Close,
/// SynSent2.
const TRANSITIONS: [[[Then; 10]; 6]; 2] = [
    [
        [SS, SS, IG, IG, IG, IG, IG, SS, SS, S2],
        [IV, IV, SR, IV, IV, IV, IV, IV, IV, SR],
        [IV, IV, FW, FW, LA, LA, LA, TW, CL, IV],
        [ES, IV, ES, ES, CW, CW, TW, TW, CL, IV],
        [IV, CL, CL, CL, CL, CL, CL, CL, CL, CL],
        [IV; 10],
    ],
    [
        [IV, S2, IV, IV, IV, IV, IV, SS, IV, S2],
        [IV, SR, IG, IG, IG, IG, IG, IG, IG, SR],
        [IV, IV, FW, FW, LA, LA, LA, TW, CL, IV],
        [IV, IG, SR, ES, CW, CW, TW, TW, CL, IG],
        [IV, CL, CL, CL, CL, CL, CL, CL, CL, CL],
        [IV; 10],
    ],
];

/// Where a packet leads from a state.
pub(super) const fn then(state: TcpState, event: Event, side: Side) -> Then {
    TRANSITIONS[side as usize][event as usize][state as usize]
}

impl Event {
    pub(super) const fn of(segment: &Segment<'_>) -> Self {
        match segment.flags {
            flags if flags & RST != 0 => Self::Rst,
            flags if flags & SYN != 0 && flags & ACK != 0 => Self::SynAck,
            flags if flags & SYN != 0 => Self::Syn,
            flags if flags & FIN != 0 => Self::Fin,
            flags if flags & ACK != 0 => Self::Ack,
            _ => Self::None,
        }
    }
}

impl TcpState {
    /// How long a connection in this state lives without packets (`tcp_timeouts`).
    pub(super) const fn lives_ns(self) -> u64 {
        match self {
            SynSent | SynSent2 | FinWait | TimeWait | Nothing => 120 * S,
            SynRecv | CloseWait => 60 * S,
            Established => 5 * 24 * 3600 * S,
            LastAck => 30 * S,
            Close => 10 * S,
        }
    }

    /// Says whether a SYN may begin another connection.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, TimeWait | Close | SynSent2)
    }

    /// Says whether the connection is about to end, so that its numbers may be those of another one already
    /// (`tcp_can_early_drop`).
    pub(super) const fn is_closing(self) -> bool {
        matches!(self, FinWait | LastAck | TimeWait | Close | CloseWait)
    }
}
