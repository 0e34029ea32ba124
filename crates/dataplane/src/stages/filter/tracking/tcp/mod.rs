//! Connections of TCP: their state, and the windows of both sides (`net/netfilter/nf_conntrack_proto_tcp.c` of Linux 6.18).

mod options;
#[cfg(test)]
mod tests;
mod transitions;
mod window;

use super::super::flows::Side;
use super::{ASSURED, S, SEEN_REPLY, Verdict};
use options::{Offer, offer};
use transitions::{Event, TcpState, Then, then};
use window::{InWindow, Window};

use crate::wire::tcp_flags::{ACK, RST, SYN};

pub use transitions::TcpState as TcpConnectionState;

/// Flags of a side, and of what was ignored (`IP_CT_TCP_FLAG_*`, `IP_CT_EXP_CHALLENGE_ACK`,
/// `IP_CT_TCP_SIMULTANEOUS_OPEN`).
const WINDOW_SCALE: u8 = 0x01;
const SACK_PERMITTED: u8 = 0x02;
const CLOSES_FIRST: u8 = 0x04;
const LIBERAL: u8 = 0x08;
const UNACKNOWLEDGED: u8 = 0x10;
const HAS_MAXACK: u8 = 0x20;
const EXPECTS_CHALLENGE: u8 = 0x40;
const SIMULTANEOUS_OPEN: u8 = 0x80;

/// `nf_conntrack_tcp_max_retrans`.
const MOST_RETRANSMISSIONS: u8 = 3;
/// `nf_conntrack_tcp_timeout_max_retrans` and `nf_conntrack_tcp_timeout_unacknowledged`.
const RETRANSMITTED: u64 = 300 * S;
const NOT_ACKNOWLEDGED: u64 = 300 * S;

/// A packet of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Segment<'a> {
    pub(super) flags: u8,
    pub(super) seq: u32,
    /// The number behind its last byte, SYN and FIN included.
    pub(super) end: u32,
    pub(super) ack: u32,
    pub(super) window: u16,
    pub(super) options: &'a [u8],
}

/// What is known of a connection (`struct ip_ct_tcp`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tcp {
    pub(super) state: TcpState,
    /// By [`Side`].
    windows: [Window; 2],
    last: Last,
}

/// The last packet that counted, or that was ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Last {
    event: Event,
    side: u8,
    retransmissions: u8,
    seq: u32,
    ack: u32,
    end: u32,
    window: u16,
    /// What an ignored SYN has offered.
    offer: Offer,
}

/// What becomes of a packet, and of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// How long the connection lives from now on, if that changes.
    pub(super) lives_ns: Option<u64>,
    /// Whether the connection is assured from now on.
    pub(super) is_assured: bool,
}

impl Outcome {
    const fn only(verdict: Verdict) -> Self {
        Self { verdict, lives_ns: None, is_assured: false }
    }
}

const fn is_before(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}

const fn is_after(number: u32, other: u32) -> bool {
    is_before(other, number)
}

