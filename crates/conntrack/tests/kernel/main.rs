//! Connections of this kernel, compared with `/proc/net/nf_conntrack`. Each test runs in a network namespace
//! of its own: the program starts itself again with `unshare`.

#![allow(clippy::unwrap_used)]

mod namespace;
mod proc;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use namespace::{in_namespace, rules, run};
use proc::{Line, lines};
use tollway_conntrack::{Connection, Conntrack, Family, Reason, TcpState, Tuple, TupleL4};

/// Rules that have the kernel track connections, and translate some.
const RULES: &str = "
    table inet filter {
        chain output {
            type filter hook output priority filter
            ct state invalid drop
            udp dport 7001 ct mark set 0x11
            udp dport 7002 ct label set 3
        }
    }
    table inet zones {
        chain output {
            type filter hook output priority raw
            udp dport 7003 ct zone set 9
            udp dport 7004 ct original zone set 4
        }
    }
    table ip nat {
        chain output {
            type nat hook output priority -100
            ip daddr 192.0.2.80 tcp dport 80 dnat to 127.0.0.1:8080
            ip daddr 192.0.2.80 udp dport 53 dnat to 192.0.2.1:5353
        }
        chain postrouting {
            type nat hook postrouting priority srcnat
            ip saddr 192.0.2.2 masquerade
        }
    }";

/// Sets the namespace up: addresses, a route for what is translated, and rules.
fn begin() {
    run("ip link set lo up");
    for address in ["192.0.2.1/32", "192.0.2.2/32", "192.0.2.80/32"] {
        run(&format!("ip addr add {address} dev lo"));
    }
    run("sysctl -qw net.netfilter.nf_conntrack_acct=1");
    rules(RULES);
}

fn all(family: Option<Family>) -> Vec<Connection> {
    let mut all = Vec::new();
    let mut conntrack = Conntrack::open().unwrap();
    let take = |connection| {
        all.push(connection);
        ControlFlow::Continue(())
    };
    conntrack.each(family, take).unwrap();
    all
}

/// The only connection to a port.
fn only(port: u16) -> Connection {
    let mut found = all(None);
    found.retain(|one| one.original.destination_port() == Some(port));
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

/// Sends a datagram to an address, and has it answered where it arrives.
fn exchange(from: &str, to: &str, at: &str) -> UdpSocket {
    let server = UdpSocket::bind(at).unwrap();
    let client = UdpSocket::bind((from.parse::<IpAddr>().unwrap(), 0)).unwrap();
    client.connect(to).unwrap();
    client.send(b"question").unwrap();
    let mut bytes = [0; 16];
    let (len, peer) = server.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"question");
    server.send_to(b"answer", peer).unwrap();
    assert_eq!(client.recv(&mut bytes).unwrap(), 6);
    client
}

