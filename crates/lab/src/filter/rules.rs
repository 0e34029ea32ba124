//! Lists of rules, read or generated, and packets that match them.

use std::fs;
use std::path::Path;

use tollway_dataplane::stages::filter::{Condition, Field, Op, Rule, Rules};
use tollway_dataplane::wire::l4;

use crate::frames::{Flow4, Xorshift};

/// A rule on the five fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuple {
    /// Source prefix: address and length.
    pub(super) src: (u32, u8),
    /// Destination prefix.
    pub(super) dst: (u32, u8),
    /// Source ports, both ends included.
    pub(super) sport: (u16, u16),
    /// Destination ports, both ends included.
    pub(super) dport: (u16, u16),
    /// Transport protocol; `None` for any.
    pub(super) protocol: Option<u8>,
}

const ANY_PORT: (u16, u16) = (0, u16::MAX);

/// The rule that every packet matches.
pub(super) const ANYTHING: Tuple =
    Tuple { src: (0, 0), dst: (0, 0), sport: ANY_PORT, dport: ANY_PORT, protocol: None };

/// Reads the list in a file, by default [`super::DATA`] if it exists; else generates one.
pub(super) fn load(path: Option<&Path>) -> Result<Vec<Tuple>, String> {
    let (path, given) = path.map_or((Path::new(super::DATA), false), |path| (path, true));
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(_) if !given => return Ok(mixed(941)),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let mut list = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let tuple = parse(line).ok_or_else(|| {
            format!("{}:{number}: not a rule in the form of ClassBench", path.display())
        })?;
        list.push(tuple);
    }
    if list.is_empty() { Err(format!("{}: no rule", path.display())) } else { Ok(list) }
}

/// `@src/len dst/len low : high low : high protocol/mask`.
fn parse(line: &str) -> Option<Tuple> {
    let mut words = line.strip_prefix('@')?.split_ascii_whitespace();
    let (src, dst) = (prefix(words.next()?)?, prefix(words.next()?)?);
    let mut ports = || {
        let low = words.next()?.parse().ok()?;
        (words.next()? == ":").then_some(())?;
        Some((low, words.next()?.parse().ok()?))
    };
    let (sport, dport) = (ports()?, ports()?);
    let (protocol, mask) = words.next()?.split_once('/')?;
    let hex = |text: &str| u8::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let protocol = match hex(mask)? {
        0 => None,
        0xff => Some(hex(protocol)?),
        _ => return None,
    };
    Some(Tuple { src, dst, sport, dport, protocol })
}

fn prefix(text: &str) -> Option<(u32, u8)> {
    let (address, len) = text.split_once('/')?;
    let address: std::net::Ipv4Addr = address.parse().ok()?;
    let len = len.parse().ok().filter(|len| *len <= 32)?;
    Some((address.to_bits() & !below(len), len))
}

/// The host bits of a prefix of this length.
const fn below(len: u8) -> u32 {
    match len {
        0 => u32::MAX,
        len => ((1_u64 << (32 - len)) - 1) as u32,
    }
}

/// `count` rules in the style of a list: copies of it in other networks. Addresses that are equal
/// in the list are equal in a copy.
pub(super) fn in_the_style_of(list: &[Tuple], count: usize) -> Vec<Tuple> {
    let moved = |(address, len): (u32, u8), copy: usize, salt: u64| {
        if copy == 0 || len < 8 {
            return (address, len);
        }
        let seed = u64::from(address >> 8) << 16 | copy as u64 ^ salt << 48;
        let flip = Xorshift::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next() as u32;
        (unicast((address ^ flip & 0x3fff_ff00) & !below(len)), len)
    };
    let mut rules = Vec::with_capacity(count);
    for copy in 0..count.div_ceil(list.len().max(1)) {
        for tuple in list {
            let (src, dst) = (moved(tuple.src, copy, 1), moved(tuple.dst, copy, 2));
            rules.push(Tuple { src, dst, ..*tuple });
        }
    }
    // Wide rules come last, as in lists that people write.
    rules.truncate(count);
    rules.sort_by_key(|tuple| tuple.src.1 < 8 && tuple.dst.1 < 8);
    rules
}

/// `count` rules of one shape: UDP from one /24 network to another, to one port.
pub(super) fn uniform(count: usize) -> Vec<Tuple> {
    let mut rng = Xorshift::new(0x0f1e);
    let mut rule = || {
        let random = rng.next();
        Tuple {
            src: (unicast(random as u32) & !below(24), 24),
            dst: (unicast((random >> 32) as u32) & !below(24), 24),
            dport: (1000 + (random >> 20) as u16 % 100, 1000 + (random >> 20) as u16 % 100),
            protocol: Some(l4::UDP),
            ..ANYTHING
        }
    };
    (0..count).map(|_| rule()).collect()
}

