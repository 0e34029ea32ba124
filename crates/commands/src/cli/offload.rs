//! Formats the offload report of `tollway check DEVICE...` and `tollway show offload`.

mod traffic;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::text::{one_line, plural, section, table, thousands};
use crate::control::{Offload, OffloadedFrames, OffloadedLink, PortPaths, Reasons, Why};

/// The names of the combinations of a link's four directions, as bits; the largest come first.
const WAYS: [(u8, &str); 9] = [
    (0b1111, "all"),
    (0b0101, "in"),
    (0b1010, "out"),
    (0b0011, "IPv4 in, IPv4 out"),
    (0b1100, "IPv6 in, IPv6 out"),
    (0b0001, "IPv4 in"),
    (0b0010, "IPv4 out"),
    (0b0100, "IPv6 in"),
    (0b1000, "IPv6 out"),
];
const BY_NATURE: &str = "The kernel always handles what is for this host, ARP and neighbour discovery, \
                         multicast, packets with options, and ICMP errors.";
const UNNOTIFIED: &str = "Changes take effect at once; those that the kernel sends no notification of (iptables-legacy, \
                      ipset, BPF programs of tc, most sysctls) within 100 ms.";

/// Formats the whole report, with lines that fit.
pub(super) fn text(offload: &Offload, width: Option<usize>) -> String {
    let mut out = Lines { out: String::new(), width };
    general(offload, &mut out);
    for link in &offload.links {
        self::link(offload, link, &mut out);
    }
    if !offload.parts.is_empty() {
        out.line("", "On the kernel path, of what would be fast:");
        for part in &offload.parts {
            out.line("  ", &format!("{}: {}", part.what, part.why));
        }
        out.gap();
    }
    summary(offload, &mut out);
    for note in &offload.notes {
        out.line("", &format!("Note: {note}."));
    }
    if let Some(counts) = &offload.counts {
        ports(&counts.ports, &mut out.out);
        reasons("passed to the kernel by XDP", &passed(&counts.ports), &mut out.out);
        reasons("passed to the kernel by the user path", &counts.punts, &mut out.out);
    }
    out.out
}

/// The reasons that hold for every link.
fn general(offload: &Offload, out: &mut Lines) {
    let Reasons { ipv4, ipv6 } = &offload.general;
    let groups = if ipv4 == ipv6 {
        vec![("Everything", ipv4)]
    } else {
        vec![("All IPv4", ipv4), ("All IPv6", ipv6)]
    };
    for (what, reasons) in groups {
        if reasons.is_empty() {
            continue;
        }
        out.line("", &format!("{what} takes the kernel path:"));
        reasons.iter().for_each(|why| out.line("  ", &why.why));
        out.gap();
    }
}

/// What becomes of a direction's packets on a link that has no reason of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoReason {
    /// They take the fast path.
    Fast,
    /// Those of established connections do.
    OfConnections,
    /// Everything of the family takes the kernel path.
    KernelEverywhere,
}

impl NoReason {
    const fn text(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::OfConnections => "fast for established connections of UDP and TCP",
            Self::KernelEverywhere => "kernel path, as everywhere",
        }
    }
}

