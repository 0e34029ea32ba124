//! Random routes and next-hop objects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::config::{Group, Kind, PROTOCOL};
use super::draw::{Draw, Link};

/// A next-hop object, and where it leads.
struct Object {
    id: u32,
    hops: Vec<(usize, Option<IpAddr>)>,
}

/// Draws next-hop objects and routes of both families.
pub fn draw(draw: &mut Draw<'_>) {
    for kind in [Kind::Four, Kind::Six] {
        let objects = if draw.dice.one_in(3) { objects(draw, kind) } else { Vec::new() };
        for _ in 0..draw.dice.pick(&[2, 4, 8, 12, 24]) {
            let to = prefix(draw, kind);
            route(draw, kind, to, &objects);
            if draw.dice.one_in(5) {
                route(draw, kind, to, &objects);
            }
        }
    }
}

/// Draws the destination of a route, mostly from a small range, so that routes lie within others.
fn prefix(draw: &mut Draw<'_>, kind: Kind) -> IpNet {
    let dice = &mut *draw.dice;
    let link = dice.pick(&draw.links);
    if kind == Kind::Four {
        let far = Ipv4Addr::new(20, dice.below(3) as u8, dice.below(4) as u8, dice.roll() as u8);
        let len = dice.pick(&[0, 4, 8, 14, 16, 17, 22, 23, 24, 24, 25, 28, 30, 31, 32, 32]);
        let (address, len) = match dice.below(8) {
            0 => (link.host4(dice.below(600) as u16), dice.pick(&[24, 28, 32])),
            1 => (Ipv4Addr::UNSPECIFIED, 0),
            _ => (far, len),
        };
        let net = Ipv4Net::new(address, len).unwrap().trunc();
        draw.to4.push(if len < 8 { Ipv4Net::new(far, 16).unwrap().trunc() } else { net });
        return net.into();
    }
    let [b, c, d] = [3, 4, 3].map(|end| dice.below(end) as u16);
    let far = Ipv6Addr::new(0x2001, 0xdb8, b, c, d, 0, 0, dice.roll() as u16 & 0x3ff);
    let len = dice.pick(&[0, 3, 16, 32, 46, 48, 56, 63, 64, 64, 65, 80, 96, 120, 127, 128, 128]);
    let (address, len) = match dice.below(8) {
        0 => (link.host6(dice.below(600) as u16), dice.pick(&[96, 120, 128])),
        1 => (Ipv6Addr::UNSPECIFIED, 0),
        _ => (far, len),
    };
    let net = Ipv6Net::new(address, len).unwrap().trunc();
    draw.to6.push(if len < 16 { Ipv6Net::new(far, 48).unwrap().trunc() } else { net });
    net.into()
}

fn route(draw: &mut Draw<'_>, kind: Kind, to: IpNet, objects: &[Object]) {
    let dice = &mut *draw.dice;
    let verb =
        dice.pick(&["add", "add", "add", "add", "add", "add", "append", "prepend", "replace"]);
    let table = if dice.one_in(3) { Some(dice.pick(&draw.tables)) } else { None };
    let mut words = String::new();
    let mut key = String::new();
    if let Some(table) = table {
        key += &format!(" table {table}");
    }
    if dice.one_in(5) {
        key += &format!(" metric {}", dice.pick(&[1, 10, 100, 2000]));
    }
    words += &key;
    if kind == Kind::Four && dice.one_in(12) {
        words += &format!(" tos {}", dice.pick(&["0x10", "0x08", "0x04"]));
    }
    words += &format!(" proto {PROTOCOL}");
    if dice.one_in(6) {
        words += &options(draw, kind);
    }
    let dice = &mut *draw.dice;
    let (head, tail, hops) = match dice.below(24) {
        0 => ("blackhole ", String::new(), Vec::new()),
        1 => ("unreachable ", String::new(), Vec::new()),
        2 => ("prohibit ", String::new(), Vec::new()),
        3 => ("throw ", String::new(), Vec::new()),
        4 if dice.one_in(2) => ("local ", " dev lo".to_owned(), Vec::new()),
        4 if kind == Kind::Four => ("broadcast ", format!(" dev {}", draw.link().name), Vec::new()),
        5..9 if !objects.is_empty() => {
            let object = &objects[dice.below(objects.len())];
            ("", format!(" nhid {}", object.id), object.hops.clone())
        }
        9..13 => multipath(draw, kind),
        _ => single(draw, kind),
    };
    let text = format!("route {verb} {head}{to}{words}{tail}");
    let tries = tail.starts_with(" nhid");
    draw.route(kind, text, Group { to, key, hops, tries });
}

