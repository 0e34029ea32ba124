//! Routes that change, and the flows that stay.

use std::net::IpAddr;

use proptest::prelude::*;
use tollway_dataplane::id::{LinkId, NextHopId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::source_check::{Rpf, SourceCheck};
use tollway_dataplane::tables::ForwardingState;

use super::Bench;
use crate::testkit::dice::Dice;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::wires::{LinkVariant, give_default_routes};

fn frame(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    Packet::between(src, dst).to(LinkVariant::Plain.mac(0)).build()
}

/// A network where everything has a route.
fn bench() -> Bench {
    let bench = Bench::new();
    give_default_routes(&mut bench.net.worker.lock().tables, LinkVariant::Plain.vrf());
    bench
}

fn next_hop(tables: &ForwardingState, port: u8) -> NextHopId {
    tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(port))
}

fn set(bench: &mut Bench, prefix: RoutePrefix, port: u8) {
    let next = next_hop(bench.net.worker.state(), port);
    let inserted = bench.net.worker.lock().tables.insert(LinkVariant::Plain.vrf(), prefix, next);
    inserted.unwrap();
    bench.net.run();
}

#[test]
fn a_route_concerns_the_flows_to_where_it_leads() {
    let mut bench = bench();
    let v4 = |text: &str| frame(ip("192.0.2.1"), ip(text));
    let v6 = |text: &str| frame(ip("2001:db8:77::1"), ip(text));
    let frames = [
        v4("198.51.100.1"),
        v4("198.51.101.1"),
        v4("198.52.0.1"),
        v4("9.9.9.9"),
        v6("2001:db8:1::1"),
        v6("2001:db9:1::1"),
        v6("2a00:1::1"),
    ];
    let fill = |bench: &mut Bench| {
        frames.iter().for_each(|frame| _ = bench.twice(0, frame));
        assert_eq!(bench.maps.installed(), frames.len());
    };
    fill(&mut bench);
    let generation = bench.maps.generation.load(std::sync::atomic::Ordering::Relaxed);
    for (prefix, len, left) in [
        ("198.51.100.0", 24, 5),
        ("198.51.0.0", 16, 5),
        ("198.48.0.0", 13, 4),
        ("198.0.0.0", 8, 4),
        ("203.0.113.0", 24, 7),
        ("2001:db8:1::", 48, 6),
        ("2001:db8::", 31, 5),
        ("2001:d00::", 24, 5),
        ("3001:d00::", 32, 7),
    ] {
        for port in [1, 2] {
            set(&mut bench, RoutePrefix::new(ip(prefix), len), port);
            assert_eq!(bench.maps.installed(), left, "{prefix}/{len}");
            fill(&mut bench);
        }
    }
    let now = bench.maps.generation.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(now, generation, "all of it was local");
    for (prefix, len) in [("196.0.0.0", 7), ("2000::", 23), ("::", 0)] {
        set(&mut bench, RoutePrefix::new(ip(prefix), len), 1);
        assert_eq!(bench.maps.installed(), 0, "{prefix}/{len} is everything");
        fill(&mut bench);
    }
}

/// With a reverse path filter, the verdict also depends on the route to the source.
#[test]
fn a_route_to_the_source_concerns_flows_whose_source_is_checked() {
    for rpf in [Rpf::Off, Rpf::Loose] {
        let mut bench = bench();
        let check = SourceCheck { own: false, rpf, martians_to_kernel: false };
        bench.net.worker.lock().tables.set_source(LinkId(0), check).unwrap();
        let dst = LinkVariant::Plain.host4(1);
        let [one, other] = ["198.51.100.1", "203.0.113.1"].map(|src| frame(ip(src), dst));
        bench.twice(0, &one);
        bench.twice(0, &other);
        assert_eq!(bench.maps.installed(), 2);
        set(&mut bench, RoutePrefix::new(ip("198.51.100.0"), 24), 2);
        assert_eq!(bench.maps.installed(), if rpf == Rpf::Off { 2 } else { 1 }, "{rpf:?}");
        // The same, observed at the XDP path.
        assert_eq!(bench.send(0, &one).len(), 1);
        assert_eq!(bench.maps.installed(), 2);
        let next =
            bench.net.worker.lock().tables.drop(tollway_dataplane::verdict::DropReason::Blackhole);
        let prefix = RoutePrefix::new(ip("198.51.100.0"), 24);
        bench
            .net
            .worker
            .lock()
            .tables
            .insert(LinkVariant::Plain.vrf(), prefix, next.unwrap())
            .unwrap();
        bench.net.run();
        let sent = bench.send(0, &one).len();
        assert_eq!(sent, usize::from(rpf == Rpf::Off), "{rpf:?}");
        assert_eq!(bench.maps.installed(), 1 + sent);
    }
}