/// The section of one link. Directions with the same reasons share a row.
fn link(offload: &Offload, link: &OffloadedLink, out: &mut Lines) {
    let mut head = link.link.clone();
    if link.link != link.port {
        let _ = write!(head, " on {}", link.port);
    }
    if link.is_bridge {
        head += ", a bridge: what is routed";
    }
    if let Some(vrf) = &link.vrf {
        let _ = write!(head, ", VRF {vrf}");
    }
    if !link.up {
        head += ", down";
    }
    if let Some(frames) = &link.bridged {
        let _ = write!(head, ", a port of {}", frames.bridge);
        out.line("", &head);
        self::frames(frames, out);
        return out.gap();
    }
    out.line("", &head);
    let general = &offload.general;
    let of = |general: &[Why], tracked: &Option<String>| match tracked {
        _ if !general.is_empty() => NoReason::KernelEverywhere,
        Some(_) => NoReason::OfConnections,
        None => NoReason::Fast,
    };
    let ipv4 = of(&general.ipv4, &offload.tracked.ipv4);
    let ipv6 = of(&general.ipv6, &offload.tracked.ipv6);
    let egress_links: [(&[Why], NoReason); 4] = [
        (&link.arrives.ipv4, ipv4),
        (&link.leaves.ipv4, ipv4),
        (&link.arrives.ipv6, ipv6),
        (&link.leaves.ipv6, ipv6),
    ];
    let mut rows: Vec<(String, &[Why], NoReason)> = Vec::new();
    let mut done = 0;
    for (at, (reasons, nothing)) in egress_links.iter().enumerate() {
        if done & 1 << at != 0 {
            continue;
        }
        let is_same = |way: &(&[Why], NoReason)| {
            way.0 == *reasons && (!reasons.is_empty() || way.1 == *nothing)
        };
        let same = (0..4).filter(|other| is_same(&egress_links[*other]));
        let mask = same.fold(0, |mask, other| mask | 1 << other);
        done |= mask;
        rows.push((called(mask), reasons, *nothing));
    }
    let widest = rows.iter().map(|(label, ..)| label.len()).max().unwrap_or(0);
    for (label, reasons, nothing) in rows {
        let lead = format!("  {label:<widest$}  ");
        match reasons {
            [] => out.line(&lead, nothing.text()),
            [first, rest @ ..] => {
                out.line(&lead, &format!("kernel path: {}", first.why));
                let lead = " ".repeat(lead.len());
                rest.iter().for_each(|why| out.line(&lead, &format!("and {}", why.why)));
            }
        }
    }
    out.gap();
}

/// The rows of a port of a bridge.
fn frames(frames: &OffloadedFrames, out: &mut Lines) {
    let OffloadedFrames { all, packets, tagged, .. } = frames;
    let lead = |label: &str| format!("  {label:<11}  ");
    let known = ("known hosts", all);
    let parts = [("IPv4", &packets.ipv4), ("IPv6", &packets.ipv6), ("tagged", tagged)];
    let parts = parts.into_iter().filter(|(_, reasons)| all.is_empty() && !reasons.is_empty());
    for (label, reasons) in std::iter::once(known).chain(parts) {
        let lead = lead(label);
        match &reasons[..] {
            [] => out.line(&lead, "fast, from one to another"),
            [first, rest @ ..] => {
                out.line(&lead, &format!("kernel path: {}", first.why));
                let lead = " ".repeat(lead.len());
                rest.iter().for_each(|why| out.line(&lead, &format!("and {}", why.why)));
            }
        }
    }
    out.line(&lead("other"), "kernel path: the bridge learns hosts, and floods");
}

/// The names of the directions in a mask.
fn called(mut mask: u8) -> String {
    let mut names = Vec::new();
    for (bits, name) in WAYS {
        if mask & bits == bits {
            names.push(name);
            mask &= !bits;
        }
    }
    names.join(", ")
}

fn summary(offload: &Offload, out: &mut Lines) {
    let count = |n: u64, what: &str| format!("{} {}", thousands(n), plural(n, what));
    let routed = || offload.links.iter().filter(|link| link.bridged.is_none());
    let all = routed().count();
    let fast = |is_fast: fn(&OffloadedLink) -> bool| routed().filter(|link| is_fast(link)).count();
    for headline in traffic::headlines(offload) {
        out.line("", &headline);
    }
    let routes = offload.routes;
    out.line(
        "",
        &format!(
            "IPv4 is fast both ways on {} of {}, IPv6 on {} of {all}. There are {}, {}, and {} that \
             Tollway applies itself.",
            fast(|link| link.ipv4_fast),
            count(all as u64, "link"),
            fast(|link| link.ipv6_fast),
            count(routes.ipv4, "IPv4 route"),
            count(routes.ipv6, "IPv6 route"),
            count(offload.rules as u64, "firewall rule"),
        ),
    );
    if !offload.not_attached.is_empty() {
        let ports = offload.not_attached.join(", ");
        out.line(
            "",
            &format!("Without an XDP program, since nothing there could be fast: {ports}."),
        );
    }
    out.line("", BY_NATURE);
    out.line("", UNNOTIFIED);
}

/// Packets that arrived at each port, by path.
fn ports(ports: &[PortPaths], out: &mut String) {
    let mut table = table(&["arrived at", "XDP path", "user path", "kernel path"]);
    for port in ports {
        let numbers = [port.xdp, port.user, port.kernel.values().sum()].map(thousands);
        table.add_row(std::iter::once(port.port.clone()).chain(numbers));
    }
    section(out, table);
}

