//! Compares what Tollway reports about its paths with what it does. It must not forward traffic
//! that it reports on the kernel path. It must not leave traffic that it reports on the fast path
//! to the kernel because of the configuration.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::config::{Config, Kind};
use super::net::{addresses, is_four, is_six, packet_at};
use super::traffic::{Packet, did_not_fit};
use crate::net::DEVICES;

/// The XDP program's reason for frames that it passes to the kernel only because of the kernel's
/// configuration.
const OFFLOAD_REASON: &str = "offload";

/// Packets of one class: the name of the link on which they arrive, and whether they are IPv4.
pub type Class = (String, bool);

/// Groups the packets of a case by class. Packets that belong to no link are left out.
pub fn classes(config: &Config, packets: &[Packet]) -> BTreeMap<Class, Vec<Packet>> {
    let links = links(config);
    let too_small: BTreeSet<_> =
        packets.iter().filter_map(|packet| did_not_fit(&packet.frame)).collect();
    let mut classes: BTreeMap<Class, Vec<Packet>> = BTreeMap::new();
    for packet in packets.iter().filter(|packet| packet.wave == 0) {
        let frame = &packet.frame;
        let Some(tags) = frame.get(12..packet_at(frame) - 2) else { continue };
        let is_of = |link: &&(String, usize, Vec<u8>)| link.1 == packet.device && link.2 == tags;
        let Some((name, ..)) = links.iter().find(is_of) else { continue };
        // Packets to the router itself always take the kernel path, and so do those to a
        // destination with a path MTU.
        let is_own =
            addresses(frame).is_some_and(|[_, to]| config.is_local(to) || too_small.contains(&to));
        if (is_four(frame) || is_six(frame)) && !is_own {
            classes.entry((name.clone(), is_four(frame))).or_default().push(packet.clone());
        }
    }
    classes
}

/// All links, each with name, device and tags.
fn links(config: &Config) -> Vec<(String, usize, Vec<u8>)> {
    let mut links: Vec<_> = DEVICES[..config.ports]
        .iter()
        .enumerate()
        .map(|(device, name)| ((*name).to_owned(), device, Vec::new()))
        .collect();
    for line in config.lines.iter().filter(|line| line.kind == Kind::Link) {
        let words: Vec<_> = line.text.split(' ').collect();
        let [
            "link",
            "add",
            "link",
            parent,
            "name",
            name,
            "type",
            "vlan",
            "protocol",
            protocol,
            "id",
            vid,
            ..,
        ] = words[..]
        else {
            continue;
        };
        let Some((_, device, tags)) = links.iter().find(|link| link.0 == parent).cloned() else {
            continue;
        };
        let kind: u16 = if protocol == "802.1ad" { 0x88a8 } else { 0x8100 };
        let vid: u16 = vid.parse().unwrap();
        let tags = [&tags[..], &kind.to_be_bytes(), &vid.to_be_bytes()].concat();
        links.push((name.to_owned(), device, tags));
    }
    links
}

/// Packets that took the reported path: the fast path, or the kernel path.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathCounts {
    pub fast: u64,
    pub kernel: u64,
}

/// Returns where a running Tollway reports other paths than `tollway check` does.
///
/// A running Tollway has no memory for packets of an MTU that a device got after the start. A
/// router that starts now would have it, so this function ignores that reason. If the kernel
/// [hides](super::config::Config::hides_routes) routes from `tollway check`, it ignores routes.
pub fn differences(checked: &Value, live: &Value, hides_routes: bool) -> Vec<String> {
    let mut now = live.clone();
    for link in now["links"].as_array_mut().into_iter().flatten() {
        for direction in ["arrives", "leaves"] {
            for family in ["ipv4", "ipv6"] {
                if let Some(reasons) = link[direction][family].as_array_mut() {
                    reasons.retain(|why| why["reason"] != "large_mtu");
                }
            }
        }
    }
    let paths = |report: &Value| {
        let mut report = report.clone();
        for link in
            report["links"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut)
        {
            // They follow from the other fields.
            link.remove("ipv4_fast");
            link.remove("ipv6_fast");
        }
        report
    };
    let (checked, now) = (paths(checked), paths(&now));
    let differ = ["general", "links", "groups", "parts"].into_iter().filter(|of| {
        // `parts` also reports the routes that leave by a device whose MTU has grown.
        checked[*of] != now[*of] && !(*of == "parts" && (hides_routes || has_grown(live)))
    });
    differ
        .map(|of| format!("{of}: check reports {}, the router {}", checked[of], now[of]))
        .collect()
}

