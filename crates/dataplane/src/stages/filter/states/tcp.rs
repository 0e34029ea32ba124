//! The time that a state lives after a packet (`dyn_update_proto_state`, `dyn_update_tcp_state`).

use super::super::flows::Side;
use super::S;
use super::packet::StatePacket;
use crate::wire::l4;

// `net.inet.ip.fw.dyn_*_lifetime`.
const ACK: u64 = 300 * S;
const SYN: u64 = 20 * S;
const FIN: u64 = S;
const RST: u64 = S;
const UDP: u64 = 10 * S;
const SHORT: u64 = 5 * S;

const FLAG_FIN: u8 = 1;
const FLAG_SYN: u8 = 2;
const FLAG_RST: u8 = 4;

/// What a state knows of its connection of TCP, by [`Side`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tcp {
    /// FIN, SYN and RST that have been seen.
    flags: [u8; 2],
    /// The highest acknowledgement; 0 before the first.
    ack: [u32; 2],
    /// The sides, one bit each, that have acknowledged something since the time began again.
    acked: u8,
}

impl Tcp {
    /// FIN, SYN and RST that have been seen, by [`Side`].
    pub(super) const fn flags(&self) -> [u8; 2] {
        self.flags
    }

    /// Notes a packet; returns how long the state lives, if that begins again.
    fn note(&mut self, packet: &StatePacket, side: Side) -> Option<u64> {
        let side = side as usize;
        self.flags[side] |= packet.tcp_flags & (FLAG_FIN | FLAG_SYN | FLAG_RST);
        const BOTH: u8 = FLAG_SYN | FLAG_FIN;
        match self.flags {
            [FLAG_SYN, 0] => Some(SYN),
            [FLAG_SYN, FLAG_SYN] | [BOTH, FLAG_SYN] | [FLAG_SYN, BOTH] => {
                let ack = packet.ack?;
                let before = &mut self.ack[side];
                let mut acked = self.acked;
                if *before == 0 || ack.wrapping_sub(*before) as i32 >= 0 {
                    *before = ack;
                    acked |= 1 << side;
                }
                if acked != 3 {
                    self.acked = acked;
                    return None;
                }
                // This side's acknowledgement is the first of the next two.
                self.acked ^= 3;
                Some(ACK)
            }
            [BOTH, BOTH] => Some(FIN),
            // A RST, or a state that began in the middle of a connection.
            _ => Some(RST),
        }
    }
}

/// When the state of a packet ends, if that changes. `tcp` is what it knows if it is of TCP.
pub(super) fn expires_ns(
    tcp: &mut Tcp,
    packet: &StatePacket,
    side: Side,
    now_ns: u64,
) -> Option<u64> {
    let lives = match packet.flow.protocol {
        l4::TCP => tcp.note(packet, side)?,
        l4::UDP | l4::UDP_LITE => UDP,
        _ => SHORT,
    };
    Some(now_ns.saturating_add(lives))
}

/// When a new state ends, before its first packet is noted.
pub(super) const fn begins_ns(now_ns: u64) -> u64 {
    now_ns.saturating_add(SYN)
}
