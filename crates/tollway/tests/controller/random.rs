//! Random changes with `ip -batch`, and what the controller knows after them.

use std::fmt::Write as _;

use tollway_controller::netlink::Settings;

use crate::bridges;
use crate::dice::Dice;
use crate::ip::{Ip, batch, veth_pairs};
use crate::model::SyncedModel;

/// Draws a line for `ip`. The kernel refuses many of these lines, and others change nothing.
fn line(dice: &mut Dice, lines: &mut String, addresses: bool) {
    let written = match dice.below(40) {
        0 => rule(dice, lines),
        1 if addresses => address(dice, lines),
        2..6 => nexthop(dice, lines),
        6 | 7 => bridges::line(dice, lines),
        _ => route(dice, lines),
    };
    written.unwrap();
}

fn route(dice: &mut Dice, lines: &mut String) -> std::fmt::Result {
    let what = dice.pick(&["add", "append", "prepend", "replace", "change", "del", "del"]);
    let table = dice.pick(&["main", "100", "local"]);
    let metric = dice.pick(&["", "metric 5", "metric 6"]);
    let (n, m, dev) = (dice.below(3), dice.below(4), dice.below(4));
    let id = dice.below(8);
    if dice.below(2) == 0 {
        let len = 22 + dice.below(3);
        let dst = format!("192.0.{}.0/{len}", dice.below(4) >> (24 - len) << (24 - len));
        let tos = dice.pick(&["", "", "tos 0x10"]);
        let to = match dice.below(8) {
            0 => format!("nexthop via 10.0.{m}.2 nexthop via 10.0.{n}.3 weight {}", 1 + n),
            1 => format!("nhid {id}"),
            2 => format!("dev a{dev}"),
            3 => format!("via 10.0.{dev}.{} mtu 1400", 2 + n),
            4 if what == "del" => String::new(),
            _ => format!("via 10.0.{dev}.{}", 2 + n),
        };
        let kind = dice.pick(&["", "", "", "blackhole", "throw", "unreachable"]);
        let to = if kind.is_empty() { to } else { String::new() };
        return writeln!(lines, "route {what} {kind} {dst} {tos} {metric} table {table} {to}");
    }
    let len = 46 + dice.below(3);
    let dst = format!("2001:db8:{}::/{len}", dice.below(4) >> (48 - len) << (48 - len));
    // If siblings and other routes share a metric, the kernel does not list all of them: it skips
    // from the first sibling to the last (`fib6_dump_node`).
    let siblings = metric != "metric 5";
    // Other commands can add the same route twice, and the two then look the same.
    let what = if siblings { what } else { dice.pick(&["add", "append", "del"]) };
    let to = match dice.below(4) {
        0 if siblings => {
            format!("nexthop via fd00:{m}::2 nexthop via fd00:{n}::3 weight {}", 1 + n)
        }
        _ if siblings => format!("via fd00:{dev}::{}", 2 + n),
        0 => format!("nhid {id}"),
        _ => format!("dev a{dev}"),
    };
    let kind = if siblings { "" } else { dice.pick(&["", "", "blackhole", "unreachable"]) };
    let to = if kind.is_empty() { to } else { String::new() };
    let to = if what == "del" && dice.below(3) == 0 { String::new() } else { to };
    writeln!(lines, "route {what} {kind} {dst} {metric} table {table} {to}")
}

/// Draws next-hop objects for routes. Objects in use are never deleted, as the kernel then deletes
/// their routes without a message.
fn nexthop(dice: &mut Dice, lines: &mut String) -> std::fmt::Result {
    let (id, dev) = (dice.below(4), dice.below(4));
    let router = if id < 2 { format!("10.0.{dev}.9") } else { format!("fd00:{dev}::9") };
    match dice.below(4) {
        0 => writeln!(lines, "nexthop replace id {} via {router} dev a{dev}", id + 1),
        1 => writeln!(lines, "nexthop replace id {} group 1/2", 5 + id % 2),
        2 => writeln!(lines, "nexthop replace id 7 group 3,{}/4", 1 + dev),
        _ => {
            writeln!(lines, "nexthop replace id {} blackhole", 20 + id)?;
            writeln!(lines, "nexthop del id {}", 20 + dev)
        }
    }
}

