//! Random commands for `ip`, many of which the kernel refuses, and random packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::dice::Dice;
use crate::tables::{LINKS, Packet};

/// Returns a prefix within 10.9.0.0/27 or 2001:db8::/123, rarely the default route.
fn prefix(dice: &mut Dice, v6: bool) -> String {
    let from_end = [0, 0, 1, 2, 2, 3, 4, 5][dice.below(8)];
    let last = dice.below(32) >> from_end << from_end;
    match (dice.below(12), v6) {
        (0, _) => "default".to_owned(),
        (_, false) => format!("10.9.0.{last}/{}", 32 - from_end),
        (_, true) => format!("2001:db8::{last:x}/{}", 128 - from_end),
    }
}

fn router(dice: &mut Dice, v6: bool, dev: usize) -> String {
    let last = 2 + dice.below(3);
    match (v6, dice.below(10)) {
        (false, 0) => format!("inet6 fd00:{dev}::{last}"),
        (false, _) => format!("10.0.{dev}.{last}"),
        (true, _) => format!("fd00:{dev}::{last}"),
    }
}

fn hops(dice: &mut Dice, v6: bool) -> String {
    let dev = dice.below(4);
    match dice.below(9) {
        0 => format!("dev a{dev}"),
        1 | 2 => {
            let count = 2 + dice.below(2);
            let hop = |_| {
                let dev = dice.below(4);
                let (router, weight) = (router(dice, v6, dev), 1 + dice.below(3));
                format!("nexthop via {router} dev a{dev} weight {weight} ")
            };
            (0..count).map(hop).collect()
        }
        3..=5 => format!("nhid {}", if v6 { 5 + dice.below(4) } else { 1 + dice.below(8) }),
        _ => format!("via {} dev a{dev}", router(dice, v6, dev)),
    }
}

fn route(dice: &mut Dice) -> String {
    let v6 = dice.below(2) == 0;
    let what = dice.pick(&["add", "append", "prepend", "replace", "replace", "del", "del"]);
    let kinds = ["", "", "", "", "", "blackhole", "unreachable", "prohibit", "throw"];
    let dst = prefix(dice, v6);
    // A default route that drops makes the kernel refuse sources as well.
    let kind = if dst == "default" { "" } else { dice.pick(&kinds) };
    let to = if kind.is_empty() { hops(dice, v6) } else { String::new() };
    let metric = dice.pick(&["", "metric 5", "metric 6"]);
    // With a route in the table `default`, the kernel path takes what other tables drop.
    let table = if dice.below(400) == 0 { "default" } else { dice.pick(&["main", "main", "100"]) };
    let table = if dice.below(16) == 0 { "local" } else { table };
    let tos = if v6 || dice.below(40) > 0 { "" } else { "tos 0x10" };
    let mtu = if to.contains("nh") { "" } else { dice.pick(&["", "", "", "mtu 1400"]) };
    let source = if v6 || !kind.is_empty() { "" } else { dice.pick(&["", "", "", "src 10.8.0.1"]) };
    let family = if v6 { "-6" } else { "-4" };
    let local = dice.below(12) == 0 && dst != "default";
    if local {
        let how = if v6 { "dev lo" } else { "dev a1" };
        return format!("{family} route {what} local {dst} {how} table local");
    }
    format!("{family} route {what} {kind} {dst} {tos} {metric} table {table} {source} {mtu} {to}")
        .replace("-6 ", "route6 ")
        .replace("-4 ", "")
}

fn nexthop(dice: &mut Dice) -> String {
    let (id, dev) = (1 + dice.below(8), dice.below(4));
    let v6 = id > 4;
    match dice.below(8) {
        0 => format!("nexthop del id {id}"),
        1 => format!("nexthop replace id {id} blackhole"),
        2 => format!("nexthop replace id {id} dev a{dev}"),
        _ => format!("nexthop replace id {id} via {} dev a{dev}", plain(dice, v6, dev)),
    }
}

/// Returns a router that no route names directly.
fn plain(dice: &mut Dice, v6: bool, dev: usize) -> String {
    let last = 5 + dice.below(3);
    if v6 { format!("fd00:{dev}::{last}") } else { format!("10.0.{dev}.{last}") }
}

