//! The connections of a router that runs from a file: those that it tracks, and the states that rules keep.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use tollway_conntrack::{
    Connection as Tracked, Counter, Counters, Family, Labels, Status, TcpInfo, TcpState, Tuple,
    TupleL4,
};
use tollway_dataplane::stages::filter::{
    AliasConfig, ConnectionReport, Count, Filter, MappingReport, StateReport, StateRule,
    TcpConnectionState,
};
use tollway_dataplane::wire::l4::{ICMP, SCTP, TCP, UDP, UDP_LITE};
use tollway_dataplane::wire::tcp_flags::{FIN, RST, SYN};

use super::describe::{Programs, Sum, describe};
use super::message::Connection;
use super::source::{Source, Take};

/// The kernel's bits of [`Status`].
const SEEN_REPLY: u32 = 1 << 1;
const SRC_NAT: u32 = 1 << 4;
const DST_NAT: u32 = 1 << 5;

/// Says whether rules track connections, keep states, or translate addresses.
pub fn has_connections(rules: &Filter) -> bool {
    rules.states().is_some() || rules.tracker().is_some() || rules.aliases().is_some()
}

/// The connections of a router's rules, the states that they keep, and the mappings by which they translate.
pub struct StateSource<'a> {
    rules: &'a Filter,
    now_ns: &'a dyn Fn() -> u64,
    listed: Vec<(&'a StateRule, StateReport)>,
    mapped: Vec<(&'a AliasConfig, MappingReport)>,
    followed: Vec<ConnectionReport>,
}

impl<'a> StateSource<'a> {
    /// Those of rules; `now_ns` tells the router's time.
    pub fn new(rules: &'a Filter, now_ns: &'a dyn Fn() -> u64) -> Self {
        Self { rules, now_ns, listed: Vec::new(), mapped: Vec::new(), followed: Vec::new() }
    }
}

impl Source for StateSource<'_> {
    fn refresh(&mut self) {
        let now_ns = (self.now_ns)();
        let (states, tracker) = (self.rules.states(), self.rules.tracker());
        self.listed = states.map(|states| states.list(now_ns)).unwrap_or_default();
        let aliases = self.rules.aliases();
        self.mapped = aliases.map(|aliases| aliases.list(now_ns)).unwrap_or_default();
        self.followed = tracker.map(|tracker| tracker.list(now_ns)).unwrap_or_default();
    }

    fn each(&self, _: Option<Family>, take: Take<'_>) -> io::Result<()> {
        // The number finds the rule again.
        let states = self.listed.iter().enumerate();
        let states = states.map(|(number, (_, report))| tracked(number as u32, report));
        let mapped = self.mapped.iter().zip(self.listed.len()..);
        let mapped = mapped.map(|((_, report), number)| of_mapping(number as u32, report));
        for tracked in states.chain(mapped).chain(self.followed.iter().map(of_report)) {
            if take(tracked).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn fast(&self, _: &Tracked) -> Sum {
        [0; 2]
    }

    fn describe(&self, tracked: Tracked) -> Connection {
        let number = tracked.id as usize;
        let rule = self.listed.get(number).map(|(rule, _)| rule.rule.clone());
        let rule = rule.or_else(|| {
            let (config, _) = self.mapped.get(number.checked_sub(self.listed.len())?)?;
            Some(format!("nat {}", config.number))
        });
        Connection {
            id: 0,
            path: "user".to_owned(),
            reason: String::new(),
            why: rule.unwrap_or_default(),
            ..describe(tracked, &Programs::default())
        }
    }
}

/// A connection as the kernel would have it.
fn of_report(report: &ConnectionReport) -> Tracked {
    let ConnectionReport { protocol, source, destination, .. } = *report;
    let tuple = |source: (IpAddr, u16), destination: (IpAddr, u16), icmp: Option<(u8, u8)>| {
        let l4 = match (icmp, protocol) {
            (Some((kind, code)), _) => TupleL4::Icmp { id: source.1, kind, code },
            (None, TCP | UDP | SCTP | UDP_LITE) => {
                TupleL4::Ports { source: source.1, destination: destination.1 }
            }
            _ => TupleL4::None,
        };
        Tuple { source: source.0, destination: destination.0, protocol, l4 }
    };
    let counter = |count: Count| Counter { packets: count.packets, bytes: count.bytes };
    let [original, reply] = report.counts.map(counter);
    let [query, answer] = report.icmp.map_or([None; 2], |both| both.map(Some));
    Tracked {
        original: tuple(source, destination, query),
        reply: tuple(report.reply_source, report.reply_destination, answer),
        status: Status(report.status),
        tcp: report.tcp.map(|state| tcp_info(tcp_state(state))),
        timeout_s: u32::try_from(report.expires_in_ns / 1_000_000_000).ok(),
        mark: report.mark,
        zone: 0,
        reply_zone: 0,
        // No rule keeps it.
        id: u32::MAX,
        helper: None,
        labels: Labels(0),
        counters: Some(Counters { original, reply }),
        has_seq_adjust: false,
        has_synproxy: false,
    }
}

const fn tcp_info(state: TcpState) -> TcpInfo {
    TcpInfo {
        state,
        original_wscale: None,
        reply_wscale: None,
        original_flags: None,
        reply_flags: None,
    }
}

const fn tcp_state(state: TcpConnectionState) -> TcpState {
    match state {
        TcpConnectionState::None => TcpState::None,
        TcpConnectionState::SynSent => TcpState::SynSent,
        TcpConnectionState::SynRecv => TcpState::SynRecv,
        TcpConnectionState::Established => TcpState::Established,
        TcpConnectionState::FinWait => TcpState::FinWait,
        TcpConnectionState::CloseWait => TcpState::CloseWait,
        TcpConnectionState::LastAck => TcpState::LastAck,
        TcpConnectionState::TimeWait => TcpState::TimeWait,
        TcpConnectionState::Close => TcpState::Close,
        TcpConnectionState::SynSent2 => TcpState::SynSent2,
    }
}

/// A mapping as connection tracking would have it.
fn of_mapping(id: u32, report: &MappingReport) -> Tracked {
    let MappingReport { protocol, inside, remote, alias, .. } = *report;
    let end = |(address, port): (Ipv4Addr, u16)| (IpAddr::V4(address), port);
    // What a packet from one end to another is, if it is a query of ICMP.
    let tuple = |source: (Ipv4Addr, u16), destination: (Ipv4Addr, u16), kind: u8| {
        let (source, destination) = (end(source), end(destination));
        let l4 = match protocol {
            TCP | UDP => TupleL4::Ports { source: source.1, destination: destination.1 },
            ICMP => TupleL4::Icmp { id: source.1.max(destination.1), kind, code: 0 },
            _ => TupleL4::None,
        };
        Tuple { source: source.0, destination: destination.0, protocol, l4 }
    };
    let (original, reply, translates) = match report.is_outgoing {
        true => (tuple(inside, remote, 8), tuple(remote, alias, 0), SRC_NAT),
        false => (tuple(remote, alias, 8), tuple(inside, remote, 0), DST_NAT),
    };
    let counter = |count: Count| Counter { packets: count.packets, bytes: count.bytes };
    let counters = report.counts.map(counter);
    let is_answered = counters[1].packets > 0;
    let is_translated = inside != alias;
    let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
    Tracked {
        original,
        reply,
        status: Status(bit(is_answered, SEEN_REPLY) | bit(is_translated, translates)),
        tcp: report.tcp.map(|state| tcp_info(tcp_state(state))),
        timeout_s: u32::try_from(report.expires_in_ns / 1_000_000_000).ok(),
        mark: 0,
        zone: 0,
        reply_zone: 0,
        id,
        helper: None,
        labels: Labels(0),
        counters: Some(Counters { original: counters[0], reply: counters[1] }),
        has_seq_adjust: false,
        has_synproxy: false,
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
        tcp: (protocol == TCP).then(|| tcp_info(state(report.tcp_flags))),
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
