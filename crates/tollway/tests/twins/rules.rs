//! Drawn rules of nftables: a stateful firewall, and translated addresses.

use std::net::Ipv4Addr;

use crate::scene::Version;
use crate::script::{Protocol, Side, Talk, Target, Untracked};
use crate::testkit::dice::Dice;

/// The rules for these conversations.
pub fn draw(talks: &[Talk], version: Version, dice: &mut Dice) -> String {
    let text = draw4(talks, dice);
    if version == Version::V4 { text } else { about_ipv6(&text) }
}

/// The same rules about IPv6, with the addresses that those of IPv4 stand for.
fn about_ipv6(text: &str) -> String {
    let mut text = text.to_owned();
    for (from, to) in [
        ("table ip nat", "table ip6 nat"),
        ("ip saddr", "ip6 saddr"),
        ("ip daddr", "ip6 daddr"),
        ("dnat ip addr", "dnat ip6 addr"),
        ("reject with icmp type", "reject with icmpv6 type"),
    ] {
        text = text.replace(from, to);
    }
    let line = |line: &str| line.split(' ').map(word6).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A word, in which an address, a range of them, a network, or an address with ports may be.
fn word6(word: &str) -> String {
    let (bare, end) = word.strip_suffix(',').map_or((word, ""), |bare| (bare, ","));
    let address = |text: &str| {
        let ip: Option<Ipv4Addr> = text.parse().ok();
        ip.map(|ip| Version::V6.address(ip))
    };
    let network = |(net, _): (&str, &str)| Some(format!("{}/64", address(net)?));
    let range = |(from, to): (&str, &str)| Some(format!("{}-{}", address(from)?, address(to)?));
    let with_ports = |(ip, ports): (&str, &str)| Some(format!("[{}]:{ports}", address(ip)?));
    let found = address(bare).map(|ip| ip.to_string());
    let found = found
        .or_else(|| bare.split_once('/').and_then(network))
        .or_else(|| bare.split_once('-').and_then(range))
        .or_else(|| bare.split_once(':').and_then(with_ports));
    found.map_or_else(|| word.to_owned(), |found| found + end)
}

fn draw4(talks: &[Talk], dice: &mut Dice) -> String {
    let chains = [
        ("inet fw", "early", "filter hook prerouting priority raw", early(talks, dice)),
        ("inet fw", "marks", "filter hook prerouting priority -150", marks(dice)),
        ("inet fw", "local", "filter hook input priority 0", input(dice)),
        ("inet fw", "passing", "filter hook forward priority 0", forward(talks, dice)),
        ("ip nat", "targets", "nat hook prerouting priority -100", targets(talks, dice)),
        ("ip nat", "sources", "nat hook postrouting priority 100", sources(dice)),
    ];
    let policy = if dice.one_in(3) { "accept" } else { "drop" };
    let mut text = String::new();
    for (table, chain, base, rules) in chains {
        if chain == "early" && rules.is_empty() {
            continue;
        }
        let policy = if chain == "passing" { policy } else { "accept" };
        text += &format!("table {table} {{\n chain {chain} {{\n  type {base}; policy {policy};\n");
        for rule in rules {
            text += &format!("  {rule}\n");
        }
        text += " }\n}\n";
    }
    text
}

/// What keeps packets out of connection tracking.
fn early(talks: &[Talk], dice: &mut Dice) -> Vec<String> {
    let mut rules = Vec::new();
    for talk in talks {
        let (protocol, server) = (talk.protocol.name(talk.version), talk.server.1);
        for (side, port, address) in
            [(Side::Client, "dport", "daddr"), (Side::Server, "sport", "saddr")]
        {
            if talk.untracked.has(side) {
                let packets = format!("{protocol} {port} {}", server.port());
                let address = format!("ip {address} {}", server.ip());
                rules.push(match dice.below(4) {
                    0 => format!("{address} {packets} notrack"),
                    1 => format!("{packets} counter notrack"),
                    2 => format!("meta l4proto {protocol} th {port} {} notrack", server.port()),
                    _ => format!("{packets} notrack"),
                });
            }
        }
    }
    rules
}

/// What becomes of packets that are not tracked, if there are any. Behind this rule, others may accept them, too.
fn untracked(talks: &[Talk], dice: &mut Dice) -> Option<String> {
    let has_some = talks.iter().any(|talk| talk.untracked != Untracked::Nothing);
    has_some.then(|| {
        dice.pick(&[
            "ct state untracked accept".to_owned(),
            "ct state untracked counter accept".to_owned(),
            "ct state { established, untracked } accept".to_owned(),
            "ct state vmap { invalid : drop, untracked : accept }".to_owned(),
            "ct state untracked counter drop".to_owned(),
        ])
    })
}

fn marks(dice: &mut Dice) -> Vec<String> {
    let mut rules = Vec::new();
    for _ in 0..dice.below(3) {
        let low = 40_000 + dice.below(28);
        let high = low + dice.below(14);
        let protocol = dice.pick(&["tcp", "udp"]);
        let mark = dice.pick(&[1, 2, 0x10]);
        rules.push(match dice.below(4) {
            0 => format!("meta l4proto {protocol} ct state new ct mark set {mark}"),
            1 => format!("{protocol} sport {low}-{high} ct state new ct mark set {mark}"),
            2 => format!("{protocol} sport {low}-{high} ct mark 0 ct mark set {mark}"),
            _ => {
                format!("{protocol} sport {low}-{high} ct state new ct mark set ct mark or {mark}")
            }
        });
    }
    if dice.one_in(6) {
        rules.push("ct state invalid drop".to_owned());
    }
    rules
}

fn input(dice: &mut Dice) -> Vec<String> {
    if dice.one_in(2) { vec![] } else { vec!["ct state invalid drop".to_owned()] }
}

/// What stops a conversation, or does so from some packet on.
fn stops(talk: &Talk, dice: &mut Dice) -> String {
    let protocol = talk.protocol.name(talk.version);
    if talk.protocol == Protocol::Icmp {
        return stops_echoes(protocol, dice);
    }
    let (server, target, client) =
        (talk.server.1.port(), talk.target.port(), talk.clients[0].1.port());
    match dice.below(9) {
        0 => format!("{protocol} dport {server} drop"),
        1 => format!("{protocol} sport {server} ct state established counter drop"),
        2 => format!("ct state new {protocol} dport {server} reject"),
        3 => format!("meta l4proto {protocol} ct original proto-dst {target} drop"),
        4 => format!("{protocol} dport {server} reject with icmp type admin-prohibited"),
        5 => format!("ct direction reply {protocol} dport {client} drop"),
        6 => format!("ct mark 1 {protocol} dport {server} drop"),
        7 => format!("{protocol} dport {server} ct status & (dnat|snat) != 0 drop"),
        _ => {
            format!("{protocol} dport {server} ct state {{ established, related }} counter accept")
        }
    }
}

/// What stops echoes, or does so from some packet on.
fn stops_echoes(protocol: &str, dice: &mut Dice) -> String {
    match dice.below(4) {
        0 => format!("meta l4proto {protocol} ct state established counter drop"),
        1 => format!("meta l4proto {protocol} ct state related drop"),
        2 => format!("ct direction reply meta l4proto {protocol} drop"),
        _ => format!("{protocol} type echo-reply drop"),
    }
}

fn forward(talks: &[Talk], dice: &mut Dice) -> Vec<String> {
    let mut rules = Vec::new();
    for talk in talks {
        if dice.one_in(9) {
            rules.push(stops(talk, dice));
        }
    }
    rules.extend(untracked(talks, dice));
    match dice.below(5) {
        0 => rules.push("ct state invalid drop".to_owned()),
        1 => rules.push("ct state invalid counter drop".to_owned()),
        2 => {
            let vmap = "established : accept, related : accept, invalid : drop";
            rules.push(format!("ct state vmap {{ {vmap} }}"));
        }
        _ => {}
    }
    rules.push(dice.pick(&[
        "ct state established,related accept".to_owned(),
        "ct state { established, related } counter accept".to_owned(),
        "ct direction reply accept".to_owned(),
        "ct state established ct status seen-reply accept".to_owned(),
        "ct state established,related ct mark 0-0x20 accept".to_owned(),
    ]));
    rules.extend(match dice.below(5) {
        0 => vec!["ct state new accept".to_owned()],
        1 => vec!["iifname { ra, rc, rd } accept".to_owned(), "ct status dnat accept".to_owned()],
        2 => vec!["ct mark { 1, 2 } accept".to_owned(), "iifname { ra, rd } accept".to_owned()],
        3 => vec!["ct original ip saddr { 10.0.1.0/24, 10.0.4.0/24 } accept".to_owned()],
        _ => vec!["iifname != { rb, rf } ct state != invalid accept".to_owned()],
    });
    rules
}

/// Where what is sent to the router's addresses goes.
fn targets(talks: &[Talk], dice: &mut Dice) -> Vec<String> {
    let (mut rules, mut mapped) = (Vec::new(), [Vec::new(), Vec::new()]);
    for talk in talks {
        let (protocol, port) = (talk.protocol.name(talk.version), talk.target.port());
        let server = talk.server.1;
        match talk.kind {
            Target::Direct => {}
            Target::Redirected => {
                rules.push(format!("{protocol} dport {port} redirect to :{}", server.port()));
            }
            Target::Published if dice.one_in(2) => {
                let how = dice.pick(&["", " persistent"]);
                let to = talk.target.ip();
                rules.push(format!("ip daddr {to} {protocol} dport {port} dnat to {server}{how}"));
            }
            Target::Published => {
                let of = &mut mapped[usize::from(talk.protocol == Protocol::Udp)];
                of.push(format!("{port} : {} . {}", server.ip(), server.port()));
            }
        }
    }
    for (protocol, mapped) in ["tcp", "udp"].iter().zip(mapped) {
        if !mapped.is_empty() {
            let all = mapped.join(", ");
            rules.push(format!("dnat ip addr . port to {protocol} dport map {{ {all} }}"));
        }
    }
    rules
}

/// Which source packets leave with.
fn sources(dice: &mut Dice) -> Vec<String> {
    // The answers to a host that asks for a service in its own network come back this way.
    let mut rules = vec!["iifname ra oifname ra masquerade".to_owned()];
    if dice.one_in(3) {
        rules.push("oifname rc masquerade".to_owned());
    }
    let outside = "oifname { rb, rf }";
    let ports = format!("{outside} meta l4proto {{ tcp, udp }}");
    rules.push(match dice.below(12) {
        0 => format!("{outside} ct state new snat to 10.0.2.1"),
        1 => format!("{outside} snat to 10.0.2.10-10.0.2.12"),
        2 => format!("{outside} snat to 10.0.2.10-10.0.2.12 persistent"),
        3 => format!("{ports} snat to 10.0.2.10:50000-50100"),
        4 => {
            let map = "10.0.1.2 : 10.0.2.10, 10.0.1.3 : 10.0.2.11, 10.0.4.100 : 10.0.2.12";
            format!("{outside} snat to ip saddr map {{ {map} }}")
        }
        5 => format!("{outside} masquerade random"),
        6 => format!("{outside} masquerade fully-random,persistent"),
        7 => format!("{ports} masquerade to :50000-50100"),
        8 => return rules,
        _ => format!("{outside} masquerade"),
    });
    rules
}
