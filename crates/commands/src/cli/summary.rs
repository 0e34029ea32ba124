//! The final counters of a run, as text or JSON.

use comfy_table::Table;
use serde_json::{Map, Value, json};
use tollway_dataplane::counters::{Counters, Traffic};
use tollway_dataplane::host::HostCounters;
use tollway_dataplane::stages::bridge::LearningCounts;
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::text::{align, section, table, thousands, trimmed};

/// The counters of a run, with the names of its ports.
pub(super) struct Summary<'a> {
    pub(super) ports: Vec<&'a str>,
    pub(super) counters: &'a Counters,
    /// What the router did as a host.
    pub(super) host: &'a HostCounters,
    /// Frames that the kernel dropped before a port could read them, by port.
    pub(super) missed: Vec<u64>,
    /// What bridges have learned, with their names.
    pub(super) bridges: Vec<(&'a str, LearningCounts)>,
}

impl Summary<'_> {
    /// Formats the counters as tables.
    pub(super) fn text(&self) -> String {
        let Counters { cloned, sent, delivered, held, originated, originated_lost, .. } =
            *self.counters;
        let mut out = self.port_table();
        let (received, dropped) =
            (self.counters.received_packets(), self.counters.dropped_packets());
        let punted = self.counters.punted_packets();
        let terms = [
            ("received", received),
            ("sent on", sent),
            ("dropped", dropped),
            ("punted", punted),
            ("delivered", delivered),
            ("held", held),
        ];
        let mut totals = table(&["packets", ""]);
        for (name, count) in terms {
            totals.add_row([name.to_owned(), thousands(count)]);
        }
        let own = [
            ("cloned", cloned),
            ("originated", originated),
            ("originated, lost", originated_lost),
            ("missed before rx", self.missed.iter().sum()),
        ];
        for (name, count) in own.into_iter().filter(|(_, count)| *count > 0) {
            totals.add_row([name.to_owned(), thousands(count)]);
        }
        section(&mut out, totals);
        section(&mut out, reasons("dropped", &drops(self.counters)));
        section(&mut out, reasons("punted", &punts(self.counters)));
        section(&mut out, reasons("as a host", &host(self.host)));
        if !self.bridges.is_empty() {
            section(&mut out, self.bridge_table());
        }
        out
    }

    fn port_table(&self) -> String {
        let mut ports = table(&["port", "rx packets", "rx bytes", "tx packets", "tx bytes"]);
        for (index, name) in self.ports.iter().enumerate() {
            let (rx, tx) = self.traffic(index);
            let numbers = [rx.packets, rx.bytes, tx.packets, tx.bytes].map(thousands);
            ports.add_row(std::iter::once((*name).to_owned()).chain(numbers));
        }
        align(&mut ports);
        format!("{}\n", trimmed(&ports))
    }

    fn bridge_table(&self) -> Table {
        let mut bridges = table(&["bridge", "learned", "moved", "full"]);
        for (name, LearningCounts { learned, moved, full }) in &self.bridges {
            let numbers = [u64::from(*learned), *moved, *full].map(thousands);
            bridges.add_row(std::iter::once((*name).to_owned()).chain(numbers));
        }
        bridges
    }

    fn traffic(&self, port: usize) -> (Traffic, Traffic) {
        let of = |list: &[Traffic]| list.get(port).copied().unwrap_or_default();
        (of(&self.counters.rx), of(&self.counters.tx))
    }

    /// Formats the counters as one JSON object.
    pub(super) fn json(&self, errors: &[String]) -> Value {
        let traffic =
            |traffic: Traffic| json!({"packets": traffic.packets, "bytes": traffic.bytes});
        let ports = self.ports.iter().enumerate().map(|(index, name)| {
            let (rx, tx) = self.traffic(index);
            json!({"name": name, "rx": traffic(rx), "tx": traffic(tx)})
        });
        let object = |list: Vec<(String, u64)>| {
            Value::Object(list.into_iter().map(|(k, v)| (k, v.into())).collect::<Map<_, _>>())
        };
        let bridges = self.bridges.iter().map(|(name, LearningCounts { learned, moved, full })| {
            ((*name).to_owned(), json!({"learned": learned, "moved": moved, "full": full}))
        });
        json!({
            "ports": ports.collect::<Vec<_>>(),
            "received": self.counters.received_packets(),
            "cloned": self.counters.cloned,
            "sent": self.counters.sent,
            "dropped": self.counters.dropped_packets(),
            "punted": self.counters.punted_packets(),
            "delivered": self.counters.delivered,
            "held": self.counters.held,
            "originated": self.counters.originated,
            "originated_lost": self.counters.originated_lost,
            "missed": self.missed.iter().sum::<u64>(),
            "drops": object(drops(self.counters)),
            "punts": object(punts(self.counters)),
            "host": object(host(self.host)),
            "bridges": bridges.collect::<Map<_, _>>(),
            "errors": errors,
        })
    }
}

