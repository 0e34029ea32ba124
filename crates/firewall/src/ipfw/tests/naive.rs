//! A second implementation of ipfw, in the manner of `ipfw_chk`: one rule after the other by position, on the
//! packet's bytes. It shares only the parsed rules with the front end.

use crate::ipfw::list::List;
use crate::ipfw::rule::{
    Action, Bits, LinkSelector, Links, Lookup, RejectKind, Rule, Side, StateOf, Term, Test,
};
use crate::ipfw::table::{Key, Table};
use crate::ir::{Reject, StateName, StateRule};
use crate::testkit::eval::RuleVerdict;
use crate::testkit::eval::states::{FlowPacket, Kept, States};

/// The rules that a packet meets.
pub(super) struct Naive<'a> {
    list: &'a List,
    rules: Vec<&'a Rule>,
    /// Packets and bytes of each rule, and of the last one.
    pub(super) counts: Vec<(u64, u64)>,
    /// The states, shared by all passes.
    pub(super) states: States,
    /// Packets of connections beyond a limit, and of those without room for their state.
    pub(super) refused: [u64; 2],
}

/// The result of looking for a packet's state (`struct ipfw_dyn_info`).
#[derive(Clone, Debug, Default)]
struct Looked {
    /// Whether the packet has been looked up, and for which states: `None` for any.
    of: Option<Option<String>>,
}

/// A packet in a pass.
#[derive(Clone, Debug)]
pub(super) struct Passing<'a> {
    pub(super) frame: Vec<u8>,
    pub(super) input: &'a str,
    /// The egress link, in the passes before sending.
    pub(super) output: Option<&'a str>,
    pub(super) ether: bool,
    pub(super) via: Option<std::net::IpAddr>,
    pub(super) fib: Option<u32>,
}

/// The fields that `ipfw_chk` collects before the rules.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    version: u8,
    protocol: u8,
    offset: u16,
    /// Offset of the upper layer behind layer 2.
    upper: usize,
    length: usize,
}

const L3: usize = 14;

impl<'a> Naive<'a> {
    pub(super) fn new(list: &'a List) -> Self {
        let rules: Vec<_> =
            list.rules.iter().filter(|rule| list.disabled >> rule.set & 1 == 0).collect();
        let counts = rules.iter().map(|rule| rule.counts).chain([(0, 0)]).collect();
        Self { list, rules, counts, states: States::default(), refused: [0; 2] }
    }

    /// The position of the rule that keeps the packet's state, if `rule` looks for one and the packet has not been
    /// looked up for it yet.
    fn look(
        &mut self,
        rule: &Rule,
        looked: &mut Looked,
        flow: Option<&FlowPacket>,
        now_ns: u64,
    ) -> Option<usize> {
        let of = match rule.checks()? {
            StateOf::Any => None,
            StateOf::Name(name) => Some(name),
        };
        match &looked.of {
            None => {}
            Some(None) => return None,
            Some(before) if *before == of => return None,
            Some(_) => {}
        }
        looked.of = Some(of.clone());
        let name = of.map(|name| StateName::of(&name));
        self.states.check(flow?, name, now_ns)
    }

    /// Keeps a state for the rule at a position; says whether that is possible.
    fn keep(&mut self, at: usize, flow: Option<&FlowPacket>, now_ns: u64) -> bool {
        let Some(keep) = &self.rules[at].keep else { return true };
        let state_rule =
            StateRule { rule: String::new(), nth: 0, name: keep.name.clone(), limit: keep.limit };
        match flow.map(|flow| self.states.keep(flow, at, &state_rule, now_ns)) {
            Some(Kept::Yes) => return true,
            Some(Kept::OverLimit) => self.refused[0] += 1,
            Some(Kept::Full) => self.refused[1] += 1,
            None => {}
        }
        false
    }