/// Connects by TCP, and sends a byte each way.
fn connect(to: &str, at: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(at).unwrap();
    let mut client = TcpStream::connect(to.parse::<SocketAddr>().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut byte = [0];
    client.write_all(b"a").unwrap();
    server.read_exact(&mut byte).unwrap();
    server.write_all(b"b").unwrap();
    client.read_exact(&mut byte).unwrap();
    (client, server)
}

/// Waits until a condition holds.
fn wait(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never holds");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Compares all connections with the kernel's list, and each with the answer to a query for either tuple.
fn compare(least: usize) {
    let read = all(None);
    let (mut own, mut kernel): (Vec<_>, _) = (read.iter().map(Line::of).collect(), lines());
    assert!(own.len() >= least, "{own:#?}");
    assert_eq!(own.len(), kernel.len(), "{own:#?} {kernel:#?}");
    own.sort();
    kernel.sort();
    for (own, kernel) in own.iter().zip(&kernel) {
        assert_eq!(own.text, kernel.text);
        let apart = own.timeout_s.zip(kernel.timeout_s).map(|(one, other)| one.abs_diff(other));
        assert!(apart.is_some_and(|apart| apart <= 2), "{own:?} {kernel:?}");
    }
    let mut conntrack = Conntrack::open().unwrap();
    for one in &read {
        for (tuple, zone) in [(&one.original, one.zone), (&one.reply, one.reply_zone)] {
            let found = conntrack.get(tuple, zone).unwrap().unwrap();
            assert_eq!((found.id, found.original), (one.id, one.original));
            assert_eq!(Line::of(&found).text, Line::of(one).text);
        }
    }
}

#[test]
fn connections_are_those_of_proc() {
    in_namespace("connections_are_those_of_proc", || {
        begin();
        let _udp = [
            exchange("127.0.0.1", "127.0.0.1:7000", "127.0.0.1:7000"),
            exchange("127.0.0.1", "127.0.0.1:7001", "127.0.0.1:7001"),
            exchange("127.0.0.1", "127.0.0.1:7002", "127.0.0.1:7002"),
            exchange("::1", "[::1]:7000", "[::1]:7000"),
            exchange("192.0.2.2", "192.0.2.1:7000", "192.0.2.1:7000"),
            exchange("192.0.2.1", "192.0.2.80:53", "192.0.2.1:5353"),
        ];
        let _plain = connect("127.0.0.1:9000", "127.0.0.1:9000");
        let _six = connect("[::1]:9000", "[::1]:9000");
        let _translated = connect("192.0.2.80:80", "127.0.0.1:8080");
        run("ping -c 1 -W 5 127.0.0.1");
        run("ping -c 1 -W 5 ::1");
        compare(11);
        assert!(all(Some(Family::Ip6)).iter().all(|one| one.original.source.is_ipv6()));
        assert_eq!(all(Some(Family::Ip6)).len(), 3);
        assert_eq!(all(Some(Family::Ip)).len(), all(None).len() - 3);
        assert_eq!(only(7001).mark, 0x11);
        assert!(only(7002).labels.has(3) && !only(7001).labels.has(3));
        let echo = all(None).into_iter().find(|one| one.original.protocol == 1).unwrap();
        assert!(matches!(echo.original.l4, TupleL4::Icmp { kind: 8, code: 0, .. }));
        assert_eq!(echo.offload(), Err(Reason::Protocol(1)));
    });
}

#[test]
fn nat_is_in_the_reply_tuple() {
    in_namespace("nat_is_in_the_reply_tuple", || {
        begin();
        let _masqueraded = exchange("192.0.2.2", "192.0.2.1:7000", "192.0.2.1:7000");
        let _translated = connect("192.0.2.80:80", "127.0.0.1:8080");
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let masqueraded = only(7000);
        assert_eq!(masqueraded.original.source, ip("192.0.2.2"));
        assert_eq!(masqueraded.reply.destination, ip("192.0.2.1"));
        assert!(masqueraded.status.has_source_nat() && !masqueraded.status.has_destination_nat());
        let translated = only(80);
        assert_eq!(translated.reply.source, ip("127.0.0.1"));
        assert_eq!(translated.reply.source_port(), Some(8080));
        assert!(translated.status.has_destination_nat() && !translated.status.has_source_nat());
        let counters = translated.counters.unwrap();
        assert!(counters.original.packets >= 3 && counters.reply.bytes > 120, "{counters:?}");
        compare(2);
    });
}

#[test]
fn zones_are_told_apart() {
    in_namespace("zones_are_told_apart", || {
        begin();
        let server = [7003, 7004].map(|port| UdpSocket::bind(("127.0.0.1", port)).unwrap());
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for server in &server {
            client.send_to(b"one", server.local_addr().unwrap()).unwrap();
        }
        compare(2);
        let both = only(7003);
        assert_eq!((both.zone, both.reply_zone), (9, 9));
        let one = only(7004);
        assert_eq!((one.zone, one.reply_zone), (4, 0));
        let mut conntrack = Conntrack::open().unwrap();
        assert_eq!(conntrack.get(&both.original, 0).unwrap(), None);
        assert!(conntrack.get(&both.original, 9).unwrap().is_some());
    });
}

#[test]
fn tcp_is_followed_to_its_end() {
    in_namespace("tcp_is_followed_to_its_end", || {
        begin();
        let state = || only(9000).tcp.unwrap().state;
        let (client, server) = connect("127.0.0.1:9000", "127.0.0.1:9000");
        assert_eq!((state(), only(9000).offload()), (TcpState::Established, Ok(())));
        let flags = only(9000).tcp.unwrap().original_flags.unwrap();
        assert!(flags.has_sack() && flags.has_window_scale() && !flags.is_liberal());
        drop(client);
        // The kernel delays the acknowledgment of the FIN.
        wait(|| state() == TcpState::CloseWait);
        assert_eq!(only(9000).offload(), Err(Reason::TcpState(TcpState::CloseWait)));
        drop(server);
        wait(|| state() == TcpState::TimeWait);
        compare(1);
    });
}

#[test]
fn udp_is_assured_by_packets_both_ways() {
    in_namespace("udp_is_assured_by_packets_both_ways", || {
        begin();
        let server = UdpSocket::bind("127.0.0.1:7000").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect("127.0.0.1:7000").unwrap();
        client.send(b"one").unwrap();
        let status = only(7000).status;
        assert!(status.is_confirmed() && !status.has_seen_reply());
        assert_eq!(only(7000).offload(), Err(Reason::NotAssured));
        server.send_to(b"two", client.local_addr().unwrap()).unwrap();
        assert!(only(7000).status.has_seen_reply());
        // A stream of UDP is assured once it is two seconds old.
        std::thread::sleep(Duration::from_millis(2500));
        for _ in 0..2 {
            client.send(b"three").unwrap();
            server.send_to(b"four", client.local_addr().unwrap()).unwrap();
        }
        assert!(only(7000).status.is_assured());
        assert_eq!(only(7000).offload(), Ok(()));
    });
}

#[test]
fn a_list_may_be_left_before_its_end() {
    in_namespace("a_list_may_be_left_before_its_end", || {
        begin();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        const MANY: u16 = 4000;
        for port in 1..=MANY {
            // A port without a socket answers by ICMP, which the next call returns as an error.
            let _ = client.send_to(b"x", ("127.0.0.2", 10_000 + port));
        }
        let mut conntrack = Conntrack::open().unwrap();
        for _ in 0..3 {
            let mut count = 0;
            let some = conntrack.each(None, |_| {
                count += 1;
                if count == 100 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            some.unwrap();
            assert_eq!(count, 100);
        }
        let source = client.local_addr().unwrap().port();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let tuple =
            |port| Tuple::with_ports(17, (ip("127.0.0.1"), source), (ip("127.0.0.2"), port));
        assert!(conntrack.get(&tuple(10_001), 0).unwrap().is_some());
        assert_eq!(conntrack.get(&tuple(9_999), 0).unwrap(), None);
        let mut count = 0;
        let whole = conntrack.each(None, |_| {
            count += 1;
            ControlFlow::Continue(())
        });
        whole.unwrap();
        assert_eq!(count, MANY);
    });
}

#[test]
fn a_tuple_of_two_families_is_refused() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let tuple = Tuple::with_ports(17, (ip("127.0.0.1"), 1), (ip("::1"), 2));
    let refused = Conntrack::open().unwrap().get(&tuple, 0).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
}
