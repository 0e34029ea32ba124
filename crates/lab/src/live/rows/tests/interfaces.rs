//! Tests of the rows' traffic through a router that is a kernel. They need root, and CI must run them.

use std::sync::Arc;

use tollway_dataplane::prefix::Prefix;

use super::super::drops::Dropper;
use super::super::features::missing;
use super::super::full_table::draw;
use super::super::pairs::Side;
use super::super::sockets::Sockets;
use super::super::streams::Streams;
use super::super::transactions::Transactions;
use super::*;
use crate::fib::Internet;
use crate::live::controller::router::Router;
use crate::live::controller::table::Table;
use crate::live::rulesets;
use crate::live::sink::Expect;
use crate::live::tests::{send, turn};
use crate::live::topology::Topology;

const EXPECT: Expect = Expect { vid: None, follow: true, hook: SinkHook::Xdp, bridged: None };

/// How often a measurement is tried that another program may have disturbed.
const TRIES: usize = 5;

#[test]
fn frames_to_random_destinations_of_a_table_arrive() {
    let Some(_turn) = turn() else { return };
    let internet = Internet {
        v4: vec![Prefix::v4(0x0102_0000, 16), Prefix::v4(0x0808_0800, 24)],
        v6: vec![Prefix::v6(0x2001_0db8 << 96, 32), Prefix::v6(0x2a00 << 112, 12)],
        source: String::new(),
    };
    let router = Router::new(&Table::new(&internet, 4)).unwrap();
    for (prefixes, v6, bytes) in [(&internet.v4, false, 60), (&internet.v6, true, 78)] {
        let flows = Flows::To(Arc::new(draw(prefixes, v6, 1 << 10)));
        let stream = Stream { flows, vid: None, rate: Some(50_000) };
        let (sent, seen) = send(&router.topology, stream, EXPECT);
        assert!(sent.frames > 1000);
        assert_eq!((seen.frames, seen.bytes), (sent.frames, sent.frames * bytes));
        assert_eq!((seen.check(), seen.reordered), (Ok(()), 0));
    }
    // Other destinations have no route.
    let flows = Flows::To(Arc::new(draw(&[Prefix::v4(0x0900_0000, 8)], false, 1 << 10)));
    let stream = Stream { flows, vid: None, rate: Some(1_000) };
    assert_eq!(send(&router.topology, stream, EXPECT).1.frames, 0);
}

#[test]
fn each_frame_of_a_flood_is_a_new_flow() {
    let Some(_turn) = turn() else { return };
    let topology = Topology::new().unwrap();
    let set = "table ip lab {
        set seen {
            type ipv4_addr . ipv4_addr . inet_service . inet_service
            size 1000000
            flags dynamic
        }
        chain forward {
            type filter hook forward priority 0
            ip saddr 16.0.0.0/4 ip daddr 198.19.0.0/16 \
                add @seen { ip saddr . ip daddr . udp sport . udp dport }
        }
    }";
    rulesets::load(&topology.r, set).unwrap();
    let mut frames = 0;
    // The flows of a stream are not those of the one before.
    for _ in 0..2 {
        let stream = Stream { flows: Flows::Random, vid: None, rate: Some(20_000) };
        let (sent, seen) = send(&topology, stream, EXPECT);
        assert_eq!((seen.frames, seen.check()), (sent.frames, Ok(())));
        frames += sent.frames;
    }
    let list = topology.r.sh("nft -j list set ip lab seen").unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let elements = list["nftables"][1]["set"]["elem"].as_array().unwrap();
    assert!(frames > 1000);
    assert_eq!(elements.len() as u64, frames);
    // Random numbers use every bit.
    for (field, at_least) in
        [(0, frames * 9 / 10), (1, frames / 2), (2, frames / 2), (3, frames / 2)]
    {
        let values: std::collections::BTreeSet<_> =
            elements.iter().map(|element| element["concat"][field].to_string()).collect();
        assert!(values.len() as u64 > at_least, "field {field}: {}", values.len());
    }
}

