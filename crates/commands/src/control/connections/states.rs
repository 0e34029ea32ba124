//! The states that the rules of a file keep, as connections.

use std::io;

use tollway_conntrack::{
    Connection as Tracked, Counter, Counters, Family, Labels, Status, TcpInfo, TcpState, Tuple,
    TupleL4,
};
use tollway_dataplane::stages::filter::{Count, StateReport, StateRule, States};
use tollway_dataplane::wire::l4::{SCTP, TCP, UDP, UDP_LITE};

use super::describe::{Programs, Sum, describe};
use super::message::Connection;
use super::source::{Source, Take};

/// The kernel's bits of [`Status`].
const SEEN_REPLY: u32 = 1 << 1;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// The states of a router's rules.
pub struct StateSource<'a> {
    states: &'a States,
    now_ns: &'a dyn Fn() -> u64,
    listed: Vec<(&'a StateRule, StateReport)>,
}

impl<'a> StateSource<'a> {
    /// The states; `now_ns` tells the router's time.
    pub fn new(states: &'a States, now_ns: &'a dyn Fn() -> u64) -> Self {
        Self { states, now_ns, listed: Vec::new() }
    }
}

impl Source for StateSource<'_> {
    fn refresh(&mut self) {
        self.listed = self.states.list((self.now_ns)());
    }

    fn each(&self, _: Option<Family>, take: Take<'_>) -> io::Result<()> {
        for (number, (_, report)) in self.listed.iter().enumerate() {
            // The number finds the rule again.
            if take(tracked(number as u32, report)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn fast(&self, _: &Tracked) -> Sum {
        [0; 2]
    }

    fn describe(&self, tracked: Tracked) -> Connection {
        let rule = self.listed.get(tracked.id as usize).map(|(rule, _)| rule.rule.clone());
        Connection {
            id: 0,
            path: "user".to_owned(),
            reason: String::new(),
            why: rule.unwrap_or_default(),
            ..describe(tracked, &Programs::default())
        }
    }
}

/// A state as connection tracking would have it.
fn tracked(id: u32, report: &StateReport) -> Tracked {
    let StateReport { protocol, source, destination, .. } = *report;
    let tuple = |source, destination| match protocol {
        TCP | UDP | SCTP | UDP_LITE => Tuple::with_ports(protocol, source, destination),
        _ => Tuple { source: source.0, destination: destination.0, protocol, l4: TupleL4::None },
    };
    let counter = |count: Count| Counter { packets: count.packets, bytes: count.bytes };
    let [original, reply] = report.counts.map(counter);
    let is_answered = reply.packets > 0;
    Tracked {
        original: tuple(source, destination),
        reply: tuple(destination, source),
        status: Status(if is_answered { SEEN_REPLY } else { 0 }),
        tcp: (protocol == TCP).then(|| TcpInfo {
            state: state(report.tcp_flags),
            original_wscale: None,
            reply_wscale: None,
            original_flags: None,
            reply_flags: None,
        }),
        timeout_s: u32::try_from(report.expires_in_ns / 1_000_000_000).ok(),
        mark: 0,
        zone: 0,
        reply_zone: 0,
        id,
        helper: None,
        labels: Labels(0),
        counters: Some(Counters { original, reply }),
        has_seq_adjust: false,
        has_synproxy: false,
    }
}

/// The state of TCP after these flags of both sides.
fn state([forward, reverse]: [u8; 2]) -> TcpState {
    let (any, both) = (forward | reverse, forward & reverse);
    match (any & RST != 0, both & SYN != 0) {
        (true, _) => TcpState::Close,
        (false, true) if both & FIN != 0 => TcpState::TimeWait,
        (false, true) if any & FIN != 0 => TcpState::FinWait,
        (false, true) => TcpState::Established,
        (false, false) if (forward, reverse) == (SYN, 0) => TcpState::SynSent,
        (false, false) => TcpState::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_both_sides_are_a_state() {
        let states = [
            ([SYN, 0], TcpState::SynSent),
            ([SYN, SYN], TcpState::Established),
            ([SYN | FIN, SYN], TcpState::FinWait),
            ([SYN, SYN | FIN], TcpState::FinWait),
            ([SYN | FIN, SYN | FIN], TcpState::TimeWait),
            ([SYN, RST], TcpState::Close),
            ([0, 0], TcpState::None),
            ([FIN, 0], TcpState::None),
        ];
        for (flags, expected) in states {
            assert_eq!(state(flags), expected, "{flags:?}");
        }
    }
}
