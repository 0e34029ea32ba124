//! What the kernel does with rules, written from its sources (`ipt_do_table`, `ip6t_do_table`, `tcp_mt`,
//! `udp_mt`, `icmp_match`, `multiport_mt`, `ipv6_find_hdr`) without the intermediate form.

/// A range of numbers, or with `true` everything outside of it.
pub(super) type Numbers = (u32, u32, bool);

/// A match of a rule.
#[derive(Clone, Debug)]
pub(super) enum Match {
    Tcp {
        source: Option<Numbers>,
        destination: Option<Numbers>,
        flags: Option<(u8, u8, bool)>,
    },
    Udp {
        source: Option<Numbers>,
        destination: Option<Numbers>,
    },
    Icmp {
        kind: u8,
        code: Option<u8>,
        negate: bool,
    },
    /// Ports of sources, of destinations, or of both.
    Multiport {
        of: (bool, bool),
        ports: Vec<(u32, u32)>,
        negate: bool,
    },
    Mark {
        mark: u32,
        mask: u32,
        negate: bool,
    },
    Length(Numbers),
    Ttl(Numbers),
    Dscp(Numbers),
}

/// The action of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Nothing,
    Accept,
    Drop,
    Reject,
    Return,
    Jump(usize),
    Goto(usize),
    Mark(u32, u32),
    Dscp(u8),
}

/// A rule. Addresses are 32 bits with the length of their mask; of IPv6 addresses they are the lower bits.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) source: Option<(u32, u32, bool)>,
    pub(super) destination: Option<(u32, u32, bool)>,
    pub(super) input: Option<(&'static str, bool)>,
    pub(super) output: Option<(&'static str, bool)>,
    pub(super) protocol: Option<(u8, bool)>,
    pub(super) fragment: Option<bool>,
    pub(super) matches: Vec<Match>,
    pub(super) target: Target,
}

/// A chain; a built-in one has a policy to drop or accept.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) drops: Option<bool>,
    pub(super) rules: Vec<Rule>,
}

/// A packet.
#[derive(Clone, Debug)]
pub(super) struct Skb {
    /// From the IP header to the packet's end.
    pub(super) data: Vec<u8>,
    pub(super) six: bool,
    pub(super) input: &'static str,
    pub(super) output: &'static str,
    pub(super) mark: u32,
}

/// What the table does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Reject,
}

/// Why a rule did not match a packet.
enum NoMatch {
    /// A condition does not hold.
    Condition,
    /// The match ends the evaluation with this verdict.
    Ends(Verdict),
}

/// The transport header: protocol, number of bytes before it, fragment offset.
type Place = (u8, usize, u32);

impl Skb {
    pub(super) fn new(frame: &[u8]) -> Self {
        let six = frame[12] == 0x86;
        let mut data = frame[14..].to_vec();
        let at = if six { 4 } else { 2 };
        let length = usize::from(u16::from_be_bytes([data[at], data[at + 1]]));
        data.truncate(if six { 40 + length } else { length });
        Self { data, six, input: "wan0", output: "", mark: 0 }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.data[at..at + 4].try_into().unwrap())
    }

    fn tos(&self) -> u8 {
        if self.six { self.data[0] << 4 | self.data[1] >> 4 } else { self.data[1] }
    }

    pub(super) fn hop(&mut self) {
        self.data[if self.six { 7 } else { 8 }] -= 1;
    }

    fn find(&self) -> Result<Place, Verdict> {
        if !self.six {
            let offset = (u32::from(self.data[6]) << 8 | u32::from(self.data[7])) & 0x1fff;
            return Ok((self.data[9], usize::from(self.data[0] & 15) * 4, offset));
        }
        let extension = |next| matches!(next, 0 | 43 | 44 | 51 | 60);
        let (mut next, mut at) = (self.data[6], 40);
        while extension(next) {
            let Some(head) = self.data.get(at..at + 2) else { return Err(Verdict::Drop) };
            match next {
                51 => at += (usize::from(head[1]) + 2) * 4,
                44 => {
                    let Some(field) = self.data.get(at + 2..at + 4) else {
                        return Err(Verdict::Drop);
                    };
                    let offset = (u32::from(field[0]) << 8 | u32::from(field[1])) & !7;
                    if offset != 0 {
                        let broken = extension(head[0]);
                        return if broken { Err(Verdict::Drop) } else { Ok((head[0], 0, offset)) };
                    }
                    at += 8;
                }
                _ => at += (usize::from(head[1]) + 1) * 8,
            }
            next = head[0];
        }
        Ok((next, at, 0))
    }
}

const fn within((first, last, negate): Numbers, number: u32) -> bool {
    (first <= number && number <= last) != negate
}

