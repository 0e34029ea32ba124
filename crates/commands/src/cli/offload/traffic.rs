//! The headlines: how much traffic so far took each path, or would have taken it.

use super::{plural, thousands};
use crate::control::{Offload, PathCounts, PathTraffic, Shares};

const UNKNOWN: &str = "How much of the traffic that is, is not known: an XDP program takes packets before all \
                       devices have counted them.";

/// One or two sentences each.
pub(super) fn headlines(offload: &Offload) -> Vec<String> {
    match (&offload.counts, &offload.traffic) {
        (Some(counts), _) => taken(counts),
        (None, Some(traffic)) => would_take(traffic),
        (None, None) => vec![UNKNOWN.to_owned()],
    }
}

/// What a running router has counted.
fn taken(counts: &PathCounts) -> Vec<String> {
    let all = counts.arrived();
    if all == 0 {
        return Vec::new();
    }
    let reasons = counts.kernel();
    let kernel = reasons.values().sum::<u64>();
    let (packets, fast) = (count(all), share(all.saturating_sub(kernel), all));
    let mut text = format!(
        "Of {packets} that arrived while a program was attached, {fast} took the fast path, {} the kernel path",
        share(kernel, all)
    );
    if let Some((reason, part)) =
        reasons.iter().max_by_key(|(_, part)| **part).filter(|(_, part)| **part > 0)
    {
        text += &format!(": of these {} for {reason}", share(*part, kernel));
    }
    vec![text + "."]
}

/// What devices counted before a program was attached.
fn would_take(traffic: &PathTraffic) -> Vec<String> {
    let egress_links = [("received", "came", traffic.received), ("sent", "left", traffic.sent)];
    let egress_links = egress_links.into_iter().filter(|(.., shares)| shares.packets > 0);
    let mut lines: Vec<_> =
        egress_links.map(|(did, went, shares)| way(did, went, shares)).collect();
    if lines.is_empty() {
        lines.push("Ports have received and sent no packets so far.".to_owned());
    }
    for other in &traffic.others {
        let (received, sent) = (count(other.received), thousands(other.sent));
        let mut text = format!(
            "{} is not a port, and its packets take the kernel path: so far it has received {received} and sent \
             {sent}",
            other.device
        );
        if other.sent > 0 && traffic.received.packets > 0 {
            let part = relation(other.sent, traffic.received.packets);
            text += &format!(", {part} as many as ports have received");
        }
        lines.push(text + ".");
    }
    lines
}

fn way(did: &str, went: &str, shares: Shares) -> String {
    let Shares { packets, kernel, either } = shares;
    let mut text = format!(
        "Of {} that ports have {did} so far, {} {went} by links where everything takes the kernel path",
        count(packets),
        share(kernel, packets)
    );
    if either > 0 {
        let either = share(either, packets);
        text += &format!(", and {either} by links where one of IPv4 and IPv6 does");
    }
    text + "."
}

fn count(packets: u64) -> String {
    format!("{} {}", thousands(packets), plural(packets, "packet"))
}

/// Formats a share. Rounding never turns it into none or all.
fn share(part: u64, all: u64) -> String {
    match part {
        0 => "none".to_owned(),
        _ if part >= all => "all".to_owned(),
        _ => relation(part, all),
    }
}

/// Formats a ratio in per cent.
fn relation(number: u64, by: u64) -> String {
    let percent = (u128::from(number) * 100 + u128::from(by) / 2) / u128::from(by.max(1));
    match percent {
        0 => "less than 1%".to_owned(),
        100 if number < by => "more than 99%".to_owned(),
        _ => format!("{percent}%"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::control::{Other, PortPaths};

    fn shares(packets: u64, kernel: u64, either: u64) -> Shares {
        Shares { packets, kernel, either }
    }

    #[test]
    fn counts_of_devices_are_reported_by_path() {
        let other =
            |device: &str, received, sent| Other { device: device.to_owned(), received, sent };
        let mut traffic = PathTraffic {
            received: shares(1_000, 400, 20),
            sent: shares(900_000, 1, 0),
            others: vec![other("vx0", 1, 850), other("wg0", 0, 0)],
        };
        let reported = |traffic: &PathTraffic| {
            headlines(&Offload { traffic: Some(traffic.clone()), ..Offload::default() })
        };
        assert_eq!(
            reported(&traffic),
            [
                "Of 1,000 packets that ports have received so far, 40% came by links where everything takes the kernel path, \
                 and 2% by links where one of IPv4 and IPv6 does.",
                "Of 900,000 packets that ports have sent so far, less than 1% left by links where everything takes \
                 the kernel path.",
                "vx0 is not a port, and its packets take the kernel path: so far it has received 1 packet and sent 850, \
                 85% as many as ports have received.",
                "wg0 is not a port, and its packets take the kernel path: so far it has received 0 packets and sent 0.",
            ]
        );
        (traffic.received, traffic.sent) = (shares(0, 0, 0), shares(3, 3, 0));
        traffic.others.clear();
        let all = "Of 3 packets that ports have sent so far, all left by links where everything takes the kernel path.";
        assert_eq!(reported(&traffic), [all]);
        traffic.sent = shares(0, 0, 0);
        assert_eq!(reported(&traffic), ["Ports have received and sent no packets so far."]);
        assert_eq!(headlines(&Offload::default()), [UNKNOWN]);
    }

    #[test]
    fn a_running_router_reports_what_it_has_counted() {
        let port = |xdp, user, kernel| PortPaths {
            port: "eth0".to_owned(),
            xdp,
            user,
            connections: [0; 2],
            kernel: BTreeMap::from([("ttl".to_owned(), kernel)]),
        };
        let punts = BTreeMap::from([("redirect".to_owned(), 5)]);
        let counts = PathCounts { ports: vec![port(900, 50, 0), port(0, 0, 50)], punts };
        let reported = |counts| headlines(&Offload { counts: Some(counts), ..Offload::default() });
        assert_eq!(
            reported(counts),
            [
                "Of 1,000 packets that arrived while a program was attached, 95% took the fast path, 6% the kernel path: \
                 of these 91% for ttl."
            ]
        );
        assert!(reported(PathCounts::default()).is_empty());
    }

    #[test]
    fn shares_are_never_rounded_to_none_or_all() {
        let shares = [(0, 9), (1, 1_000_000), (1, 3), (999_999, 1_000_000), (9, 9)];
        let shares = shares.map(|(part, all)| share(part, all));
        assert_eq!(shares, ["none", "less than 1%", "33%", "more than 99%", "all"]);
        assert_eq!(relation(30, 10), "300%");
        assert_eq!(share(u64::MAX / 2, u64::MAX), "50%");
    }
}
