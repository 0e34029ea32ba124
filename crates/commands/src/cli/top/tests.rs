//! Rates from known answers, and the screens drawn from them.

use std::collections::BTreeMap;

use super::rates::{Flow, Rates};
use super::{Screen, text};
use crate::cli::text::si;
use crate::control::{
    All, ConnectionTotals, PathCounts, PortPaths, PortState, Ports, StageToll, Tolls, Totals,
    Traffic, WorkerCounts, WorkerState, Xdp,
};

fn counts(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn port(name: &str, state: &str, packets: u64) -> PortState {
    let traffic = Traffic { packets, bytes: packets * 64 };
    PortState {
        name: name.to_owned(),
        kind: "af_packet".to_owned(),
        device: None,
        engine: None,
        because: None,
        how: String::new(),
        state: state.to_owned(),
        why: None,
        mac: String::new(),
        mtu: 1500,
        rx: traffic,
        tx: traffic,
        missed: 7,
    }
}

/// The answer of a router with so many ports after some seconds.
fn answer(seconds: u64, ports: usize) -> All {
    let names = ["wan", "lan", "a_long_name_015"].iter().cycle().take(ports);
    let state = |index| if index == 1 { "down" } else { "up" };
    let ports = names.enumerate().map(|(index, name)| {
        port(
            &format!("{name}{}", if index < 3 { "" } else { "x" }),
            state(index),
            seconds * 1_000_000,
        )
    });
    let stage = |stage: &str, ns| StageToll {
        stage: stage.to_owned(),
        clocks_per_packet: ns,
        ns_per_packet: ns,
        packets: seconds * 64,
        bursts: seconds,
    };
    All {
        uptime_ns: seconds * 1_000_000_000,
        ports: Ports {
            totals: Totals { received: seconds * 3_000_000, ..Totals::default() },
            ports: ports.collect(),
        },
        drops: counts(&[("ip_csum", seconds * 10), ("otherhost", 12_345)]),
        punts: counts(&[("ttl_expired", seconds * 2000)]),
        xdp: Xdp { on: false, why: None, counts: BTreeMap::new() },
        paths: PathCounts {
            ports: vec![PortPaths {
                port: "wan".to_owned(),
                xdp: seconds * 9_000,
                user: seconds * 100,
                connections: [0; 2],
                kernel: counts(&[("kernel_rule", seconds * 900), ("local", 50_000)]),
            }],
            punts: counts(&[("ttl_expired", seconds * 100)]),
        },
        connections: Some(ConnectionTotals {
            tracked: 12_345,
            directions_forwarded: 24_600,
            directions_entered: seconds * 350,
            directions_kernel: counts(&[("helper", 1), ("not_assured", 89)]),
            ..ConnectionTotals::default()
        }),
        workers: Vec::new(),
        tolls: Tolls {
            tsc_mhz: 2600.0,
            tolls: vec![stage("admit", Some(seconds as f64)), stage("ecmp", None)],
        },
    }
}

fn screen(ports: usize) -> Screen {
    Screen {
        socket: "/run/tollway/net-4026531840.sock".to_owned(),
        uptime_s: 3723,
        rates: Some(Rates::between(&answer(2, ports), &answer(4, ports))),
        trouble: None,
    }
}

#[test]
fn rates_are_differences_over_time() {
    let rates = Rates::between(&answer(2, 3), &answer(4, 3));
    assert_eq!(rates.totals[0], ("received", 3_000_000.0));
    assert_eq!(rates.ports[0].rx, Flow { packets: 1e6, bits: 512e6 });
    assert!(rates.ports[0].missed.abs() < 1e-9);
    let drops: Vec<_> = rates.drops.iter().map(|r| (r.name.as_str(), r.rate, r.count)).collect();
    assert_eq!(drops, [("ip_csum", 10.0, 40), ("otherhost", 0.0, 12_345)], "busiest first");
    // 4 ns over 256 packets, of which 128 took 2 ns.
    assert_eq!(rates.tolls[0].now, Some(6.0));
    assert_eq!(rates.tolls[0].ever, Some(4.0));
    assert_eq!(rates.tolls[1].ever, None);
    // A restarted router counts from zero.
    let rates = Rates::between(&answer(4, 3), &answer(2, 3));
    assert!(rates.ports[0].rx.packets.abs() < 1e-9);
}

#[test]
fn a_screen_of_80_by_24_has_everything() {
    let text = text(&screen(3), (80, 24));
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for words in [
        "tollway top  up 1:02:03  /run/tollway/net-4026531840.sock",
        "3.00M/s received",
        "90.0% fast path  10.0% kernel path, most for kernel_rule",
        "12,345 connections  350/s entered  99.6% of directions fast, others: not_assured",
        "port            state  rx pkt/s  rx bit/s  tx pkt/s  tx bit/s  missed/s",
        "wan             up        1.00M      512M     1.00M      512M         0",
        "lan             down ",
        "a_long_name_015 up ",
        "dropped ",
        "ip_csum ",
        "12,345",
        "punted ",
        "ttl_expired ",
        "toll, ns/pkt ",
        "admit ",
    ] {
        assert!(text.contains(words), "{words} is missing from\n{text}");
    }
}

#[test]
fn a_large_screen_has_room_for_many_ports_and_a_small_one_does_not_break() {
    let large = text(&screen(40), (200, 60));
    assert_eq!(large.matches(" up ").count() + large.matches(" down ").count(), 41, "{large}");
    assert!(large.contains("ttl_expired"), "{large}");
    let small = text(&screen(40), (80, 24));
    assert!(small.contains("ip_csum") && small.contains("admit"), "{small}");
    for size in [(1, 1), (10, 3), (40, 8), (1000, 1)] {
        let _ = text(&screen(40), size);
    }
}

/// The answer of a router with so many workers after some seconds; the first has slept a quarter of the time.
fn answer_of(seconds: u64, workers: usize) -> All {
    let worker = |worker| {
        let counts = WorkerCounts {
            busy_ns: seconds * if worker == 0 { 750_000_000 } else { 1_000_000_000 },
            asleep_ns: seconds * if worker == 0 { 250_000_000 } else { 0 },
            received: seconds * 1_234_000,
            sent: seconds * 1_200_000,
            dropped: seconds * 34_000,
            bursts: seconds * 123_400,
            ..WorkerCounts::default()
        };
        WorkerState { worker, processor: (worker == 0).then_some(5), counts: Some(counts) }
    };
    All { workers: (0..workers).map(worker).collect(), ..answer(seconds, 2) }
}

#[test]
fn each_of_several_workers_has_a_line() {
    let screen_of = |workers| {
        let rates = Rates::between(&answer_of(2, workers), &answer_of(4, workers));
        Screen { rates: Some(rates), ..screen(1) }
    };
    let cells = |text: &str, number: &str| {
        let below = text.lines().skip_while(|line| !line.starts_with("worker")).skip(1);
        let mut rows = below.map(|line| line.split_whitespace().map(str::to_owned));
        rows.find_map(|mut cells| (cells.next()? == number).then(|| cells.collect::<Vec<_>>()))
    };
    for size in [(80, 24), (200, 60)] {
        let text = text(&screen_of(2), size);
        let first = ["5", "75.0%", "1.23M", "1.20M", "34.0k", "0", "10.0"];
        let second = ["-", "100.0%", "1.23M", "1.20M", "34.0k", "0", "10.0"];
        assert_eq!(cells(&text, "0").unwrap(), first, "{text}");
        assert_eq!(cells(&text, "1").unwrap(), second, "{text}");
        assert!(text.contains("ip_csum") && text.contains("admit"), "{text}");
    }
    assert!(!text(&screen_of(1), (80, 24)).contains("worker"), "a single one has no line");
    for size in [(1, 1), (10, 3), (30, 9), (80, 24), (1000, 1)] {
        let _ = text(&screen_of(64), size);
    }
}

#[test]
fn no_number_is_cut() {
    let of = |count: u64| {
        let mut answer = answer(4, 1);
        answer.drops = counts(&[("ip_csum", count)]);
        answer.xdp.counts = counts(&[("hits", count)]);
        let mut screen = screen(1);
        screen.rates = Some(Rates::between(&answer, &answer));
        screen
    };
    let counts = [9_999_999, 10_000_000, 987_654_321, 987_654_321_012, 9_876_543_210_123, u64::MAX];
    for (count, shown) in counts.into_iter().zip([
        "9,999,999",
        "10,000,000",
        "987,654,321",
        "987,654,321,012",
        "9.88T",
        "18446744T",
    ]) {
        let text = text(&of(count), (80, 24));
        assert_eq!(text.matches(shown).count(), 2, "{shown}:\n{text}");
    }
}

#[test]
fn trouble_is_shown_in_place_of_rates() {
    let trouble = "worker 1 did not answer within 1 s: it hangs".to_owned();
    let text = text(&Screen { trouble: Some(trouble.clone()), ..screen(1) }, (80, 24));
    assert!(text.contains(&trouble), "{text}");
    assert!(!text.contains("received"), "{text}");
}

#[test]
fn numbers_have_few_characters() {
    let shown: Vec<_> =
        [0.0, 0.25, 7.0, 10.0, 999.0, 999.6, 1234.0, 45_600.0, 1e6, 14_880_952.0, 1e16]
            .map(si)
            .into();
    let expected =
        ["0", "0.2", "7.0", "10", "999", "1.00k", "1.23k", "45.6k", "1.00M", "14.9M", "10000T"];
    assert_eq!(shown, expected);
}
