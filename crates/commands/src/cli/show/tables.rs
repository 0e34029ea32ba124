//! Formats answers as tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{Cell, Table};

use super::super::text::{arranged, table, thousands};
use crate::control::{
    DeviceEngine, Drops, Engines, Links, Neighbours, PortState, Ports, Punts, Tolls, Totals, Xdp,
};
use tollway_controller::handle::Status;

/// `show ports`.
pub(super) fn ports(answer: &Ports, width: Option<u16>) -> String {
    let mut kinds =
        table(&["port", "kind", "engine", "device", "state", "MTU", "MAC", "driven by"]);
    let header = ["port", "rx packets", "rx bytes", "tx packets", "tx bytes", "missed"];
    let mut counts = table(&header);
    for port in &answer.ports {
        let device = port.device.as_deref().unwrap_or("-");
        let mtu = port.mtu.to_string();
        let engine = port.engine.as_deref().unwrap_or("-");
        let mac = or_dash(&port.mac);
        let PortState { name, kind, state, how, .. } = port;
        kinds.add_row([name, kind, engine, device, state, &mtu, mac, how]);
        let numbers = [port.rx.packets, port.rx.bytes, port.tx.packets, port.tx.bytes, port.missed];
        counts.add_row(std::iter::once(port.name.clone()).chain(numbers.map(thousands)));
    }
    for (index, least) in [(6, 17), (0, 4), (4, 5)] {
        keep_whole(&mut kinds, index, least);
    }
    let mut out = arranged(kinds, "lllllrll", width);
    out.push('\n');
    out += &arranged(counts, "lrrrrr", width);
    for port in &answer.ports {
        if let Some(why) = &port.why {
            let _ = write!(out, "\n{} is {}: {why}\n", port.name, port.state);
        }
    }
    out + &defect(&answer.totals)
}

/// `show engines`.
pub(super) fn engines(answer: &Engines, width: Option<u16>) -> String {
    let mut engines = table(&["device", "engine", "because", "state", "driven by"]);
    for DeviceEngine { device, engine, because, how, state, why } in &answer.engines {
        let state = why.as_ref().map_or_else(|| state.clone(), |why| format!("{state}: {why}"));
        engines.add_row([device, engine, because, &state, how]);
    }
    arranged(engines, "lllll", width)
}

/// Gives a column a minimum width, so that its words are not broken.
fn keep_whole(table: &mut Table, column: usize, least: u16) {
    use comfy_table::{ColumnConstraint, Width};
    if let Some(column) = table.column_mut(column) {
        // The padding takes two columns.
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least + 2)));
    }
}

/// `show links`.
pub(super) fn links(answer: &Links, width: Option<u16>) -> String {
    let mut links = table(&["link", "on", "VLAN", "VRF", "MTU", "MAC", "addresses"]);
    for link in &answer.links {
        let on = link.parent.as_ref().unwrap_or(&link.port);
        let vlan = match (&link.vid, link.protocol.as_deref()) {
            (Some(vid), Some("802.1Q") | None) => vid.to_string(),
            (Some(vid), Some(protocol)) => format!("{vid} {protocol}"),
            (None, _) => "-".to_owned(),
        };
        let addresses: Vec<_> = link.addresses.iter().map(ToString::to_string).collect();
        let mac = or_dash(&link.mac);
        let row = [&link.name, on, &vlan, &link.vrf, &*link.mtu.to_string(), mac];
        links.add_row(row.into_iter().map(Cell::new).chain([Cell::new(addresses.join("\n"))]));
    }
    keep_whole(&mut links, 5, 17);
    arranged(links, "llllrll", width)
}

/// `show neighbours`.
pub(super) fn neighbours(answer: &Neighbours) -> String {
    if answer.neighbours.is_empty() {
        return "no neighbour is known\n".to_owned();
    }
    let mut neighs = table(&["dev", "address", "MAC", "state"]);
    for neigh in &answer.neighbours {
        let address = neigh.address.to_string();
        let mac = neigh.mac.as_deref().unwrap_or("-");
        neighs.add_row([&neigh.dev, address.as_str(), mac, &neigh.state]);
    }
    arranged(neighs, "llll", None)
}

/// `show drops`.
pub(super) fn drops(answer: &Drops) -> String {
    reasons("dropped", &answer.drops) + &totals_table(&answer.totals)
}

/// `show punts`.
pub(super) fn punts(answer: &Punts) -> String {
    reasons("punted", &answer.punts) + &totals_table(&answer.totals)
}