fn has_grown(live: &Value) -> bool {
    live.to_string().contains("\"large_mtu\"")
}

/// Returns where the treatment of a class's packets contradicts the report. `before` and
/// `after` are all of Tollway's counts.
pub fn contradictions(
    report: &Value,
    class: &Class,
    (before, after): (&Value, &Value),
    by_path: &mut PathCounts,
) -> Vec<String> {
    let (link, is_four) = class;
    let family = if *is_four { "ipv4" } else { "ipv6" };
    let count = |path: &str| {
        let of = |all: &Value| all.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        of(after).saturating_sub(of(before))
    };
    let is_any = |value: &Value| value.as_array().is_some_and(|reasons| !reasons.is_empty());
    let has = |value: &Value| is_any(&value[family]);
    let all: Vec<&Value> = report["links"].as_array().into_iter().flatten().collect();
    let general = has(&report["general"]);
    let Some(own) = all.iter().find(|one| one["link"] == link.as_str()) else {
        return vec![format!("Tollway does not know of the link {link}")];
    };
    let mut wrong = Vec::new();
    let forwarded = count("/totals/sent") + count("/xdp/counts/packets");
    let port = DEVICES.iter().position(|device| own["port"] == *device).unwrap_or(0);
    let left = count(&format!("/counts/ports/{port}/kernel/{OFFLOAD_REASON}"));
    let takes_kernel_path = general || has(&own["arrives"]);
    if takes_kernel_path {
        by_path.kernel += left + count("/punts/kernel_link");
    } else {
        by_path.fast += forwarded;
    }
    if takes_kernel_path && forwarded > 0 {
        wrong.push(format!(
            "{family} of {link} is reported on the kernel path ({}), and Tollway forwards {forwarded} packets",
            own["arrives"]
        ));
    }
    for (at, port) in DEVICES.iter().enumerate() {
        let mut of_port = all.iter().filter(|one| one["port"] == *port).peekable();
        let none = of_port.peek().is_some() && of_port.all(|one| general || has(&one["leaves"]));
        let sent = count(&format!("/ports/{at}/tx/packets"));
        if none && sent > 0 {
            wrong.push(format!(
                "{family} by {port} is reported on the kernel path, and Tollway sends {sent} packets"
            ));
        }
    }
    if takes_kernel_path {
        return wrong;
    }
    let is_reported = |of: &str| {
        let parts = report["parts"].as_array().into_iter().flatten();
        parts.filter_map(|part| part["what"].as_str()).any(|what| what.contains(of))
    };
    let leaves = all.len() < DEVICES.len() || all.iter().any(|one| has(&one["leaves"]));
    let reasons = [
        ("kernel_link", false),
        ("kernel_route", leaves || has(&report["groups"]) || is_reported("route")),
        ("kernel_exit", leaves),
        ("kernel_rule", is_reported("ip rule") || is_reported("ip -6 rule")),
        ("filter_unsupported", is_reported("nft rule")),
    ];
    for (reason, _) in reasons.into_iter().filter(|(_, is_reported)| !is_reported) {
        let left = count(&format!("/punts/{reason}"));
        if left > 0 {
            wrong.push(format!(
                "{family} of {link} is reported on the fast path, and {left} packets are punted: {reason}"
            ));
        }
    }
    // This count also includes the neighbours' answers on other links and of other families.
    let of_port = all.iter().filter(|one| one["port"] == own["port"]);
    let mut arrivals =
        of_port.flat_map(|one| ["ipv4", "ipv6"].map(|family| &one["arrives"][family]));
    let only_fast =
        !arrivals.any(is_any) && !["ipv4", "ipv6"].iter().any(|of| is_any(&report["general"][*of]));
    let fragments = if *is_four { "IPv4 fragments" } else { "IPv6 packets with extension headers" };
    if left > 0 && only_fast && !is_reported(fragments) {
        wrong.push(format!(
            "{family} of {link} is reported on the fast path, and the XDP program passed {left} packets to the kernel"
        ));
    }
    wrong
}