impl Segment<'_> {
    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl Tcp {
    /// What a first packet says; none if it cannot be one (`tcp_new`).
    pub(super) fn begin(segment: &Segment<'_>) -> Option<Self> {
        let mut tcp = Self::default();
        let window = u32::from(segment.window).max(1);
        let sender = &mut tcp.windows[0];
        sender.end = segment.end;
        sender.maxwin = window;
        match then(TcpState::None, Event::of(segment), Side::Forward) {
            Then::To(TcpState::SynSent) => {
                sender.maxend = segment.end;
                sender.offered(offer(segment.options));
            }
            // In the middle of a connection. Nobody knows how its windows are scaled.
            Then::To(_) => {
                sender.maxend = segment.end.wrapping_add(window);
                tcp.windows.iter_mut().for_each(|side| side.flags = SACK_PERMITTED | LIBERAL);
            }
            Then::Ignore | Then::Invalid => return None,
        }
        Some(tcp)
    }

    /// Follows a packet; `lives_ns` is how long the connection would live without it.
    pub(super) fn follow(
        &mut self,
        segment: &Segment<'_>,
        side: Side,
        (status, lives_ns): (u32, u64),
    ) -> Outcome {
        let (before, event) = (self.state, Event::of(segment));
        let mut to = match then(before, event, side) {
            Then::To(TcpState::SynSent) if before.is_over() => {
                if self.reopens(side) {
                    return Outcome::only(Verdict::Reopens);
                }
                Then::Ignore
            }
            to => to,
        };
        let mut old = before;
        if to == Then::Ignore {
            if !self.answers_ignored(segment, event, side) {
                self.ignore(segment, event, side);
                return Outcome::only(Verdict::Valid);
            }
            self.get_in_sync(side);
            (old, to) = (TcpState::SynSent, Then::To(TcpState::SynRecv));
        }
        let Then::To(mut state) = to else { return Outcome::only(Verdict::Invalid) };
        let mut skips_windows = false;
        match state {
            TcpState::TimeWait if self.is_challenge(before, event, side) => {
                self.last.offer.flags &= !EXPECTS_CHALLENGE;
                return Outcome::only(Verdict::Valid);
            }
            TcpState::SynSent2 => self.last.offer.flags |= SIMULTANEOUS_OPEN,
            TcpState::SynRecv
                if side == Side::Reverse
                    && event == Event::Ack
                    && self.last.offer.flags & SIMULTANEOUS_OPEN != 0 =>
            {
                state = TcpState::Established;
            }
            TcpState::Close if event == Event::Rst => match self.reset(segment, side, status) {
                Reset::Invalid => return Outcome::only(Verdict::Invalid),
                Reset::Skips => skips_windows = true,
                Reset::Closes => {}
                Reset::Keeps => {
                    state = before;
                    skips_windows = self.answers_ignored_by_reset(segment, side, status);
                }
                Reset::May => skips_windows = self.answers_ignored_by_reset(segment, side, status),
            },
            _ => {}
        }
        if !skips_windows {
            match self.in_window(segment, event, side) {
                InWindow::Ignore => return Outcome::only(Verdict::Valid),
                InWindow::Invalid => return self.out_of_window(event, side, (status, lives_ns)),
                InWindow::Accept => {}
            }
        }
        self.last.event = event;
        self.last.side = side as u8;
        self.state = state;
        if old != state && state == TcpState::FinWait {
            self.windows[side as usize].flags |= CLOSES_FIRST;
        }
        self.ends(segment, (old, event), status)
    }

    /// How long the connection lives, and what else changes.
    fn ends(&self, segment: &Segment<'_>, (old, event): (TcpState, Event), status: u32) -> Outcome {
        let state = self.state;
        let is_unacknowledged =
            (self.windows[0].flags | self.windows[1].flags) & UNACKNOWLEDGED != 0;
        let whole = state.lives_ns();
        let mut lives_ns =
            if self.last.retransmissions >= MOST_RETRANSMISSIONS && whole > RETRANSMITTED {
                RETRANSMITTED
            } else if event == Event::Rst {
                TcpState::Close.lives_ns()
            } else if is_unacknowledged && whole > NOT_ACKNOWLEDGED {
                NOT_ACKNOWLEDGED
            } else if self.last.window == 0 && whole > RETRANSMITTED {
                RETRANSMITTED
            } else {
                whole
            };
        let mut is_assured = false;
        if status & SEEN_REPLY == 0 {
            if segment.has(RST) {
                return Outcome::only(Verdict::Ends);
            }
            if event == Event::Syn && old == TcpState::SynSent {
                // A SYN that is sent again does not keep the connection alive.
                return Outcome::only(Verdict::Valid);
            }
            if state == TcpState::Established {
                lives_ns = lives_ns.min(NOT_ACKNOWLEDGED);
            }
        } else if status & ASSURED == 0
            && matches!(old, TcpState::SynRecv | TcpState::Established)
            && state == TcpState::Established
        {
            is_assured = true;
        }
        Outcome { verdict: Verdict::Valid, lives_ns: Some(lives_ns), is_assured }
    }

    /// Says whether a SYN after the end is the first of another connection.
    fn reopens(&self, side: Side) -> bool {
        (self.windows[0].flags | self.windows[1].flags) & CLOSES_FIRST != 0
            || self.last.side == side as u8 && self.last.event == Event::Rst
    }

    /// Says whether it is the SYN/ACK for a SYN that was ignored: both sides are in sync, and this table is not.
    fn answers_ignored(&self, segment: &Segment<'_>, event: Event, side: Side) -> bool {
        event == Event::SynAck
            && self.last.event == Event::Syn
            && self.last.side != side as u8
            && segment.ack == self.last.end
    }

    /// Takes over what the ignored SYN has said.
    fn get_in_sync(&mut self, side: Side) {
        let Last { end, window, .. } = self.last;
        self.last.offer.flags &= !EXPECTS_CHALLENGE;
        let offer = self.last.offer;
        let other = &mut self.windows[usize::from(self.last.side & 1)];
        other.end = end;
        other.maxend = end;
        other.maxwin = u32::from(window).max(1);
        other.scale = offer.scale;
        other.flags = offer.flags;
        let own = &mut self.windows[side as usize];
        *own = Window { flags: own.flags & LIBERAL, ..Window::default() };
    }

    /// Lets a packet by that may be right, and remembers it.
    fn ignore(&mut self, segment: &Segment<'_>, event: Event, side: Side) {
        self.last.event = event;
        self.last.side = side as u8;
        self.last.seq = segment.seq;
        self.last.end = segment.end;
        self.last.window = segment.window;
        if event == Event::Syn && side == Side::Forward {
            let seen = offer(segment.options).unwrap_or_default();
            let scale = if seen.flags & WINDOW_SCALE != 0 { seen.scale } else { 0 };
            self.last.offer = Offer { flags: seen.flags, scale };
            if self.state == TcpState::LastAck {
                self.last.offer.flags |= EXPECTS_CHALLENGE;
            }
        }
        if self.state == TcpState::SynSent && event == Event::Ack && side == Side::Reverse {
            // It may be the answer of a side that has the connection open (RFC 5961).
            self.last.ack = segment.ack;
        }
    }

    /// Says whether it answers an ignored SYN (RFC 5961), and is not the acknowledgement of the last FIN.
    fn is_challenge(&self, before: TcpState, event: Event, side: Side) -> bool {
        before == TcpState::LastAck
            && event == Event::Ack
            && self.last.side != side as u8
            && self.last.event == Event::Syn
            && self.last.offer.flags & EXPECTS_CHALLENGE != 0
    }

    /// What a reset is by its number (RFC 5961, section 3.2).
    fn reset(&self, segment: &Segment<'_>, side: Side, status: u32) -> Reset {
        if self.state.is_closing() {
            return Reset::Skips;
        }
        let receiver = &self.windows[side as usize ^ 1];
        if receiver.flags & HAS_MAXACK == 0 || self.last.event == Event::Syn {
            return Reset::May;
        }
        let is_established = self.state == TcpState::Established && status & ASSURED != 0;
        if segment.seq == 0 && !is_established {
            return Reset::Closes;
        }
        if is_before(segment.seq, receiver.maxack) {
            return Reset::Invalid;
        }
        let follows_last = self.last.event == Event::Ack
            && self.last.side == side as u8
            && segment.seq == self.last.end;
        match !is_established || segment.seq == receiver.maxack || follows_last {
            true => Reset::Closes,
            // The other side may ask with an acknowledgement first.
            false => Reset::Keeps,
        }
    }

    /// Says whether a reset answers a packet that was ignored, so that it may acknowledge what was not seen.
    fn answers_ignored_by_reset(&self, segment: &Segment<'_>, side: Side, status: u32) -> bool {
        let of_syn = status & SEEN_REPLY != 0
            && self.last.event == Event::Syn
            && self.last.side != side as u8;
        let of_ack = status & ASSURED == 0 && self.last.event == Event::Ack;
        let of_challenge = self.state == TcpState::SynSent
            && self.last.event == Event::Ack
            && self.last.side == Side::Reverse as u8
            && segment.seq == self.last.ack;
        (of_syn || of_ack) && segment.ack == self.last.end || of_challenge
    }

    /// A FIN or RST out of the windows, one of each side, shortens the life of a connection (`nf_tcp_handle_invalid`).
    fn out_of_window(
        &mut self,
        event: Event,
        side: Side,
        (status, lives_ns): (u32, u64),
    ) -> Outcome {
        let mut outcome = Outcome::only(Verdict::Invalid);
        if status & ASSURED == 0 || !matches!(event, Event::Rst | Event::Fin) {
            return outcome;
        }
        if self.last.side != side as u8 && matches!(self.last.event, Event::Fin | Event::Rst) {
            outcome.lives_ns = (lives_ns > NOT_ACKNOWLEDGED).then_some(NOT_ACKNOWLEDGED);
        } else {
            self.last.event = event;
            self.last.side = side as u8;
        }
        outcome
    }
}

/// What a reset does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    /// It cannot be right.
    Invalid,
    /// It closes the connection, whatever the windows are.
    Skips,
    /// It closes the connection if it is in the windows.
    Closes,
    /// Like `Closes`, unless it answers an ignored packet.
    May,
    /// It is let by, and the connection stays as it is.
    Keeps,
}
