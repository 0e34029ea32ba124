//! Connections in the form of `/proc/net/nf_conntrack` (`ct_seq_show`).

use std::fmt::Write as _;

use tollway_conntrack::{Connection, Counter, Tuple, TupleL4};

/// A line, without what changes by itself.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The words, apart from the timeout and the count of references.
    pub text: String,
    /// The timeout, which only some lines have.
    pub timeout_s: Option<u32>,
}

impl Line {
    /// Reads a line of the kernel.
    fn read(line: &str) -> Self {
        let mut words: Vec<_> = line.split_whitespace().collect();
        // Kernels without zones leave the usual one out.
        words.retain(|word| !word.starts_with("use=") && *word != "zone=0");
        // Behind family and protocol, each with its number.
        let timeout_s = words.remove(4).parse().ok();
        Self { text: words.join(" "), timeout_s }
    }

    /// Writes a connection as the kernel does.
    pub fn of(connection: &Connection) -> Self {
        let Connection { original, reply, status, counters, .. } = connection;
        let (family, number) = if original.source.is_ipv4() { ("ipv4", 2) } else { ("ipv6", 10) };
        let protocol = match original.protocol {
            1 => "icmp",
            6 => "tcp",
            17 => "udp",
            58 => "icmpv6",
            _ => "unknown",
        };
        let mut text = format!("{family} {number} {protocol} {}", original.protocol);
        let mut word = |word: &str| write!(text, " {word}").unwrap();
        if let Some(tcp) = connection.tcp {
            word(tcp.state.name());
        }
        let has_one_zone = connection.zone == connection.reply_zone;
        let zone =
            |name: &str, zone: u16| (!has_one_zone && zone != 0).then(|| format!("{name}={zone}"));
        word(&tuple(original));
        zone("zone-orig", connection.zone).iter().for_each(|zone| word(zone));
        counters.iter().for_each(|counters| word(&counter(&counters.original)));
        if !status.has_seen_reply() {
            word("[UNREPLIED]");
        }
        word(&tuple(reply));
        zone("zone-reply", connection.reply_zone).iter().for_each(|zone| word(zone));
        counters.iter().for_each(|counters| word(&counter(&counters.reply)));
        if status.is_assured() {
            word("[ASSURED]");
        }
        word(&format!("mark={}", connection.mark));
        if has_one_zone && connection.zone != 0 {
            word(&format!("zone={}", connection.zone));
        }
        Self { text, timeout_s: connection.timeout_s }
    }
}

fn tuple(tuple: &Tuple) -> String {
    let address = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => address.to_string(),
        // The kernel writes every digit.
        std::net::IpAddr::V6(address) => {
            address.segments().map(|part| format!("{part:04x}")).join(":")
        }
    };
    let l4 = match tuple.l4 {
        TupleL4::Ports { source, destination } => format!("sport={source} dport={destination}"),
        TupleL4::Icmp { id, kind, code } => format!("type={kind} code={code} id={id}"),
        TupleL4::None => String::new(),
    };
    format!("src={} dst={} {l4}", address(tuple.source), address(tuple.destination))
}

fn counter(counter: &Counter) -> String {
    format!("packets={} bytes={}", counter.packets, counter.bytes)
}

/// The kernel's lines.
pub fn lines() -> Vec<Line> {
    let text = std::fs::read_to_string("/proc/net/nf_conntrack").unwrap();
    text.lines().map(Line::read).collect()
}
