//! Tests of the pages of connections, with connections that are made here.

use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use tollway_conntrack::{
    Connection as Tracked, Counter, Counters, Labels, Status, TcpInfo, TcpState, Tuple, TupleL4,
};
use tollway_xdp::connections::ConnectionsByTuple;

use super::super::connections::{PagesError, pages};
use super::super::{Connection, ConnectionFilter, ConnectionsPage, IcmpQuery, Protocol};
use crate::control::CONNECTION_STATES;

/// SEEN_REPLY, ASSURED, CONFIRMED.
const ASSURED: u32 = 0xe;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The connection of a number, to one of 16 ports.
fn tcp(number: u32) -> Tracked {
    let [_, _, high, low] = number.to_be_bytes();
    let source = (IpAddr::from([10, 0, high, low]), 40_000);
    let original = Tuple::with_ports(6, source, (ip("192.0.2.1"), (number % 16) as u16));
    let state = TcpState::Established;
    Tracked {
        original,
        reply: original.swapped().unwrap(),
        status: Status(ASSURED),
        tcp: Some(TcpInfo {
            state,
            original_wscale: None,
            reply_wscale: None,
            original_flags: None,
            reply_flags: None,
        }),
        timeout_s: Some(100),
        mark: number % 4,
        zone: 0,
        reply_zone: 0,
        id: number,
        helper: None,
        labels: Labels(0),
        counters: None,
        has_seq_adjust: false,
        has_synproxy: false,
    }
}

fn all(filter: &ConnectionFilter, of: &[Tracked]) -> Vec<Vec<Connection>> {
    let mut all: Vec<ConnectionsPage> = Vec::new();
    let source = |_, take: &mut dyn FnMut(Tracked) -> ControlFlow<()>| {
        assert!(of.iter().all(|one| take(one.clone()).is_continue()));
        Ok(())
    };
    let mut send = |page: &ConnectionsPage| {
        all.push(page.clone());
        Ok(())
    };
    pages((filter, &ConnectionsByTuple::default()), source, &mut send).unwrap();
    let last = all.pop().unwrap();
    assert_eq!(last, ConnectionsPage::default());
    assert!(all.iter().all(|page| page.more && !page.connections.is_empty()));
    all.into_iter().map(|page| page.connections).collect()
}

/// The numbers of the connections that a filter selects.
fn selected(filter: ConnectionFilter, of: &[Tracked]) -> Vec<u32> {
    all(&filter, of).concat().iter().map(|one| one.id).collect()
}

#[test]
fn connections_come_in_pages() {
    let many: Vec<_> = (0..1250).map(tcp).collect();
    let pages = all(&ConnectionFilter::default(), &many);
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [500, 500, 250]);
    let ids: Vec<_> = pages.concat().iter().map(|one| one.id).collect();
    assert_eq!(ids, (0..1250).collect::<Vec<_>>());
    assert!(all(&ConnectionFilter::default(), &[]).is_empty());
    assert_eq!(all(&ConnectionFilter::default(), &many[..500]).len(), 1);
}

#[test]
fn a_client_that_leaves_ends_the_list() {
    let mut read = 0;
    let source = |_, take: &mut dyn FnMut(Tracked) -> ControlFlow<()>| {
        read = (0..).take_while(|number| take(tcp(*number)).is_continue()).count();
        Ok(())
    };
    let left =
        pages((&ConnectionFilter::default(), &ConnectionsByTuple::default()), source, &mut |_| {
            Err(io::ErrorKind::BrokenPipe.into())
        });
    let Err(PagesError::Client(error)) = left else { panic!("{left:?}") };
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(read, 499, "the page that failed is the last");
}

#[test]
fn an_error_of_the_kernel_is_a_sentence() {
    let refuse =
        |_, _: &mut dyn FnMut(Tracked) -> ControlFlow<()>| Err(io::Error::from_raw_os_error(1));
    let refused =
        pages((&ConnectionFilter::default(), &ConnectionsByTuple::default()), refuse, &mut |_| {
            Ok(())
        })
        .unwrap_err();
    let sentence = refused.to_string();
    assert!(sentence.starts_with("the kernel does not list its connections: "), "{sentence}");
}

#[test]
fn a_long_search_shows_that_it_goes_on() {
    let filter = ConnectionFilter { mark: Some(9), ..ConnectionFilter::default() };
    let source = |_, take: &mut dyn FnMut(Tracked) -> ControlFlow<()>| {
        let _ = take(tcp(1));
        std::thread::sleep(Duration::from_millis(1100));
        let _ = take(tcp(2));
        Ok(())
    };
    let mut more = Vec::new();
    let mut send = |page: &ConnectionsPage| {
        assert!(page.connections.is_empty());
        more.push(page.more);
        Ok(())
    };
    pages((&filter, &ConnectionsByTuple::default()), source, &mut send).unwrap();
    assert_eq!(more, [true, false]);
}