impl Rule {
    fn matches(&self, skb: &Skb) -> Result<(), NoMatch> {
        let needs = |holds: bool| if holds { Ok(()) } else { Err(NoMatch::Condition) };
        let address = |at: usize, wanted: Option<(u32, u32, bool)>| {
            let Some((address, len, negate)) = wanted else { return true };
            let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
            let at = if skb.six { at + 12 } else { at };
            (skb.word(at) & mask == address & mask) != negate
        };
        let link = |name: &str, wanted: Option<(&str, bool)>| {
            let Some((wanted, negate)) = wanted else { return true };
            let is = match wanted.strip_suffix('+') {
                Some(prefix) => name.starts_with(prefix),
                None => name == wanted,
            };
            is != negate
        };
        needs(address(if skb.six { 8 } else { 12 }, self.source))?;
        needs(address(if skb.six { 24 } else { 16 }, self.destination))?;
        needs(link(skb.input, self.input))?;
        needs(link(skb.output, self.output))?;
        let mut place = (0, 0, 0);
        if self.protocol.is_some() || !skb.six {
            place = skb.find().map_err(NoMatch::Ends)?;
        }
        if let Some((protocol, negate)) = self.protocol {
            needs((place.0 == protocol) != negate)?;
        }
        if let Some(later) = self.fragment {
            needs((place.2 != 0) == later)?;
        }
        self.matches.iter().try_for_each(|one| needs(one.matches(skb, place)?))
    }
}

impl Match {
    fn matches(&self, skb: &Skb, (_, at, offset): Place) -> Result<bool, NoMatch> {
        let header = |bytes: usize| {
            if offset != 0 {
                return Err(NoMatch::Condition);
            }
            skb.data.get(at..at + bytes).ok_or(NoMatch::Ends(Verdict::Drop))
        };
        let port =
            |header: &[u8], at: usize| u32::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let is = |wanted: &Option<Numbers>, number| wanted.is_none_or(|one| within(one, number));
        Ok(match self {
            Self::Tcp { source, destination, flags } => {
                if offset == 1 && !skb.six {
                    return Err(NoMatch::Ends(Verdict::Drop));
                }
                let tcp = header(20)?;
                is(source, port(tcp, 0))
                    && is(destination, port(tcp, 2))
                    && flags.is_none_or(|(mask, set, negate)| (tcp[13] & mask == set) != negate)
            }
            Self::Udp { source, destination } => {
                let udp = header(8)?;
                is(source, port(udp, 0)) && is(destination, port(udp, 2))
            }
            Self::Icmp { kind, code, negate } => {
                let icmp = header(8)?;
                let same = icmp[0] == *kind && code.is_none_or(|code| icmp[1] == code);
                (same || *kind == 255 && !skb.six) != *negate
            }
            Self::Multiport { of, ports, negate } => {
                let header = header(4)?;
                let has = |number| {
                    ports.iter().any(|(first, last)| within((*first, *last, false), number))
                };
                (of.0 && has(port(header, 0)) || of.1 && has(port(header, 2))) != *negate
            }
            Self::Mark { mark, mask, negate } => (skb.mark & mask == *mark) != *negate,
            Self::Length(numbers) => within(*numbers, skb.data.len() as u32),
            Self::Ttl(numbers) => within(*numbers, skb.data[if skb.six { 7 } else { 8 }].into()),
            Self::Dscp(numbers) => within(*numbers, u32::from(skb.tos()) >> 2),
        })
    }
}

/// Takes a packet through a table, starting at a built-in chain; `count` receives chain and rule, or the
/// chain's end.
pub(super) fn do_table(
    chains: &[Chain],
    first: usize,
    skb: &mut Skb,
    mut count: impl FnMut(usize, usize),
) -> Verdict {
    let (mut chain, mut number, mut stack) = (first, 0, Vec::new());
    loop {
        let mut returns = false;
        let Some(rule) = chains[chain].rules.get(number) else {
            match (stack.pop(), chains[first].drops) {
                (Some(back), _) if chain != first => {
                    (chain, number) = back;
                    continue;
                }
                (_, drops) => {
                    count(first, chains[first].rules.len());
                    return if drops == Some(true) { Verdict::Drop } else { Verdict::Accept };
                }
            }
        };
        number += 1;
        match rule.matches(skb) {
            Ok(()) => {}
            Err(NoMatch::Condition) => continue,
            Err(NoMatch::Ends(verdict)) => return verdict,
        }
        count(chain, number - 1);
        match rule.target {
            Target::Nothing => {}
            Target::Accept => return Verdict::Accept,
            Target::Drop => return Verdict::Drop,
            Target::Reject => return Verdict::Reject,
            Target::Return => returns = true,
            Target::Jump(to) => {
                stack.push((chain, number));
                (chain, number) = (to, 0);
            }
            Target::Goto(to) => (chain, number) = (to, 0),
            Target::Mark(value, mask) => skb.mark = (skb.mark & !mask) ^ value,
            Target::Dscp(dscp) if skb.six => {
                skb.data[0] = 0x60 | dscp >> 2;
                skb.data[1] = skb.data[1] & 0x3f | dscp << 6;
            }
            Target::Dscp(dscp) => skb.data[1] = skb.data[1] & 3 | dscp << 2,
        }
        if returns {
            number = chains[chain].rules.len();
        }
    }
}