/// The reasons with their counters, the most frequent first.
fn reasons(title: &str, counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return format!("no packet was {title}\n");
    }
    let mut table = table(&[title, "packets"]);
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (name, count) in counts {
        table.add_row([name.clone(), thousands(*count)]);
    }
    arranged(table, "lr", None)
}

/// The totals of all packets, by what became of them.
fn totals_table(totals: &Totals) -> String {
    let mut table = table(&["packets", ""]);
    for (name, count) in [
        ("received", totals.received),
        ("cloned", totals.cloned),
        ("sent on", totals.sent),
        ("dropped", totals.dropped),
        ("punted", totals.punted),
        ("delivered", totals.delivered),
        ("held", totals.held),
        ("originated", totals.originated),
        ("originated, lost", totals.originated_lost),
    ] {
        table.add_row([name.to_owned(), thousands(count)]);
    }
    format!("\n{}{}", arranged(table, "lr", None), defect(totals))
}

/// Reports counters that do not add up.
fn defect(totals: &Totals) -> String {
    let sentence = totals.defect.as_ref();
    sentence.map_or_else(String::new, |sentence| {
        format!("\nThis is a defect of Tollway, report it with the table above: {sentence}\n")
    })
}

/// `show controller`.
pub(super) fn controller(answer: &Status) -> String {
    let mut table = table(&["the kernel has", ""]);
    for (name, count) in [
        ("devices", answer.devices as u64),
        ("addresses", answer.addresses as u64),
        ("rules", answer.rules as u64),
        ("destinations", answer.routes as u64),
        ("next-hop objects", answer.nexthops as u64),
        ("changes reported", answer.changes),
        ("changes installed", answer.installed),
        ("tables made", answer.rebuilds),
        ("messages lost", answer.lost),
        ("audits", answer.audits),
        ("drift", answer.drift),
    ] {
        table.add_row([name.to_owned(), thousands(count)]);
    }
    let bypassed = answer.bypassed.as_ref().map_or_else(String::new, |why| {
        format!("\nThe kernel forwards everything at the moment: {why}\n")
    });
    arranged(table, "lr", None) + &bypassed
}

/// `show xdp`.
pub(super) fn xdp(answer: &Xdp) -> String {
    let mut out = format!("the XDP path is {}", if answer.on { "on" } else { "off" });
    if let Some(why) = &answer.why {
        let _ = write!(out, ": {why}");
    }
    out.push('\n');
    if !answer.counts.is_empty() {
        let mut table = table(&["xdp", ""]);
        for (name, count) in &answer.counts {
            table.add_row([name.replace('_', " "), thousands(*count)]);
        }
        let _ = write!(out, "\n{}", arranged(table, "lr", None));
    }
    out
}

/// `show tolls`.
pub(super) fn tolls(answer: &Tolls) -> String {
    let mut table = table(&["stage", "clocks", "ns", "packets sampled", "bursts sampled"]);
    let number = |number: Option<f64>| number.map_or("-".to_owned(), |n| format!("{n:.1}"));
    for toll in &answer.tolls {
        table.add_row([
            toll.stage.clone(),
            number(toll.clocks_per_packet),
            number(toll.ns_per_packet),
            thousands(toll.packets),
            thousands(toll.bursts),
        ]);
    }
    let out = arranged(table, "lrrrr", None);
    format!("{out}\nclocks and ns a packet; the clock runs at {:.0} MHz\n", answer.tsc_mhz)
}

/// A text that may be missing.
fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_has_a_reason() {
        let device = |device: &str, engine: &str, because: &str, why: Option<&str>| DeviceEngine {
            device: device.to_owned(),
            engine: engine.to_owned(),
            because: because.to_owned(),
            how: "tc program (tcx)".to_owned(),
            state: if why.is_some() { "down" } else { "up" }.to_owned(),
            why: why.map(str::to_owned),
        };
        let veth = "auto: a kernel makes the frames of veth";
        let all = vec![
            device("veth0", "tc", veth, None),
            device("eth0", "xdp", "selected", Some("the interface is down")),
        ];
        let text = engines(&Engines { engines: all }, None);
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        let words = lines[1].split("  ").map(str::trim).filter(|words| !words.is_empty());
        let words: Vec<_> = words.collect();
        assert_eq!(words, ["veth0", "tc", veth, "up", "tc program (tcx)"], "{text}");
        assert!(lines[2].contains("selected") && lines[2].contains("down: the interface is down"));
    }
}