#[test]
fn filters_select() {
    let mut some: Vec<_> = (0..4).map(tcp).collect();
    // Behind NAT.
    some[1].reply.source = ip("10.9.9.9");
    some[2].reply.destination = ip("203.0.113.1");
    some[2].reply.l4 = TupleL4::Ports { source: 2, destination: 50_000 };
    some[3].tcp.as_mut().unwrap().state = TcpState::TimeWait;
    let six = Tuple::with_ports(17, (ip("fd00::1"), 5), (ip("fd00::2"), 6));
    let udp = Tracked { original: six, reply: six.swapped().unwrap(), tcp: None, ..tcp(4) };
    some.push(udp);
    let none = ConnectionFilter::default;
    let net = |text: &str| Some(text.parse().unwrap());
    let cases: [(ConnectionFilter, &[u32]); 16] = [
        (none(), &[0, 1, 2, 3, 4]),
        (ConnectionFilter { within: net("10.0.0.0/31"), ..none() }, &[0, 1]),
        (ConnectionFilter { within: net("10.9.9.9/32"), ..none() }, &[1]),
        (ConnectionFilter { within: net("203.0.113.0/24"), ..none() }, &[2]),
        (ConnectionFilter { within: net("fd00::/8"), ..none() }, &[4]),
        (ConnectionFilter { source: net("10.0.0.2/32"), ..none() }, &[2]),
        (ConnectionFilter { source: net("192.0.2.1/32"), ..none() }, &[]),
        (ConnectionFilter { destination: net("192.0.2.0/24"), ..none() }, &[0, 1, 2, 3]),
        (ConnectionFilter { destination: net("10.9.9.9/32"), ..none() }, &[]),
        (ConnectionFilter { port: Some(50_000), ..none() }, &[2]),
        (ConnectionFilter { port: Some(6), ..none() }, &[4]),
        (ConnectionFilter { protocol: Some(Protocol(17)), ..none() }, &[4]),
        (ConnectionFilter { state: Some("time_wait".to_owned()), ..none() }, &[3]),
        (ConnectionFilter { state: Some("ASSURED".to_owned()), ..none() }, &[4]),
        (ConnectionFilter { mark: Some(0), ..none() }, &[0, 4]),
        (ConnectionFilter { mark: Some(0), port: Some(0), ..none() }, &[0]),
    ];
    for (filter, expected) in cases {
        assert_eq!(selected(filter.clone(), &some), expected, "{filter:?}");
    }
}

#[test]
fn a_connection_is_described_with_its_path() {
    let mut tracked = tcp(7);
    tracked.labels = Labels(1 << 100 | 1);
    tracked.counters = Some(Counters {
        original: Counter { packets: 1, bytes: 2 },
        reply: Counter { packets: 3, bytes: 4 },
    });
    let describe = |tracked: &Tracked| {
        all(&ConnectionFilter::default(), std::slice::from_ref(tracked)).concat().remove(0)
    };
    let shown = describe(&tracked);
    assert_eq!(shown.status, ["SEEN_REPLY", "ASSURED", "CONFIRMED"]);
    assert_eq!((shown.state.as_str(), shown.labels), ("ESTABLISHED", vec![0, 100]));
    assert_eq!((shown.path.as_str(), shown.reason.as_str()), ("kernel", "not_entered"));
    let counts = shown.counts.unwrap();
    assert_eq!((counts.packets, counts.bytes), (1, 2));
    assert_eq!((counts.reply_packets, counts.reply_bytes), (3, 4));

    tracked.tcp.as_mut().unwrap().state = TcpState::SynSent;
    let shown = describe(&tracked);
    assert_eq!((shown.state.as_str(), shown.reason.as_str()), ("SYN_SENT", "tcp_state"));
    assert_eq!(shown.why, "its TCP state is SYN_SENT, not ESTABLISHED");

    tracked.tcp = None;
    tracked.status = Status(ASSURED | 1 << 14);
    assert_eq!(describe(&tracked).state, "OFFLOAD");
    assert_eq!(describe(&tracked).reason, "offload");

    let icmp = TupleL4::Icmp { id: 1, kind: 8, code: 0 };
    tracked.original = Tuple { protocol: 1, l4: icmp, ..tracked.original };
    for (status, state) in [(0x8, "UNREPLIED"), (0xa, "SEEN_REPLY"), (0xe, "ASSURED")] {
        tracked.status = Status(status);
        let shown = describe(&tracked);
        assert_eq!((shown.state.as_str(), shown.reason.as_str()), (state, "protocol"));
        assert_eq!(shown.original.icmp, Some(IcmpQuery { id: 1, r#type: 8, code: 0 }));
        assert!(CONNECTION_STATES.contains(&state));
    }
}

#[test]
fn every_state_has_a_filter() {
    for state in TcpState::ALL {
        assert!(CONNECTION_STATES.contains(&state.name()), "{state}");
    }
    assert_eq!(CONNECTION_STATES.len(), TcpState::ALL.len() + 4);
}

#[test]
fn protocols_have_names_and_numbers() {
    for (text, number) in [("tcp", 6), ("UDP", 17), ("icmpv6", 58), ("99", 99), ("6", 6)] {
        assert_eq!(text.parse(), Ok(Protocol(number)));
    }
    assert_eq!(Protocol(6).to_string() + &Protocol(99).to_string(), "tcp99");
    for text in ["", "tpc", "256", "-1"] {
        assert!(text.parse::<Protocol>().unwrap_err().contains("one of icmp, tcp"), "{text}");
    }
}
