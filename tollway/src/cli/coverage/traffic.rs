//! The headlines: how much of the traffic so far took which road, or would have.

use super::{plural, thousands};
use crate::control::{Coverage, RoadCounts, RoadTraffic, Shares};

const UNKNOWN: &str = "How much of the traffic that is, is not known: an XDP program takes packets before all \
                       devices have counted them.";

/// A sentence or two each.
pub(super) fn headlines(coverage: &Coverage) -> Vec<String> {
    match (&coverage.counts, &coverage.traffic) {
        (Some(counts), _) => taken(counts),
        (None, Some(traffic)) => would_take(traffic),
        (None, None) => vec![UNKNOWN.to_owned()],
    }
}

/// What a router that runs has counted.
fn taken(counts: &RoadCounts) -> Vec<String> {
    let sum = |of: fn(&crate::control::PortRoads) -> u64| counts.ports.iter().map(of).sum::<u64>();
    let tried = sum(|port| port.express + port.user);
    let all = tried + sum(|port| port.kernel.values().sum());
    if all == 0 {
        return Vec::new();
    }
    let fast = tried.saturating_sub(counts.punts.values().sum());
    let packets = count(all);
    let (fast, kernel) = (share(fast, all), share(all.saturating_sub(fast), all));
    vec![format!(
        "Of {packets} that arrived while a program was attached, {fast} took the fast road, {kernel} the kernel's."
    )]
}

/// What devices had counted before.
fn would_take(traffic: &RoadTraffic) -> Vec<String> {
    let ways = [("received", "came", traffic.received), ("sent", "left", traffic.sent)];
    let ways = ways.into_iter().filter(|(.., shares)| shares.packets > 0);
    let mut told: Vec<_> = ways.map(|(did, went, shares)| way(did, went, shares)).collect();
    if told.is_empty() {
        told.push("Ports have received and sent no packets so far.".to_owned());
    }
    for other in &traffic.others {
        let (received, sent) = (count(other.received), thousands(other.sent));
        let mut text = format!(
            "{} is no port, and what goes by it is the kernel's: so far it has received {received} and sent \
             {sent}",
            other.device
        );
        if other.sent > 0 && traffic.received.packets > 0 {
            let part = relation(other.sent, traffic.received.packets);
            text += &format!(", {part} as many as ports have received");
        }
        told.push(text + ".");
    }
    told
}

fn way(did: &str, went: &str, shares: Shares) -> String {
    let Shares { packets, kernel, either } = shares;
    let mut text = format!(
        "Of {} that ports have {did} so far, {} {went} by links where all is the kernel's",
        count(packets),
        share(kernel, packets)
    );
    if either > 0 {
        let either = share(either, packets);
        text += &format!(", and {either} by links where one of IPv4 and IPv6 is");
    }
    text + "."
}

fn count(packets: u64) -> String {
    format!("{} {}", thousands(packets), plural(packets, "packet"))
}

/// A part of all, that it is neither none nor all where that is not so.
fn share(part: u64, all: u64) -> String {
    match part {
        0 => "none".to_owned(),
        _ if part >= all => "all".to_owned(),
        _ => relation(part, all),
    }
}

/// A number by another, in per cent.
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
    use crate::control::{Other, PortRoads};

    fn shares(packets: u64, kernel: u64, either: u64) -> Shares {
        Shares { packets, kernel, either }
    }

    #[test]
    fn devices_counts_are_told_by_roads() {
        let other =
            |device: &str, received, sent| Other { device: device.to_owned(), received, sent };
        let mut traffic = RoadTraffic {
            received: shares(1_000, 400, 20),
            sent: shares(900_000, 1, 0),
            others: vec![other("vx0", 1, 850), other("wg0", 0, 0)],
        };
        let told = |traffic: &RoadTraffic| {
            headlines(&Coverage { traffic: Some(traffic.clone()), ..Coverage::default() })
        };
        assert_eq!(
            told(&traffic),
            [
                "Of 1,000 packets that ports have received so far, 40% came by links where all is the kernel's, \
                 and 2% by links where one of IPv4 and IPv6 is.",
                "Of 900,000 packets that ports have sent so far, less than 1% left by links where all is the \
                 kernel's.",
                "vx0 is no port, and what goes by it is the kernel's: so far it has received 1 packet and sent 850, \
                 85% as many as ports have received.",
                "wg0 is no port, and what goes by it is the kernel's: so far it has received 0 packets and sent 0.",
            ]
        );
        (traffic.received, traffic.sent) = (shares(0, 0, 0), shares(3, 3, 0));
        traffic.others.clear();
        let all = "Of 3 packets that ports have sent so far, all left by links where all is the kernel's.";
        assert_eq!(told(&traffic), [all]);
        traffic.sent = shares(0, 0, 0);
        assert_eq!(told(&traffic), ["Ports have received and sent no packets so far."]);
        assert_eq!(headlines(&Coverage::default()), [UNKNOWN]);
    }

    #[test]
    fn a_router_that_runs_tells_what_it_has_counted() {
        let port = |express, user, kernel| PortRoads {
            port: "eth0".to_owned(),
            express,
            user,
            kernel: BTreeMap::from([("ttl".to_owned(), kernel)]),
        };
        let punts = BTreeMap::from([("redirect".to_owned(), 5)]);
        let counts = RoadCounts { ports: vec![port(900, 50, 0), port(0, 0, 50)], punts };
        let told = |counts| headlines(&Coverage { counts: Some(counts), ..Coverage::default() });
        assert_eq!(
            told(counts),
            [
                "Of 1,000 packets that arrived while a program was attached, 95% took the fast road, 6% the kernel's."
            ]
        );
        assert!(told(RoadCounts::default()).is_empty());
    }

    #[test]
    fn shares_are_never_rounded_to_none_or_all() {
        let told = [(0, 9), (1, 1_000_000), (1, 3), (999_999, 1_000_000), (9, 9)];
        let told = told.map(|(part, all)| share(part, all));
        assert_eq!(told, ["none", "less than 1%", "33%", "more than 99%", "all"]);
        assert_eq!(relation(30, 10), "300%");
        assert_eq!(share(u64::MAX / 2, u64::MAX), "50%");
    }
}