fn rule(dice: &mut Dice, lines: &mut String) -> std::fmt::Result {
    let what = dice.pick(&["add", "del"]);
    let (pref, table, n) = (100 + dice.below(4), 100 + dice.below(2), dice.below(3));
    writeln!(lines, "rule {what} pref {pref} from 192.0.{n}.0/24 table {table}")
}

fn address(dice: &mut Dice, lines: &mut String) -> std::fmt::Result {
    let what = dice.pick(&["add", "del"]);
    let (dev, n) = (dice.below(4), dice.below(3));
    match dice.below(2) {
        0 => writeln!(lines, "address {what} 10.{dev}.{n}.77/24 dev a{dev}"),
        _ => writeln!(lines, "address {what} fd00:{dev}:{n}::77/64 dev a{dev} nodad"),
    }
}

pub fn lines(dice: &mut Dice, count: usize) -> String {
    let mut lines = String::new();
    (0..count).for_each(|_| line(dice, &mut lines, true));
    lines
}

/// The same without addresses, with which routes vanish without a message.
pub fn reported_lines(dice: &mut Dice, count: usize) -> String {
    let mut lines = String::new();
    (0..count).for_each(|_| line(dice, &mut lines, false));
    lines
}

pub fn seed() -> u64 {
    let seed = std::env::var("TOLLWAY_RIB_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("TOLLWAY_RIB_SEED={seed}");
    seed
}

/// Changes while the kernel lists nothing.
pub fn changes() {
    veth_pairs();
    bridges::add();
    let mut dice = Dice(seed());
    let mut synced = SyncedModel::new(Settings::default());
    for _ in 0..40 {
        let mut ip = Ip::new();
        ip.run(&lines(&mut dice, 300));
        ip.finish();
        synced.assert_agrees();
    }
    assert_eq!(synced.source.stats().lost, 0);
    assert_eq!(synced.source.stats().resyncs, 1, "nothing was in doubt");
}

/// Number of prefixes of each family, so many that a list takes many datagrams.
const PREFIXES: usize = 8000;

/// Lines that add a route to each of these prefixes.
pub fn many() -> String {
    let one = |n| format!("route add {} via 10.0.0.2\nroute add {} via fd00::2\n", v4(n), v6(n));
    (0..PREFIXES).map(one).collect()
}

fn v4(n: usize) -> String {
    format!("192.{}.{}.0/24", 1 + n / 250, n % 250)
}

fn v6(n: usize) -> String {
    format!("2001:db8:8000:{n:x}::/64")
}

/// Changes all over the routes of [many].
pub fn spread(dice: &mut Dice, count: usize) -> String {
    let mut one = || {
        let (n, m) = (dice.below(PREFIXES), 2 + dice.below(3));
        let what = dice.pick(&["add", "append", "replace", "del", "del", "del"]);
        let (dst, router) = match dice.below(2) {
            0 => (v4(n), format!("10.0.0.{m}")),
            _ => (v6(n), format!("fd00::{m}")),
        };
        format!("route {what} {dst} via {router}\n")
    };
    (0..count).map(|_| one()).collect()
}

/// Changes while the kernel lists everything over and over.
pub fn lists() {
    veth_pairs();
    bridges::add();
    let mut dice = Dice(seed());
    batch(&many());
    let mut synced = SyncedModel::new(Settings::default());
    for _ in 0..10 {
        let mut ip = Ip::new();
        ip.run(&(lines(&mut dice, 1000) + &spread(&mut dice, 3000)));
        let before = synced.source.stats().resyncs;
        for round in 1..4 {
            synced.source.resync();
            synced.until("a list", |synced| synced.source.stats().resyncs >= before + round);
        }
        ip.finish();
        synced.assert_agrees();
    }
    println!("{:?}", synced.source.stats());
}