/// Draws a metric and other attributes of a route.
fn options(draw: &mut Draw<'_>, kind: Kind) -> String {
    let link = draw.link();
    let dice = &mut *draw.dice;
    let source = match kind {
        Kind::Four => link.host4(1).to_string(),
        _ => link.host6(1).to_string(),
    };
    match dice.below(9) {
        0 => format!(" src {source}"),
        1 => " mtu lock 1300".to_owned(),
        2 | 3 => format!(" mtu {}", dice.pick(&[1300, 1400, 1280, 1600])),
        4 => " advmss 1000".to_owned(),
        5 => " hoplimit 20".to_owned(),
        6 => " initcwnd 20".to_owned(),
        7 if kind == Kind::Six => " pref high".to_owned(),
        7 => " realm 5".to_owned(),
        8 if kind == Kind::Six && dice.one_in(2) => format!(" from {source}/64"),
        _ => " quickack 1".to_owned(),
    }
}

type Target = (&'static str, String, Vec<(usize, Option<IpAddr>)>);

fn single(draw: &mut Draw<'_>, kind: Kind) -> Target {
    let link = draw.link();
    let name = &link.name;
    if draw.dice.one_in(12) {
        return ("", format!(" dev {name}"), vec![(link.device, None)]);
    }
    let (via, hop) = via(draw, kind, &link);
    ("", format!("{via}{}", onlink(draw)), vec![hop])
}

fn onlink(draw: &mut Draw<'_>) -> &'static str {
    if draw.dice.one_in(10) { " onlink" } else { "" }
}

/// Draws a gateway on a link.
fn via(draw: &mut Draw<'_>, kind: Kind, link: &Link) -> (String, (usize, Option<IpAddr>)) {
    let host = draw.peer();
    let name = &link.name;
    let (word, address): (_, IpAddr) = match kind {
        Kind::Four if draw.dice.one_in(12) => ("inet6 ", six(draw, link, host).into()),
        Kind::Four => ("", link.host4(host).into()),
        _ => ("", six(draw, link, host).into()),
    };
    (format!(" via {word}{address} dev {name}"), (link.device, Some(address)))
}

fn six(draw: &mut Draw<'_>, link: &Link, host: u16) -> Ipv6Addr {
    if draw.dice.one_in(2) { link.local6(host) } else { link.host6(host) }
}

fn multipath(draw: &mut Draw<'_>, kind: Kind) -> Target {
    let (mut words, mut hops) = (String::new(), Vec::new());
    for _ in 0..2 + draw.dice.below(3) {
        let link = draw.link();
        let (via, hop) = via(draw, kind, &link);
        let weight = draw.dice.pick(&[1, 1, 1, 2, 5, 200]);
        words += &format!(" nexthop{via} weight {weight}{}", onlink(draw));
        hops.push(hop);
    }
    ("", words, hops)
}

/// Draws next-hop objects and groups of them.
fn objects(draw: &mut Draw<'_>, kind: Kind) -> Vec<Object> {
    let first = if kind == Kind::Four { 1 } else { 101 };
    let mut objects = Vec::new();
    for id in first..first + 5 {
        let link = draw.link();
        let (text, hops) = match draw.dice.below(10) {
            0 => (" blackhole".to_owned(), Vec::new()),
            1 => (format!(" dev {}", link.name), vec![(link.device, None)]),
            _ => {
                let (via, hop) = via(draw, kind, &link);
                (format!("{via}{}", onlink(draw)), vec![hop])
            }
        };
        // An object has its gateway's family.
        let text = text.replace("inet6 ", "");
        draw.line(kind, format!("nexthop add id {id}{text} proto {PROTOCOL}"));
        objects.push(Object { id, hops });
    }
    for id in first + 20..first + 22 {
        let mut members: Vec<usize> = (0..5).filter(|_| draw.dice.one_in(2)).collect();
        // A group with a blackhole has no other member.
        members.retain(|at| !objects[*at].hops.is_empty());
        if members.is_empty() {
            continue;
        }
        let weight = |draw: &mut Draw<'_>| draw.dice.pick(&[1, 1, 2, 10]);
        let words: Vec<_> =
            members.iter().map(|at| format!("{},{}", objects[*at].id, weight(draw))).collect();
        let kind_of = if draw.dice.one_in(5) { " type resilient buckets 32" } else { "" };
        let group = words.join("/");
        draw.line(kind, format!("nexthop add id {id} group {group}{kind_of} proto {PROTOCOL}"));
        let hops = members.iter().flat_map(|at| objects[*at].hops.clone()).collect();
        objects.push(Object { id, hops });
    }
    objects
}
