//! Tests of the pages of connections, with connections that are made here.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tollway_conntrack::Family;
use tollway_conntrack::{
    Connection as Tracked, Counter, Counters, Labels, Status, TcpInfo, TcpState, Tuple, TupleL4,
};
use tollway_dataplane::id::LinkId;
use tollway_worker::connections::{KernelReason, key_of};
use tollway_xdp::connections::{Entry, Treatment};

use super::super::connections::{PagesError, Programs, Source, Sum, Take, describe, fast, pages};
use super::super::{
    Connection, ConnectionFilter, ConnectionOrder, ConnectionsPage, IcmpQuery, IpVersion, Protocol,
};
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

/// Connections that a function lists, which is given the number of refreshes so far, and what the programs do with them.
struct Listed<F> {
    list: F,
    refreshed: usize,
    programs: Programs,
}

impl<F: Fn(usize, Take<'_>) -> io::Result<()>> Source for Listed<F> {
    fn refresh(&mut self) {
        self.refreshed += 1;
    }

    fn each(&self, _: Option<Family>, take: Take<'_>) -> io::Result<()> {
        (self.list)(self.refreshed, take)
    }

    fn fast(&self, connection: &Tracked) -> Sum {
        fast(connection, &self.programs)
    }

    fn describe(&self, connection: Tracked) -> Connection {
        describe(connection, &self.programs)
    }
}

fn listed<F: Fn(usize, Take<'_>) -> io::Result<()>>(list: F) -> Listed<F> {
    Listed { list, refreshed: 0, programs: Programs::default() }
}

fn all(filter: &ConnectionFilter, of: &[Tracked]) -> Vec<Vec<Connection>> {
    all_of(filter, &Programs::default(), of)
}

fn all_of(filter: &ConnectionFilter, programs: &Programs, of: &[Tracked]) -> Vec<Vec<Connection>> {
    let mut all: Vec<ConnectionsPage> = Vec::new();
    let list = |_, take: Take<'_>| {
        let _ = of.iter().all(|one| take(one.clone()).is_continue());
        Ok(())
    };
    let mut source = Listed { programs: programs.clone(), ..listed(list) };
    let mut send = |page: &ConnectionsPage| {
        all.push(page.clone());
        Ok(())
    };
    pages(filter, &mut source, &mut send).unwrap();
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
    let read = Cell::new(0);
    let mut source = listed(|_, take: Take<'_>| {
        read.set((0..).take_while(|number| take(tcp(*number)).is_continue()).count());
        Ok(())
    });
    let left = pages(&ConnectionFilter::default(), &mut source, &mut |_| {
        Err(io::ErrorKind::BrokenPipe.into())
    });
    let Err(PagesError::Client(error)) = left else { panic!("{left:?}") };
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(read.get(), 499, "the page that failed is the last");
}

