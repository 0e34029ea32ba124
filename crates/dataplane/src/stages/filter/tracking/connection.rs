//! A connection, and what its packets change (`nf_conntrack_handle_packet`).

use super::super::binding::Manip;
use super::super::connection::{Connection, ConnectionState, Direction, Tuple};
use super::super::flows::{Entry, FlowId, Side};
use super::packet::{Packet, Transport};
use super::tcp::{Outcome, Tcp, TcpConnectionState};
use super::{
    ASSURED, CONFIRMED, Count, DST_NAT, DST_NAT_DONE, DYING, S, SEEN_REPLY, SRC_NAT, SRC_NAT_DONE,
    Verdict,
};

/// A connection is no stream of UDP for so long.
const UDP_STREAM: u64 = 2 * S;
const UDP: u64 = 30 * S;
const UDP_REPLIED: u64 = 120 * S;
const QUERY: u64 = 30 * S;
const GRE: u64 = 30 * S;
const GRE_REPLIED: u64 = 180 * S;
const OTHER: u64 = 600 * S;

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrackedConnection {
    /// The flow of its first packet.
    flow: FlowId,
    /// The flow with which that packet leaves, if it is another one.
    leaves: Option<Box<FlowId>>,
    /// The number of its entry among answers, if it is translated.
    answers: u64,
    /// Bits of `enum ip_conntrack_status`.
    status: u32,
    pub(super) mark: u32,
    state: State,
    /// By [`Side`].
    counts: [Count; 2],
}

/// What tracking of its protocol knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Tcp(Tcp),
    /// When it becomes a stream.
    Udp(u64),
    None,
}

impl Entry for TrackedConnection {
    type Wanted = ();

    #[inline]
    fn flow(&self) -> &FlowId {
        &self.flow
    }

    #[inline]
    fn side_of(&self, flow: &FlowId) -> Option<Side> {
        // Answers to translated packets are found by `translated.rs`.
        match self.leaves {
            None => self.flow.side_of(flow),
            Some(_) => (self.flow == *flow).then_some(Side::Forward),
        }
    }

    #[inline]
    fn is(&self, (): ()) -> bool {
        true
    }
}

impl TrackedConnection {
    /// The connection that a packet begins, and how long it lives; none if a packet cannot begin one.
    pub(super) fn begin(packet: &Packet<'_>, now_ns: u64) -> Option<(Self, u64)> {
        let state = match packet.transport {
            Transport::Tcp(segment) => State::Tcp(Tcp::begin(&segment)?),
            Transport::Udp => State::Udp(now_ns.saturating_add(UDP_STREAM)),
            Transport::Query if !is_request(&packet.flow) => return None,
            _ => State::None,
        };
        let mut connection = Self {
            flow: packet.flow,
            leaves: None,
            answers: 0,
            status: 0,
            mark: 0,
            state,
            counts: Default::default(),
        };
        let mut expires_ns = now_ns;
        match connection.follow(packet, Side::Forward, now_ns, &mut expires_ns) {
            Verdict::Valid => Some((connection, expires_ns)),
            Verdict::Invalid | Verdict::Ends | Verdict::Reopens => None,
        }
    }

    /// Follows a packet of one side.
    #[inline]
    pub(super) fn follow(
        &mut self,
        packet: &Packet<'_>,
        side: Side,
        now_ns: u64,
        expires_ns: &mut u64,
    ) -> Verdict {
        let lives_ns = expires_ns.saturating_sub(now_ns);
        let outcome = self.outcome(packet, side, lives_ns, now_ns);
        if let Some(lives_ns) = outcome.lives_ns {
            *expires_ns = now_ns.saturating_add(lives_ns);
        }
        if outcome.is_assured {
            self.status |= ASSURED;
        }
        if matches!(outcome.verdict, Verdict::Valid | Verdict::Ends) {
            let count = &mut self.counts[side as usize];
            count.packets += 1;
            count.bytes += packet.bytes;
            if side == Side::Reverse {
                self.status |= SEEN_REPLY;
            }
        }
        if outcome.verdict == Verdict::Ends {
            self.status |= DYING;
        }
        outcome.verdict
    }

