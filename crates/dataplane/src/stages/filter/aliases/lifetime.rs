//! How long a mapping lives without packets (`alias_db.h`, `TcpMonitorIn`, `TcpMonitorOut`).

use super::S;
use crate::wire::l4;
use crate::wire::tcp_flags::{ACK, FIN, RST, SYN};

const OTHERS: u64 = 60 * S;
const FRAGMENT: u64 = 10 * S;
const TCP_INITIAL: u64 = 300 * S;
const TCP_CONNECTED: u64 = 86_400 * S;
const TCP_SINGLE_DEAD: u64 = 90 * S;
const TCP_DEAD: u64 = 10 * S;

/// What a mapping knows of one side of a connection of TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TcpSide {
    #[default]
    NotConnected,
    Connected,
    Disconnected,
}

/// Both sides: what leaves, what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) sides: [TcpSide; 2],
    ns: u64,
}

impl Lifetime {
    pub(super) const fn of(protocol: u8) -> Self {
        let ns = match protocol {
            l4::TCP => TCP_INITIAL,
            _ => OTHERS,
        };
        Self { sides: [TcpSide::NotConnected; 2], ns }
    }

    pub(super) const fn of_fragment() -> Self {
        Self { sides: [TcpSide::NotConnected; 2], ns: FRAGMENT }
    }

    pub(super) const fn ns(self) -> u64 {
        self.ns
    }

    /// Notes flags of TCP that one side has sent.
    pub(super) fn note(&mut self, side: usize, tcp_flags: u8) {
        if self.ns == TCP_DEAD && tcp_flags & (SYN | ACK | RST) == SYN {
            *self = Self::of(l4::TCP);
        }
        let other = self.sides[1 - side];
        let next = match self.sides[side] {
            TcpSide::NotConnected if tcp_flags & RST != 0 => TcpSide::Disconnected,
            TcpSide::NotConnected if tcp_flags & SYN != 0 => TcpSide::Connected,
            TcpSide::Connected if tcp_flags & (FIN | RST) != 0 => TcpSide::Disconnected,
            _ => return,
        };
        self.sides[side] = next;
        self.ns = match (next, other) {
            (TcpSide::Disconnected, TcpSide::Connected) => TCP_SINGLE_DEAD,
            (TcpSide::Disconnected, _) => TCP_DEAD,
            (_, TcpSide::Connected) => TCP_CONNECTED,
            _ => self.ns,
        };
    }
}
