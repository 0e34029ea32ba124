//! `tollway show metrics`: counts in the text format of Prometheus (0.0.4), from one answer of the router.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use super::connections::treatments;
use crate::control::{All, ConnectionTotals, PortPaths, PortState, WorkerState};

/// The kind of a family of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A number that grows, and begins again with the router.
    Counter,
    /// A number of now.
    Gauge,
}

/// Formats all metrics.
pub(super) fn metrics(all: &All) -> String {
    let mut out = Metrics::default();
    out.family("uptime_seconds", Kind::Gauge, "Time since the router was started.");
    out.sample(&[], all.uptime_ns as f64 / 1e9);
    totals(all, &mut out);
    ports(&all.ports.ports, &mut out);
    by_reason("dropped_packets", "Packets dropped, on all paths.", &all.drops, &mut out);
    by_reason("punted_packets", "Packets that workers punted to the kernel.", &all.punts, &mut out);
    paths(&all.paths.ports, &mut out);
    workers(&all.workers, &mut out);
    if let Some(totals) = &all.connections {
        of_connections(&all.paths.ports, &mut out);
        connections(totals, &mut out);
    }
    out.text
}

fn totals(all: &All, out: &mut Metrics) {
    let totals = &all.ports.totals;
    out.family("packets", Kind::Counter, "Packets of all ports, by what became of them.");
    for (outcome, count) in [
        ("received", totals.received),
        ("cloned", totals.cloned),
        ("sent", totals.sent),
        ("dropped", totals.dropped),
        ("punted", totals.punted),
        ("delivered", totals.delivered),
        ("transmitted", totals.transmitted),
        ("originated", totals.originated),
        ("originated_lost", totals.originated_lost),
    ] {
        out.sample(&[("outcome", outcome)], count);
    }
}

fn ports(ports: &[PortState], out: &mut Metrics) {
    out.family("port_up", Kind::Gauge, "Whether a port is up.");
    for port in ports {
        out.sample(&[("port", &port.name)], u8::from(port.state == "up"));
    }
    out.family("port_packets", Kind::Counter, "Frames of a port.");
    for port in ports {
        for (direction, traffic) in [("rx", port.rx), ("tx", port.tx)] {
            out.sample(&[("port", &port.name), ("direction", direction)], traffic.packets);
        }
    }
    out.family("port_bytes", Kind::Counter, "Bytes of these frames, Ethernet headers included.");
    for port in ports {
        for (direction, traffic) in [("rx", port.rx), ("tx", port.tx)] {
            out.sample(&[("port", &port.name), ("direction", direction)], traffic.bytes);
        }
    }
    out.family("port_missed_packets", Kind::Counter, "Frames that came too fast for a port.");
    for port in ports {
        out.sample(&[("port", &port.name)], port.missed);
    }
}

fn by_reason(name: &'static str, help: &str, counts: &BTreeMap<String, u64>, out: &mut Metrics) {
    out.family(name, Kind::Counter, help);
    for (reason, count) in counts {
        out.sample(&[("reason", reason)], count);
    }
}

fn paths(ports: &[PortPaths], out: &mut Metrics) {
    let help = "Packets that arrived at a port with a program, by path, and why they are the kernel's: \
                those of tracked links without an entry are of the reason connection.";
    out.family("path_packets", Kind::Counter, help);
    for port in ports {
        let port_label = ("port", port.port.as_str());
        out.sample(&[port_label, ("path", "xdp"), ("reason", "")], port.xdp);
        out.sample(&[port_label, ("path", "user"), ("reason", "")], port.user);
        for (reason, count) in &port.kernel {
            out.sample(&[port_label, ("path", "kernel"), ("reason", reason)], count);
        }
    }
}

/// What the programs have forwarded of connections.
fn of_connections(ports: &[PortPaths], out: &mut Metrics) {
    for (number, name, help) in [
        (
            0,
            "connection_packets",
            "Packets of connections that arrived at a port and were forwarded or dropped by their entries: the \
             kernel's counts of connections lack these.",
        ),
        (1, "connection_bytes", "Their bytes, from the IP header on."),
    ] {
        out.family(name, Kind::Counter, help);
        for port in ports {
            out.sample(&[("port", &port.port)], port.connections[number]);
        }
    }
}

fn workers(workers: &[WorkerState], out: &mut Metrics) {
    let counted = || workers.iter().filter_map(|one| Some((one.worker, one.counts.as_ref()?)));
    out.family("worker_busy_seconds", Kind::Counter, "Time that a worker was not asleep.");
    for (worker, counts) in counted() {
        out.sample(&[("worker", &worker.to_string())], counts.busy_ns as f64 / 1e9);
    }
    out.family("worker_asleep_seconds", Kind::Counter, "Time that it was asleep.");
    for (worker, counts) in counted() {
        out.sample(&[("worker", &worker.to_string())], counts.asleep_ns as f64 / 1e9);
    }
}