    /// Takes a packet through the list; `flow` is what states see of it.
    pub(super) fn check(
        &mut self,
        packet: &mut Passing<'_>,
        flow: Option<&FlowPacket>,
        now_ns: u64,
    ) -> RuleVerdict {
        let Some(seen) = seen(&packet.frame) else { return RuleVerdict::Drop };
        let mut stack: Vec<u16> = Vec::new();
        let mut looked = Looked::default();
        let mut at = 0;
        while let Some(mut rule) = self.rules.get(at).copied() {
            let found = self.look(rule, &mut looked, flow, now_ns);
            if let Some(state_rule) = found {
                // The conditions of that rule do not matter.
                at = state_rule;
                rule = self.rules[at];
            }
            let number = rule.number;
            let next = at + 1;
            let holds = rule
                .blocks
                .iter()
                .all(|block| block.iter().any(|term| self.term(term, &seen, packet)));
            if found.is_none() && (!holds || matches!(rule.action, Action::CheckState(_))) {
                at = next;
                continue;
            }
            if found.is_none() && !self.keep(at, flow, now_ns) {
                self.count(at, &seen, packet);
                return RuleVerdict::Drop;
            }
            if found.is_none() && rule.keep.as_ref().is_some_and(|keep| keep.defers) {
                at = next;
                continue;
            }
            let find =
                |number: u32| self.rules.iter().position(|rule| u32::from(rule.number) >= number);
            let end = self.rules.len();
            let goes = match &rule.action {
                Action::Count => next,
                Action::Skipto(to) => {
                    find(u32::from(*to).max(u32::from(number) + 1)).unwrap_or(end)
                }
                Action::Call(to) => {
                    stack.push(number);
                    find((*to).into()).unwrap_or(end)
                }
                Action::Return => match stack.pop() {
                    Some(from) => find(u32::from(from) + 1).unwrap_or(end),
                    None => {
                        at = next;
                        continue;
                    }
                },
                Action::Fib(fib) => {
                    packet.fib = Some(*fib);
                    next
                }
                Action::Forward(_) if packet.ether => {
                    at = next;
                    continue;
                }
                Action::Dscp(dscp) => {
                    match seen.version {
                        4 => packet.frame[L3 + 1] = packet.frame[L3 + 1] & 3 | dscp << 2,
                        6 => {
                            packet.frame[L3] = packet.frame[L3] & 0xf0 | dscp >> 2;
                            packet.frame[L3 + 1] = packet.frame[L3 + 1] & 0x3f | dscp << 6;
                        }
                        _ => {
                            at = next;
                            continue;
                        }
                    }
                    next
                }
                other => {
                    let verdict = self.ends(other, &seen, packet);
                    self.count(at, &seen, packet);
                    return verdict;
                }
            };
            self.count(at, &seen, packet);
            at = goes;
        }
        self.count(at, &seen, packet);
        if self.list.open { RuleVerdict::Accept } else { RuleVerdict::Drop }
    }

    fn count(&mut self, at: usize, seen: &Seen, packet: &Passing<'_>) {
        // As in the intermediate form, bytes of packets received at layer 2 include those behind the packet.
        let whole = seen.version == 0 || packet.ether && packet.output.is_none();
        let bytes = if whole { packet.frame.len() - L3 } else { seen.length };
        let count = &mut self.counts[at];
        *count = (count.0 + 1, count.1 + bytes as u64);
    }

    fn ends(&self, action: &Action, seen: &Seen, packet: &mut Passing<'_>) -> RuleVerdict {
        match action {
            Action::Allow => RuleVerdict::Accept,
            Action::Forward(via) => {
                if via.is_ipv4() == (seen.version == 4) {
                    packet.via = Some(*via);
                }
                RuleVerdict::Accept
            }
            Action::Reject(kind) => self.reject(*kind, seen, &packet.frame),
            _ => RuleVerdict::Drop,
        }
    }

    fn reject(&self, kind: RejectKind, seen: &Seen, frame: &[u8]) -> RuleVerdict {
        let upper = |at: usize| frame[L3 + seen.upper + at];
        if seen.version == 0 || seen.offset != 0 {
            return RuleVerdict::Drop;
        }
        let four = seen.version == 4;
        let group = if four { frame[L3 + 16] >> 4 == 14 } else { frame[L3 + 24] == 0xff };
        let query = match (four, seen.protocol) {
            (true, 1) => [8, 10, 13, 15, 17].contains(&upper(0)),
            (false, 58) => [128, 130, 139].contains(&upper(0)),
            _ => true,
        };
        if group || !query {
            return RuleVerdict::Drop;
        }
        let reset = || match seen.protocol == 6 && upper(13) & 4 == 0 {
            true => RuleVerdict::Reject(Reject::TcpReset),
            false => RuleVerdict::Drop,
        };
        match (kind, four) {
            (RejectKind::Unreach(code), true) => RuleVerdict::Reject(Reject::Icmp(code)),
            (RejectKind::Unreach(code), false) => RuleVerdict::Reject(Reject::Icmp6(match code {
                3 => 4,
                2 | 4 | 8..=10 | 13.. => 1,
                _ => 0,
            })),
            (RejectKind::Reset, true) | (RejectKind::Reset6, false) => reset(),
            (RejectKind::Reset, false) => RuleVerdict::Reject(Reject::Icmp6(1)),
            (RejectKind::Unreach6(code), false) => RuleVerdict::Reject(Reject::Icmp6(code)),
            (RejectKind::Unreach6(_) | RejectKind::Reset6, true) => RuleVerdict::Drop,
        }
    }

    fn term(&self, term: &Term, seen: &Seen, packet: &Passing<'_>) -> bool {
        self.test(&term.test, seen, packet) != term.not
    }