/// Measures until something gets through, which another program may prevent once.
fn some(side: &dyn Side) -> f64 {
    (0..TRIES).map(|_| side.rate().unwrap()).find(|rate| *rate > 0.0).unwrap_or(0.0)
}

#[test]
fn real_sockets_reach_each_other_through_a_router_and_not_without() {
    let Some(_turn) = turn() else { return };
    let topology = Topology::with_default_devices().unwrap();
    let one = Streams::new(&topology, 1).unwrap();
    let sockets = Sockets::new(&topology).unwrap();
    assert!(some(&one) > 0.0 && some(&sockets) > 0.0);
    // What does not arrive is nothing, not an error.
    topology.kernel_forwards(false).unwrap();
    assert_eq!((one.rate().unwrap(), sockets.rate().unwrap()), (0.0, 0.0));
    topology.kernel_forwards(true).unwrap();
    rulesets::load(&topology.r, rulesets::MASQUERADE).unwrap();
    assert!(some(&one) > 0.0 && some(&sockets) > 0.0);
    drop(one);
    assert!(some(&Streams::new(&topology, 8).unwrap()) > 0.0);
}

#[test]
fn connections_begin_through_a_firewall_that_lets_them_and_not_through_others() {
    let Some(_turn) = turn() else { return };
    let topology = Topology::with_default_devices().unwrap();
    rulesets::load(&topology.r, &[rulesets::OUTBOUND, rulesets::MASQUERADE].concat()).unwrap();
    let transactions = Transactions::new(&topology).unwrap();
    assert!(some(&transactions) > 0.0);
    rulesets::clear(&topology.r).unwrap();
    rulesets::load(&topology.r, rulesets::ESTABLISHED).unwrap();
    assert!(transactions.rate().unwrap_err().contains("TcpCrr"));
}

#[test]
fn drops_of_a_rule_are_counted_and_what_passes_it_is_an_error() {
    let Some(_turn) = turn() else { return };
    let topology = Topology::new().unwrap();
    rulesets::load(&topology.r, rulesets::DROP_ALL).unwrap();
    for flows in [Flows::InTurn(256), Flows::Random] {
        let dropper = Dropper::new(&topology, flows, false).unwrap();
        assert!(some(&dropper) > 0.0);
    }
    rulesets::clear(&topology.r).unwrap();
    let counting = rulesets::DROP_ALL.replace("counter drop", "counter accept");
    rulesets::load(&topology.r, &counting).unwrap();
    let dropper = Dropper::new(&topology, Flows::InTurn(256), false).unwrap();
    assert!(dropper.rate().unwrap_err().contains("passed a rule"));
}

#[test]
fn every_ruleset_is_one_that_nft_reads() {
    let Some(_turn) = turn() else { return };
    let topology = Topology::new().unwrap();
    for (text, rules) in [
        (rulesets::drops(1000), 1000),
        (rulesets::DROP_ALL.to_owned(), 1),
        (rulesets::KERNEL_ONLY.to_owned(), 1),
        (rulesets::MASQUERADE.to_owned(), 1),
        (rulesets::ESTABLISHED.to_owned(), 1),
        ([rulesets::OUTBOUND, rulesets::MASQUERADE].concat(), 3),
    ] {
        rulesets::load(&topology.r, &text).unwrap();
        let list = topology.r.sh("nft -j list ruleset").unwrap();
        assert_eq!(list.matches("{\"rule\":").count(), rules, "{text}");
        rulesets::clear(&topology.r).unwrap();
        assert!(!topology.r.sh("nft list ruleset").unwrap().contains("lab"));
    }
}

#[test]
fn a_kernel_without_vlan_or_vrf_devices_is_named() {
    let Some(_turn) = turn() else { return };
    let topology = Topology::new().unwrap();
    match missing(&topology.r) {
        None => assert!(!topology.r.sh("ip link").unwrap().contains("probe")),
        Some(reason) => assert!(reason.starts_with("the kernel has no V"), "{reason}"),
    }
}