#[test]
fn a_storm_of_routes_leaves_other_flows_alone() {
    let mut bench = bench();
    let still = frame(ip("192.0.2.1"), ip("9.9.9.9"));
    bench.twice(0, &still);
    let writes = bench.maps.writes();
    for number in 0..20_000_u32 {
        let address = std::net::Ipv4Addr::from_bits(0x0b00_0000 + (number << 8));
        let prefix = RoutePrefix::new(address.into(), 24);
        let next = next_hop(bench.net.worker.state(), 1 + (number % 2) as u8);
        let inserted =
            bench.net.worker.lock().tables.insert(LinkVariant::Plain.vrf(), prefix, next);
        inserted.unwrap();
        if number % 100 == 0 {
            bench.net.run();
            assert_eq!(bench.maps.installed(), 1, "{number}");
        }
    }
    bench.send(0, &still);
    assert_eq!((bench.maps.installed(), bench.maps.writes()), (1, writes));
    // A worker that sleeps too long misses some changes, and notices that.
    for number in 0..20_000_u32 {
        let address = std::net::Ipv4Addr::from_bits(0x0b00_0000 + (number << 8));
        let prefix = RoutePrefix::new(address.into(), 24);
        assert!(bench.net.worker.lock().tables.remove(LinkVariant::Plain.vrf(), prefix).unwrap());
    }
    bench.net.run();
    assert_eq!(bench.maps.installed(), 0);
}

/// The egress port that the XDP path gives a frame, if it would take it.
fn by_xdp_path(bench: &Bench, src: IpAddr, dst: IpAddr) -> Option<u8> {
    use crate::flows::{Flow4Key, Flow6Key};
    let link = LinkVariant::Plain.link(0);
    let flow = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let key = Flow4Key::new(link, 17, (src, 1000), (dst, 2000));
            let flow = *bench.maps.v4.lock().unwrap().get(&key)?;
            bench.maps.is_active(&key.src_be, &key.dst_be, &flow).then_some(flow)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let key = Flow6Key::new(link, 17, (src, 1000), (dst, 2000));
            let flow = *bench.maps.v6.lock().unwrap().get(&key)?;
            bench.maps.is_active(&key.src_be, &key.dst_be, &flow).then_some(flow)
        }
        _ => None,
    };
    flow.map(|flow| flow.egress_port)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 40,
        ..Default::default()
    })]

    /// Whatever routes come and go, the XDP path takes no packet that the path would send
    /// elsewhere.
    #[test]
    fn the_xdp_path_is_never_behind_the_routes(seed: u64) {
        let (mut bench, mut dice) = (bench(), Dice(seed));
        let rpf = dice.pick(&[Rpf::Off, Rpf::Strict, Rpf::Loose]);
        let check = SourceCheck { own: false, rpf, martians_to_kernel: false };
        bench.net.worker.lock().tables.set_source(LinkId(0), check).unwrap();
        let part = |dice: &mut Dice| dice.below(3) as u8;
        let address = |dice: &mut Dice, is_ipv4: bool| {
            let [a, b] = [part(dice), part(dice)];
            match is_ipv4 {
                true => IpAddr::from([20 + a, b, 0, 1]),
                false => IpAddr::from([0x2001, a.into(), b.into(), 0, 0, 0, 0, 1]),
            }
        };
        let mut hits = 0;
        for _ in 0..300 {
            let is_ipv4 = !dice.one_in(3);
            if dice.one_in(4) {
                let len = if is_ipv4 { dice.pick(&[6, 8, 12, 16, 24, 32]) } else { dice.pick(&[20, 28, 32, 48, 128]) };
                let prefix = RoutePrefix::new(address(&mut dice, is_ipv4), len);
                let tables = &mut bench.net.worker.lock().tables;
                if dice.one_in(3) {
                    tables.remove(LinkVariant::Plain.vrf(), prefix).unwrap();
                } else {
                    let port = part(&mut dice);
                    let host = if is_ipv4 { LinkVariant::Plain.host4(port) } else { LinkVariant::Plain.host6(port) };
                    let next = tables.lookup(LinkVariant::Plain.vrf(), host);
                    tables.insert(LinkVariant::Plain.vrf(), prefix, next).unwrap();
                }
            }
            let src = if is_ipv4 { ip("20.1.0.1") } else { ip("2001:1::1") };
            let dst = address(&mut dice, is_ipv4);
            // The worker's turn, then the packet: by the XDP path, or else by the path.
            bench.net.run();
            let port = by_xdp_path(&bench, src, dst);
            let sent = bench.send(0, &frame(src, dst));
            if let Some(port) = port {
                hits += 1;
                prop_assert_eq!(sent.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [port]);
            }
        }
        prop_assert!(hits > 5 || rpf == Rpf::Strict, "{hits} hits, {rpf:?}");
    }
}