fn group(dice: &mut Dice) -> String {
    let id = [4, 8][dice.below(2)];
    let base = id - 3;
    let members: Vec<_> = (base..base + 3).filter(|_| dice.below(3) > 0).collect();
    let members = if members.is_empty() { vec![base] } else { members };
    let members: Vec<_> = members.iter().map(|id| format!("{id},{}", id % 3 + 1)).collect();
    let kind = dice.pick(&["", "", "type resilient buckets 32"]);
    format!("nexthop replace id {id} group {} {kind}", members.join("/"))
}

fn rule(dice: &mut Dice) -> String {
    let v6 = dice.below(2) == 0;
    let at = dice.pick(&["10", "500", "2000", "31000", "40000"]);
    if dice.below(5) < 3 {
        let family = if v6 { "rule6" } else { "rule" };
        return format!("{family} del pref {at}");
    }
    let mut words = String::new();
    for _ in 0..1 + dice.below(2) {
        match dice.below(6) {
            0 => words += if v6 { "from fd99::4/126 " } else { "from 172.16.0.4/30 " },
            1 => words += &format!("to {} ", prefix(dice, v6).replace("default", "all")),
            2 => words += &format!("iif {} ", dice.pick(&["a0", "a2", "lo"])),
            3 => words += &format!("fwmark {}/3 ", dice.below(3)),
            4 if dice.below(4) == 0 => words += "tos 0x10 ",
            _ => {}
        }
    }
    let action = match dice.below(8) {
        0 if !words.is_empty() => "prohibit".to_owned(),
        1 if !words.is_empty() => "unreachable".to_owned(),
        2 => "nop".to_owned(),
        3 => format!("goto {}", dice.pick(&["500", "2000", "32766"])),
        _ if words.is_empty() => "lookup 100".to_owned(),
        _ => format!("lookup {}", dice.pick(&["100", "100", "main", "local"])),
    };
    let family = if v6 { "rule6" } else { "rule" };
    let not = if dice.below(24) == 0 { "not " } else { "" };
    format!("{family} add pref {at} {not}{words}{action}")
}

fn device(dice: &mut Dice) -> String {
    let dev = dice.below(4);
    match dice.below(10) {
        0 => format!("link set a{dev} down"),
        // It loses its carrier.
        1 => format!("link set b{dev} down"),
        2..=4 => format!("link set b{dev} up"),
        _ => format!("link set a{dev} up"),
    }
}

fn address(dice: &mut Dice) -> String {
    let dev = dice.below(4);
    let what = dice.pick(&["add", "add", "del"]);
    let what = if dice.below(3) == 0 { what } else { "add" };
    match dice.below(3) {
        0 => format!("address {what} 10.0.{dev}.1/24 dev a{dev}"),
        1 => format!("address {what} fd00:{dev}::1/64 dev a{dev} nodad"),
        _ => format!("address {what} 10.8.0.1/24 dev a{dev}"),
    }
}

/// Returns a line for `ip -batch`, and whether it is for `ip -6`.
pub fn line(dice: &mut Dice) -> (String, bool) {
    let line = match dice.below(60) {
        0 | 1 => rule(dice),
        2 | 20 => device(dice),
        3 | 4 => address(dice),
        5..=10 => nexthop(dice),
        11..=13 => group(dice),
        _ => route(dice),
    };
    match line.strip_prefix("route6 ").or_else(|| line.strip_prefix("rule6 ")) {
        Some(rest) if line.starts_with("rule6") => (format!("rule {rest}"), true),
        Some(rest) => (rest.to_owned(), true),
        None => (line, false),
    }
}

pub fn packet(dice: &mut Dice) -> Packet {
    let v6 = dice.below(2) == 0;
    let (last, from) = (dice.below(34) as u16, dice.below(8) as u16);
    let [src, dst]: [IpAddr; 2] = if v6 {
        let of = |words: [u16; 2], last| Ipv6Addr::new(words[0], words[1], 0, 0, 0, 0, 0, last);
        [of([0xfd99, 0], from).into(), of([0x2001, 0xdb8], last).into()]
    } else {
        let of = |[a, b]: [u8; 2], last: u16| Ipv4Addr::new(a, b, 0, last as u8);
        [of([172, 16], from).into(), of([10, 9], last).into()]
    };
    let iif = LINKS[dice.below(3)];
    Packet { iif, src, dst, mark: dice.below(4) as u32 }
}
