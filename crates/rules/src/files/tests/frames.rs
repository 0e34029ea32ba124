//! Packets that the corpus describes in words: `src=192.0.2.1 tcp=1>22 flags=syn+ack`.

use std::net::IpAddr;

use tollway_firewall::ir::Hook;
use tollway_firewall::links::Link;

/// A packet, and where and when it arrives.
pub(super) struct Given {
    pub(super) hook: Hook,
    pub(super) input: Link,
    pub(super) output: Link,
    pub(super) mark: u32,
    pub(super) at_ms: u64,
    pub(super) l3: usize,
    pub(super) frame: Vec<u8>,
}

struct Words<'a>(Vec<&'a str>);

impl Words<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let of = |word: &&str| word.strip_prefix(name)?.strip_prefix('=').map(|_| ());
        let word = self.0.iter().find(|word| of(word).is_some())?;
        Some(&word[name.len() + 1..])
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.get(name).map_or(default, number)
    }
}

pub(super) fn number(word: &str) -> u64 {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => word.parse().unwrap(),
    }
}

pub(super) fn given(line: &str) -> Given {
    let words = Words(line.split_whitespace().collect());
    let link = |name: &str, default: &str| Link {
        name: words.get(name).unwrap_or(default).to_owned(),
        vrf: String::new(),
        on: None,
        vrf_device: None,
        addresses: Vec::new(),
    };
    let src: IpAddr = words.get("src").unwrap_or("192.0.2.99").parse().unwrap();
    let dst: IpAddr = words.get("dst").unwrap_or("198.51.100.7").parse().unwrap();
    let (l3, mut frame) = ethernet(&words, src.is_ipv4());
    let (protocol, body) = transport(&words);
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.extend(ip4(&words, protocol, body.len()));
            frame.extend(src.octets());
            frame.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let fragment = words.get("frag").map(|frag| fragment6(frag, protocol));
            let next = if fragment.is_some() { 44 } else { protocol };
            let (next, mut headers) = extensions(&words, next);
            headers.extend(fragment.unwrap_or_default());
            frame.extend(ip6(&words, next, body.len() + headers.len()));
            frame.extend(src.octets());
            frame.extend(dst.octets());
            frame.extend(headers);
        }
        _ => panic!("{line}: addresses of two kinds"),
    }
    frame.extend(body);
    Given {
        hook: match words.get("hook").unwrap_or("forward") {
            "ingress" => Hook::Ingress,
            "prerouting" => Hook::Prerouting,
            "input" => Hook::Input,
            "forward" => Hook::Forward,
            "postrouting" => Hook::Postrouting,
            "egress" => Hook::Egress,
            hook => panic!("no hook is {hook}"),
        },
        input: link("in", "in0"),
        output: link("out", "out0"),
        mark: words.number("mark", 0) as u32,
        at_ms: words.number("at", 0),
        l3,
        frame,
    }
}

fn ethernet(words: &Words<'_>, four: bool) -> (usize, Vec<u8>) {
    let mac = |name: &str, last| match words.get(name) {
        Some(mac) => mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect(),
        None => vec![2, 0, 0, 0, 0, last],
    };
    let mut frame = [mac("dmac", 0xd), mac("smac", 0x5)].concat();
    if let Some(tag) = words.get("vlan") {
        frame.extend([0x81, 0]);
        frame.extend((number(tag) as u16).to_be_bytes());
    }
    frame.extend(if four { [8, 0] } else { [0x86, 0xdd] });
    (frame.len(), frame)
}

fn transport(words: &Words<'_>) -> (u8, Vec<u8>) {
    let ports = |word: &str| {
        let (from, to) = word.split_once('>').unwrap();
        [(number(from) as u16).to_be_bytes(), (number(to) as u16).to_be_bytes()].concat()
    };
    let icmp = |word: &str| {
        let (kind, code) = word.split_once('/').unwrap();
        let mut header = vec![number(kind) as u8, number(code) as u8, 0, 0];
        let rest = words.get("words").unwrap_or("0,0");
        header.extend(rest.split(',').flat_map(|word| (number(word) as u16).to_be_bytes()));
        header
    };
    let (protocol, mut body) = if let Some(word) = words.get("tcp") {
        let mut header = [ports(word), vec![0; 16]].concat();
        header[12] = 0x50;
        header[13] = flags(words.get("flags").unwrap_or("ack"));
        (6, header)
    } else if let Some(word) = words.get("udp") {
        (17, [ports(word), vec![0; 4]].concat())
    } else if let Some(word) = words.get("sctp") {
        (132, [ports(word), vec![0; 8]].concat())
    } else if let Some(word) = words.get("icmp") {
        (1, icmp(word))
    } else if let Some(word) = words.get("icmp6") {
        (58, icmp(word))
    } else {
        (words.number("proto", 17) as u8, vec![0; 8])
    };
    body.resize(body.len() + words.number("payload", 0) as usize, 0);
    (protocol, body)
}

fn flags(words: &str) -> u8 {
    let names = ["fin", "syn", "rst", "psh", "ack", "urg"];
    words.split('+').map(|word| 1 << names.iter().position(|name| *name == word).unwrap()).sum()
}

/// A header without its addresses.
fn ip4(words: &Words<'_>, protocol: u8, body: usize) -> Vec<u8> {
    let mut header = vec![0x45, (words.number("dscp", 0) << 2 | words.number("ecn", 0)) as u8];
    header.extend((20 + body as u16).to_be_bytes());
    let fragment = words.get("frag").map_or(0, |frag| {
        let more = if frag.ends_with('+') { 0x2000 } else { 0 };
        number(frag.trim_end_matches('+')) as u16 | more
    });
    let df = if words.0.contains(&"df") { 0x4000 } else { 0 };
    header.extend([0, 0]);
    header.extend((fragment | df).to_be_bytes());
    header.extend([words.number("ttl", 64) as u8, protocol, 0, 0]);
    header
}

/// A header without its addresses.
fn ip6(words: &Words<'_>, next: u8, body: usize) -> Vec<u8> {
    let class = (words.number("dscp", 0) << 2 | words.number("ecn", 0)) as u32;
    let mut header = (6 << 28 | class << 20).to_be_bytes().to_vec();
    header.extend((body as u16).to_be_bytes());
    header.extend([next, words.number("ttl", 64) as u8]);
    header
}

/// Extension headers of 8 bytes by their numbers (`ext=60,43`), after the number of the first.
fn extensions(words: &Words<'_>, next: u8) -> (u8, Vec<u8>) {
    let numbers = words.get("ext").unwrap_or_default().split(',').filter(|word| !word.is_empty());
    let chain: Vec<_> = numbers.map(|word| number(word) as u8).chain([next]).collect();
    // Headers of options contain padding, a routing header has no segments left.
    let headers = chain.windows(2).flat_map(|pair| match pair[0] {
        60 => [pair[1], 0, 1, 4, 0, 0, 0, 0],
        _ => [pair[1], 0, 0, 0, 0, 0, 0, 0],
    });
    (chain[0], headers.collect())
}

fn fragment6(frag: &str, protocol: u8) -> Vec<u8> {
    let more = u16::from(frag.ends_with('+'));
    let field = (number(frag.trim_end_matches('+')) as u16) << 3 | more;
    let mut header = vec![protocol, 0];
    header.extend(field.to_be_bytes());
    header.extend([0; 4]);
    header
}