#[test]
fn an_error_of_the_kernel_is_a_sentence() {
    let mut refuse = listed(|_, _: Take<'_>| Err(io::Error::from_raw_os_error(1)));
    let refused = pages(&ConnectionFilter::default(), &mut refuse, &mut |_| Ok(())).unwrap_err();
    let sentence = refused.to_string();
    assert!(sentence.starts_with("the kernel does not list its connections: "), "{sentence}");
}

#[test]
fn a_long_search_shows_that_it_goes_on() {
    let filter = ConnectionFilter { mark: Some(9), ..ConnectionFilter::default() };
    let mut source = listed(|_, take: Take<'_>| {
        let _ = take(tcp(1));
        std::thread::sleep(Duration::from_millis(1100));
        let _ = take(tcp(2));
        Ok(())
    });
    let mut more = Vec::new();
    let mut send = |page: &ConnectionsPage| {
        assert!(page.connections.is_empty());
        more.push(page.more);
        Ok(())
    };
    pages(&filter, &mut source, &mut send).unwrap();
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
    let cases: [(ConnectionFilter, &[u32]); 20] = [
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
        (ConnectionFilter { version: Some(IpVersion::Ipv6), ..none() }, &[4]),
        (ConnectionFilter { version: Some(IpVersion::Ipv4), mark: Some(0), ..none() }, &[0]),
        (ConnectionFilter { path: Some("fast".to_owned()), ..none() }, &[]),
        (ConnectionFilter { limit: Some(2), ..none() }, &[0, 1]),
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

/// What the programs do with the connection of a number, original and reply.
fn programs(of: &[(u32, [Option<Treatment>; 2])]) -> Programs {
    let mut programs =
        Programs { links: vec!["eth0".to_owned(), "eth1".to_owned()], ..Programs::default() };
    for (number, treatments) in of {
        let connection = tcp(*number);
        let tuples = [connection.original, connection.reply];
        for (at, (tuple, treatment)) in tuples.iter().zip(treatments).enumerate() {
            if treatment.is_none() {
                continue;
            }
            let link = LinkId(at as u16);
            let used = [u64::from(*number), u64::from(*number) * 1000];
            let entry = Entry { treatment: *treatment, link, used };
            programs.entries.insert(&key_of(tuple, link).unwrap(), entry);
        }
    }
    programs
}

const OUT: Option<Treatment> = Some(Treatment::Forwarded(LinkId(1)));
const BACK: Option<Treatment> = Some(Treatment::Forwarded(LinkId(0)));

fn kernel(why: KernelReason) -> Option<Treatment> {
    Some(Treatment::Kernel { retry: 0, why: why.number() })
}

#[test]
fn entries_say_the_path_and_the_reason() {
    let same_link = kernel(KernelReason::SameLink);
    let dropped = Some(Treatment::Dropped(LinkId(1)));
    let cases = [
        ([OUT, BACK], "fast", "", ""),
        ([OUT, None], "fast", "", ""),
        ([None, None], "kernel", "not_entered", "no packets have come"),
        ([kernel(KernelReason::Rules), None], "kernel", "rules", "rules decide by more"),
        ([None, same_link], "kernel", "same_link", "the link that they arrive on"),
        ([OUT, same_link], "fast", "same_link", "replies take the kernel path: its packets leave"),
        ([dropped, None], "fast", "dropped", "packets of the first direction: rules drop them"),
        ([Some(Treatment::Unruled { retry: 0 }), None], "kernel", "unruled", "not evaluated"),
    ];
    for (treatments, path, reason, why) in cases {
        let programs = programs(&[(7, treatments)]);
        let shown = all_of(&ConnectionFilter::default(), &programs, &[tcp(7)]).concat().remove(0);
        assert_eq!((shown.path.as_str(), shown.reason.as_str()), (path, reason));
        assert!(shown.why.contains(why), "{}", shown.why);
        let filter = ConnectionFilter { reason: Some(reason.to_owned()), ..Default::default() };
        assert_eq!(all_of(&filter, &programs, &[tcp(7)]).len(), 1);
    }
    // The kernel's own entry comes first: it is younger than the reason in the table.
    let mut closing = tcp(7);
    closing.tcp.as_mut().unwrap().state = TcpState::LastAck;
    let programs = programs(&[(7, [kernel(KernelReason::NotAssured), None])]);
    let shown = all_of(&ConnectionFilter::default(), &programs, &[closing]).concat().remove(0);
    assert_eq!(shown.reason, "tcp_state");
}

#[test]
fn nothing_is_fast_while_the_kernel_has_all_of_a_version() {
    let mut programs = programs(&[(7, [OUT, BACK])]);
    let shown = |programs: &Programs| {
        all_of(&ConnectionFilter::default(), programs, &[tcp(7)]).concat().remove(0)
    };
    programs.all_by_kernel = [None, Some("there are virtual services".to_owned())];
    assert_eq!(shown(&programs).path, "fast", "it is of the other version");
    programs.all_by_kernel.swap(0, 1);
    let shown = shown(&programs);
    assert_eq!((shown.path.as_str(), shown.reason.as_str()), ("kernel", "kernel_path"));
    assert_eq!(shown.why, "all of its IP version is there: there are virtual services");
}

#[test]
fn entries_have_links_and_counts() {
    let programs = programs(&[(7, [OUT, BACK]), (9, [None, kernel(KernelReason::NoTrack)])]);
    let some = [7, 8, 9].map(tcp);
    let shown = all_of(&ConnectionFilter::default(), &programs, &some).concat();
    let entry = shown[0].original_entry.clone().unwrap();
    assert_eq!((entry.device.as_str(), entry.output.as_deref()), ("eth0", Some("eth1")));
    assert_eq!((entry.packets, entry.bytes), (7, 7000));
    assert_eq!((shown[1].original_entry.as_ref(), shown[1].reply_entry.as_ref()), (None, None));
    let entry = shown[2].reply_entry.clone().unwrap();
    assert_eq!((entry.treatment.as_str(), entry.reason.as_str()), ("kernel", "no_track"));
    assert_eq!((entry.device.as_str(), entry.output), ("eth1", None));
    // Of one that has ended, only the counts are left.
    let (mut ended, key) = (programs.clone(), key_of(&tcp(7).original, LinkId(0)).unwrap());
    ended.entries.insert(&key, Entry { treatment: None, link: LinkId(0), used: [70, 70_000] });
    let one = all_of(&ConnectionFilter::default(), &ended, &counted(&[(7, 30)])).concat().remove(0);
    assert_eq!(one.original_entry, None);
    let counts = one.counts.unwrap();
    assert_eq!((counts.packets, counts.bytes), (100, 100_000));
    for (device, count) in [("eth0", 1), ("eth1", 2), ("eth2", 0)] {
        let filter = ConnectionFilter { device: Some(device.to_owned()), ..Default::default() };
        assert_eq!(all_of(&filter, &programs, &some).concat().len(), count, "{device}");
    }
}

/// Connections with these packets of 1,000 bytes that the kernel has counted.
fn counted(of: &[(u32, u64)]) -> Vec<Tracked> {
    let counters = |packets| {
        let original = Counter { packets, bytes: packets * 1000 };
        Some(Counters { original, reply: Counter { packets: 0, bytes: 0 } })
    };
    of.iter()
        .map(|(number, packets)| Tracked { counters: counters(*packets), ..tcp(*number) })
        .collect()
}

#[test]
fn the_largest_come_first() {
    let some = counted(&[(1, 5), (2, 7), (3, 1), (4, 7), (5, 0)]);
    let sorted = |sort, limit, programs: &Programs| -> Vec<u32> {
        let filter = ConnectionFilter { sort: Some(sort), limit, ..Default::default() };
        all_of(&filter, programs, &some).concat().iter().map(|one| one.id).collect()
    };
    for order in [ConnectionOrder::Packets, ConnectionOrder::Bytes] {
        assert_eq!(sorted(order, None, &Programs::default()), [2, 4, 1, 3, 5]);
        assert_eq!(sorted(order, Some(2), &Programs::default()), [2, 4]);
        assert!(sorted(order, Some(0), &Programs::default()).is_empty());
        // The programs have forwarded 5 packets of 1,000 bytes of the last, in either direction.
        assert_eq!(sorted(order, Some(3), &programs(&[(5, [OUT, BACK])])), [5, 2, 4]);
    }
    let many: Vec<_> = (0..1200).map(|number| (number, u64::from(number % 600))).collect();
    let filter = ConnectionFilter {
        sort: Some(ConnectionOrder::Packets),
        limit: Some(1000),
        ..Default::default()
    };
    let pages = all(&filter, &counted(&many));
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [500, 500]);
    let packets: Vec<_> = pages.concat().iter().map(|one| one.counts.unwrap().packets).collect();
    assert!(packets.is_sorted_by(|one, next| one >= next));
    assert_eq!((packets[0], packets[999]), (599, 100));
    let usual = ConnectionFilter { limit: None, ..filter };
    assert_eq!(all(&usual, &counted(&many)).concat().len(), 20);
}

#[test]
fn rates_are_those_between_two_lists() {
    // The first is large, but quiet; the second grows; the third is new; the fourth begins again.
    let first = counted(&[(1, 1_000_000), (2, 5), (4, 500)]);
    let second = counted(&[(1, 1_000_000), (2, 105), (3, 50), (4, 25)]);
    let mut source = listed(|refreshed, take: Take<'_>| {
        let list = if refreshed == 1 { &first } else { &second };
        list.iter().for_each(|one| assert!(take(one.clone()).is_continue()));
        Ok(())
    });
    let filter = ConnectionFilter {
        sort: Some(ConnectionOrder::Rate),
        interval_ms: Some(200),
        ..Default::default()
    };
    let mut shown = Vec::new();
    pages(&filter, &mut source, &mut |page| {
        shown.extend(page.connections.clone());
        Ok(())
    })
    .unwrap();
    assert_eq!(shown.iter().map(|one| one.id).collect::<Vec<_>>(), [2, 3, 4, 1]);
    let rates: Vec<_> = shown.iter().map(|one| one.rates.unwrap()).collect();
    // A busy machine takes longer than the interval, and then divides by that.
    assert!(rates.iter().all(|rates| rates.interval_ms >= 200), "{rates:?}");
    for (rates, packets) in rates.iter().zip([100, 50, 25, 0]) {
        let counted = (rates.packets_per_s * rates.interval_ms) as f64 / 1e3;
        assert!(
            (counted - f64::from(packets)).abs() <= f64::from(packets) * 0.2 + 1.0,
            "{rates:?}"
        );
        assert!(rates.bytes_per_s.abs_diff(rates.packets_per_s * 1000) <= 1000, "{rates:?}");
    }
}
