//! The windows of TCP (`tcp_in_window`).

use super::options::{Offer, highest_ack, offer};
use super::transitions::{Event, TcpState};
use super::{
    ACK, HAS_MAXACK, LIBERAL, RST, SACK_PERMITTED, SYN, Segment, Side, Tcp, UNACKNOWLEDGED,
    WINDOW_SCALE, is_after, is_before,
};

/// `MAXACKWINCONST`.
const ACK_WINDOW: u32 = 66_000;

/// One side (`struct ip_ct_tcp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// The highest number sent, and one more.
    pub(super) end: u32,
    /// The highest number that the other side has allowed.
    pub(super) maxend: u32,
    /// The largest window that this side has offered; 0 before its first packet.
    pub(super) maxwin: u32,
    /// The highest acknowledgement sent.
    pub(super) maxack: u32,
    pub(super) scale: u8,
    pub(super) flags: u8,
}

/// What the windows say of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InWindow {
    Accept,
    /// It may pass, and changes nothing more.
    Ignore,
    Invalid,
}

impl Window {
    /// Notes what a SYN offers.
    pub(super) const fn offered(&mut self, offer: Option<Offer>) {
        if let Some(offer) = offer {
            self.scale = offer.scale;
            self.flags = self.flags & LIBERAL | offer.flags;
        }
    }

    const fn is_liberal(&self, otherwise: InWindow) -> InWindow {
        if self.flags & LIBERAL != 0 { InWindow::Accept } else { otherwise }
    }
}

/// Begins with the SYN of a side, or its SYN/ACK (`tcp_init_sender`).
fn begin(sender: &mut Window, receiver: &mut Window, segment: &Segment<'_>, side: Side) {
    sender.end = segment.end;
    sender.maxend = segment.end;
    sender.maxwin = u32::from(segment.window).max(1);
    sender.offered(offer(segment.options));
    // Windows are scaled only if both sides have offered it.
    if side == Side::Reverse && sender.flags & receiver.flags & WINDOW_SCALE == 0 {
        sender.scale = 0;
        receiver.scale = 0;
    }
}

/// Begins in the middle of a connection, with what a packet says.
fn pick_up(sender: &mut Window, receiver: &mut Window, segment: &Segment<'_>, sack: u32) {
    sender.end = segment.end;
    sender.maxwin = (u32::from(segment.window) << sender.scale).max(1);
    sender.maxend = segment.end.wrapping_add(sender.maxwin);
    if receiver.maxwin == 0 {
        receiver.end = sack;
        receiver.maxend = sack;
    } else if sack == receiver.end.wrapping_add(1) {
        // Likely the answer to a keepalive.
        receiver.end = receiver.end.wrapping_add(1);
    }
}

impl Tcp {
    pub(super) fn in_window(
        &mut self,
        segment: &Segment<'_>,
        event: Event,
        side: Side,
    ) -> InWindow {
        let [forward, reverse] = &mut self.windows;
        let (sender, receiver) = match side {
            Side::Forward => (forward, reverse),
            Side::Reverse => (reverse, forward),
        };
        let (mut seq, mut end, mut ack) = (segment.seq, segment.end, segment.ack);
        let mut sack = match receiver.flags & SACK_PERMITTED {
            0 => ack,
            _ => highest_ack(segment.options, ack),
        };
        let opens = matches!(self.state, TcpState::SynSent | TcpState::SynRecv);
        if sender.maxwin == 0 {
            if segment.has(SYN) {
                begin(sender, receiver, segment, side);
                if !segment.has(ACK) {
                    // Both sides open at once.
                    return InWindow::Accept;
                }
            } else {
                pick_up(sender, receiver, segment, sack);
            }
        } else if segment.has(SYN) && is_after(end, sender.end) && opens {
            begin(sender, receiver, segment, side);
            if side == Side::Reverse && !segment.has(ACK) {
                return InWindow::Accept;
            }
        }
        if !segment.has(ACK) || segment.has(RST) && ack == 0 {
            ack = receiver.end;
            sack = receiver.end;
        }
        if segment.has(RST) && seq == 0 && self.state == TcpState::SynSent {
            // It answers a SYN.
            seq = sender.end;
            end = sender.end;
        }
        let least_ack = receiver.end.wrapping_sub(sender.maxwin.max(ACK_WINDOW)).wrapping_sub(1);
        let least_end = sender.end.wrapping_sub(receiver.maxwin).wrapping_sub(1);
        let acks_the_sent = is_before(sack, receiver.end.wrapping_add(1));
        if !is_before(seq, sender.maxend.wrapping_add(1)) {
            let too_much = end.wrapping_sub(sender.maxend).wrapping_add(1);
            if receiver.maxwin != 0
                && is_after(end, least_end)
                && is_after(sack, least_ack)
                && too_much <= receiver.maxwin
                && acks_the_sent
            {
                // If rules let it by, the other side will acknowledge it.
                sender.end = end;
                sender.flags |= UNACKNOWLEDGED;
                return sender.is_liberal(InWindow::Ignore);
            }
            return sender.is_liberal(InWindow::Invalid);
        }
        if !acks_the_sent {
            return sender.is_liberal(InWindow::Invalid);
        }
        let is_repeated = receiver.maxwin != 0 && !is_after(end, least_end);
        if is_repeated || !is_after(sack, least_ack) {
            return sender.is_liberal(InWindow::Ignore);
        }
        let window = match segment.has(SYN) {
            true => u32::from(segment.window),
            false => u32::from(segment.window) << sender.scale,
        };
        raise(sender, receiver, segment, (end, ack, sack, window));
        if event == Event::Ack {
            self.note_last(segment, (seq, end, ack), side);
        }
        InWindow::Accept
    }

    /// Counts how often the same packet comes in a row.
    fn note_last(&mut self, segment: &Segment<'_>, (seq, end, ack): (u32, u32, u32), side: Side) {
        let last = &mut self.last;
        let is_same = last.side == side as u8
            && (last.seq, last.ack, last.end, last.window) == (seq, ack, end, segment.window);
        if is_same {
            last.retransmissions = last.retransmissions.wrapping_add(1);
            return;
        }
        last.side = side as u8;
        (last.seq, last.ack, last.end, last.window) = (seq, ack, end, segment.window);
        last.retransmissions = 0;
    }
}

/// Notes what a packet in the windows says.
fn raise(
    sender: &mut Window,
    receiver: &mut Window,
    segment: &Segment<'_>,
    (end, ack, sack, window): (u32, u32, u32, u32),
) {
    sender.maxwin = sender.maxwin.max(window.wrapping_add(sack.wrapping_sub(ack)));
    if is_after(end, sender.end) {
        sender.end = end;
        sender.flags |= UNACKNOWLEDGED;
    }
    if segment.has(ACK) && (sender.flags & HAS_MAXACK == 0 || is_after(ack, sender.maxack)) {
        sender.maxack = ack;
        sender.flags |= HAS_MAXACK;
    }
    if receiver.maxwin != 0 && is_after(end, sender.maxend) {
        receiver.maxwin = receiver.maxwin.wrapping_add(end.wrapping_sub(sender.maxend));
    }
    let allowed = sack.wrapping_add(window);
    if is_after(allowed, receiver.maxend.wrapping_sub(1)) {
        receiver.maxend = allowed.wrapping_add(u32::from(window == 0));
    }
    if ack == receiver.end {
        receiver.flags &= !UNACKNOWLEDGED;
    }
}