fn connections(totals: &ConnectionTotals, out: &mut Metrics) {
    out.family("connections", Kind::Gauge, "Connections that the kernel tracks.");
    out.sample(&[], totals.tracked);
    if let Some(most) = totals.tracked_most {
        out.family("connections_most", Kind::Gauge, "How many it tracks at most.");
        out.sample(&[], most);
    }
    let help = "Directions of connections in the table of the programs, by what they do with the packets, and \
                why these are the kernel's.";
    out.family("connection_directions", Kind::Gauge, help);
    for (treatment, count) in treatments(totals) {
        out.sample(&[("treatment", treatment), ("reason", "")], count);
    }
    for (reason, count) in &totals.directions_kernel {
        out.sample(&[("treatment", "kernel"), ("reason", reason)], count);
    }
    out.family("connection_directions_room", Kind::Gauge, "How many directions have room there.");
    out.sample(&[], totals.table_room);
    for (name, help, count) in [
        (
            "connection_directions_entered",
            "How often a direction came to be forwarded.",
            totals.directions_entered,
        ),
        (
            "connection_answers",
            "Answers to the programs' questions about connections.",
            totals.answers,
        ),
        (
            "connection_answers_without_room",
            "Answers of which nothing came for want of room.",
            totals.answers_without_room,
        ),
    ] {
        out.family(name, Kind::Counter, help);
        out.sample(&[], count);
    }
    let help = "What the kernel's connection tracking counts itself.";
    out.family("conntrack_events", Kind::Counter, help);
    for (event, count) in &totals.kernel_statistics {
        out.sample(&[("event", event)], count);
    }
}

/// The text, and the family that samples belong to.
#[derive(Default)]
struct Metrics {
    text: String,
    sample_name: String,
}

impl Metrics {
    /// Begins a family. Samples of a counter have a suffix.
    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let (kind, suffix) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        self.sample_name = format!("tollway_{name}{suffix}");
        // Writing to a `String` cannot fail.
        let name = &self.sample_name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.text, "{}{labels} {value}", self.sample_name);
    }
}

/// A value of a label. The name of a device may contain any character.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{PathCounts, Ports, Tolls, Totals, WorkerCounts, Xdp};

    fn counts(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
        list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    fn all() -> All {
        let paths = PortPaths {
            port: "eth\"0".to_owned(),
            xdp: 7,
            user: 8,
            connections: [6, 600],
            kernel: counts(&[("connection", 9)]),
        };
        let counts_of_worker = WorkerCounts { busy_ns: 1_500_000_000, ..WorkerCounts::default() };
        All {
            uptime_ns: 2_500_000_000,
            ports: Ports { totals: Totals { received: 3, ..Totals::default() }, ports: Vec::new() },
            drops: counts(&[("netfilter", 4)]),
            punts: BTreeMap::new(),
            xdp: Xdp { on: true, why: None, counts: BTreeMap::new() },
            paths: PathCounts { ports: vec![paths], punts: BTreeMap::new() },
            connections: Some(ConnectionTotals {
                tracked: 10,
                tracked_most: Some(262_144),
                directions_forwarded: 12,
                directions_kernel: counts(&[("helper", 2)]),
                directions_entered: 13,
                table_room: 1024,
                answers: 14,
                kernel_statistics: counts(&[("invalid", 15)]),
                ..ConnectionTotals::default()
            }),
            workers: vec![WorkerState {
                worker: 0,
                processor: None,
                counts: Some(counts_of_worker),
            }],
            tolls: Tolls { tsc_mhz: 1.0, tolls: Vec::new() },
        }
    }

    #[test]
    fn metrics_are_text_that_prometheus_reads() {
        let text = metrics(&all());
        for line in [
            "tollway_uptime_seconds 2.5",
            "tollway_packets_total{outcome=\"received\"} 3",
            "tollway_dropped_packets_total{reason=\"netfilter\"} 4",
            "tollway_path_packets_total{port=\"eth\\\"0\",path=\"kernel\",reason=\"connection\"} 9",
            "tollway_worker_busy_seconds_total{worker=\"0\"} 1.5",
            "tollway_connection_packets_total{port=\"eth\\\"0\"} 6",
            "tollway_connection_bytes_total{port=\"eth\\\"0\"} 600",
            "tollway_connections 10",
            "tollway_connections_most 262144",
            "tollway_connection_directions{treatment=\"forwarded\",reason=\"\"} 12",
            "tollway_connection_directions{treatment=\"kernel\",reason=\"helper\"} 2",
            "tollway_connection_directions_room 1024",
            "tollway_connection_directions_entered_total 13",
            "tollway_connection_answers_total 14",
            "tollway_conntrack_events_total{event=\"invalid\"} 15",
            "# TYPE tollway_connections gauge",
            "# TYPE tollway_connection_answers_total counter",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}:\n{text}");
        }
        // Each sample stands below the head of its family, which comes once.
        let mut family = String::new();
        let mut known = Vec::new();
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("# TYPE ") {
                head.split(' ').next().unwrap_or_default().clone_into(&mut family);
                assert!(!known.contains(&family), "{family} comes twice");
                known.push(family.clone());
            } else if !line.starts_with('#') {
                assert!(line.starts_with(&family), "{line} below {family}");
            }
        }
        let none = metrics(&All { connections: None, ..all() });
        assert!(!none.contains("tollway_connection"), "{none}");
    }
}
