//! Tests that rows fit narrow and wide terminals, and say everything.

use super::*;
use crate::control::{ConnectionCounts, ConnectionEntry, ConnectionRates, IcmpQuery, Protocol};

fn tuple(source: (&str, u16), destination: (&str, u16)) -> ConnectionTuple {
    ConnectionTuple {
        source: source.0.parse().unwrap(),
        destination: destination.0.parse().unwrap(),
        source_port: Some(source.1),
        destination_port: Some(destination.1),
        icmp: None,
    }
}

fn plain() -> Connection {
    Connection {
        protocol: Protocol(6),
        state: "ESTABLISHED".to_owned(),
        original: tuple(("10.0.0.1", 40_000), ("192.0.2.1", 443)),
        reply: tuple(("192.0.2.1", 443), ("10.0.0.1", 40_000)),
        status: vec!["ASSURED".to_owned()],
        timeout_s: Some(431_999),
        mark: 0,
        zone: 0,
        reply_zone: 0,
        labels: vec![],
        helper: None,
        id: 7,
        counts: None,
        rates: None,
        original_entry: None,
        reply_entry: None,
        path: "kernel".to_owned(),
        reason: "not_entered".to_owned(),
        why: "the engines do not forward connections yet".to_owned(),
    }
}

/// As much of everything as the kernel may have, in 15 digits of IPv4.
fn translated() -> Connection {
    Connection {
        reply: tuple(("10.100.100.100", 50_443), ("203.113.113.113", 55_555)),
        counts: Some(ConnectionCounts {
            packets: 1_234_567,
            bytes: 1_234_567_890,
            reply_packets: 1,
            reply_bytes: 2,
        }),
        mark: 0xdead_beef,
        zone: 9,
        reply_zone: 9,
        ..plain()
    }
}

/// IPv6 at its longest.
fn long() -> Connection {
    let address = |last: u8| format!("2001:db8:ffff:ffff:ffff:ffff:ffff:ff{last:02x}");
    let [one, two, three] = [0xf1, 0xf2, 0xf3].map(address);
    Connection {
        protocol: Protocol(136),
        original: tuple((&one, 40_000), (&two, 50_000)),
        reply: tuple((&two, 50_000), (&three, 60_000)),
        ..plain()
    }
}

