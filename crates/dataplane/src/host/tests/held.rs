//! Packets that wait for a neighbour.

use super::*;
use crate::host::neigh::{MAX_ENTRIES, QUEUE_PACKETS};
use crate::router::Control;

fn numbered(n: u32) -> Vec<u8> {
    ip_frame(ALICE, &udp4(header4(ALICE4, BOB4), &n.to_be_bytes()))
}

fn numbers(sent: &[Sent]) -> Vec<u32> {
    let number = |one: &Sent| u32::from_be_bytes(*udp_payload(one.ipv4().1).first_chunk().unwrap());
    sent.iter().map(number).collect()
}

#[test]
fn packets_are_held_and_released_in_their_order() {
    let mut lab = Lab::new();
    let frames: Vec<_> = (0..50).map(numbered).collect();
    let query = only(lab.receive_all(A, &frames));
    assert_eq!((query.port, query.arp().target_protocol_addr()), (B, &BOB4.octets()[..]));
    assert_eq!((lab.worker.counters.held, lab.worker.lock().host.originated_waiting()), (50, 0));
    let sent = lab.receive(B, &arp::reply(BOB, BOB4, own4(1)));
    assert_eq!(numbers(&sent), (0..50).collect::<Vec<_>>());
    for one in &sent {
        assert_eq!((one.dst_mac(), one.src_mac(), one.port), (BOB.mac, router_mac(B), B));
        assert_eq!(one.ipv4().0.time_to_live, 63);
    }
    assert_eq!((lab.worker.counters.held, lab.worker.counters.sent), (0, 50));
    // From now on, the path forwards the packets without the host.
    assert_eq!(only(lab.receive(A, &numbered(50))).dst_mac(), BOB.mac);
    assert_eq!(lab.worker.counters.sent, 51);
}

#[test]
fn a_full_queue_drops_its_oldest() {
    let mut lab = Lab::new();
    let frames: Vec<_> = (0..QUEUE_PACKETS as u32 + 7).map(numbered).collect();
    lab.receive_all(A, &frames);
    assert_eq!(lab.worker.counters.held, QUEUE_PACKETS as u64);
    assert_eq!(lab.drops(DropReason::NeighQueueFull), 7);
    let sent = lab.receive(B, &arp::reply(BOB, BOB4, own4(1)));
    assert_eq!(numbers(&sent), (7..QUEUE_PACKETS as u32 + 7).collect::<Vec<_>>());
}

#[test]
fn all_that_waits_takes_at_most_half_of_the_memory() {
    let mut lab = Lab::new();
    let frames: Vec<_> = (0..900_u32)
        .map(|n| {
            let dst = Ipv4Addr::new(10, 0, 1, (n % 200) as u8 + 1);
            ip_frame(ALICE, &udp4(header4(ALICE4, dst), b""))
        })
        .collect();
    for few in frames.chunks(16) {
        lab.receive_all(A, few);
    }
    let waiting = lab.worker.counters.held;
    assert!((500..=512).contains(&waiting), "{waiting}");
    assert_eq!(lab.drops(DropReason::NeighQueueFull), 900 - waiting);
}

#[test]
fn senders_that_wait_in_vain_receive_an_error() {
    let mut lab = Lab::with_neighbours();
    let gone = Ipv4Addr::new(10, 0, 1, 99);
    lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, gone), b"hello")));
    let questions = lab.pass(3 * S - S / 10);
    assert_eq!(questions.len(), 2);
    assert!(questions.iter().all(|query| query.dst_mac() == [0xff; 6]));
    let error = only(lab.pass(S / 5));
    assert_eq!((error.port, error.icmp_kind()), (A, (3, 1)));
    assert_eq!(error.addresses(), (own4(0).into(), ALICE4.into()));
    // The error quotes the packet as in Linux: with its TTL already decremented.
    assert_eq!(error.icmp4().payload()[8], 63);
    assert_eq!((lab.worker.counters.held, lab.drops(DropReason::NeighFailed)), (0, 1));
    let gone = "2001:db8:1::99".parse().unwrap();
    lab.receive(A, &ip_frame(ALICE, &udp6(ALICE6, gone, 64, b"hello")));
    let sent = lab.pass(3 * S + S / 10);
    assert_eq!(sent.last().unwrap().icmp_kind(), (1, 3));
    assert_eq!(lab.drops(DropReason::NeighFailed), 2);
    assert_eq!(lab.neighbours(), 0);
}