/// Packets that the XDP program passed to the kernel, summed over all ports.
fn passed(ports: &[PortPaths]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (reason, count) in ports.iter().flat_map(|port| &port.kernel) {
        *sums.entry(reason.clone()).or_default() += count;
    }
    sums
}

/// Counts by reason, the most frequent first.
fn reasons(title: &str, counts: &BTreeMap<String, u64>, out: &mut String) {
    let mut table = table(&[title, "packets"]);
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, count) in counts {
        table.add_row([reason.clone(), thousands(*count)]);
    }
    section(out, table);
}

/// Lines of limited width; the rest of a long line is indented below it.
struct Lines {
    out: String,
    width: Option<usize>,
}

impl Lines {
    /// Adds a text after a lead.
    fn line(&mut self, lead: &str, text: &str) {
        // Device names and rules may contain any character.
        let text = one_line(text);
        let indent = if lead.is_empty() { 0 } else { lead.chars().count() + 2 };
        let mut line = lead.to_owned();
        let mut is_first = true;
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let fits = |width| line.chars().count() + 1 + word.chars().count() <= width;
            if !is_first && self.width.is_none_or(fits) {
                line.push(' ');
            } else if !is_first {
                self.push(&line);
                line = " ".repeat(indent);
            }
            line += word;
            is_first = false;
        }
        self.push(&line);
    }

    fn push(&mut self, line: &str) {
        self.out += line.trim_end();
        self.out.push('\n');
    }

    fn gap(&mut self) {
        self.out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{OffloadedPart, Other, PathCounts, PathTraffic, RouteCounts, Shares};

    fn reasons_of(texts: &[&str]) -> Vec<Why> {
        let why = |text: &&str| Why { reason: "r".to_owned(), why: (*text).to_owned() };
        texts.iter().map(why).collect()
    }

    fn link(name: &str) -> OffloadedLink {
        OffloadedLink {
            link: name.to_owned(),
            port: "eth0".to_owned(),
            vrf: None,
            up: true,
            ipv4_fast: true,
            ipv6_fast: true,
            arrives: Reasons::default(),
            leaves: Reasons::default(),
            is_bridge: false,
            bridged: None,
        }
    }

    fn offload() -> Offload {
        let off = reasons_of(&["the kernel does not forward it: net.ipv6.conf.all.forwarding = 0"]);
        let queue = reasons_of(&[
            "eth0.10 has a configured queueing discipline, htb (tc qdisc show dev eth0.10)",
        ]);
        let both = |why: &[Why]| Reasons { ipv4: why.to_vec(), ipv6: why.to_vec() };
        Offload {
            links: vec![
                OffloadedLink {
                    arrives: Reasons { ipv4: vec![], ipv6: off },
                    ipv6_fast: false,
                    ..link("eth0")
                },
                OffloadedLink {
                    vrf: Some("red".to_owned()),
                    up: false,
                    leaves: both(&queue),
                    ipv4_fast: false,
                    ipv6_fast: false,
                    ..link("eth0.10")
                },
            ],
            parts: vec![OffloadedPart {
                what: "12 routes by wg0".to_owned(),
                why: "wg0 is of kind wireguard, and not a port".to_owned(),
            }],
            notes: vec!["eth0.10 is down".to_owned()],
            rules: 1,
            traffic: Some(PathTraffic {
                received: Shares { packets: 1_000_000, kernel: 0, either: 400_000 },
                sent: Shares { packets: 900_000, kernel: 90_000, either: 0 },
                others: vec![Other { device: "wg0".to_owned(), received: 12, sent: 850_000 }],
            }),
            routes: RouteCounts { ipv4: 1_000_000, ipv6: 2 },
            ..Offload::default()
        }
    }

    #[test]
    fn it_reads_well_at_80_columns() {
        assert_eq!(
            text(&offload(), Some(80)),
            "\
eth0
  out, IPv4 in  fast
  IPv6 in       kernel path: the kernel does not forward it:
                  net.ipv6.conf.all.forwarding = 0

eth0.10 on eth0, VRF red, down
  in   fast
  out  kernel path: eth0.10 has a configured queueing discipline, htb (tc qdisc
         show dev eth0.10)

On the kernel path, of what would be fast:
  12 routes by wg0: wg0 is of kind wireguard, and not a port

Of 1,000,000 packets that ports have received so far, none came by links where
everything takes the kernel path, and 40% by links where one of IPv4 and IPv6
does.
Of 900,000 packets that ports have sent so far, 10% left by links where
everything takes the kernel path.
wg0 is not a port, and its packets take the kernel path: so far it has received
12 packets and sent 850,000, 85% as many as ports have received.
IPv4 is fast both ways on 1 of 2 links, IPv6 on 0 of 2. There are 1,000,000 IPv4
routes, 2 IPv6 routes, and 1 firewall rule that Tollway applies itself.
The kernel always handles what is for this host, ARP and neighbour discovery,
multicast, packets with options, and ICMP errors.
Changes take effect at once; those that the kernel sends no notification of
(iptables-legacy, ipset, BPF programs of tc, most sysctls) within 100 ms.
Note: eth0.10 is down.
"
        );
    }

    #[test]
    fn every_width_is_kept_and_nothing_is_lost() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let whole = text(&offload(), None);
        for width in [60, 80, 200] {
            let report = text(&offload(), Some(width));
            assert_eq!(words(&report), words(&whole));
            assert!(report.lines().all(|line| line.chars().count() <= width), "{width}: {report}");
        }
        assert!(whole.contains("show dev eth0.10)\n"), "{whole}");
    }

    #[test]
    fn reasons_that_hold_everywhere_appear_once() {
        let mut all = offload();
        all.links.truncate(1);
        all.general.ipv4 = reasons_of(&["connections are tracked", "there are virtual services"]);
        let report = text(&all, Some(80));
        let head = "All IPv4 takes the kernel path:\n  connections are tracked\n  there are virtual services\n";
        assert!(report.starts_with(head), "{report}");
        assert!(report.contains("  IPv4 in, IPv4 out  kernel path, as everywhere\n"), "{report}");
        assert!(report.contains("  IPv6 out           fast\n"), "{report}");
        all.general.ipv6 = all.general.ipv4.clone();
        assert!(text(&all, None).starts_with("Everything takes the kernel path:\n"));
    }

    #[test]
    fn a_family_whose_connections_are_tracked_is_fast_for_established_ones() {
        let mut all = offload();
        all.links.truncate(1);
        all.tracked.ipv4 = Some("a rule".to_owned());
        let report = text(&all, Some(80));
        let rows = [
            "  IPv4 in, IPv4 out  fast for established connections of UDP and TCP\n",
            "  IPv6 in            kernel path: the kernel does not forward it:",
            "  IPv6 out           fast\n",
        ];
        assert!(rows.iter().all(|row| report.contains(row)), "{report}");
        all.tracked.ipv6 = all.tracked.ipv4.clone();
        assert!(text(&all, None).contains("  out, IPv4 in  fast for established"));
    }

    #[test]
    fn several_reasons_stand_below_each_other() {
        let mut all = offload();
        all.links.truncate(1);
        all.links[0].arrives.ipv6.extend(reasons_of(&["another"]));
        let report = text(&all, None);
        assert!(report.contains("forwarding = 0\n                and another\n"), "{report}");
    }

    #[test]
    fn counts_follow() {
        let kernel = BTreeMap::from([("local".to_owned(), 5), ("ttl".to_owned(), 7_000)]);
        let port = PortPaths {
            port: "eth0".to_owned(),
            xdp: 1_000,
            user: 20,
            connections: [0; 2],
            kernel,
        };
        let punts = BTreeMap::from([("redirect".to_owned(), 3)]);
        let counts = Some(PathCounts { ports: vec![port], punts });
        let report = text(&Offload { counts, ..offload() }, Some(80));
        let rows: Vec<Vec<_>> =
            report.lines().map(|line| line.split_whitespace().collect()).collect();
        for row in [&["eth0", "1,000", "20", "7,005"][..], &["ttl", "7,000"], &["redirect", "3"]] {
            assert!(rows.iter().any(|shown| shown == row), "{row:?}: {report}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_stays_one_line() {
        let mut all = offload();
        all.parts[0].what = "a\nb\u{1b}[31m".to_owned();
        let report = text(&all, None);
        assert!(report.contains("  a b [31m: wg0 is"), "{report}");
    }
}