    fn test(&self, test: &Test, seen: &Seen, packet: &Passing<'_>) -> bool {
        let ip = packet.frame.get(L3..).unwrap_or_default();
        let upper = |at: usize| ip[seen.upper + at];
        let four = seen.version == 4;
        let tcp = seen.protocol == 6 && seen.offset == 0;
        let short = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
        let within = |ranges: &[(u16, u16)], x: u16| {
            ranges.iter().any(|(first, last)| *first <= x && x <= *last)
        };
        match test {
            Test::Any => true,
            Test::In => packet.output.is_none(),
            Test::Layer2 => packet.ether,
            Test::Version(version) => seen.version == *version,
            Test::Protocol(protocol) => seen.protocol == *protocol && seen.version != 0,
            Test::Four(side, list) => {
                four && list.iter().any(|(address, mask)| address4(ip, *side) & mask == *address)
            }
            Test::Six(side, list) => {
                let own = || address6(ip, *side);
                let same =
                    |address: u128, len: u8| len == 0 || (own() ^ address) >> (128 - len) == 0;
                seen.version == 6 && list.iter().any(|(address, len)| same(*address, *len))
            }
            Test::Table(side, name, value) => {
                let found = self.lookup(name, seen, ip, *side);
                found.is_some_and(|found| value.is_none_or(|value| value == found))
            }
            Test::Lookup(Lookup::Address(side), name) => {
                self.lookup(name, seen, ip, *side).is_some()
            }
            Test::Lookup(Lookup::Port(side), name) => {
                let port = port(seen, ip, *side);
                port.is_some_and(|port| self.has_number(name, port.into()))
            }
            Test::Lookup(Lookup::Dscp, name) => {
                seen.version != 0 && self.has_number(name, (class(seen, ip) >> 2).into())
            }
            Test::Ports(side, ranges) => {
                port(seen, ip, *side).is_some_and(|port| within(ranges, port))
            }
            Test::Link(which, links) => self.link(*which, links, packet),
            Test::Fragment(bits) => match four {
                true => {
                    let field = short(6);
                    flags(*bits, (field >> 8) as u8 & 0xe0 | u8::from(field & 0x1fff != 0))
                }
                false => *bits == Bits { set: 1, clear: 0 } && seen.offset != 0,
            },
            Test::TcpFlags(bits) => tcp && flags(*bits, upper(13)),
            Test::Established => tcp && upper(13) & 0x16 != 2,
            Test::Icmp(types) => {
                seen.protocol == 1
                    && seen.version != 0
                    && seen.offset == 0
                    && types.contains(&upper(0))
            }
            Test::Icmp6(types) => {
                seen.version == 6
                    && seen.protocol == 58
                    && seen.offset == 0
                    && types.contains(&upper(0))
            }
            Test::Length(ranges) => seen.version != 0 && within(ranges, seen.length as u16),
            Test::Ttl(ranges) => {
                // The TTL is decremented before sending.
                four && within(ranges, u16::from(ip[8]) - u16::from(packet.output.is_some()))
            }
            Test::Id(ranges) => four && within(ranges, short(4)),
            Test::Tos(bits) => four && flags(*bits, ip[1]),
            Test::Precedence(level) => four && ip[1] & 0xe0 == level << 5,
            Test::Dscp(all) => seen.version != 0 && all.contains(&(class(seen, ip) >> 2)),
            Test::TcpData(ranges) => {
                let data = || {
                    let behind = (seen.length - seen.upper) as u16;
                    behind.wrapping_sub(u16::from(upper(12) >> 4) * 4)
                };
                tcp && within(ranges, data())
            }
            Test::TcpSequence(number) => tcp && word(seen.upper + 4) == *number,
            Test::TcpAck(number) => tcp && word(seen.upper + 8) == *number,
            Test::TcpWindow(ranges) => tcp && within(ranges, short(seen.upper + 14)),
            Test::Mac([destination, source]) => {
                let mac = |at: usize| {
                    packet.frame[at..at + 6].iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
                };
                let is = |at: usize, (address, mask): (u64, u64)| mac(at) & mask == address;
                packet.ether && is(0, *destination) && is(6, *source)
            }
            Test::EtherType(ranges) => {
                let own = u16::from_be_bytes([packet.frame[12], packet.frame[13]]);
                packet.ether && within(ranges, own)
            }
        }
    }