#[test]
fn an_unknown_sender_is_solicited() {
    let mut lab = Lab::new();
    lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, own4(1)), b"hello")));
    assert_eq!(
        (lab.worker.counters.delivered, lab.worker.lock().host.originated_waiting()),
        (1, 1)
    );
    let error = only(lab.receive(A, &arp::reply(ALICE, ALICE4, own4(0))));
    assert_eq!(error.icmp_kind(), (3, 3));
    assert_eq!(lab.worker.counters.originated, 2);
    // If the neighbour does not answer, nothing more happens.
    let mut lab = Lab::new();
    lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, own4(1)), b"hello")));
    assert_eq!(lab.pass(10 * S).len(), 2);
    assert_eq!(
        (lab.worker.lock().host.originated_waiting(), lab.worker.counters.originated_lost),
        (0, 1)
    );
    assert_eq!(lab.host().unroutable, 0);
}

#[test]
fn too_big_packets_do_not_wait() {
    let mut lab = Lab::with_neighbours();
    let nobody = Ipv4Addr::new(10, 0, 2, 77);
    let mut header = header4(ALICE4, nobody);
    header.dont_fragment = true;
    let error = only(lab.receive(A, &ip_frame(ALICE, &udp4(header, &[7; 900]))));
    assert_eq!((error.port, error.icmp_kind()), (A, (3, 4)));
    assert_eq!(error.icmp4().bytes5to8(), [0, 0, 2, 88]);
    assert_eq!((lab.worker.counters.held, lab.punts(PuntReason::MtuExceeded)), (0, 1));
    // A packet that may be fragmented waits in fragments.
    lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, nobody), &[7; 900])));
    assert_eq!((lab.worker.counters.held, lab.worker.lock().host.originated_waiting()), (0, 2));
    let sent = lab.receive(NARROW, &arp::reply(CAROL, nobody, own4(2)));
    assert_eq!(sent.len(), 2);
    assert_eq!(lab.punts(PuntReason::MtuExceeded), 2);
}

#[test]
fn a_gateway_is_solicited_in_place_of_the_destination() {
    let mut lab = Lab::new();
    let far = Ipv4Addr::new(192, 0, 2, 55);
    let query = only(lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, far), b"hello"))));
    assert_eq!(query.arp().target_protocol_addr(), [10, 0, 1, 9]);
    let gateway = Ipv4Addr::new(10, 0, 1, 9);
    let sent = only(lab.receive(B, &arp::reply(BOB, gateway, own4(1))));
    assert_eq!((sent.dst_mac(), sent.addresses().1), (BOB.mac, far.into()));
    // The gateway goes and comes back; the route still leads to it.
    lab.pass(60 * S);
    let query = only(lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, far), b"hello"))));
    assert_eq!(query.arp().target_protocol_addr(), [10, 0, 1, 9]);
    assert_eq!(lab.receive(B, &arp::reply(BOB, gateway, own4(1))).len(), 1);
}

#[test]
fn the_members_of_a_group_are_solicited_by_flow() {
    let mut lab = Lab::new();
    add_group(&mut lab, "198.18.0.0", &["10.0.1.10", "10.0.1.11"]);
    let frames: Vec<_> = (1..100)
        .map(|last| ip_frame(ALICE, &udp4(header4(ALICE4, Ipv4Addr::new(198, 18, 0, last)), b"")))
        .collect();
    let questions = lab.receive_all(A, &frames);
    assert_eq!((questions.len(), lab.worker.counters.held), (2, 99));
    let gateways = [[10, 0, 1, 10], [10, 0, 1, 11]].map(Ipv4Addr::from);
    let sent: usize = gateways
        .iter()
        .map(|gateway| lab.receive(B, &arp::reply(BOB, *gateway, own4(1))).len())
        .sum();
    assert_eq!((sent, lab.worker.counters.held), (99, 0));
    // The path sends each flow to the same member as the host.
    assert_eq!(lab.receive_all(A, &frames).len(), 99);
}

