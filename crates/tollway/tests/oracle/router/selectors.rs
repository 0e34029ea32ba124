//! Random policy rules (`ip rule`).

use ipnet::{Ipv4Net, Ipv6Net};

use super::config::{Kind, TABLES};
use super::draw::{Draw, pick4, pick6};

/// Draws rules of both families.
pub fn draw(draw: &mut Draw<'_>) {
    for kind in [Kind::Four, Kind::Six] {
        if draw.dice.one_in(2) {
            continue;
        }
        for _ in 0..1 + draw.dice.below(4) {
            rule(draw, kind);
        }
    }
    if draw.dice.one_in(40) {
        draw.line(Kind::Four, "rule delete pref 32766".to_owned());
    }
}

fn rule(draw: &mut Draw<'_>, kind: Kind) {
    let pref = draw.dice.pick(&[10, 20, 20, 500, 2000, 3000, 32_000, 32_766, 32_800]);
    let mut words = format!("rule add pref {pref}");
    if draw.odd && draw.dice.one_in(6) {
        words += " not";
    }
    for _ in 0..draw.dice.pick(&[0, 1, 1, 1, 2]) {
        words += &selector(draw, kind);
    }
    let table = draw.dice.pick(&TABLES);
    words += &match draw.dice.below(24) {
        0 => " blackhole".to_owned(),
        1 => " unreachable".to_owned(),
        2 => " prohibit".to_owned(),
        3 => " nop".to_owned(),
        4 => format!(" goto {}", draw.dice.pick(&[500, 3000, 32_766])),
        5 if draw.odd => {
            format!(" lookup {table} suppress_prefixlength {}", draw.dice.pick(&[0, 8, 24]))
        }
        6 => " lookup main".to_owned(),
        7 if kind == Kind::Four => " lookup default".to_owned(),
        _ => format!(" lookup {table}"),
    };
    draw.line(kind, words);
}

fn selector(draw: &mut Draw<'_>, kind: Kind) -> String {
    let word = draw.dice.pick(&["from", "to"]);
    match draw.dice.below(if draw.odd { 20 } else { 15 }) {
        0..8 => format!(" {word} {}", network(draw, kind)),
        8..12 if !draw.vrfs.is_empty() && draw.dice.one_in(2) => {
            format!(" iif {}", draw.dice.pick(&draw.vrfs))
        }
        8..12 => format!(" iif {}", draw.link().name),
        12..15 => {
            let mask = draw.dice.pick(&["", "", "/0x3", "/0x1"]);
            format!(" fwmark {}{mask}", draw.dice.pick(&[1, 2, 3]))
        }
        15 => format!(" tos {}", draw.dice.pick(&["0x10", "0x08", "0x04"])),
        16 => format!(" ipproto {}", draw.dice.pick(&["tcp", "udp"])),
        17 => format!(" ipproto udp dport {}", draw.dice.pick(&["53", "1000-40000"])),
        18 => format!(" oif {}", draw.link().name),
        _ => " iif lo".to_owned(),
    }
}

fn network(draw: &mut Draw<'_>, kind: Kind) -> String {
    if kind == Kind::Four {
        let address = pick4(&draw.to4, draw.dice);
        let len = draw.dice.pick(&[8, 16, 22, 24, 32]);
        return Ipv4Net::new(address.into(), len).unwrap().trunc().to_string();
    }
    let address = pick6(&draw.to6, draw.dice);
    let len = draw.dice.pick(&[16, 32, 48, 64, 128]);
    Ipv6Net::new(address.into(), len).unwrap().trunc().to_string()
}