    fn lookup(&self, name: &str, seen: &Seen, ip: &[u8], side: Side) -> Option<u32> {
        let table: &Table = self.list.tables.get(name)?;
        let len = |key: &Key| match (key, seen.version) {
            (Key::Four(address, len), 4) => {
                let differs = u64::from(address4(ip, side) ^ address) >> (32 - len) != 0;
                (!differs).then_some(*len)
            }
            (Key::Six(address, len), 6) => {
                let differs = address6(ip, side) ^ address;
                let same = *len == 0 || differs >> (128 - len) == 0;
                same.then_some(*len)
            }
            _ => None,
        };
        let found = table.entries.iter().filter_map(|(key, value)| Some((len(key)?, *value)));
        found.max_by_key(|(len, _)| *len).map(|(_, value)| value)
    }

    fn has_number(&self, name: &str, number: u32) -> bool {
        let table = self.list.tables.get(name);
        table.is_some_and(|table| table.entries.contains_key(&Key::Number(number)))
    }

    fn link(&self, which: LinkSelector, links: &Links, packet: &Passing<'_>) -> bool {
        let link = match which {
            LinkSelector::Recv => Some(packet.input),
            LinkSelector::Xmit => packet.output,
            LinkSelector::Via => packet.output.or(Some(packet.input)),
        };
        let Some(link) = link else { return false };
        match links {
            Links::Any => true,
            Links::Name(name) => name == link,
            Links::Prefix(prefix) => link.starts_with(prefix),
            Links::Table(name, value) => {
                let table = self.list.tables.get(name);
                let found =
                    table.and_then(|table| table.entries.get(&Key::Link(link.to_owned())).copied());
                found.is_some_and(|found| value.is_none_or(|value| value == found))
            }
        }
    }
}

fn flags(bits: Bits, own: u8) -> bool {
    !own & bits.clear == bits.clear && own & bits.set == bits.set
}

fn address4(ip: &[u8], side: Side) -> u32 {
    let at = if side == Side::Source { 12 } else { 16 };
    ip[at..at + 4].iter().fold(0, |all, byte| all << 8 | u32::from(*byte))
}

fn address6(ip: &[u8], side: Side) -> u128 {
    let at = if side == Side::Source { 8 } else { 24 };
    ip[at..at + 16].iter().fold(0, |all, byte| all << 8 | u128::from(*byte))
}

fn class(seen: &Seen, ip: &[u8]) -> u8 {
    if seen.version == 4 { ip[1] } else { ip[0] << 4 | ip[1] >> 4 }
}

fn port(seen: &Seen, ip: &[u8], side: Side) -> Option<u16> {
    let has = matches!(seen.protocol, 6 | 17 | 132 | 136) && seen.offset == 0 && seen.version != 0;
    let at = seen.upper + if side == Side::Source { 0 } else { 2 };
    has.then(|| u16::from_be_bytes([ip[at], ip[at + 1]]))
}

/// Parses a packet; `None` for one that is denied before any rule.
fn seen(frame: &[u8]) -> Option<Seen> {
    let ip = &frame[L3..];
    match (frame[12], frame[13]) {
        (0x08, 0x00) => {
            let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            let field = u16::from_be_bytes([ip[6], ip[7]]);
            let seen = Seen {
                version: 4,
                protocol: ip[9],
                offset: field & 0x1fff,
                upper: usize::from(ip[0] & 15) * 4,
                length,
            };
            let whole = match (seen.offset, seen.protocol) {
                (0, 6) => 20,
                (0, 17 | 136) => 8,
                (0, 132) => 12,
                (0, 1) => 4,
                (1, 6) => return None,
                _ => 0,
            };
            (length - seen.upper >= whole).then_some(seen)
        }
        (0x86, 0xdd) => six(ip),
        _ => Some(Seen::default()),
    }
}

fn six(ip: &[u8]) -> Option<Seen> {
    let length = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let ip = &ip[..length];
    let (mut next, mut at) = (ip[6], 40);
    loop {
        let whole = match next {
            6 => 20,
            17 | 136 | 58 => 8,
            132 => 12,
            50 | 103 | 47 => 4,
            89 => 2,
            41 => 40,
            4 => 20,
            59 | 112 => 0,
            0 | 43 | 60 => {
                let header = ip.get(at..at + 2)?;
                (next, at) = (header[0], at + (usize::from(header[1]) + 1) * 8);
                continue;
            }
            44 => {
                let header = ip.get(at..at + 4)?;
                let offset = u16::from_be_bytes([header[2], header[3]]) >> 3;
                if offset != 0 {
                    let seen = Seen { version: 6, protocol: header[0], offset, upper: 0, length };
                    // A limit: in a later fragment, no other headers are skipped.
                    return (!matches!(header[0], 0 | 43 | 44 | 51 | 60)).then_some(seen);
                }
                (next, at) = (header[0], at + 8);
                continue;
            }
            // A limit: an authentication header is not skipped either.
            _ => return None,
        };
        let seen = Seen { version: 6, protocol: next, offset: 0, upper: at, length };
        return (length.saturating_sub(at) >= whole).then_some(seen);
    }
}