#[test]
fn known_neighbours_come_back_into_new_tables() {
    let mut lab = Lab::new();
    lab.receive(A, &numbered(0));
    assert_eq!(lab.receive(B, &arp::reply(BOB, BOB4, own4(1))).len(), 1);
    let other = Lab::new();
    std::mem::swap(&mut lab.worker.lock().tables, &mut other.worker.lock().tables);
    assert_eq!(numbers(&lab.receive(A, &numbered(1))), [1]);
    assert_eq!(numbers(&lab.receive(A, &numbered(2))), [2]);
    assert_eq!((lab.worker.counters.sent, lab.worker.counters.held), (3, 0));
}

#[test]
fn a_full_table_lets_its_oldest_go() {
    let mut lab = Lab::with_neighbours();
    let big = IpAddr::V4(Ipv4Addr::new(10, 8, 0, 254));
    let mut locked = lab.worker.lock();
    let Control { tables, host, .. } = &mut *locked;
    connect(tables, host, LinkId(1), big, 16);
    drop(locked);
    let station = |n: usize| Ipv4Addr::from_bits(0x0a08_1000 + n as u32);
    for n in 0..MAX_ENTRIES {
        lab.now += 1;
        lab.receive(B, &arp::request(BOB, station(n), own4(1)));
    }
    assert_eq!((lab.neighbours(), lab.host().neigh_evicted), (MAX_ENTRIES, 0));
    let vrf = lab.worker.lock().tables.link(LinkId(1)).vrf;
    let glean = lab.worker.lock().tables.glean(LinkId(1)).unwrap();
    assert_ne!(lab.worker.lock().tables.lookup(vrf, station(0).into()), glean);
    lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, station(5000)), b"")));
    assert_eq!((lab.neighbours(), lab.host().neigh_evicted), (MAX_ENTRIES, 1));
    assert_eq!(lab.worker.lock().tables.lookup(vrf, station(0).into()), glean);
    // The next neighbour replaces the one without an address.
    lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, station(5001)), b"")));
    assert_eq!((lab.drops(DropReason::NeighQueueFull), lab.worker.counters.held), (1, 1));
    // If all are reachable, none is evicted.
    for n in 1..MAX_ENTRIES {
        lab.receive(B, &arp::reply(BOB, station(n), own4(1)));
    }
    lab.receive(B, &arp::reply(BOB, station(5001), own4(1)));
    lab.receive(A, &ip_frame(ALICE, &udp4(header4(ALICE4, station(5002)), b"")));
    assert_eq!((lab.drops(DropReason::NeighQueueFull), lab.worker.counters.held), (2, 0));
}

#[test]
fn a_configured_route_to_a_neighbour_outlives_it() {
    let mut lab = Lab::new();
    let mut locked = lab.worker.lock();
    let tables = &mut locked.tables;
    let vrf = tables.link(LinkId(1)).vrf;
    let (half, host) = (RoutePrefix::new(BOB4.into(), 25), RoutePrefix::host(BOB4.into()));
    let (blackhole, next) = (
        tables.drop(DropReason::Blackhole).unwrap(),
        tables.neigh(LinkId(1), BOB4.into()).unwrap(),
    );
    tables.insert(vrf, half, blackhole).unwrap();
    tables.insert(vrf, host, next).unwrap();
    drop(locked);
    for _ in 0..2 {
        lab.receive(A, &numbered(0));
        assert_eq!(numbers(&lab.receive(B, &arp::reply(BOB, BOB4, own4(1)))), [0]);
        lab.pass(60 * S);
        assert_eq!(lab.neighbours(), 0, "it has not answered since");
        assert_eq!(lab.worker.lock().tables.lookup(vrf, BOB4.into()), next);
    }
}