    #[inline]
    fn outcome(&mut self, packet: &Packet<'_>, side: Side, lives_ns: u64, now_ns: u64) -> Outcome {
        let is_replied = self.status & SEEN_REPLY != 0;
        let lives = |lives_ns, is_assured| Outcome {
            verdict: Verdict::Valid,
            lives_ns: Some(lives_ns),
            is_assured,
        };
        match (&mut self.state, packet.transport) {
            (State::Tcp(tcp), Transport::Tcp(segment)) => {
                tcp.follow(&segment, side, (self.status, lives_ns))
            }
            (State::Udp(stream_ns), _) => {
                let is_stream = is_replied && now_ns > *stream_ns;
                lives(if is_stream { UDP_REPLIED } else { UDP }, is_stream)
            }
            (_, Transport::UdpLite) => {
                lives(if is_replied { UDP_REPLIED } else { UDP }, is_replied)
            }
            (_, Transport::Gre) => lives(if is_replied { GRE_REPLIED } else { GRE }, is_replied),
            (_, Transport::Query) => lives(QUERY, false),
            _ => lives(OTHER, false),
        }
    }

    /// What a packet of one side is to it, before it is followed.
    #[inline]
    pub(super) const fn state(&self, side: Side) -> ConnectionState {
        match side {
            Side::Forward if self.status & SEEN_REPLY == 0 => ConnectionState::New,
            Side::Forward | Side::Reverse => ConnectionState::Established,
        }
    }

    /// The connection as rules see it.
    #[inline]
    pub(super) fn seen(&self, state: ConnectionState, side: Side) -> Connection {
        let (original, reply) = (tuple(&self.flow), tuple(&self.leaves().reversed()));
        let direction = match side {
            Side::Forward => Direction::Original,
            Side::Reverse => Direction::Reply,
        };
        let (status, mark) = (self.status, self.mark);
        Connection { state, direction, status, mark, zone: 0, original, reply }
    }

    /// The flow with which its first packet leaves.
    #[inline]
    pub(super) fn leaves(&self) -> &FlowId {
        self.leaves.as_deref().unwrap_or(&self.flow)
    }

    /// The flow of answers, if its packets are translated.
    pub(super) fn translated_reply(&self) -> Option<FlowId> {
        self.leaves.as_ref().map(|leaves| leaves.reversed())
    }

    /// The number of its entry among answers.
    pub(super) const fn answers(&self) -> u64 {
        self.answers
    }

    /// Notes the number of its entry among answers.
    pub(super) const fn set_answers(&mut self, number: u64) {
        self.answers = number;
    }

    /// Says whether its destination has been chosen.
    pub(super) const fn has_destination(&self) -> bool {
        self.status & DST_NAT_DONE != 0
    }

    /// Makes its first packet leave so, after a choice for one end (`nf_nat_setup_info`).
    pub(super) fn bind(&mut self, leaves: FlowId, manip: Manip) {
        let (changed, done) = match manip {
            Manip::Source => (SRC_NAT, SRC_NAT_DONE),
            Manip::Destination => (DST_NAT, DST_NAT_DONE),
        };
        self.status |= done;
        if leaves != *self.leaves() {
            self.status |= changed;
            self.leaves = (leaves != self.flow).then(|| Box::new(leaves));
        }
    }

    /// Notes that it is in the table.
    pub(super) const fn confirm(&mut self) {
        self.status |= CONFIRMED;
    }

    pub(super) const fn is_assured(&self) -> bool {
        self.status & ASSURED != 0
    }

    pub(super) const fn status(&self) -> u32 {
        self.status
    }

    pub(super) const fn counts(&self) -> [Count; 2] {
        self.counts
    }

    pub(super) const fn tcp_state(&self) -> Option<TcpConnectionState> {
        match &self.state {
            State::Tcp(tcp) => Some(tcp.state),
            State::Udp(_) | State::None => None,
        }
    }
}

/// Says whether it is a query, and no answer.
fn is_request(flow: &FlowId) -> bool {
    let kind = flow.query.map(|query| query.kind);
    match flow.version {
        4 => matches!(kind, Some(8 | 13 | 15 | 17)),
        _ => matches!(kind, Some(128 | 139)),
    }
}

/// As `union nf_conntrack_man_proto` and `dst.u` have it: type and code of ICMP are the destination's port.
fn tuple(flow: &FlowId) -> Tuple {
    let destination_port = match flow.query {
        None => flow.destination_port,
        Some(query) => u16::from(query.kind) << 8 | u16::from(query.code),
    };
    Tuple {
        source: flow.source,
        destination: flow.destination,
        source_port: flow.source_port,
        destination_port,
    }
}