/// `count` rules of mixed shapes: prefixes of all lengths or none; one port, a range or any.
pub(super) fn mixed(count: usize) -> Vec<Tuple> {
    let mut rng = Xorshift::new(0x3e1d);
    let mut rule = || {
        let shape = rng.next();
        let len = |shape: u64| [0, 8, 12, 16, 20, 24, 28, 32][shape as usize & 7];
        let mut address = |len: u8| (unicast(rng.next() as u32) & !below(len), len);
        let (src, dst) = (address(len(shape)), address(len(shape >> 3).max(8)));
        let mut ports = |shape: u64| {
            let port = rng.next() as u16;
            match shape & 3 {
                0 => ANY_PORT,
                1 => (port, port),
                2 => (port, port.saturating_add(100)),
                _ => (1024, u16::MAX),
            }
        };
        let (sport, dport) = (ports(shape >> 6 & 2), ports(shape >> 8));
        let protocol =
            [None, Some(l4::TCP), Some(l4::UDP), Some(l4::UDP)][shape as usize >> 10 & 3];
        Tuple { src, dst, sport, dport, protocol }
    };
    (0..count).map(|_| rule()).collect()
}

/// The same address moved into networks that packets may come from and go to.
pub(super) const fn unicast(address: u32) -> u32 {
    let high = address >> 24;
    let usual = if high == 0 || high == 127 || high >= 224 { 10 + high % 64 } else { high };
    address & 0x00ff_ffff | usual << 24
}

/// Rules that accept what they match, and at the end everything else.
pub(super) fn accepting(tuples: &[Tuple]) -> Rules {
    let mut rules = Rules::default();
    for tuple in tuples.iter().chain([&ANYTHING]) {
        let next = rules.rules.len() as u32 + 1;
        rules.rules.push(Rule { conditions: tuple.conditions(), ops: vec![Op::Accept], next });
    }
    rules.end = rules.rules.len() as u32 - 1;
    rules
}

impl Tuple {
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let mut conditions = Vec::new();
        let addresses = [(Field::Source4, self.src), (Field::Destination4, self.dst)];
        for (field, (address, len)) in addresses {
            if len > 0 {
                let range = (address.into(), (address | below(len)).into());
                conditions.push(Condition::new(field, [range]));
            }
        }
        let ports = [(Field::SourcePort, self.sport), (Field::DestinationPort, self.dport)];
        for (field, (low, high)) in ports.into_iter().filter(|(_, ports)| *ports != ANY_PORT) {
            conditions.push(Condition::new(field, [(low.into(), high.into())]));
        }
        if let Some(protocol) = self.protocol {
            conditions.push(Condition::new(Field::Protocol, [(protocol.into(), protocol.into())]));
        }
        conditions
    }

    /// Says whether a flow matches.
    pub(super) fn has(&self, flow: &Flow4) -> bool {
        let covers = |(address, len): (u32, u8), of: u32| of & !below(len) == address;
        let within = |(low, high): (u16, u16), port: u16| low <= port && port <= high;
        covers(self.src, flow.src)
            && covers(self.dst, flow.dst)
            && within(self.sport, flow.ports.0)
            && within(self.dport, flow.ports.1)
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
    }

    /// A matching flow with addresses that are forwarded.
    pub(super) fn draw(&self, rng: &mut Xorshift) -> Flow4 {
        let address = |(address, len): (u32, u8), random: u64| {
            let drawn = address | random as u32 & below(len);
            if len < 8 { unicast(drawn) } else { drawn }
        };
        let port = |(low, high): (u16, u16), random: u64| {
            low + (random % (u64::from(high - low) + 1)) as u16
        };
        Flow4 {
            src: address(self.src, rng.next() >> 7),
            dst: address(self.dst, rng.next() >> 7),
            ports: (port(self.sport, rng.next() >> 7), port(self.dport, rng.next() >> 7)),
            protocol: self.protocol.unwrap_or([l4::TCP, l4::UDP][(rng.next() >> 9) as usize & 1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whole() {
        let line = "@136.107.241.86/32\t123.222.236.0/22\t0 : 65535\t1521 : 1526\t0x06/0xFF";
        let tuple = parse(line).unwrap();
        assert_eq!(tuple.src, (0x886b_f156, 32));
        assert_eq!((tuple.dst.1, tuple.sport, tuple.dport), (22, ANY_PORT, (1521, 1526)));
        assert_eq!(tuple.protocol, Some(6));
        assert_eq!(parse("@1.2.3.4/33 0.0.0.0/0 0 : 1 0 : 1 0x00/0x00"), None);
        assert_eq!(parse("1.2.3.4/32"), None);
    }

    #[test]
    fn drawn_flows_match() {
        let mut rng = Xorshift::new(5);
        for tuple in mixed(300).iter().chain(&uniform(50)) {
            let flow = tuple.draw(&mut rng);
            let outside = tuple.src.1 < 8 || tuple.dst.1 < 8;
            assert!(tuple.has(&flow) || outside, "{tuple:?} {flow:?}");
        }
    }

    #[test]
    fn more_in_the_same_style_has_as_many_addresses_for_each_rule() {
        let list = uniform(100);
        let more = in_the_style_of(&list, 1000);
        let mut dsts: Vec<_> = more.iter().map(|tuple| tuple.dst).collect();
        dsts.sort_unstable();
        dsts.dedup();
        assert_eq!(more.len(), 1000);
        assert!(dsts.len() > 900, "{}", dsts.len());
    }
}