fn drops(counters: &Counters) -> Vec<(String, u64)> {
    let all = DropReason::ALL
        .iter()
        .map(|reason| (reason.name().to_owned(), counters.drops[*reason as usize]));
    all.filter(|(_, count)| *count > 0).collect()
}

fn punts(counters: &Counters) -> Vec<(String, u64)> {
    let all = PuntReason::ALL
        .iter()
        .map(|reason| (reason.name().to_owned(), counters.punts[*reason as usize]));
    all.filter(|(_, count)| *count > 0).collect()
}

/// The reasons with their counters, the most frequent first.
fn reasons(title: &str, counts: &[(String, u64)]) -> Table {
    let mut table = table(&[title, "packets"]);
    let mut counts = counts.to_vec();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (name, count) in counts {
        table.add_row([name, thousands(count)]);
    }
    table
}

/// The host's counters by field name, without zeros.
fn host(counters: &HostCounters) -> Vec<(String, u64)> {
    let HostCounters {
        icmp4_sent,
        icmp6_sent,
        rate_limited,
        suppressed,
        unroutable,
        echo_answered,
        resets_sent,
        fragmented,
        fragments_made,
        forwarded,
        source_routed,
        arp_requests_sent,
        arp_replies_sent,
        nd_solicits_sent,
        nd_adverts_sent,
        neigh_invalid,
        nd_router_ignored,
        neigh_failed,
        neigh_evicted,
        malformed,
        fragments_ignored,
        ignored,
    } = counters;
    let single = [
        ("rate_limited", rate_limited),
        ("suppressed", suppressed),
        ("unroutable", unroutable),
        ("echo_answered", echo_answered),
        ("resets_sent", resets_sent),
        ("fragmented", fragmented),
        ("fragments_made", fragments_made),
        ("forwarded", forwarded),
        ("source_routed", source_routed),
        ("arp_requests_sent", arp_requests_sent),
        ("arp_replies_sent", arp_replies_sent),
        ("nd_solicits_sent", nd_solicits_sent),
        ("nd_adverts_sent", nd_adverts_sent),
        ("neigh_invalid", neigh_invalid),
        ("nd_router_ignored", nd_router_ignored),
        ("neigh_failed", neigh_failed),
        ("neigh_evicted", neigh_evicted),
        ("malformed", malformed),
        ("fragments_ignored", fragments_ignored),
        ("ignored", ignored),
    ];
    let icmp4 = icmp4_sent.iter().map(|(kind, count)| (format!("icmp_type_{kind}_sent"), *count));
    let icmp6 = icmp6_sent.iter().map(|(kind, count)| (format!("icmp6_type_{kind}_sent"), *count));
    let single = single.into_iter().map(|(name, count)| (name.to_owned(), *count));
    icmp4.chain(icmp6).chain(single).filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_fits_80_columns_and_names_what_is_not_zero() {
        let mut counters = Counters::new(1);
        counters.received(tollway_dataplane::id::PortId(0), 1 << 40, 1 << 50);
        counters.drop(DropReason::IpCsum);
        let ports = vec!["a_long_name_015"];
        let host = HostCounters { resets_sent: 3, ..HostCounters::default() };
        let bridges = vec![("br0", LearningCounts { learned: 1 << 17, moved: 1, full: 9 })];
        let summary = Summary { ports, counters: &counters, host: &host, missed: vec![0], bridges };
        let text = summary.text();
        assert!(text.contains("br0") && text.contains("131,072"), "{text}");
        assert!(text.contains("resets_sent") && !text.contains("ignored"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("ip_csum"), "{text}");
        assert!(!text.contains("otherhost") && !text.contains("missed"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }
}