fn ping() -> Connection {
    let mut ping = plain();
    for tuple in [&mut ping.original, &mut ping.reply] {
        (tuple.source_port, tuple.destination_port) = (None, None);
        tuple.icmp = Some(IcmpQuery { id: 77, r#type: 8, code: 0 });
    }
    Connection { protocol: Protocol(1), state: "SEEN_REPLY".to_owned(), ..ping }
}

fn text(connections: &[Connection], width: Option<usize>) -> String {
    let text = Rows::new(width).text(connections);
    let limit = width.unwrap_or(usize::MAX);
    assert!(text.lines().all(|line| line.chars().count() <= limit), "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    text
}

/// The words of a text, whatever the lines.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn two_hundred_columns_have_a_line_for_each_connection() {
    let reply = tuple(("192.0.2.1", 443), ("203.113.113.113", 55_555));
    let masqueraded = Connection { reply, ..translated() };
    let text = text(&[plain(), ping(), masqueraded], Some(200));
    assert_eq!(text.lines().count(), 4, "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("protocol  state        source"), "{text}");
    let why = "kernel  the engines do not forward connections yet";
    assert!(lines[1..].iter().all(|line| line.ends_with(why)), "{text}");
    assert!(lines[2].contains("192.0.2.1 id 77"), "{text}");
    let nat = "from 203.113.113.113:55555  ";
    for part in [nat, "1,234,568", "1,234,567,892", "0xdeadbeef     9", "kernel"] {
        assert!(lines[3].contains(part), "{part}: {text}");
    }
}

#[test]
fn eighty_columns_have_further_lines() {
    let text = text(&[plain(), translated()], Some(80));
    let expected = "\
protocol  state        source          destination
tcp       ESTABLISHED  10.0.0.1:40000  192.0.2.1:443
          431,999 s left, kernel path: the engines do not forward connections
          yet
tcp       ESTABLISHED  10.0.0.1:40000  192.0.2.1:443
          NAT from 203.113.113.113:55555 to 10.100.100.100:50443, 1,234,568
          packets, 1,234,567,892 bytes, 431,999 s left, mark 0xdeadbeef, zone 9,
          kernel path: the engines do not forward connections yet
";
    assert_eq!(text, expected);
}

#[test]
fn the_longest_addresses_fit() {
    for width in [80, 120, 200] {
        let text = text(&[plain(), long(), translated()], Some(width));
        for part in ["ff:fff1]:40000", "ff:fff2]:50000", "from [2001", "ff:fff3]:60000", "udplite"]
        {
            assert!(words(&text).contains(part), "{part} in {width}: {text}");
        }
        assert_eq!(text.matches("kernel").count(), 3, "{text}");
    }
    let text = text(&[long()], None);
    assert_eq!(text.lines().count(), 2, "a pipe has no width: {text}");
}

#[test]
fn the_first_page_has_the_header_and_sets_the_columns() {
    let mut rows = Rows::new(Some(80));
    assert_eq!(rows.text(&[]), "");
    assert_eq!(rows.text(&[plain()]).matches("protocol").count(), 1);
    let second = rows.text(&[ping()]);
    assert!(second.starts_with("icmp      SEEN_REPLY "), "{second}");
}

/// A fast one whose rates were measured, and which the kernel counts or not.
fn measured(counts: Option<ConnectionCounts>) -> Connection {
    let entry = |packets| ConnectionEntry {
        treatment: "forwarded".to_owned(),
        device: "eth0".to_owned(),
        output: Some("eth1".to_owned()),
        reason: String::new(),
        packets,
        bytes: packets * 1000,
    };
    let rates =
        ConnectionRates { packets_per_s: 1_234, bytes_per_s: 1_500_000, interval_ms: 1_049 };
    Connection {
        counts,
        rates: Some(rates),
        original_entry: Some(entry(1_000)),
        reply_entry: Some(entry(234)),
        path: "fast".to_owned(),
        reason: String::new(),
        why: String::new(),
        ..plain()
    }
}

#[test]
fn rates_say_how_they_were_measured() {
    let wide = text(&[measured(translated().counts)], Some(200));
    let lines: Vec<_> = wide.lines().collect();
    assert_eq!(lines[0], "Rates are those of the last 1.0 s, both directions together.");
    assert_eq!(lines[1], "");
    let [head, row] = [lines[2], lines[3]]
        .map(|line| line.split_whitespace().skip_while(|word| !word.starts_with("packets")));
    assert_eq!(head.take(3).collect::<Vec<_>>(), ["packets", "bytes", "packets/s"]);
    assert_eq!(row.count(), 0);
    assert!(lines[3].contains("1,234,568  1,234,567,892"), "{wide}");
    assert!(lines[3].contains("1.23k  12.0M"), "{wide}");
    assert!(!wide.contains("nf_conntrack_acct"), "{wide}");
    assert!(lines[3].ends_with("fast"), "{wide}");

    let narrow = text(&[measured(None)], Some(80));
    let words = words(&narrow);
    for part in [
        "(net.netfilter.nf_conntrack_acct = 0): these are of the fast path alone.",
        "1,234+ packets, 1,234,000+ bytes, 1.23k packets/s, 12.0M bit/s, 431,999 s left, fast path",
    ] {
        assert!(words.contains(part), "{part}: {narrow}");
    }
    assert!(narrow.ends_with("fast path\n"), "{narrow}");
    assert!(!text(&[plain()], Some(200)).contains("packets/s"), "nobody has measured");
}
